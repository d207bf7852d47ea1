#!/usr/bin/env python3
"""tools/check_guest_libraries.py finds each kind of fault in a library that has it, and none in one that has not."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = sys.argv[1] if len(sys.argv) > 1 else "c++"
OBJECT = "struct Object { ~Object() { count++; } static int count; }; int Object::count = 0;\n"
ENTRY = 'extern "C" int cuFunction() { return 0; }\n'

FAULTS = {  # what is wrong: the code, and what the check says of it
    "nothing": (ENTRY, None),
    "a function registered with atexit": ('#include <stdlib.h>\nstatic void last() {}\nextern "C" int cuFunction() { return atexit(last); }\n', None),
    "another export": (ENTRY + 'extern "C" int helper() { return 0; }\n', "exports helper"),
    "a static object": (OBJECT + "static Object object;\n" + ENTRY, "destructor of a static object"),
    "a static object in a function": (OBJECT + 'extern "C" int cuFunction() { static Object object; return object.count; }\n',
                                      "cuFunction registers a destructor of a static object"),
    "a static object whose registration goes nowhere": (
        'extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*, void*) noexcept { return 0; }\n'
        + OBJECT + 'extern "C" int cuFunction() { static Object object; return object.count; }\n', None),
    "a thread-local object": (OBJECT + 'extern "C" int cuFunction() { thread_local Object object; return object.count; }\n',
                              "destructor of a thread-local object"),
    "a function that runs at the end": (ENTRY + "volatile int ended;\n__attribute__((destructor)) static void last() { ended = 1; }\n", "runs when the library goes"),
    "a newer glibc": ('extern "C" int newer();\n__asm__(".symver newer,_dl_find_object@GLIBC_2.35");\n'
                      'extern "C" int cuFunction() { return newer(); }\n', "needs _dl_find_object of glibc 2.35"),
}


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "libcuda.so.1"
        for what, (code, expected) in FAULTS.items():
            source = pathlib.Path(folder) / "library.cpp"
            source.write_text(code)
            built = subprocess.run([COMPILER, "-O1", "-fPIC", "-shared", "-fvisibility-inlines-hidden", "-o", library, source],
                                   capture_output=True, text=True)
            if built.returncode and "GLIBC" in built.stderr:
                print(f"skipped: {what}: this machine's glibc has no newer function")
                continue
            assert built.returncode == 0, built.stderr
            done = subprocess.run([sys.executable, ROOT / "tools/check_guest_libraries.py", library], capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if "exports _ZN" not in line and "exports ended" not in line]
            right = (not lines) if expected is None else any(expected in line for line in lines) and done.returncode == 1
            failed += not right
            print(f"{'ok' if right else 'FAILED'}: {what}: {lines or 'no fault'} {done.stderr}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
