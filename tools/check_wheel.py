#!/usr/bin/env python3
"""Checks a wheel of Tonnage: what is in it, and that it works where a user installs it.

usage: check_wheel.py FILE.whl|FOLDER [--contents] [--torch .venv/bin/python] [--compile]

Of the contents:
  - everything that a run needs is there, the notices of others' work too, and no left-overs;
  - the version is the one of CMakeLists.txt;
  - the tag in the wheel's name is true for every library and program: no newer glibc and libstdc++,
    and nothing needed but the C library, and what PyTorch brings for the recorder;
  - what enters other people's processes exports only its own names (check_guest_libraries.py; what
    it destroys is seen in the build, ctest guest_libraries).
Then, in a fresh environment that sees the PyTorch of --torch, with an empty home and no compiler:
  - a training gives PyTorch's own peak to the byte, with parameters (so the recorder was there);
  - the record is read again, and `tonnage explain` reads a memory snapshot;
  - without the recorder the training runs all the same, and the report says why there is none.
--contents: only the contents. --compile: the recorder is compiled from the wheel's own sources too,
as for another PyTorch.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAINING = """
import torch
torch.cuda.memory._record_memory_history(stacks='python')  # others need addr2line
layer = torch.nn.Linear(1024, 1024, bias=False, device='cuda')
optimizer = torch.optim.Adam(layer.parameters())
for step in range(3):
    layer(torch.zeros(256, 1024, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot('snapshot.pickle')
print('peak', torch.cuda.max_memory_allocated())
"""
# What a run needs, below tonnage/dist.
NEEDED = (
    "bin/tonnage",
    "lib/tonnage/vgpu/libcuda.so.1",
    "lib/tonnage/vgpu/libcuda.so",
    "lib/tonnage/vgpu/libnvidia-ml.so.1",
    "lib/tonnage/vgpu/libtonnage_python.so.1",
    "lib/tonnage/passthrough/libcuda.so.1",
    "lib/tonnage/host_files/libtonnage_files.so",
    "share/tonnage/python/tonnage/inject/sitecustomize.py",
    "share/tonnage/recorder_src/recorder/unity.cpp",
    "share/tonnage/recorder_src/abi/bridge.h",
    "share/tonnage/recorder_src/base/older_glibc.c",
    "share/tonnage/recorder_src/base/older_libstdcxx.S",
    "share/tonnage/toolkit_src/cuda_names/cuda_runtime_api.h",
    "share/doc/tonnage/LICENSE",
    "share/doc/tonnage/third_party/NOTICE.md",
)
LEFT_OVER = re.compile(r"__pycache__|\.(lock|log|o|a|made|pyc)$")
# Part of every Linux system, or of the process that the recorder enters.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
PYTORCH = {"libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1"}
NEWEST = {"GLIBC": (2, 31), "GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)}
GUESTS = ("libcuda.so.1", "libnvidia-ml.so.1", "libtonnage_")


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n"
                 f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


# --- Contents ---

def check_names(wheel, names):
    project = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(tonnage VERSION ([0-9.]+)", project)
    faults = [] if wheel.name.startswith(f"tonnage-{version.group(1)}-") else \
        [f"{wheel.name}: the version is {version.group(1)}"]
    faults += [f"no {name}" for name in NEEDED if f"tonnage/dist/{name}" not in names]
    pinned = re.search(r"^torch==(.+)$", (ROOT / "requirements.txt").read_text(), re.M).group(1)
    recorders = [n for n in names if "/lib/tonnage/recorder/libtonnage_torch-" in n]
    if not any(f"libtonnage_torch-{pinned}+" in n for n in recorders):
        faults.append(f"no recorder for PyTorch {pinned}")
    faults += [f"a left-over: {name}" for name in names if LEFT_OVER.search(name)]
    return faults


def numbers(text):
    return tuple(int(n) for n in text.split("."))


def check_binary(path):
    faults = []
    text = run(["objdump", "-p", "-T", path])
    allowed = SYSTEM | (PYTORCH if path.name.startswith("libtonnage_torch") else set())
    needed = set(re.findall(r"NEEDED\s+(\S+)", text))
    full_name = path.with_name(path.name + ".1")
    if full_name.exists():  # libcuda.so beside libcuda.so.1: a copy would be a second driver
        allowed = {full_name.name}
        if needed != allowed:
            faults.append(f"{path.name}: does not need {full_name.name} alone")
    faults += [f"{path.name}: needs {name}" for name in sorted(needed - allowed)]
    versions = re.findall(r"\*UND\*.*?\b(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\)?\s+(\S+)", text)
    for kind, version, symbol in versions:
        if numbers(version) > NEWEST[kind]:
            faults.append(f"{path.name}: needs {symbol} of {kind}_{version}")
    return faults


def check_guests(paths):
    done = subprocess.run([sys.executable, ROOT / "tools/check_guest_libraries.py", "--stripped",
                           *paths], capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines() if done.returncode else []


def check_contents(wheel, folder):
    """The faults of the contents, which are unpacked into the folder; how many binaries it has."""
    with zipfile.ZipFile(wheel) as archive:
        faults = check_names(wheel, archive.namelist())
        archive.extractall(folder)
    binaries = [p for p in sorted(folder.rglob("*"))
                if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    for path in binaries:
        faults += check_binary(path)
    guests = [p for p in binaries if p.name.startswith(GUESTS)
              and not p.with_name(p.name + ".1").exists()]
    return faults + (check_guests(guests) if guests else ["no library in it"]), len(binaries)


# --- A user's installation ---

class Installed:
    """A fresh environment with the wheel; PyTorch is seen from another environment."""

    def __init__(self, wheel, torch, folder):
        self.folder = folder
        self.python, self.tonnage = folder / "venv/bin/python", folder / "venv/bin/tonnage"
        run([torch, "-m", "venv", folder / "venv"])
        run([self.python, "-m", "pip", "install", "--quiet", "--no-index",
             "--disable-pip-version-check", wheel])
        self.site = next(folder.glob("venv/lib/python3*/site-packages"))
        self.dist = self.site / "tonnage/dist"
        torch_site = run([torch, "-c", "import torch; print(torch.__path__[0])"]).strip()
        self.torch_root = torch_site
        (self.site / "torch_of_another.pth").write_text(str(pathlib.Path(torch_site).parent) + "\n")
        # No compiler, no home of before: a folder with the few programs that are not part of it.
        (folder / "bin").mkdir()
        for name in ("sh", "env", "uname", "ldconfig", "cat"):
            if found := shutil.which(name):
                (folder / "bin" / name).symlink_to(found)
        self.environment = {"PATH": f"{folder / 'venv/bin'}:{folder / 'bin'}",
                            "HOME": str(folder), "OMP_NUM_THREADS": "2"}

    def run(self, *command, **environment):
        return run(command, cwd=self.folder, env={**self.environment, **environment})


def check_training(installed):
    report, record = installed.folder / "report.json", installed.folder / "run.tonnage"
    out = installed.run(installed.tonnage, "run", "--gpu", "RTX 3060", "--record", record, "--json",
                        "--output", report, "--", installed.python, "-c", TRAINING)
    peak = int(re.search(r"peak (\d+)", out).group(1))
    device = json.loads(report.read_text())["devices"][0]
    faults = []
    if device["peak_allocated"]["bytes"] != peak:
        faults.append(f"peak {device['peak_allocated']['bytes']} in the report, {peak} for PyTorch")
    if not re.search(r'"parameters?"', json.dumps(device)):
        faults.append("no parameters in the report: the recorder was not loaded")
    again = json.loads(installed.run(installed.tonnage, "report", "--json", record))
    if again["devices"][0]["peak_allocated"]["bytes"] != peak:
        faults.append("`tonnage report` of the record has another peak")
    text = installed.run(installed.tonnage, "explain", "snapshot.pickle")
    if "snapshot" not in text:
        faults.append(f"`tonnage explain` of a snapshot says: {text[:200]}")
    if installed.run(installed.tonnage, "--version").split()[-1] not in str(list(
            installed.site.glob("tonnage-*.dist-info"))):
        faults.append("`tonnage --version` is not the version of the package")
    return faults


def check_without_recorder(installed):
    shutil.rmtree(installed.dist / "lib/tonnage/recorder")
    report = installed.folder / "without.json"
    installed.run(installed.tonnage, "run", "--json", "--output", report, "--", installed.python,
                  "-c", TRAINING)
    messages = " ".join(m["text"] for m in json.loads(report.read_text())["messages"])
    wanted = ("no recorder for the PyTorch", "cannot start the compiler", "apt-get install g++")
    return [f"without a compiler the report does not say: {w}" for w in wanted if w not in messages]


def check_compiling(installed):
    installed.run(installed.tonnage, "recorder", "--build", installed.torch_root, "--output",
                  installed.folder / "made", "--force", PATH=os.environ["PATH"])
    return check_guests(sorted((installed.folder / "made").glob("libtonnage_torch-*.so")))


def newest(folder):
    found = sorted(folder.glob("tonnage-*.whl"), key=lambda p: p.stat().st_mtime)
    if not found:
        sys.exit(f"{folder}: no wheel of Tonnage; run make wheel")
    return found[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, default=ROOT / ".venv/bin/python")
    parser.add_argument("--contents", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    wheel = newest(args.wheel) if args.wheel.is_dir() else args.wheel
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        faults, binaries = check_contents(wheel, folder / "unpacked")
        if not args.contents:
            # The link is not resolved: it is what makes it an environment.
            installed = Installed(wheel.absolute(), args.torch.absolute(), folder)
            faults += check_training(installed)
            if args.compile:
                faults += check_compiling(installed)
            faults += check_without_recorder(installed)
    for fault in faults:
        print(fault)
    megabytes = os.path.getsize(wheel) / 1e6
    good = "has what it needs" if args.contents else "installs, runs, and its tag is true"
    print(f"{wheel.name}: {megabytes:.1f} MB, {binaries} libraries and programs, "
          + (f"{len(faults)} faults" if faults else good))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
