#!/usr/bin/env python3
"""Runs every configuration that was measured on a real H200 on the virtual one, and prints the difference in bytes.

  run_truth.py rows                 the training configurations (configurations/h200-torch2.11.jsonl): every figure at every step
  run_truth.py programs             the real programs (programs/h200.jsonl): the whole run
  run_truth.py rows --rows bench/truth/h200-other-rows.jsonl      66 more configurations
  run_truth.py rows --filter unet -j 2 --resume

What the H200 did is in configurations/ and programs/. `make programs` fetches the programs themselves.
Results are kept as JSON lines, one per configuration, so a run can be taken up again with --resume; --json writes
the summary too. Nothing is timed here: the seconds are only printed.
"""
import argparse
import concurrent.futures as futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("TONNAGE_KEEP_RUNS", "0")  # the user's own last runs stay

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Compared at each step of a row. The first two are the figures that a user asks for.
STEP_FIGURES = ("peak", "peak_reserved", "reserved", "after_forward", "peak_forward", "after_backward", "peak_backward", "after_step")
# Their sizes follow from random data, so a bound is the answer and not an exact figure (README.md says which).
DATA_DEPENDENT = {"boolean", "fasterrcnn", "hf_mixtral"}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("rows", "programs", "all"))
    p.add_argument("--filter", action="append", default=[], metavar="REGEX", help="only names that match (may be repeated)")
    p.add_argument("-j", "--jobs", type=int, default=1, help="how many run at the same time (default 1)")
    p.add_argument("--resume", action="store_true", help="keep the results there are; run only what is missing or failed")
    p.add_argument("--report", action="store_true", help="run nothing; print the table of the results there are")
    p.add_argument("--time-limit", type=float, default=0, metavar="S", help="start nothing after S seconds")
    p.add_argument("--row-limit", type=float, default=600, metavar="S", help="seconds for one configuration (default 600)")
    p.add_argument("--gpu", default="h200")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--driver", type=Path, help="a folder with libcuda.so.1 to use directly, without `tonnage run`")
    p.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="for the rows")
    p.add_argument("--programs-python", type=Path, default=ROOT / ".venv-programs/bin/python", help="for the programs")
    p.add_argument("--programs", type=Path, default=ROOT / ".programs", help="the folder with the real programs")
    p.add_argument("--truth", type=Path, default=HERE / "configurations", help="a folder with train.py and its rows")
    p.add_argument("--programs-truth", type=Path, default=HERE / "programs", help="a folder with run.sh, list.txt and h200.jsonl")
    p.add_argument("--rows", type=Path, metavar="FILE", help="other configurations than the truth's own, in the same form (h200-other-rows.jsonl)")
    p.add_argument("--results", type=Path, default=ROOT / "build/truth", help="folder for results and logs")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all results and the summary")
    p.add_argument("--strict", action="store_true", help="exit with 1 unless all are exact (or within their bound)")
    return p.parse_args()


def read_lines(path):
    if not path.exists():
        sys.exit(f"run_truth: {path} is not there; name its folder with --truth or --programs-truth")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def row_name(row):
    return f"{row['model']}-{row['batch']}-{row['precision']}-{row['optimizer']}"


