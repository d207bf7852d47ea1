#!/usr/bin/env python3
"""Installs a wheel into a fresh environment, as a user would, and runs a PyTorch program with it.

usage: check_wheel.py FILE.whl|FOLDER [--torch .venv/bin/python] [--compile]

What is checked:
  - the tag in the wheel's name is true for every library and program in it: no newer glibc and
    libstdc++, and nothing needed but the C library, and what PyTorch brings for the recorder;
  - the notices of others' work are there;
  - a run with no compiler and an empty home gives the exact figure, so the recorder was in the wheel.
--compile: the recorder is compiled from the wheel's own sources too, as for another PyTorch.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = """
import torch
layer = torch.nn.Linear(1024, 1024, bias=False, device='cuda')
layer(torch.zeros(256, 1024, device='cuda')).sum().backward()
print('peak', torch.cuda.max_memory_allocated())
"""
# Part of every Linux system, or of the process that the recorder enters.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
PYTORCH = {"libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1"}
NEWEST = {"GLIBC": (2, 31), "GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)}


def numbers(text):
    return tuple(int(n) for n in text.split("."))


def check_binary(path):
    faults = []
    text = subprocess.run(["objdump", "-p", "-T", path], capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED\s+(\S+)", text))
    allowed = SYSTEM | (PYTORCH if "libtonnage_torch" in path.name else set())
    faults += [f"{path.name}: needs {name}" for name in sorted(needed - allowed)]
    versions = re.findall(r"\*UND\*.*?\b(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\)?\s+(\S+)", text)
    for kind, version, symbol in versions:
        if numbers(version) > NEWEST[kind]:
            faults.append(f"{path.name}: needs {symbol} of {kind}_{version}")
    return faults


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n"
                 f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, default=ROOT / ".venv/bin/python")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    wheel = args.wheel
    if wheel.is_dir():
        found = sorted(wheel.glob("tonnage-*.whl"), key=lambda p: p.stat().st_mtime)
        if not found:
            sys.exit(f"{wheel}: no wheel of Tonnage; run make wheel")
        wheel = found[-1]
    names = zipfile.ZipFile(wheel).namelist()
    faults = [f"{wheel.name}: no {part}" for part in ("third_party/NOTICE.md", "LICENSE")
              if not any(part in name for name in names)]
    torch = args.torch.absolute()  # not resolved: the link is what makes it an environment
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run([sys.executable, "-m", "venv", folder / "venv"])
        run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-index",
             "--disable-pip-version-check", wheel])
        dist = next(folder.glob("venv/lib/python3*/site-packages/tonnage/dist"))
        binaries = [p for p in dist.rglob("*") if p.is_file() and not p.is_symlink()
                    and p.read_bytes()[:4] == b"\x7fELF"]
        for path in binaries:
            faults += check_binary(path)
        guests = [p for p in binaries if p.name.startswith(("libcuda", "libnvidia-ml"))]
        done = subprocess.run([sys.executable, ROOT / "tools/check_guest_libraries.py", *guests],
                              capture_output=True, text=True)
        faults += (done.stdout + done.stderr).splitlines() if done.returncode else []
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "CXX": "/bin/false",
                       "OMP_NUM_THREADS": "2"}
        tonnage, report = folder / "venv/bin/tonnage", folder / "report.json"
        out = run([tonnage, "run", "--gpu", "RTX 3060", "--json", "--output", report, "--", torch,
                   "-c", PROGRAM], env=environment)
        peak = int(re.search(r"peak (\d+)", out).group(1))
        device = json.loads(report.read_text())["devices"][0]
        if device["peak_allocated"]["bytes"] != peak:
            faults.append(f"peak {device['peak_allocated']} in the report, {peak} for PyTorch")
        categories = json.dumps(device)
        if '"parameters"' not in categories and '"parameter"' not in categories:
            faults.append("no parameters in the report: the recorder was not loaded")
        if args.compile:
            root = run([torch, "-c", "import torch; print(torch.__path__[0])"]).strip()
            del environment["CXX"]
            run([tonnage, "recorder", "--build", root, "--output", folder / "made", "--force"],
                env=environment)
    for fault in faults:
        print(fault)
    megabytes = os.path.getsize(wheel) / 1e6
    print(f"{wheel.name}: {megabytes:.1f} MB, {len(binaries)} libraries and programs, "
          + (f"{len(faults)} faults" if faults else "installs, runs, and its tag is true"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
