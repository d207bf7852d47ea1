#!/usr/bin/env python3
"""How far a training configuration repeats itself: its peaks in several runs, and how many runs gave each.

  run_repeats.py -n 8 -j 2                                 on the virtual H200
  run_repeats.py -n 8 -j 4 --real                          on this machine's card, and then on the virtual one
  run_repeats.py "resnet50 16 bf16 adamw" "vit 8 fp32 sgd" these instead (model, batch, precision, optimizer)

Where free blocks of equal size are left, PyTorch's allocator takes the one with the lower address, and addresses follow from the
host's address space: so only runs on one host can be compared, and several of them. The configurations are the truth's
(configurations/train.py).
"""
import argparse
import collections
import concurrent.futures as futures
import json
import os
import sys
import tempfile
from pathlib import Path

from run_truth import HERE, ROOT, run_process, what_failed

# Those of the measured ones that are known to vary on some host.
DEFAULT = ["deeplabv3_resnet50 4 fp32 sgdm", "hf_gpt2 12 bf16 adamw", "hf_gpt2 8 bf16_pure adamw_fused", "gpt_small 16 bf16_pure adamw",
           "gpt_small_ckpt 36 bf16_pure adamw_fused"]


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("configurations", nargs="*", metavar="CONFIGURATION")
    p.add_argument("-n", type=int, default=8, help="runs of each (default 8)")
    p.add_argument("-j", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    p.add_argument("--real", action="store_true", help="also on this machine's card")
    p.add_argument("--gpu", default="h200")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    p.add_argument("--truth", type=Path, default=HERE / "configurations", help="a folder with train.py")
    p.add_argument("--limit", type=float, default=300, metavar="S", help="seconds for one run (default 300)")
    p.add_argument("--json", type=Path, metavar="FILE")
    return p.parse_args()


def peaks(a, prefix, configuration, log):
    """(allocated, reserved) in bytes, the largest of all steps; None if the run failed."""
    code, _ = run_process([*prefix, str(a.python.absolute()), "train.py", *configuration.split()], dict(os.environ), a.truth, log, a.limit)
    found = [line[4:] for line in log.read_text(errors="replace").splitlines() if line.startswith("JSON{")]
    if not found:
        print(what_failed(configuration, code, log), file=sys.stderr)
        return None
    steps = json.loads(found[-1])["steps"]
    return max(s["peak"] for s in steps), max(s["peak_reserved"] for s in steps)


def main():
    a = parse_args()
    cards = {"real": []} if a.real else {}
    cards["virtual"] = [str(a.tonnage.absolute()), "run", "--gpu", a.gpu, "--quiet", "--"]
    results = {}
    for card, prefix in cards.items():
        with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor(a.j) as pool:
            runs = {}
            for i in range(a.n):
                for c in a.configurations or DEFAULT:
                    runs[pool.submit(peaks, a, prefix, c, Path(folder) / f"{len(runs)}.log")] = c
            for run, c in runs.items():
                results.setdefault(c, {}).setdefault(card, collections.Counter())[run.result()] += 1
    for c, by_card in results.items():
        print(c)
        for outcome in sorted({o for counts in by_card.values() for o in counts if o}):
            times = "   ".join(f"{card} {counts[outcome]} of {a.n}" for card, counts in by_card.items())
            print(f"    allocated {outcome[0]:>14,}  reserved {outcome[1]:>14,}   {times}")
    if a.json:
        a.json.write_text(json.dumps({c: {card: [{"allocated": o[0], "reserved": o[1], "runs": n} for o, n in counts.items() if o]
                                          for card, counts in by_card.items()} for c, by_card in results.items()}, indent=1) + "\n")
    sys.exit(any(None in counts for by_card in results.values() for counts in by_card.values()))


if __name__ == "__main__":
    main()
