#!/usr/bin/env python3
"""Writes the lines that repeat the categories of src/abi/categories.def in other languages, between their two markers.

usage: gen_categories.py [--check]      --check: writes nothing; exit code 1 and a line for each file that differs
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "src/abi/categories.def"
ENTRY = re.compile(r'^TONNAGE_CATEGORY\(k(\w+), (\d+), "(\w+)", "([^"]+)", (true|false),', re.MULTILINE)
BEGIN, END = "categories: made by tools/gen_categories.py", "end of categories"


def read():
    """(enumerator without its k, number, may be a label), by number."""
    entries = [(enumerator, int(number), label == "true") for enumerator, number, _, _, label in ENTRY.findall(LIST.read_text())]
    entries.sort(key=lambda entry: entry[1])
    if [number for _, number, _ in entries] != list(range(len(entries))):
        sys.exit(f"{LIST}: numbers must run from 0 without a gap")
    return entries


def python_line(enumerator, number):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enumerator).upper() + f" = {number}"


def cpp_line(enumerator, number):
    return f"k{enumerator} = {number},"


def replace_lines(text, lines):
    out, inside = [], False
    for line in text.splitlines(keepends=True):
        if END in line:
            inside = False
        if not inside:
            out.append(line)
        if BEGIN in line:
            inside = True
            indent = line[:len(line) - len(line.lstrip())]
            out += [indent + made + "\n" for made in lines]
    return "".join(out)


def main():
    labels = [(enumerator, number) for enumerator, number, label in read() if label]
    stale = 0
    for name, line in (("python/tonnage/labels.py", python_line), ("toolkit/include/tonnage/torch/recorder.h", cpp_line)):
        path = ROOT / name
        text = path.read_text()
        if BEGIN not in text:
            sys.exit(f"{name} has no line with '{BEGIN}'")
        wanted = replace_lines(text, [line(*entry) for entry in labels])
        if text == wanted:
            continue
        if "--check" in sys.argv[1:]:
            stale += 1
            print(f"{name} does not agree with src/abi/categories.def: run tools/gen_categories.py")
        else:
            path.write_text(wanted)
    return 1 if stale else 0


sys.exit(main())
