#!/usr/bin/env python3
"""How fast the virtual GPU is: prints a table and writes JSON. Run it on an otherwise idle machine.

  step      a training step of a GPT-2-medium-sized model (bf16, batch 8): an H200 takes 61 ms
            and the same of the virtual driver alone, without recording and known values
  launch    an empty kernel launch through the CUDA runtime
  start     what `tonnage run` adds to a script that imports torch and touches the GPU
  llama     a 7-billion-parameter model, two steps: time and host memory
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TONNAGE_KEEP_RUNS", "0")  # the user's own last runs stay

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("only", nargs="*", metavar="step|launch|start|llama", help="default: all")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--json", type=Path)
    return p.parse_args()


def output_of(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"run_speed: {' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def spread(values, unit, scale, digits=1):
    values = sorted(v * scale for v in values)
    return {"median": round(statistics.median(values), digits), "low": round(values[0], digits), "high": round(values[-1], digits), "unit": unit, "n": len(values)}


# Runs a command in a copy of the session that has no record, so that nothing records and nothing is computed: the virtual
# driver alone. The record's path begins at byte 24 of the session (src/abi/session.h).
WITHOUT_RECORD = '''copy=$(mktemp) && cp "$TONNAGE_SESSION" "$copy" && printf '\\0' | dd of="$copy" bs=1 seek=24 conv=notrunc status=none &&
TONNAGE_SESSION=$copy "$@"; code=$?; rm -f "$copy"; exit $code'''


STEPS, WARM_UP = 70, 10
TURNS, TURN = 24, 5  # of the two processes that take turns, and steps in each
BARE = ["bash", "-c", WITHOUT_RECORD, "bash"]


class Steps:
    """A process that runs training steps: all at once, or each when it is told to."""

    def __init__(self, a, wrapper=(), core=None):
        steps = [STEPS] if core is None else [TURNS * TURN, "turns"]
        command = [a.tonnage, "run", "--gpu", "h200", "--quiet", "--", *wrapper, a.python, HERE / "step.py", *steps]
        pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, preexec_fn=pin)

    def turn(self):
        """Seconds of a step of the next turn: of its first one no account is taken, which finds the other's code in the caches."""
        self.process.stdin.write("\n" * TURN)
        self.process.stdin.flush()
        return statistics.median([self.read() for _ in range(TURN)][1:])

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"run_speed: step.py: exit code {self.process.wait()}\n{self.errors.read()[-2000:]}")
        return float(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()


def all_steps(a, wrapper=()):
    with Steps(a, wrapper) as process:
        return [process.read() for _ in range(STEPS)][WARM_UP:]


def bench_step(a):
    whole, bare, added = [], [], []
    for _ in range(a.repeat):
        bare += all_steps(a, BARE)
        whole += all_steps(a)
        # What recording adds: one process with and one without take turns on one core, because a shared machine's speed changes
        # by half within seconds, and from core to core.
        core = min(os.sched_getaffinity(0))
        with Steps(a, BARE, core) as without, Steps(a, (), core) as recorded:
            pairs = [(without.turn(), recorded.turn()) for _ in range(TURNS)][WARM_UP // TURN:]
        added += [100 * (statistics.median(r / w for w, r in pairs) - 1)]
    return {"step": spread(whole, "ms", 1e3), "step_of_the_driver_alone": spread(bare, "ms", 1e3),
            "recording_and_known_values_add": spread(added, "%", 1)}


def bench_launch(a):
    cuda = next(a.python.absolute().parent.parent.glob("lib/python3*/site-packages/nvidia/cu13"))
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "launch"
        output_of(["g++", "-O2", "-std=c++17", f"-I{cuda}/include", HERE / "launch.cpp", cuda / "lib/libcudart_static.a", "-ldl", "-lrt", "-lpthread", "-o", binary])
        times = []
        for _ in range(a.repeat):
            times += [float(x) for x in output_of([a.tonnage, "run", "--gpu", "h200", "--quiet", "--", binary]).split()]
    return {"launch": spread(times, "ns", 1)}


def bench_start(a):
    code = "import torch"
    plain, wrapped = [], []
    for _ in range(2 * a.repeat):
        for times, prefix in ((plain, []), (wrapped, [a.tonnage, "run", "--gpu", "h200", "--quiet", "--"])):
            start = time.perf_counter()
            output_of([*prefix, a.python, "-c", code])
            times.append(time.perf_counter() - start)
    return {"import_torch_alone": spread(plain, "s", 1, 2), "import_torch_under_run": spread(wrapped, "s", 1, 2),
            "run_adds": {"median": round(statistics.median(wrapped) - statistics.median(plain), 2), "unit": "s"}}


def bench_llama(a):
    start = time.perf_counter()
    out = output_of([a.tonnage, "run", "--gpu", "h200", "--quiet", "--", a.python, HERE / "llama7b.py"])
    words = out.split()
    return {"llama_7b": {"median": round(time.perf_counter() - start, 1), "unit": "s"},
            "llama_7b_host_memory": {"median": round(int(words[words.index("host") + 1]) / 1e9, 2), "unit": "GB"},
            "llama_7b_peak_allocated": {"median": int(words[words.index("peak") + 1]), "unit": "bytes"}}


def main():
    a = parse_args()
    results = {}
    for name, bench in (("step", bench_step), ("launch", bench_launch), ("start", bench_start), ("llama", bench_llama)):
        if a.only and name not in a.only:
            continue
        for key, value in bench(a).items():
            results[key] = value
            around = f"  ({value['low']} to {value['high']}, {value['n']} times)" if "low" in value else ""
            print(f"{key:40s} {value['median']:>14} {value['unit']}{around}", flush=True)
    if a.json:
        load = os.getloadavg()[0]
        a.json.write_text(json.dumps({"schema": 1, "cores": os.cpu_count(), "load": load, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
