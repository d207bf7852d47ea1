"""Times of every kernel of one training step, for many models, on the machine's GPU.

usage: measure_kernels.py OUTPUT.json.xz [--lists rows,micro,timm] [--part I --of N] [--seconds S]
       measure_kernels.py OUTPUT.json.xz --merge PART.json.xz PART.json.xz …

  rows   the 189 configurations of bench/truth
  micro  products, convolutions, attention, recurrent layers, copies, other operators by themselves
  timm   64 models of timm (which must be installed), training and inference
  --part, --of   this process takes each N-th configuration, beginning with I: one process for a GPU
  --seconds      no configuration is begun later than this

A configuration runs two steps, then up to five that are timed by the host clock, then one under
PyTorch's profiler. README.md has the format of the output.
"""

import argparse
import gc
import json
import lzma
import os
import time

import torch
from torch.profiler import ProfilerActivity, profile
from workloads import all_configurations


class Table:
    """Each value once, in the order of first use."""

    def __init__(self):
        self.values, self.index = [], {}

    def number(self, value):
        key = json.dumps(value)
        if key not in self.index:
            self.index[key] = len(self.values)
            self.values.append(value)
        return self.index[key]


def read_trace(path, operators, kernels):
    """The launches of a trace in their order, and how often each operator was called."""
    events = json.load(open(path))["traceEvents"]
    calls, runtime, external, launches = {}, {}, {}, []
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "cpu_op":
            fields = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
            operator = [event["name"], *(args.get(field) for field in fields)]
            external[args.get("External id")] = operator
            calls[event["name"]] = calls.get(event["name"], 0) + 1
        elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
            call = runtime.setdefault(event["name"], [0, 0])
            call[0] += 1
            call[1] += round(event["dur"] * 1000)
    for event in events:
        args = event.get("args", {})
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            fields = ("grid", "block", "shared memory", "registers per thread", "bytes")
            kernel = kernels.number([event["name"], *(args.get(field) for field in fields)])
            operator = external.get(args.get("External id"))
            number = -1 if operator is None else operators.number(operator)
            launches.append([kernel, number, round(event["dur"] * 1000)])
    return dict(operators=calls, runtime=runtime, launches=launches)


def measure(make, trace_path, operators, kernels):
    step = make()
    step()
    step()
    torch.cuda.synchronize()
    times = []
    while len(times) < 5 and sum(times) < 3:
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    step()
    issue = time.perf_counter() - start
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(trace_path)
    found = read_trace(trace_path, operators, kernels)
    return dict(times=[round(t * 1e6) for t in times], issue=round(issue * 1e6), **found)


def write(path, operators, kernels, configurations):
    data = dict(operators=operators.values, kernels=kernels.values, configurations=configurations)
    text = json.dumps(data, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(lzma.compress(text, preset=6))


def merge(path, parts):
    operators, kernels, configurations = Table(), Table(), []
    for part in parts:
        data = json.loads(lzma.open(part).read())
        for configuration in data["configurations"]:
            configuration["launches"] = [
                [
                    kernels.number(data["kernels"][kernel]),
                    -1 if operator < 0 else operators.number(data["operators"][operator]),
                    duration,
                ]
                for kernel, operator, duration in configuration["launches"]
            ]
            configurations.append(configuration)
    write(path, operators, kernels, configurations)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--lists", default="rows,micro,timm")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--merge", nargs="+")
    options = parser.parse_args()
    if options.merge:
        return merge(options.output, options.merge)

    begin = time.time()
    operators, kernels, results = Table(), Table(), []
    trace_path = options.output + ".trace"
    for meta, make in all_configurations(options.lists.split(","))[options.part :: options.of]:
        if time.time() - begin > options.seconds:
            print("not begun:", meta)
            continue
        try:
            meta.update(measure(make, trace_path, operators, kernels))
            results.append(meta)
            note = f"{len(meta['launches'])} launches, {min(meta['times']) / 1000:.2f} ms"
        except (RuntimeError, ImportError) as error:
            note = f"{type(error).__name__}: {error}"[:300]
        gc.collect()
        torch.cuda.empty_cache()
        name = {k: v for k, v in meta.items() if isinstance(v, (str, int))}
        print(f"{time.time() - begin:.0f} s", name, note, flush=True)
    if os.path.exists(trace_path):
        os.remove(trace_path)
    write(options.output, operators, kernels, results)


if __name__ == "__main__":
    main()
