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
# driver alone. The record's path begins at byte 24 of the session (src/vgpu/session.h).
WITHOUT_RECORD = '''copy=$(mktemp) && cp "$TONNAGE_SESSION" "$copy" && printf '\\0' | dd of="$copy" bs=1 seek=24 conv=notrunc status=none &&
TONNAGE_SESSION=$copy "$@"; code=$?; rm -f "$copy"; exit $code'''


STEPS = 70
BARE = ["bash", "-c", WITHOUT_RECORD, "bash"]


def start_steps(a, wrapper=(), core=None):
    command = [a.tonnage, "run", "--gpu", "h200", "--quiet", "--", *wrapper, a.python, HERE / "step.py", STEPS]
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    return subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pin)


def step_times(process):
    """Seconds of the steps after the tenth, of one process."""
    out, errors = process.communicate()
    if process.returncode:
        sys.exit(f"run_speed: step.py: exit code {process.returncode}\n{errors[-2000:]}")
    return [float(line) for line in out.split()[10:]]


def bench_step(a):
    whole, bare, added = [], [], []
    for _ in range(a.repeat):
        bare += step_times(start_steps(a, BARE))
        whole += step_times(start_steps(a))
    # What recording adds: both at the same time, each on a core of its own, then with cores exchanged, because a shared
    # machine's speed changes by half within seconds.
    cores = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(a.repeat if len(cores) == 2 else 0):
        for bare_core, whole_core in (cores, cores[::-1]):
            pair = start_steps(a, BARE, bare_core), start_steps(a, (), whole_core)
            bare_times, whole_times = map(step_times, pair)
            added.append(statistics.median(whole_times) / statistics.median(bare_times))
    result = {"step": spread(whole, "ms", 1e3), "step_of_the_driver_alone": spread(bare, "ms", 1e3)}
    if not added:
        print("run_speed: what recording adds needs two cores, and this process may use one", file=sys.stderr)
    else:
        shares = sorted(100 * (x - 1) for x in added)
        result["recording_and_known_values_add"] = {"median": round(100 * (statistics.geometric_mean(added) - 1), 1), "low": round(shares[0], 1),
                                                    "high": round(shares[-1], 1), "unit": "%", "n": len(added)}
    return result


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
