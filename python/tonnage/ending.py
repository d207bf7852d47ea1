"""How a Python process failed: what `tonnage run` says of a command that ended with an error of its own.

tell() runs at the interpreter's end. Python keeps the exception that nobody caught in sys.last_value before it prints it, so no hook of the
program's is replaced and its standard error is not touched. The answer is a small file beside the session. Nothing here may
fail the program.
"""

import json
import os
import re
import sys
import sysconfig
import time

MOST_TEXT = 500
MOST_CHAIN = 20
# Errors of libraries that had no memory: their own words for it.
NO_MEMORY = re.compile(
    r"out of memory|out_of_memory|outofmemory|alloc_failed|memoryallocation|memory allocation fail|not enough memory"
    r"|failed to allocate|unable to allocate|cannot allocate memory|resource_exhausted|insufficient_resources|bad_alloc",
    re.IGNORECASE,
)


def _qualified(kind):
    module = getattr(kind, "__module__", "")
    return (
        kind.__qualname__
        if module in ("builtins", "__main__", "", None)
        else f"{module}.{kind.__qualname__}"
    )


def _line(error):
    """One line of the message: the first, or of another process's traceback the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[
        -1 if any(line.startswith("Traceback (most recent call last)") for line in lines) else 0
    ][:MOST_TEXT]


def _installed(file):
    paths = sysconfig.get_paths()
    return (
        file.startswith("<")
        or "site-packages" in file
        or "dist-packages" in file
        or file.startswith((paths["stdlib"] + os.sep, paths["platstdlib"] + os.sep))
    )


def _places(error):
    """Lines of the traceback, innermost first."""
    places = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        places.append((code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return places[::-1]


def _chain(error):
    """The error, and those that it came from."""
    chain = []
    while error is not None and len(chain) < MOST_CHAIN and all(e is not error for e in chain):
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _says_no_memory(error):
    """MemoryError: pools of GPU memory (CuPy, RMM) raise it, or a class of theirs below it."""
    return (
        isinstance(error, MemoryError)
        or NO_MEMORY.search(type(error).__name__ + " " + str(error)[:20000]) is not None
    )


def describe(error):
    places = _places(error)
    place = next((p for p in places if not _installed(p[0])), places[0] if places else ("", 0, ""))
    chain = _chain(error)
    return {
        "pid": os.getpid(),
        "unix_ns": time.time_ns(),
        "type": _qualified(type(error))[:MOST_TEXT],
        "text": _line(error),
        "file": place[0],
        "line": place[1],
        "function": place[2],
        "memory": any(_says_no_memory(e) for e in chain),
        "interrupted": isinstance(error, KeyboardInterrupt),
    }


def tell(error, session):
    folder = os.path.dirname(session)
    path = os.path.join(folder, f"error-{os.getpid()}.json")
    with open(path + ".new", "w") as file:
        json.dump(describe(error), file)
    os.replace(path + ".new", path)
