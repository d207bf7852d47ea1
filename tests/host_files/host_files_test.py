#!/usr/bin/env python3
"""Programs of a run see the files of an NVIDIA driver, in every way that a program can look; others do not.

usage: host_files_test.py TONNAGE COMPILER      (of C)
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TONNAGE, COMPILER = sys.argv[1:3]
HERE = Path(__file__).resolve().parent
WAYS = "stat lstat fstatat statx xstat lxstat access eaccess faccessat open open64 openat fopen fopen64 getxattr".split()
SEEN = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/proc/driver/nvidia/version"]
FOLDERS = ["/proc/driver/nvidia", "/proc/driver/nvidia/gpus"]
# A third card, names that only begin like these, and paths that are none.
NOT_SEEN = ["/dev/nvidia2", "/dev/nvidia0/x", "/dev/nvidiafs", "/proc/driver/nvidia-fs", "/proc/driver/nvidia/none", "dev/nvidia0", ""]
OTHERS = ["/dev/null", "/proc/self/status", str(HERE), "/nothing/there"]


def output(command, **environment):
    done = subprocess.run(command, env=dict(os.environ, TONNAGE_KEEP_RUNS="0", **environment), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


def ways(text):
    return {name: found.split() for name, found in re.findall(r"^(.*?):(.*)$", text, re.M)}


def run(*command, **environment):
    return output([TONNAGE, "run", "--quiet", "--gpu", "h200x2", "--", *command], **environment)


def build(folder, name, *options):
    program = folder / name
    done = subprocess.run([COMPILER, *options, HERE / "look.c", "-o", program, "-ldl"], capture_output=True, text=True)
    return program if done.returncode == 0 else None  # no sanitizer on this machine


def check_ways(look):
    alone = ways(output([look, *SEEN, *FOLDERS, *NOT_SEEN, *OTHERS]))
    here = ways(run(look, *SEEN, *FOLDERS, *NOT_SEEN, *OTHERS))
    for path in SEEN:
        assert here[path] == WAYS, (path, here[path])
    for path in FOLDERS:
        assert set(here[path]) >= {"stat", "access", "opendir"} and "errno" not in here[path], (path, here[path])
    for path in NOT_SEEN + OTHERS:  # as without us
        assert here[path] == alone[path], (path, here[path], alone[path])


def check_contents():
    text = run("sh", "-c", "cat /proc/driver/nvidia/version; ls /proc/driver/nvidia/gpus; cat /proc/driver/nvidia/gpus/*/information; ls -l /dev/nvidia0")
    assert re.search(r"^NVRM version: .*Kernel Module  \d+\.\d+", text), text
    assert text.count("Model: \t\t NVIDIA H200") == 2 and "Device Minor: \t 1" in text, text
    assert len(re.findall(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0$", text, re.M)) == 2, text
    assert re.search(r"^c.* /dev/nvidia0$", text, re.M), text


def check_environment(folder):
    """What the user preloads stays first; a sanitizer's options stay, too."""
    empty = folder / "empty.c"
    empty.write_text("int tonnage_test_empty;\n")
    library = folder / "empty.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", empty, "-o", library], check=True)
    text = run("sh", "-c", "echo $LD_PRELOAD; echo $ASAN_OPTIONS", LD_PRELOAD=str(library), ASAN_OPTIONS="detect_leaks=0")
    first, second = text.splitlines()
    assert first.startswith(f"{library}:") and first.endswith("/libtonnage_files.so"), first
    assert second == "detect_leaks=0:verify_asan_link_order=0", second
    assert run("sh", "-c", "echo $ASAN_OPTIONS", ASAN_OPTIONS="verify_asan_link_order=1") == "verify_asan_link_order=1\n"


def main():
    if Path("/dev/nvidiactl").exists():
        print("this machine has a driver's files of its own: nothing to check")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_ways(build(folder, "look"))
        for sanitizer in ("address", "thread", "undefined"):
            if program := build(folder, sanitizer, f"-fsanitize={sanitizer}"):
                check_ways(program)
        check_contents()
        check_environment(folder)


if __name__ == "__main__":
    main()