def run_process(command, env, cwd, log_path, limit_s):
    """Exit code (None: out of time) and seconds. The whole process group ends with the limit."""
    start = time.monotonic()
    with open(log_path, "wb") as log:
        child = subprocess.Popen(command, env=env, cwd=cwd, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # also what it left behind
            except ProcessLookupError:
                pass
            child.wait()
    return code, time.monotonic() - start


def what_failed(name, code, log_path):
    """How a process of run_process ended, and the end of what it printed."""
    how = "out of time (--limit)" if code is None else f"exit code {code}"
    return f"{name}: {how}\n" + "\n".join(log_path.read_text(errors="replace").splitlines()[-15:])


class Runner:
    def __init__(self, args):
        self.args = args
        self.env = dict(os.environ)
        # A user's settings must not decide what is compared.
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
            self.env.pop(name, None)
        self.env["PYTHONUNBUFFERED"] = "1"
        self.env.setdefault("OMP_NUM_THREADS", "2")
        if args.driver:
            driver = str(args.driver.resolve())
            self.prefix = []
            self.env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (driver, self.env.get("LD_LIBRARY_PATH"))))
            self.env["TRITON_LIBCUDA_PATH"] = driver
        else:
            if not args.tonnage.exists():
                sys.exit(f"run_truth: {args.tonnage} is not there; run `make`, or name it with --tonnage")
            self.prefix = [str(args.tonnage.resolve()), "run", "--gpu", args.gpu, "--quiet", "--"]

    def row(self, row, log):
        env = dict(self.env, STEPS=str(len(row["steps"])))
        command = [*self.prefix, str(self.args.python.absolute()), "train.py", row["model"], str(row["batch"]), row["precision"], row["optimizer"]]
        code, seconds = run_process(command, env, self.args.truth, log, self.args.row_limit)
        found = [line[4:] for line in log.read_text(errors="replace").splitlines() if line.startswith("JSON{")]
        if code is None:
            return {"status": "timeout", "seconds": seconds}
        if not found:
            return {"status": "failed", "seconds": seconds, "exit_code": code, "message": last_error(log)}
        return {**compare_row(row, json.loads(found[-1])), "seconds": seconds, "exit_code": code}

    def program(self, truth, log):
        name = truth["name"]
        env = dict(self.env, LIMIT=str(int(self.args.row_limit)), WRAP=" ".join(self.prefix))
        env["PATH"] = str(self.args.programs_python.absolute().parent) + os.pathsep + env["PATH"]
        with tempfile.TemporaryDirectory(prefix="tonnage-truth-", ignore_cleanup_errors=True) as tmp:
            # run.sh keeps its logs in a folder that mktemp makes: TMPDIR keeps that one ours.
            env["TMPDIR"] = tmp
            out = Path(tmp) / "out.jsonl"
            out.touch()
            env["LOGS"] = str(Path(tmp))
            command = ["bash", str(self.args.programs_truth / "run.sh"), str(self.args.programs), str(out), "1", name]
            code, seconds = run_process(command, env, self.args.programs, log, self.args.row_limit + 30)
            child_log = Path(tmp) / f"{name}.log"
            if child_log.exists():
                with open(log, "ab") as f:
                    f.write(child_log.read_bytes())
            lines = [json.loads(line) for line in out.read_text().splitlines() if line.strip()]
        if not lines:
            return {"status": "timeout" if seconds >= self.args.row_limit else "failed", "seconds": seconds, "exit_code": code, "message": last_error(log)}
        return {**compare_program(truth, lines[-1]), "seconds": seconds}


def last_error(log):
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    marked = [line for line in lines if re.search(r"error|assert|segm|fail", line, re.I) and not line.startswith("FAIL")]
    return (marked or lines or ["no output"])[-1][:300]


def compare_row(truth, got):
    result = {"status": "ran"}
    if "oom" in got or len(got["steps"]) != len(truth["steps"]):
        return {"status": "failed", "message": got.get("oom", "fewer steps than the truth has")}
    result["steps"] = [{k: {"truth": t[k], "difference": g[k] - t[k]} for k in STEP_FIGURES} for t, g in zip(truth["steps"], got["steps"])]
    result["after_model_difference"] = got["after_model"] - truth["after_model"]
    result["num_alloc"] = {"truth": truth["num_alloc"], "difference": got["num_alloc"] - truth["num_alloc"]}
    result["segments"] = {"truth": truth["segments"], "difference": got["segments"] - truth["segments"]}
    if "device_used_alone" in truth:
        result["device_used"] = {"truth": truth["device_used_alone"], "difference": got["device_used"] - truth["device_used_alone"]}
    both = ("peak", "peak_reserved")
    result["exact"] = all(s[k]["difference"] == 0 for s in result["steps"] for k in both)
    result["exact_everything"] = result["exact"] and all(s[k]["difference"] == 0 for s in result["steps"] for k in STEP_FIGURES)
    return result


