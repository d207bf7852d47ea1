#!/usr/bin/env python3
"""How fast snapshots are read, beside CPython's pickle.load on the same file.

    make_snapshot.py big.pickle --gib 1
    bench_snapshot.py build/bin/bench_snapshot big.pickle [--runs 5] [--skip-python]

Prints the median of the runs with the least and the largest: wall time, processor time (which a busy machine disturbs less), MB/s and
the peak of the resident memory as a multiple of the file's size.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

LOAD = """
import json, pickle, resource, sys, time
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
seconds = time.perf_counter() - start
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_rss_bytes": usage.ru_maxrss * 1024}), flush=True)
import os
os._exit(0)  # freeing the objects is not part of reading
"""


def measure(command, runs):
    return [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)]


def show(name, results, size):
    wall = [r["seconds"] for r in results]
    cpu = [r["cpu_seconds"] for r in results]
    rss = max(r["peak_rss_bytes"] for r in results)
    middle = statistics.median(cpu)
    print(f"{name:12s} wall {statistics.median(wall):8.3f} s ({min(wall):.3f} to {max(wall):.3f})  cpu {middle:8.3f} s ({min(cpu):.3f} to {max(cpu):.3f})  "
          f"{size / middle / 1e6:7.0f} MB per cpu second  memory {rss / size:.2f} x the file")
    return min(cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("file")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python-runs", type=int, default=1)
    parser.add_argument("--skip-python", action="store_true")
    args = parser.parse_args()
    size = os.path.getsize(args.file)
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, {args.file}: {size / 2**30:.3f} GiB")
    with open(args.file, "rb") as file:  # into the page cache, for both
        while file.read(1 << 24):
            pass
    ours = show("tonnage", measure([args.binary, args.file], args.runs), size)
    if not args.skip_python:
        theirs = show("pickle.load", measure([sys.executable, "-c", LOAD, args.file], args.python_runs), size)
        print(f"tonnage is {theirs / ours:.1f} times as fast (least processor time of each)")


if __name__ == "__main__":
    main()
