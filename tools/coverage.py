#!/usr/bin/env python3
"""Which lines of src/ the unit tests ran, per room, from gcov's counters. `make coverage` calls it.

usage: coverage.py BUILD_FOLDER [--files N]

Prints a table (Markdown) of rooms, then the N files with the most lines that no test ran. The
recorder is not in it: it runs inside PyTorch only (tests/e2e).
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(counters):
    """{(file, line): whether it ran} of one object file's counters."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", str(counters)],
                          capture_output=True, text=True, cwd=counters.parent)
    seen = {}
    for document in done.stdout.splitlines():
        for file in json.loads(document)["files"]:
            path = (counters.parent / file["file"]).resolve()
            if not path.is_relative_to(ROOT / "src"):
                continue
            for line in file["lines"]:
                key = (str(path.relative_to(ROOT / "src")), line["line_number"])
                seen[key] = seen.get(key, False) or line["count"] > 0
    return seen


def table(title, rows):
    print(f"| {title} | lines | run | share |\n|---|---:|---:|---:|")
    for name, lines, ran in rows:
        print(f"| `{name}` | {lines} | {ran} | {100 * ran / max(lines, 1):.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=15)
    args = parser.parse_args()
    # Objects that no test touched have notes and no counters: their lines count too.
    notes = sorted(args.build.resolve().rglob("*.gcno"))
    if not notes:
        sys.exit(f"{args.build}: nothing was built with coverage there; run make coverage")
    seen = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for part in pool.map(lines_of, notes):
            for key, ran in part.items():
                seen[key] = seen.get(key, False) or ran
    rooms, files = collections.defaultdict(lambda: [0, 0]), collections.defaultdict(lambda: [0, 0])
    for (path, _), ran in seen.items():
        for counts in (rooms[path.split("/")[0]], files[path]):
            counts[0] += 1
            counts[1] += ran
    total = [sum(c[i] for c in rooms.values()) for i in (0, 1)]
    table("room", [(f"src/{n}", *c) for n, c in sorted(rooms.items())] + [("all", *total)])
    print()
    worst = sorted(files.items(), key=lambda item: item[1][1] - item[1][0])[:args.files]
    table("file with most lines that no test ran", [(f"src/{n}", *c) for n, c in worst])
    return 0


if __name__ == "__main__":
    sys.exit(main())
