#!/usr/bin/env python3
"""The rules that a tool can check. `make lint` runs it; exit code 1 names each fault with its place.

usage: lint.py [--build build] [--changed] [--no-tidy] [--require] [--minutes N] [--write] [FILE…]

  layout     clang-format 14 over all C++ files (.clang-format); with FILE… over these only
  includes   tools/check_includes.py
  size       no source file over 800 lines
  functions  in src: none over 100 lines, or more complex than 40 (src/recorder: 15), as
             tools/function_sizes.py counts
  width      no new line over 100 characters: tools/long_lines.json has how many each file has
  python     every Python file compiles
  docs       in every page: relative links and their headings exist, and so do the files of the
             repository that it names
  tidy       clang-tidy with the checks of .clang-tidy over all that is compiled of src, tests,
             bench and toolkit (what the build folder is configured for). What was clean and has
             not changed since is not looked at again (~/.cache/tonnage-lint). --changed: only what
             differs from the main branch. --minutes: changed files first, then others until the
             time is over.

--require: a tool that is missing is a fault. --format: clang-format -i instead of all
checks. --write: tools/long_lines.json takes today's numbers.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import function_sizes

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONG_LINES = ROOT / "tools/long_lines.json"
CPP, PYTHON = (".h", ".cpp"), (".py",)
CODE = CPP + PYTHON + (".sh", ".cmake", ".js", ".css", ".cu", ".yml")
NOT_OURS = ("third_party/", "tests/data/", "data/", "tests/cases/")
MOST_LINES, MOST_WIDTH = 800, 100
MOST_FUNCTION_LINES = 100
MOST_COMPLEXITY = {"src/recorder/": 15, "src/": 40}  # the first that fits
LONG_FILES = (
    "bench/truth/program_kinds_cases.py",  # a table
    "tools/device/answers.cpp",  # copied to other machines and compiled there alone
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(
    r"`((?:src|docs|bench|tools|tests|toolkit|data|python|examples|cmake)/[\w./*-]+)`")
NAMED_FILE = re.compile(r"`([a-z]\w*\.(?:h|cpp|py|sh))`")
NOT_IN_THE_TREE = ("cuda.h", "cudaTypedefs.h", "cuda_occupancy.h", "fatbinary_section.h", "nvml.h")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
PAGE_IN_CODE = re.compile(r"\b((?:toolkit/)?docs/[\w-]+\.md)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def tracked():
    names = git("ls-files", "--cached", "--others", "--exclude-standard")
    if not names:  # an unpacked archive
        names = [str(p.relative_to(ROOT)) for room in ("src", "tests", "toolkit", "tools", "python")
                 for p in (ROOT / room).rglob("*") if p.is_file()]
    return [n for n in names if not n.startswith(NOT_OURS) and (ROOT / n).is_file()]


def changed():
    """Files that differ from where this branch left the main branch, or from the last commit."""
    base = next((b for name in ("origin/main", "main") for b in git("merge-base", "HEAD", name)),
                "HEAD")
    if base in git("rev-parse", "HEAD"):
        base = "HEAD~1" if git("rev-parse", "--verify", "-q", "HEAD~1") else "HEAD"
    return set(git("diff", "--name-only", base)) | set(git("ls-files", "--others",
                                                           "--exclude-standard"))


def find_tool(name):
    """The path of version 14 of clang-format or clang-tidy, or None."""
    for candidate in (ROOT / ".venv-test/bin" / name, f"{name}-14", name):
        path = shutil.which(str(candidate))
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(r"version 14\.", version):
                return path
    return None


def check_layout(files, require):
    tool = find_tool("clang-format")
    if not tool:
        say = "clang-format 14 is not here: apt-get install clang-format-14, or pip install " \
              "clang-format==14.0.6"
        return [say] if require else note(say)
    faults = []
    for start in range(0, len(files), 50):
        done = subprocess.run([tool, "--dry-run", "-Werror", *files[start:start + 50]], cwd=ROOT,
                              capture_output=True, text=True)
        places = re.findall(r"^(.*?:\d+):\d+: error: ", done.stderr, re.M)
        faults += [f"{place}: layout; run make format" for place in dict.fromkeys(places)]
        if done.returncode and not places:
            faults.append(done.stderr.strip())
    return faults


def mend_layout(files):
    tool = find_tool("clang-format")
    if not tool:
        return note("clang-format 14 is not here")
    for _ in range(2):  # comments that it breaks into lines are settled by the second run
        subprocess.run([tool, "-i", *files], cwd=ROOT, check=True)
    return []


def check_size(files):
    faults = []
    for name in files:
        lines = (ROOT / name).read_bytes().count(b"\n")
        if lines > MOST_LINES and name not in LONG_FILES:
            faults.append(f"{name}: {lines} lines; {MOST_LINES} are too many, 400 are plenty")
    return faults


def check_functions(files):
    faults = []
    for name in files:
        most = next((limit for room, limit in MOST_COMPLEXITY.items() if name.startswith(room)), 0)
        if not most:
            continue
        for f in function_sizes.functions_of((ROOT / name).read_text(encoding="utf-8")):
            place = f"{name}:{f.line}: {f.name}"
            if f.lines > MOST_FUNCTION_LINES:
                faults.append(f"{place} has {f.lines} lines; {MOST_FUNCTION_LINES} are the limit")
            if f.complexity > most:
                faults.append(f"{place} has a complexity of {f.complexity}; {most} is the limit")
    return faults


def count_long_lines(files):
    counts = {}
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        long = sum(len(line) > MOST_WIDTH for line in text.splitlines())
        if long:
            counts[name] = long
    return counts


def check_width(files):
    allowed = json.loads(LONG_LINES.read_text()) if LONG_LINES.exists() else {}
    faults = []
    for name, count in count_long_lines(files).items():
        if count > allowed.get(name, 0):
            faults.append(f"{name}: {count} lines are over {MOST_WIDTH} characters; "
                          f"{allowed.get(name, 0)} were there before")
    return faults


def check_python(files):
    faults = []
    for name in files:
        try:
            compile((ROOT / name).read_text(encoding="utf-8"), name, "exec")
        except (SyntaxError, ValueError) as error:
            faults.append(f"{name}:{getattr(error, 'lineno', 0)}: {error}")
    return faults


def headings(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in found}


def check_page(name, basenames):
    """The faults of one page: broken links, missing headings, files that are not there."""
    path, faults = ROOT / name, []
    text = path.read_text(encoding="utf-8")
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if not linked.exists():
            faults.append(f"{name}: the link {target} leads to no file")
        elif anchor and linked.suffix == ".md" and anchor not in headings(linked.read_text()):
            faults.append(f"{name}: the link {target} leads to no heading")
    for named in NAMED_PATH.findall(text):
        if not any(next(base.glob(named), None) for base in (ROOT, path.parent)):
            faults.append(f"{name}: {named} is not in the repository")
    for named in NAMED_FILE.findall(text):
        if named not in basenames and named not in NOT_IN_THE_TREE:
            faults.append(f"{name}: no file of the repository is called {named}")
    return faults


def check_docs(code):
    names = tracked()
    basenames = {os.path.basename(n) for n in names}
    faults = []
    for name in names:
        if name.endswith(".md"):
            faults += check_page(name, basenames)
    for name in code:  # comments that send the reader to a page
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for page in sorted(set(PAGE_IN_CODE.findall(text))):
            folders = (ROOT, ROOT / "toolkit") if name.startswith("toolkit/") else (ROOT,)
            if not any((folder / page).exists() for folder in folders):
                faults.append(f"{name}: {page} is not in the repository")
    return faults


def note(text):
    print(f"lint: {text}")
    return []


def own_headers(path, folders, seen):
    """The bytes of a file and of all our own headers that it includes, in a fixed order."""
    if path in seen:
        return b""
    seen.add(path)
    content = path.read_bytes()
    for target in INCLUDE.findall(content.decode("utf-8", "replace")):
        for folder in (path.parent, *folders):
            if (folder / target).is_file():
                content += own_headers((folder / target).resolve(), folders, seen)
                break
    return content


def compiled_files(commands, build):
    """Our own files that are compiled here, each once; several as one where CMake joins them."""
    ours = [ROOT / room for room in ("src", "tests", "bench", "toolkit")]
    found = set()
    for entry in json.loads(commands.read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        unity = path.is_relative_to(build) and path.suffix == ".cxx"
        if path.exists() and (unity or path.suffix == ".cpp" and
                              any(path.is_relative_to(room) for room in ours)):
            found.add(path)
    return sorted(found)


def tidy_one(tool, build, path, key, cache):
    done = subprocess.run([tool, "-p", str(build), "--quiet", str(path)], capture_output=True,
                          text=True, cwd=ROOT)
    faults = [line.replace(f"{ROOT}/", "") for line in done.stdout.splitlines()
              if re.search(r": (warning|error): ", line)]
    if done.returncode and not faults:
        faults = [f"{path}: clang-tidy: {done.stderr.strip()[-400:]}"]
    if not faults:
        (cache / key).touch()
    return faults


def check_tidy(build, only_changed, require, minutes, names):
    tool, commands = find_tool("clang-tidy"), build / "compile_commands.json"
    if not tool or not commands.exists():
        say = ("clang-tidy 14 is not here: apt-get install clang-tidy-14" if not tool else
               f"{commands} is not there: run cmake first")
        return [say] if require else note(say + " (not run)")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    cache = cache / "tonnage-lint"
    cache.mkdir(parents=True, exist_ok=True)
    rules = (ROOT / ".clang-tidy").read_bytes()
    folders = [ROOT / "src", build / "generated"]
    new, work = changed(), []
    for path in compiled_files(commands, build):
        seen = set()
        content = own_headers(path, folders, seen)
        # Of a unity file: the files that it includes.
        parts = {str(p.relative_to(ROOT)) for p in (seen if path.suffix == ".cxx" else {path})
                 if p.is_relative_to(ROOT)}
        if (only_changed and not parts & new) or (names and not parts & names):
            continue
        key = hashlib.sha256(rules + path.name.encode() + content).hexdigest()
        if not (cache / key).exists():
            work.append((not parts & new, -len(content), path, key))
    work.sort()
    faults, end, skipped = [], time.monotonic() + 60 * minutes, 0

    def look(item):
        if time.monotonic() > end:
            return None
        return tidy_one(tool, build, item[2], item[3], cache)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(look, work):
            if found is None:
                skipped += 1
            else:
                faults += found
    note(f"clang-tidy: {len(work) - skipped} files looked at"
         + (f", {skipped} left out: {minutes:g} minutes were over" if skipped else ""))
    return sorted(set(faults))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--no-tidy", action="store_true")
    parser.add_argument("--require", action="store_true")
    parser.add_argument("--format", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    code = [n for n in tracked() if n.endswith(CODE)]
    if args.write:
        counts = dict(sorted(count_long_lines(code).items()))
        LONG_LINES.write_text(json.dumps(counts, indent=1) + "\n")
        return 0
    wanted = {os.path.relpath(os.path.abspath(f), ROOT) for f in args.files}
    if wanted:
        code = [n for n in code if n in wanted]
    if args.format:
        mend_layout([n for n in code if n.endswith(CPP)])
        return 0
    faults = check_layout([n for n in code if n.endswith(CPP)], args.require)
    faults += check_size(code) + check_width(code)
    faults += check_functions([n for n in code if n.endswith(CPP)])
    faults += check_python([n for n in code if n.endswith(PYTHON)]) + check_docs(code)
    done = subprocess.run([sys.executable, ROOT / "tools/check_includes.py"], capture_output=True,
                          text=True)
    faults += done.stdout.splitlines() if done.returncode else []
    if not args.no_tidy:
        faults += check_tidy(args.build.resolve(), args.changed, args.require, args.minutes, wanted)
    for fault in faults:
        print(fault)
    print(f"lint: {len(faults)} faults" if faults else "lint: no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
