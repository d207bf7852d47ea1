#!/usr/bin/env python3
"""Training and inference of many kinds (program_kinds_cases.py): the virtual H200 beside a real one, in bytes.

  run_program_kinds.py -j 2               every case: PyTorch's peaks at every step, what the driver gives out at the end
  run_program_kinds.py --filter moco      some of them
  run_program_kinds.py --real --out FILE  measures on this machine's card instead, as lines of the truth file

The truth is h200-program-kinds.jsonl; where it has several lines of a case, either counts. Results are printed, with signed
differences, the largest of any step; --json FILE writes them with the figures themselves. The exit code is 1 if a case failed to run.
"""
import argparse
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run_truth import run_process, what_failed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = HERE / "program_kinds_cases.py"
TRUTH = HERE / "h200-program-kinds.jsonl"


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--filter", default="", metavar="REGEX")
    p.add_argument("-j", type=int, default=1, metavar="N", help="virtual runs at a time (default 1)")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--python", type=Path, help="default: .venv-programs's; with --real the one that runs this")
    p.add_argument("--gpu", default="h200")
    p.add_argument("--limit", type=float, metavar="S", help="seconds for one case (default 300; with --real 60)")
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--real", action="store_true")
    p.add_argument("--out", type=Path, metavar="FILE", help="with --real: lines are added to it")
    a = p.parse_args()
    if a.real and not a.out:
        p.error("--real needs --out")
    a.python = a.python or (Path(sys.executable) if a.real else ROOT / ".venv-programs/bin/python")
    a.limit = a.limit or (60 if a.real else 300)
    return a


def run_case(case, a, folder):
    """(the case's line, None), or (None, what went wrong)."""
    out, log = folder / case, folder / f"{case}.log"
    command = [a.python, CASES, case, out]
    if not a.real:
        command = [a.tonnage, "run", "--gpu", a.gpu, "--quiet", "--", *command]
    # torch.compile times its kernels where its cache does not know them, and that takes memory: every run starts without a cache.
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{case}-inductor"), "TRITON_CACHE_DIR": str(folder / f"{case}-triton")}
    code, _ = run_process([str(c) for c in command], {**os.environ, **caches}, None, log, a.limit)
    if code != 0 or not out.exists():
        return None, what_failed(case, code, log)
    return json.loads(out.read_text().splitlines()[-1]), None


def differences(got, real):
    """(of allocated, of reserved, of the device), signed, the largest of any step; allocated is None if the steps are not as many."""
    largest = [0, 0]
    for mine, theirs in zip(got["steps"], real["steps"]):
        largest = [max(old, m - t, key=abs) for old, m, t in zip(largest, mine, theirs)]
    allocated, reserved = largest
    if len(got["steps"]) != len(real["steps"]):
        allocated = None
    return allocated, reserved, got["device"] - real["device"]


def compare(row, truths):
    """The row with its differences from the nearest of the real runs, if there are any."""
    if not truths:
        return {**row, "exact": None}
    choices = [(differences(row, real), real) for real in truths]
    (allocated, reserved, device), real = min(choices, key=lambda c: (c[0][0] is None, abs(c[0][0] or 0) + abs(c[0][1]), abs(c[0][2])))
    return {**row, "exact": (allocated, reserved) == (0, 0), "allocated": allocated, "reserved": reserved, "device_difference": device,
            "device_percent": round(100 * device / real["device"], 2)}


def print_result(r):
    peaks = " ".join(f"{figure / 2**20:9.1f}" for figure in (*r["steps"][-1], r["device"]))
    if r["exact"] is None:
        comparison = "not measured"
    else:
        comparison = (f"{'exact' if r['exact'] else 'differs':8} {r['allocated']!s:>11} {r['reserved']:>11} "
                      f"{r['device_difference']:>12} ({r['device_percent']:+.1f} %)")
    print(f"{r['case']:24} {peaks}   {comparison}", flush=True)


def measure(names, a, folder):
    """On the real card: one after another, each line written as soon as there is one."""
    failed = 0
    for name in names:
        row, error = run_case(name, a, folder)
        if error:
            failed += 1
            print(error, file=sys.stderr, flush=True)
            continue
        with open(a.out, "a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{name:24} {row['steps'][-1]} {row['device']}", flush=True)
    print(f"{len(names) - failed} cases measured, {failed} failed")
    return failed


def check(names, a, folder):
    """On the virtual card, beside the truth."""
    truth = {}
    if TRUTH.exists():
        for line in TRUTH.read_text().splitlines():
            row = json.loads(line)
            truth.setdefault(row["case"], []).append(row)
    results = []
    print(f"{'':24} {'virtual, MiB at the end':^29}   difference in bytes")
    print(f"{'case':24} {'allocated':>9} {'reserved':>9} {'device':>9}   {'':8} {'allocated':>11} {'reserved':>11} {'device':>12}")
    with ThreadPoolExecutor(a.j) as pool:
        for name, (row, error) in zip(names, pool.map(lambda n: run_case(n, a, folder), names)):
            if error:
                print(f"{name:24} failed", flush=True)
                print(error, file=sys.stderr, flush=True)
                results.append({"case": name, "failed": True})
                continue
            results.append(compare(row, truth.get(name)))
            print_result(results[-1])
    failed = sum(1 for r in results if r.get("failed"))
    compared = [r for r in results if r.get("exact") is not None]
    print(f"{sum(r['exact'] for r in compared)} of {len(compared)} cases exact in both of PyTorch's figures at all steps"
          + (f"; {len(names) - failed - len(compared)} not measured" if len(names) - failed > len(compared) else "")
          + (f"; {failed} failed" if failed else ""))
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    return failed


def main():
    a = parse_args()
    names = re.findall(r"^@case\ndef (\w+)\(\):", CASES.read_text(), re.M)
    names = [n for n in names if re.search(a.filter, n)]
    with tempfile.TemporaryDirectory() as folder:
        failed = (measure if a.real else check)(names, a, Path(folder))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
