#!/usr/bin/env python3
"""Writes a C++ file that holds the files of data/cards: embed_cards.py OUT.cpp FILE.json..."""
import json
import os
import sys

CHUNK = 8000  # bytes; compilers limit the length of one literal


def literal(text):
    data = text.encode()
    lines = []
    for start in range(0, len(data), CHUNK):
        chunk = data[start:start + CHUNK]
        escaped = "".join(
            "\\\\" if b == 0x5C else '\\"' if b == 0x22 else "\\n" if b == 0x0A
            else chr(b) if 0x20 <= b < 0x7F else "\\%03o" % b
            for b in chunk)
        lines.append('    "%s"' % escaped.replace("??", "?\\?"))
    return "\n".join(lines) or '    ""'


def main():
    out, files = sys.argv[1], sorted(sys.argv[2:], key=os.path.basename)
    parts = ['// Made by tools/embed_cards.py.\n#include "cards/embedded.h"\n',
             "namespace tonnage::cards {\nnamespace {\n\nconstexpr EmbeddedFile kFiles[] = {"]
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            json.loads(text)
        except ValueError as error:
            sys.exit("%s: not JSON: %s" % (path, error))
        parts.append('  {"%s", std::string_view(\n%s, %d)},' % (os.path.basename(path), literal(text), len(text.encode())))
    parts.append("};\n\n}  // namespace\n")
    parts.append("std::span<const EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace tonnage::cards\n")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()
