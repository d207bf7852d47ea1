#!/usr/bin/env python3
"""Writes a C++ file with one string per file: embed_files.py OUT.cpp HEADER NAMESPACE FUNCTION=FILE[,FILE...]..."""
import os
import sys

CHUNK = 8000  # bytes; compilers limit the length of one literal


def literal(data):
    lines = []
    for start in range(0, len(data), CHUNK):
        escaped = "".join(
            "\\\\" if b == 0x5C else '\\"' if b == 0x22 else "\\n" if b == 0x0A
            else chr(b) if 0x20 <= b < 0x7F else "\\%03o" % b
            for b in data[start:start + CHUNK])
        lines.append('      "%s"' % escaped.replace("??", "?\\?"))
    return "\n".join(lines) or '      ""'


def main():
    out, header, namespace = sys.argv[1:4]
    parts = ['// Made by tools/embed_files.py.\n#include "%s"\n\nnamespace %s {\n' % (header, namespace)]
    for argument in sys.argv[4:]:
        function, paths = argument.split("=", 1)
        data = b""
        for path in paths.split(","):
            with open(path, "rb") as file:
                data += file.read()
        parts.append("std::string_view %s() {\n  static constexpr std::string_view kText(\n%s, %d);\n  return kText;\n}\n"
                     % (function, literal(data), len(data)))
    parts.append("}  // namespace %s\n" % namespace)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()