def compare_program(truth, got):
    result = {"status": "ran", "end": got["end"], "data_dependent": truth["name"] in DATA_DEPENDENT}
    for key in ("peak", "peak_reserved", "allocated", "num_alloc", "device_used"):
        result[key] = {"truth": truth[key], "difference": got[key] - truth[key]}
    result["steps"] = [{"allocated": g[0] - t[0], "peak": g[1] - t[1], "peak_reserved": g[2] - t[2]} for t, g in zip(truth["steps"], got["steps"])]
    result["truth_seconds"] = truth["seconds"]
    if got["end"] != truth["end"] or len(got["steps"]) != len(truth["steps"]):
        result["message"] = f"ended by {got['end']} after {len(got['steps'])} steps, the truth by {truth['end']} after {len(truth['steps'])}"
    result["exact"] = all(result[k]["difference"] == 0 for k in ("peak", "peak_reserved")) and "message" not in result
    result["exact_everything"] = result["exact"] and all(v == 0 for s in result["steps"] for v in s.values())
    return result


def share(entry):
    return entry["difference"] / entry["truth"] if entry["truth"] else 0.0


def per_step(values):
    """One number where all steps agree, else all of them."""
    return f"{values[0]:+d}" if len(set(values)) == 1 else "/".join(f"{v:+d}" if v else "0" for v in values)


def describe(kind, name, result):
    head = f"{name:38s} "
    if result["status"] != "ran":
        return head + f"{result['status'].upper()}  {result.get('message', '')}"
    if kind == "rows":
        parts = [f"peak {per_step([s['peak']['difference'] for s in result['steps']])}",
                 f"reserved {per_step([s['peak_reserved']['difference'] for s in result['steps']])}"]
        others = sum(s[k]["difference"] != 0 for s in result["steps"] for k in STEP_FIGURES[2:])
        if others:
            parts.append(f"({others} other figures differ)")
        worst = max(result["steps"], key=lambda s: max(abs(share(s["peak"])), abs(share(s["peak_reserved"]))))
        shares = (share(worst["peak"]), share(worst["peak_reserved"]))
    else:
        parts = [f"peak {result['peak']['difference']:+d}", f"reserved {result['peak_reserved']['difference']:+d}"]
        shares = (share(result["peak"]), share(result["peak_reserved"]))
        if result.get("message"):
            parts.append(result["message"])
        if result["data_dependent"]:
            parts.append("(sizes depend on data)")
    if any(shares):
        parts.append(f"[{100 * shares[0]:+.3f} % / {100 * shares[1]:+.3f} %]")
    if "device_used" in result:
        parts.append(f"device {100 * share(result['device_used']):+.2f} %")
    return head + ("exact  " if result["exact"] else "differs") + " " + "  ".join(parts) + f"  {result['seconds']:.0f} s"


def summarize(kind, names, results):
    ran = [results[n] for n in names if n in results and results[n]["status"] == "ran"]
    done = [n for n in names if n in results]
    summary = {"kind": kind, "of": len(names), "done": len(done), "ran": len(ran), "failed": len(done) - len(ran),
               "exact": sum(r["exact"] for r in ran), "exact_everything": sum(r["exact_everything"] for r in ran)}
    if kind == "rows":
        summary["exact_last_peak"] = sum(r["steps"][-1]["peak"]["difference"] == 0 for r in ran)
        summary["exact_last_reserved"] = sum(r["steps"][-1]["peak_reserved"]["difference"] == 0 for r in ran)
        shares = [max(abs(share(s[k])) for s in r["steps"] for k in ("peak", "peak_reserved")) for r in ran]
    else:
        exact_kind = [n for n in names if n not in DATA_DEPENDENT]
        summary["of_exact_kind"] = len(exact_kind)
        summary["exact_of_exact_kind"] = sum(results[n]["exact"] for n in exact_kind if n in results and results[n]["status"] == "ran")
        shares = [max(abs(share(r["peak"])), abs(share(r["peak_reserved"]))) for r in ran]
    summary["within_0_1_percent"] = sum(s <= 0.001 for s in shares)
    summary["worst_percent"] = 100 * max(shares, default=0.0)
    device = [abs(share(r["device_used"])) for r in ran if "device_used" in r]
    summary["device_rows"], summary["device_within_2_percent"] = len(device), sum(d <= 0.02 for d in device)
    summary["device_worst_percent"] = 100 * max(device, default=0.0)
    return summary


