#!/usr/bin/env python3
"""At which operator the driver itself takes memory of the card (context, machine code, streams, local memory): the virtual H200 beside a
real one. Each line of h200-driver-memory.txt is an operator after which free memory had fallen by more than PyTorch reserved.

  driver_memory.py                     compares all configurations with the file
  driver_memory.py --filter resnet     some of them
  driver_memory.py --measure FILE      writes such a file; for the real card, and nothing else may run on it

The configurations are those of configurations/train.py, two steps each.
"""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TONNAGE_KEEP_RUNS", "0")  # the user's own last runs stay

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRUTH = HERE / "configurations"
CHILD = r"""
import runpy, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

out, sys.argv = open(sys.argv[1], "w"), sys.argv[2:]

class AfterEachOperator(TorchDispatchMode):
    last = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            others = total - free - torch.cuda.memory_reserved()
            if others != AfterEachOperator.last:
                shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)][:3]
                out.write(f"{function} {shapes} {others - AfterEachOperator.last:+d}\n")
                AfterEachOperator.last = others
        return result

with AfterEachOperator():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def read(path):
    """Lines by configuration."""
    found, name = {}, None
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            name = line[2:]
            found[name] = []
        elif line and name:
            found[name].append(line)
    return found


def lines_of(name, prefix, folder):
    out = folder / "driver-memory.txt"
    environment = dict(os.environ, STEPS="2", PYTHONPATH=str(TRUTH))
    done = subprocess.run([*prefix, "-c", CHILD, out, "train.py", *name.split()], cwd=TRUTH, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"driver_memory: {name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return out.read_text().splitlines()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--filter", default="")
    p.add_argument("--measure", type=Path, metavar="FILE")
    p.add_argument("--file", type=Path, default=HERE / "h200-driver-memory.txt")
    p.add_argument("--results", type=Path, default=ROOT / "build/truth")
    a = p.parse_args()
    if not a.measure and not (ROOT / "build/bin/tonnage").exists():
        sys.exit(f"driver_memory: {ROOT}/build/bin/tonnage is not there; run `make`")
    a.results.mkdir(parents=True, exist_ok=True)
    truth = {n: lines for n, lines in read(a.file).items() if re.search(a.filter, n)}
    if a.measure:
        with open(a.measure, "w") as file:
            for name in truth:
                file.write("\n".join([f"# {name}", *lines_of(name, [sys.executable], a.results.absolute())]) + "\n")
        return
    prefix = [ROOT / "build/bin/tonnage", "run", "--gpu", "h200", "--quiet", "--no-stacks", "--", ROOT / ".venv/bin/python"]
    same = 0
    for name, wanted in truth.items():
        got = lines_of(name, prefix, a.results.absolute())
        same += got == wanted
        print(f"{name:36s} {'same' if got == wanted else 'differs'}", flush=True)
        for line in [f"  card     {x}" for x in wanted if x not in got] + [f"  virtual  {x}" for x in got if x not in wanted]:
            print(line[:150], flush=True)
    print(f"\n{same} of {len(truth)} take the driver's memory at the same operators")


if __name__ == "__main__":
    main()
