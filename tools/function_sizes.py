#!/usr/bin/env python3
"""Length and complexity of the C++ functions in files that clang-format has laid out.

usage: function_sizes.py [--most N] [FILE…]

Complexity is 1 and one more for each if, for, while, catch, &&, ||, ?: and switch (a flat switch is
easy to read, however many cases it has). A lambda counts with the function that it stands in.
Without FILE: all of src and toolkit. The N largest are printed (--most, 20).
"""
import argparse
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
Function = collections.namedtuple("Function", "name line lines complexity")
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"""
    r""""(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'""", re.S)
TEMPLATE = re.compile(r"^\s*template\s*<[^{;]*?>\s*(?=\w)", re.S)
SCOPE = re.compile(r"^\s*(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b")
NAME = re.compile(r"([~\w:]+|operator\S+)\s*\(")
BRANCH = re.compile(r"\b(?:if|for|while|catch|switch)\b|&&|\|\||(?<!\?)\?(?!\?)")


def without_comments(text):
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def indent(line):
    return len(line) - len(line.lstrip())


def is_function(header):
    """Whether the text before a "{" is a function's head, and not a scope's or a value's."""
    return not SCOPE.match(header) and "(" in header and not header.rstrip().endswith(("=", ","))


def functions_of(text):
    lines = without_comments(text).split("\n")
    at, head = 0, 0
    while at < len(lines):
        line = lines[at].rstrip()
        if not line or line.endswith((";", "}", ":")) or line.startswith("#"):
            at += 1
            head = at
            continue
        if not line.endswith("{"):
            at += 1
            continue
        header = TEMPLATE.sub("", "\n".join(lines[head:at + 1])[:-1])
        end = at
        if not SCOPE.match(header):
            closing = " " * indent(lines[head]) + "}"
            end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith(closing)), at)
            if is_function(header):
                body = "\n".join(lines[head:end + 1])
                named = NAME.search(header)
                yield Function(named.group(1) if named else "?", head + 1, end - head + 1,
                               1 + len(BRANCH.findall(body)))
        at = end + 1
        head = at


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    files = args.files or sorted(path for room in ("src", "toolkit")
                                 for path in (ROOT / room).rglob("*")
                                 if path.suffix in (".h", ".cpp"))
    found = [(path, f) for path in files for f in functions_of(path.read_text(encoding="utf-8"))]
    for what in ("lines", "complexity"):
        print(f"{len(found)} functions; most {what}:")
        found.sort(key=lambda item: -getattr(item[1], what))
        for path, function in found[:args.most]:
            print(f"{getattr(function, what):5} {path}:{function.line} {function.name}")


if __name__ == "__main__":
    main()