def print_summary(s):
    print(f"\n{s['kind']}: {s['done']} of {s['of']} done, {s['ran']} ran, {s['failed']} failed")
    print(f"  exact in peak allocated and peak reserved{' at every step' if s['kind'] == 'rows' else ''}: {s['exact']}"
          f"; in every other figure too: {s['exact_everything']}")
    if s["kind"] == "rows":
        print(f"  exact in the last step: allocated {s['exact_last_peak']}, reserved {s['exact_last_reserved']}")
    else:
        print(f"  of the {s['of_exact_kind']} programs whose sizes do not depend on data, exact: {s['exact_of_exact_kind']}")
    print(f"  within 0.1 %: {s['within_0_1_percent']}; worst {s['worst_percent']:.3f} %")
    print(f"  device total: {s['device_within_2_percent']} of {s['device_rows']} within 2 %; worst {s['device_worst_percent']:.2f} %")


def work(kind, args, start):
    if kind == "rows":
        entries = {row_name(r): r for r in read_lines(args.rows or args.truth / "h200-torch2.11.jsonl")}
    else:
        entries = {r["name"]: r for r in read_lines(args.programs_truth / "h200.jsonl")}
    names = [n for n in entries if not args.filter or any(re.search(f, n) for f in args.filter)]
    args.results.mkdir(parents=True, exist_ok=True)
    logs = args.results / "logs"
    logs.mkdir(exist_ok=True)
    kept = args.results / f"{args.rows.stem if kind == 'rows' and args.rows else kind}.jsonl"
    results = {}
    if (args.resume or args.report or args.filter) and kept.exists():  # a later line for a name replaces an earlier one
        results = {r["name"]: r for r in map(json.loads, kept.read_text().splitlines())}
    elif not args.report:
        kept.write_text("")
    if args.report:
        for n in names:
            if n in results:
                print(describe(kind, n, results[n]))
        return names, results
    todo = [n for n in names if not (args.resume and n in results and results[n]["status"] == "ran")]
    runner, lock = Runner(args), threading.Lock()
    run_one = runner.row if kind == "rows" else runner.program

    def one(name):
        if args.time_limit and time.monotonic() - start > args.time_limit:
            return
        result = {"name": name, **run_one(entries[name], logs / f"{kind}-{name}.log")}
        with lock:
            results[name] = result
            with open(kept, "a") as f:
                f.write(json.dumps(result) + "\n")
            print(describe(kind, name, result), flush=True)

    with futures.ThreadPoolExecutor(max(1, args.jobs)) as pool:
        for task in [pool.submit(one, n) for n in todo]:
            task.result()
    return names, results


def main():
    args = parse_args()
    # Children run in other folders.
    for key in ("truth", "programs_truth", "results", "programs"):
        setattr(args, key, getattr(args, key).absolute())
    start, out, bad = time.monotonic(), [], False
    for kind in ("rows", "programs") if args.what == "all" else (args.what,):
        names, results = work(kind, args, start)
        summary = summarize(kind, names, results)
        print_summary(summary)
        out.append({"summary": summary, "results": [results[n] for n in names if n in results]})
        wanted = summary["of"] if kind == "rows" else summary["of_exact_kind"]
        bad |= summary["ran"] < summary["of"] or (summary["exact"] if kind == "rows" else summary["exact_of_exact_kind"]) < wanted
    if args.json:
        args.json.write_text(json.dumps({"schema": 1, "gpu": args.gpu, "parts": out}, indent=1) + "\n")
    return 1 if args.strict and bad else 0


if __name__ == "__main__":
    sys.exit(main())
