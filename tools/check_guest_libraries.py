#!/usr/bin/env python3
"""Checks the libraries that enter other people's processes, as they were built.

usage: check_guest_libraries.py [--stripped] LIBRARY… | --recorders FOLDER

--stripped: as they are in a package, without a symbol table; what they destroy is not looked at.
--recorders: the recorders in this folder that this source tree's driver loads; exit code 77 if there is none.

Each library
  - exports only what its name promises (libcuda.so.1: cu…, libnvidia-ml.so.1: nvml…, a recorder: its start function);
  - has no static object with a destructor and no thread-local one: threads of the host still call in while it exits;
  - needs no symbol of glibc newer than 2.31 (src/base/older_glibc.c says how).
Needs nm, objdump and readelf (binutils), and a library with its symbol table.
"""
import re
import subprocess
import sys
from pathlib import Path

NEWEST_GLIBC = (2, 31)
EXPORTS = {
    "libcuda.so": re.compile(r"cu[A-Z]\w*"),
    "libnvidia-ml.so": re.compile(r"nvml[A-Z]\w*"),
    "libtonnage_torch": re.compile(r"tonnage_\w+"),
    "libtonnage_python": re.compile(r"tonnage_python_\w+"),
    "libtonnage_files": re.compile(r"(__[fl]?x)?(__)?l?f?stat(at)?(64)?|statx|e?access|euidaccess|faccessat|(__)?open(at)?(64)?(_2)?|fopen(64)?|opendir|l?getxattr"),
}
# Weak symbols that every C++ library with templates of other libraries exports; the recorder is linked to PyTorch's.
WEAK_ALLOWED = ("libtonnage_torch",)
# A call of the C library's function (with an @: imported). The recorder has a function of that name of its own, which registers nothing.
REGISTER = re.compile(r"\b(?:call|jmp)\w*\s.*<(__cxa_atexit|__cxa_thread_atexit|__cxa_thread_atexit_impl)@[\w.]+>")
# Who may register something: `atexit` itself (a function is registered, not an object), and what libstdc++ brings: its own
# sources end in .cc, this project's in .cpp.
REGISTRARS = re.compile(r"atexit|_GLOBAL__sub_I_\w+\.cc|_ZN?K?St.*|_ZN9__gnu_cxx.*")
# What may run when the library goes: the compiler's own, and the function that writes the record's last chunk.
FINAL = re.compile(r"__do_global_dtors_aux|.*finish_at_exit.*")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kind_of(library):
    return next((name for name in EXPORTS if Path(library).name.startswith(name)), None)


def check_exports(library):
    kind = kind_of(library)
    if kind is None:
        return [f"no rule for this name; known are {', '.join(EXPORTS)}"]
    found = []
    for line in run("nm", "-D", "--defined-only", library).splitlines():
        what, name = line.split()[-2:]
        name = name.split("@")[0]
        weak = what in "WVuwv" and kind in WEAK_ALLOWED
        if not weak and not EXPORTS[kind].fullmatch(name):
            found.append(f"exports {name}")
    return found


def check_destructors(library):
    found, function = [], "?"
    for line in run("objdump", "-d", "--no-show-raw-insn", library).splitlines():
        start = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if start:
            function = start.group(1)
            continue
        call = REGISTER.search(line)
        if not call or re.match(r"__cxa_\w+@plt$", function):
            continue
        if call.group(1) != "__cxa_atexit":
            found.append(f"{function} registers a destructor of a thread-local object")
        elif not REGISTRARS.fullmatch(function):
            found.append(f"{function} registers a destructor of a static object")
    return found


def check_final_functions(library):
    names = {}
    for line in run("nm", library).splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] in "tTwW":
            names[int(parts[0], 16)] = parts[2]
    if not names:
        return ["has no symbol table: what runs when it goes cannot be checked"]
    section = re.search(r"\.fini_array\s+FINI_ARRAY\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)", run("readelf", "-SW", library))
    if not section:
        return []
    begin = int(section.group(1), 16)
    end = begin + int(section.group(2), 16)
    found = []
    for place, target in re.findall(r"^([0-9a-f]+)\s+\S+\s+R_\w+_RELATIVE\s+([0-9a-f]+)", run("readelf", "-rW", library), re.M):
        if begin <= int(place, 16) < end:
            name = names.get(int(target, 16), f"the function at 0x{target}")
            if not FINAL.fullmatch(name):
                found.append(f"{name} runs when the library goes (.fini_array)")
    return found


def check_glibc(library):
    found = []
    for line in run("objdump", "-T", library).splitlines():
        need = re.search(r"\*UND\*.*GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?\s+(\S+)", line)
        if need and (int(need.group(1)), int(need.group(2))) > NEWEST_GLIBC:
            found.append(f"needs {need.group(3)} of glibc {need.group(1)}.{need.group(2)}")
    return found


def check(library, stripped):
    parts = (check_exports, check_glibc) if stripped else (check_exports, check_destructors, check_final_functions, check_glibc)
    return [fault for part in parts for fault in part(library)]


def recorders_in(folder):
    key = (Path(__file__).resolve().parents[1] / "src/abi/recorder_key.h").read_text()
    interface = re.search(r"kRecorderInterface = (\d+)", key).group(1)
    return sorted(str(path) for path in Path(folder).glob(f"libtonnage_torch-*-i{interface}.so"))


def main():
    libraries = sys.argv[1:]
    if libraries[:1] == ["--recorders"] and len(libraries) == 2:
        libraries = recorders_in(libraries[1])
        if not libraries:
            print(f"no recorder in {sys.argv[2]}: make recorder")
            sys.exit(77)
    stripped = libraries[:1] == ["--stripped"]
    if not libraries[stripped:]:
        sys.exit(__doc__)
    bad = 0
    for library in libraries[stripped:]:
        faults = check(library, stripped)
        bad += len(faults)
        for fault in faults[:20]:
            print(f"{library}: {fault}")
        if len(faults) > 20:
            print(f"{library}: and {len(faults) - 20} more")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
