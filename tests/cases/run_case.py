#!/usr/bin/env python3
"""Runs cases that are data. One case is one folder here:

    NAME/input*   what the command reads: logs, snapshots, records
    NAME/command  optional: the arguments after `tonnage`, one line. Default: explain --brief input*
    NAME/expect   what must come out, one statement a line (README.md)
    NAME/output   optional: the whole output, to the letter
    NAME/table    instead of input and expect: many messages, each with what must come out

    run_case.py --tonnage build/bin/tonnage [NAME...]     runs them (all, without a name)
    run_case.py --tonnage build/bin/tonnage --rebase NAME writes what comes out into expect and output
    run_case.py --tonnage build/bin/tonnage --show NAME   prints what comes out
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_S = 120


class Run:
    """One command, run at most once as text and at most once as JSON."""

    def __init__(self, tonnage, folder, arguments):
        self.tonnage, self.folder, self.arguments = tonnage, folder, arguments
        self._text, self._json, self.exit_code = None, None, None

    def _call(self, extra):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TONNAGE_")}
        environment.update(NO_COLOR="1", COLUMNS="100", LC_ALL="C.UTF-8", TZ="UTC")
        done = subprocess.run([self.tonnage, *self.arguments, *extra], cwd=self.folder,
                              env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=TIMEOUT_S)
        self.exit_code = done.returncode
        return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    def text(self):
        if self._text is None:
            out, err = self._call([])
            self._text = out + err
        return self._text

    def words(self):
        """All on one line: where the text was wrapped does not matter."""
        return " ".join(self.text().split())

    def value(self, path):
        if self._json is None:
            out, err = self._call([] if "--json" in self.arguments else ["--json"])
            try:
                self._json = json.loads(out)
            except ValueError:
                raise Failed(f"no JSON came out: {(out + err)[:300]!r}")
        return look_up(self._json, path)


class Failed(Exception):
    pass


def look_up(value, path):
    """explanations[0].findings[*].cause: [*] gives a list, [-1] the last one, .length a number."""
    steps = re.findall(r"[^.\[\]]+|\[[^\]]*\]", path)
    for at, step in enumerate(steps):
        if value is None:
            return None
        if step == "[*]":
            rest = re.sub(r"^\.", "", "".join(
                s if s.startswith("[") else "." + s for s in steps[at + 1:]))
            return [look_up(item, rest) if rest else item for item in value]
        if step == "length" and isinstance(value, list):
            return len(value)
        if step.startswith("["):
            index = int(step[1:-1])
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


SHORT = {"f0.": "explanations[0].findings[0].", "m0.": "explanations[0].failures[0].message.",
         "e0.": "explanations[0]."}


def full_path(path):
    for short, full in SHORT.items():
        if path.startswith(short):
            return full + path[len(short):]
    return path


JSON_LINE = re.compile(r"^json\s+(\S+)\s+(=|!=|>=|<=|~|has|lacks)\s+(.*)$")


def holds(run, line):
    """None if the statement holds, else what is wrong."""
    if line.startswith("exit "):
        run.text()
        wanted = int(line[5:])
        return None if run.exit_code == wanted else f"exit code {run.exit_code}"
    if line.startswith("+ "):
        return None if " ".join(line[2:].split()) in run.words() else "does not occur"
    if line.startswith("- "):
        return "occurs" if " ".join(line[2:].split()) in run.words() else None
    if line.startswith("~ "):
        return None if re.search(line[2:], run.words()) else "does not match"
    if line.startswith("| "):
        return None if line[2:] in run.text().splitlines() else "no such line"
    match = JSON_LINE.match(line)
    if not match:
        return "is no statement that this runner knows"
    path, operator, text = match.groups()
    value = run.value(full_path(path))
    wanted = text if operator == "~" else json.loads(text)
    good = {"=": lambda: value == wanted, "!=": lambda: value != wanted,
            ">=": lambda: value is not None and value >= wanted,
            "<=": lambda: value is not None and value <= wanted,
            "~": lambda: re.search(wanted, value if isinstance(value, str) else json.dumps(value)),
            "has": lambda: wanted in (value or []),
            "lacks": lambda: wanted not in (value or [])}[operator]()
    return None if good else f"is {json.dumps(value)[:400]}"


def rebased(run, line):
    match = JSON_LINE.match(line)
    if match and match.group(2) == "=":
        value = json.dumps(run.value(full_path(match.group(1))), ensure_ascii=False)
        return f"json {match.group(1)} = {value}"
    if line.startswith("exit "):
        run.text()
        return f"exit {run.exit_code}"
    return line


def statements(lines):
    return [(n, line.rstrip("\n")) for n, line in enumerate(lines, 1)
            if line.strip() and not line.startswith("#")]


def arguments_of(folder, temporary):
    command = folder / "command"
    if command.exists():
        text = command.read_text().strip().replace("{tmp}", temporary)
        return shlex.split(text)
    inputs = sorted(p.name for p in folder.iterdir() if p.name.startswith("input"))
    return ["explain", "--brief", *inputs]


def table_rows(text):
    """(line number, message, statements): rows are separated by lines of dashes."""
    message, wanted, first = [], [], 1
    for number, line in enumerate(text.splitlines(), 1):
        if re.fullmatch(r"-{5,}", line):
            if message:
                yield first, "\n".join(message) + "\n", wanted
            message, wanted, first = [], [], number + 1
        elif line.startswith("=> "):
            wanted.append((number, line[3:]))
        elif not line.startswith("# ") or message:
            message.append(line)
    if message and wanted:
        yield first, "\n".join(message) + "\n", wanted


def run_table(tonnage, folder, temporary):
    problems = []
    for first, message, wanted in table_rows((folder / "table").read_text()):
        path = pathlib.Path(temporary) / "input.log"
        path.write_text(message)
        run = Run(tonnage, temporary, ["explain", "--brief", "input.log"])
        for number, line in wanted:
            problem = check(run, line)
            if problem:
                problems.append(f"{folder.name}/table:{number}: {line}\n    {problem}\n"
                                f"    message: {message[:200]!r}")
    return problems


def check(run, line):
    try:
        return holds(run, line)
    except (Failed, ValueError, KeyError, IndexError, TypeError,
            subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"


def run_case(tonnage, folder, temporary, rebase, show):
    if (folder / "table").exists():
        return run_table(tonnage, folder, temporary)
    run = Run(tonnage, folder, arguments_of(folder, temporary))
    if show:
        print(run.text(), end="")
        return []
    expect, output = folder / "expect", folder / "output"
    lines = expect.read_text().splitlines(keepends=True) if expect.exists() else []
    if rebase:
        if lines:
            expect.write_text("".join(
                line if not line.strip() or line.startswith("#")
                else rebased(run, line.rstrip("\n")) + "\n" for line in lines))
        if output.exists():
            output.write_text(run.text())
        lines = expect.read_text().splitlines() if expect.exists() else []
    problems = []
    for number, line in statements(lines):
        problem = check(run, line)
        if problem:
            problems.append(f"{folder.name}/expect:{number}: {line}\n    {problem}")
    if output.exists() and output.read_text() != run.text():
        problems.append(f"{folder.name}/output: differs (--show prints it, --rebase writes it)")
    if not lines and not output.exists():
        problems.append(f"{folder.name}: nothing is expected")
    if problems:
        problems.append(f"    what came out:\n{run.text()[:3000]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tonnage", required=True)
    parser.add_argument("--rebase", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or sorted(p.name for p in HERE.iterdir() if p.is_dir()
                                    and not p.name.startswith("_"))
    tonnage = os.path.abspath(options.tonnage)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="tonnage-case-") as temporary:
            problems = run_case(tonnage, HERE / name, temporary, options.rebase, options.show)
        if problems:
            failed += 1
            print("\n".join(problems))
    if not options.show:
        print(f"{len(names) - failed} of {len(names)} cases hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
