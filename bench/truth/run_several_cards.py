#!/usr/bin/env python3
"""Training on two cards (data, tensor, pipeline and expert parallel, sharded, one process or a rank a card): the virtual pair beside two
real H200s, in bytes.

  run_several_cards.py                    every case: peaks of every step, what the driver gives out, values read back
  run_several_cards.py --filter fsdp      some of them
  run_several_cards.py --real --out FILE  measures on this machine's two cards instead, as lines of the truth file

The truth is h200-several-cards.jsonl; where a real pair was measured twice, either run counts. NCCL's own memory is in the device
figures and not in PyTorch's. Results are printed; --json FILE writes them.
"""
import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from run_truth import run_process, what_failed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = HERE / "several_cards_cases.py"
TRUTH = HERE / "h200-several-cards.jsonl"
ONE_PROCESS = ("model_parallel", "data_parallel", "copies_between")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--filter", default="", metavar="REGEX")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    p.add_argument("--gpu", default="h200x2")
    p.add_argument("--limit", type=float, default=300, metavar="S", help="seconds for one case (default 300)")
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--real", action="store_true")
    p.add_argument("--out", type=Path, metavar="FILE", help="with --real: lines are added to it")
    a = p.parse_args()
    if a.real and not a.out:
        p.error("--real needs --out")
    return a


def run_case(case, a, folder):
    """One line of each rank; empty if the case failed."""
    out = folder / case
    command = [a.python]
    if case not in ONE_PROCESS:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [CASES, case, out]
    if not a.real:
        command = [a.tonnage, "run", "--gpu", a.gpu, "--quiet", "--", *command]
    log = out.with_suffix(".log")
    code, _ = run_process([str(c) for c in command], None, None, log, a.limit)  # ends the ranks, too, that a failed one leaves behind
    if code != 0:
        print(what_failed(case, code, log), file=sys.stderr)
        return []
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{case}-[0-9]"))]


def differences(got, truth):
    """(of allocated, of reserved, of the device, places where values differ): the largest by size, signed."""
    allocated = reserved = device = 0
    largest = lambda a, b: b if abs(b) > abs(a) else a
    for mine, real in zip(got["steps"], truth["steps"]):
        for (a, r), (real_a, real_r) in zip(mine, real):
            allocated, reserved = largest(allocated, a - real_a), largest(reserved, r - real_r)
    if len(got["steps"]) != len(truth["steps"]):
        allocated = None
    for name, real in truth["device"].items():
        for mine, other in zip(got["device"].get(name, []), real):
            device = largest(device, mine - other)
    values = [name for name, real in truth["values"].items() if got["values"].get(name) != real]
    return allocated, reserved, device, values


def main():
    a = parse_args()
    truth = {}
    if not a.real:
        for line in TRUTH.read_text().splitlines():
            row = json.loads(line)
            truth.setdefault((row["case"], row["rank"]), []).append(row)
    names = re.findall(r"^def (\w+)\(\):", CASES.read_text(), re.M)
    names = [n for n in names if re.search(a.filter, n)]
    results, exact, compared = [], 0, 0
    print(f"{'case':18} rank   allocated    reserved   device total   values")
    with tempfile.TemporaryDirectory() as folder:
        for case in names:
            rows = run_case(case, a, Path(folder))
            if a.real:
                with open(a.out, "a") as out:
                    out.writelines(json.dumps({"run": 1, **row}) + "\n" for row in rows)
                continue
            if not rows:
                results.append({"case": case, "failed": True})
            for row in rows:
                choices = [differences(row, t) for t in truth.get((case, row["rank"]), [])]
                if not choices:
                    continue
                best = min(choices, key=lambda d: (len(d[3]), d[0] is None, abs(d[0] or 0) + abs(d[1]), abs(d[2])))
                compared += 1
                is_exact = best[0] == 0 and best[1] == 0 and not best[3]
                exact += is_exact
                results.append({"case": case, "rank": row["rank"], "allocated": best[0], "reserved": best[1], "device": best[2],
                                "values": best[3]})
                percent = 100 * best[2] / max(max(x) for x in truth[case, row["rank"]][0]["device"].values())
                values = "differ: " + ", ".join(best[3]) if best[3] else "as real"
                print(f"{case:18} {row['rank']:4} {best[0]!s:>11} {best[1]:>11} {best[2]:>12} ({percent:+.1f} %)  {values}", flush=True)
    failed = sum(1 for r in results if r.get("failed"))
    print(f"{exact} of {compared} processes exact in both of PyTorch's figures at all steps, and in all values" + (f"; {failed} cases failed" if failed else ""))
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
