#!/usr/bin/env python3
"""Checks that every #include "..." under src/ follows tools/rooms.json, and that docs/tour.md shows its table.

usage: check_includes.py [--write]      --write: puts the table into docs/tour.md, between its two markers
Exit code 1 and a line for each violation: file, line, what it includes, what to do.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = json.loads((ROOT / "tools/rooms.json").read_text())
BEGIN, END = "<!-- rooms: made by tools/check_includes.py --write -->", "<!-- end of rooms -->"
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
# Only the recorder may know PyTorch. These are folders and files of its packages.
PYTORCH = ("ATen/", "c10/", "torch/")


def violations(src, rules):
    """(file, line number, included path, reason) for each include that the rules do not allow."""
    rooms, folders = rules["rooms"], rules.get("folders", {})
    for path in sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cpp")):
        inside = path.relative_to(src)
        room = inside.parts[0]
        if room not in rooms:
            yield path, 0, "", f"src/{room} is not a room of tools/rooms.json"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            quoted, target = found.group(1) == '"', found.group(2)
            if target.startswith(PYTORCH) and room != "recorder":
                yield path, number, target, "only src/recorder may include PyTorch's headers"
            if not quoted or target in rooms[room].get("may_use_external", []):
                continue
            other = target.split("/")[0]
            if "/" not in target or other not in rooms:
                if not (path.parent / target).exists() and target.split("/")[0] not in rooms:
                    yield path, number, target, "name the file from src/ on, as room/file.h"
            elif other != room and other not in rooms[room]["may_use"]:
                yield path, number, target, f"{room} may use: {', '.join(rooms[room]['may_use']) or 'nothing'}"
            for folder, rule in folders.items():
                if str(inside).startswith(folder + "/"):
                    for forbidden in rule["may_not_use"]:
                        if target.startswith(forbidden + "/"):
                            yield path, number, target, f"{folder} may not use {forbidden}"


def table(rules):
    lines = ["| room | job | may use |", "|---|---|---|"]
    for name, room in rules["rooms"].items():
        uses = ", ".join(room["may_use"]) or "nothing"
        lines.append(f"| `src/{name}` | {room['job']} | {uses} |")
    return "\n".join(lines)


def main():
    bad = 0
    for path, number, target, reason in violations(ROOT / "src", RULES):
        where = f"{path.relative_to(ROOT)}:{number}"
        print(f'{where}: includes "{target}": {reason}' if target else f"{where}: {reason}")
        bad = 1
    tour = ROOT / "docs/tour.md"
    text = tour.read_text()
    if BEGIN not in text or END not in text:
        print("docs/tour.md: the two markers of the table of rooms are missing")
        return 1
    wanted = text.split(BEGIN)[0] + BEGIN + "\n" + table(RULES) + "\n" + END + text.split(END, 1)[1]
    if wanted != text:
        if "--write" in sys.argv[1:]:
            tour.write_text(wanted)
        else:
            print("docs/tour.md: its table of rooms is not that of tools/rooms.json; run tools/check_includes.py --write")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
