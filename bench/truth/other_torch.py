#!/usr/bin/env python3
"""A dozen of the measured models on other PyTorch builds, two of them with CUDA 12: that they run and their reports add up.

  other_torch.py            makes .venv-torch26 and .venv-torch29 if they are missing (about 6 GB each), and runs all
  other_torch.py torch26    only that one

There is no truth for these builds, so nothing is compared with a card: a report adds up if its labels sum to its totals, and
its peaks are PyTorch's own (the JSON line of configurations/train.py). Driver functions that nobody wrote, reads of unknown values and
messages of the report are counted beside it.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TONNAGE_KEEP_RUNS", "0")  # the user's own last runs stay

ROOT = Path(__file__).resolve().parents[2]
BUILDS = {
    "torch26": ["torch==2.6.0", "torchvision==0.21.0", "transformers==4.57.1", "numpy<2.5"],   # CUDA 12.4
    "torch29": ["torch==2.9.1", "torchvision==0.24.1", "transformers==5.17.0", "numpy<2.5"],   # CUDA 12.8
}
ROWS = ["resnet18 32 fp32 sgdm", "resnet50 16 bf16 adamw", "vit_b_16 8 bf16 adamw", "efficientnet_b0 16 fp16 adam", "unet 2 fp32 adamw",
        "lstm 20 fp32 sgdm", "encoder 8 fp32 adamw", "mlp 64 fp32 adamw_fused", "conv3d 2 fp32 adam", "gpt_small 2 bf16 adamw",
        "gpt_small_ckpt 4 bf16 adamw", "hf_gpt2 1 fp32 adamw", "hf_bert_base 4 fp16 adam"]


def make(name):
    folder = ROOT / f".venv-{name}"
    python = folder / "bin/python"
    if not (folder / ".made").exists():
        print(f"making {folder.name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *BUILDS[name]], check=True)
        (folder / ".made").touch()
    return python


def build_recorder(tonnage, python):
    """The one in the cache may be of older sources."""
    root = next(python.parent.parent.glob("lib/python3*/site-packages/torch"))
    subprocess.run([tonnage, "recorder", "--build", root, "--force", "--quiet"], check=True)


def not_seen(report):
    """What the report does not know, in words; empty if nothing."""
    counts = {"stub calls": len(report["stub_calls"]), "unknown reads": len(report["unknown_reads"]), "assumed sizes": len(report["assumed_sizes"]),
              "messages": len(report["messages"])}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def problems(report, figures):
    """What does not add up; empty if all does."""
    out = [f"{report['inconsistencies']} inconsistencies"] if report["inconsistencies"] else []
    device = report["devices"][0]
    for name in ("peak_allocated", "peak_reserved", "peak_device"):
        peak = device[name]
        if peak is None:
            out.append(f"no {name}")
            continue
        total, rows = peak["breakdown"]["total_bytes"], sum(r["bytes"] for r in peak["breakdown"]["rows"])
        if total != rows:
            out.append(f"{name}: rows sum to {rows}, total {total}")
    for name, key in (("peak_allocated", "peak"), ("peak_reserved", "peak_reserved")):
        theirs = max(s[key] for s in figures["steps"])
        if device[name] and device[name]["bytes"] != theirs:
            out.append(f"{name}: report {device[name]['bytes']}, PyTorch {theirs}")
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("builds", nargs="*", metavar="BUILD", help=f"of {', '.join(BUILDS)}")
    p.add_argument("--tonnage", type=Path, default=ROOT / "build/bin/tonnage")
    p.add_argument("--truth", type=Path, default=ROOT / "bench/truth/configurations", help="a folder with train.py")
    p.add_argument("--gpu", default="h200")
    p.add_argument("--filter", default="")
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    if unknown := set(args.builds) - set(BUILDS):
        p.error(f"unknown build: {', '.join(unknown)}")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    results, bad = [], 0
    for name in args.builds or BUILDS:
        python = make(name)
        build_recorder(args.tonnage.absolute(), python)
        for row in (r for r in ROWS if args.filter in r):
            with tempfile.TemporaryDirectory() as folder:
                output = Path(folder) / "report.json"
                command = [args.tonnage.absolute(), "run", "--gpu", args.gpu, "--json", "--output", output, "--", python, "train.py", *row.split()]
                done = subprocess.run(command, cwd=args.truth, env=env, capture_output=True, text=True, timeout=900)
                lines = [line for line in done.stdout.splitlines() if line.startswith("JSON")]
                if done.returncode or not lines or not output.exists():
                    found = [f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing said'])[-1][:200]}"]
                    figures, unseen = {}, ""
                else:
                    figures = json.loads(lines[-1][4:])
                    report = json.loads(output.read_text())
                    found, unseen = problems(report, figures), not_seen(report)
            bad += bool(found)
            results.append({"build": name, "torch": figures.get("torch"), "row": row, "problems": found, "not_seen": unseen,
                            "peak": max((s["peak"] for s in figures.get("steps", [])), default=None)})
            print(f"{name:9s} {figures.get('torch') or '':14s} {row:34s} {'; '.join(found) if found else 'ok  peak %d' % results[-1]['peak']}"
                  f"{'  (' + unseen + ')' if unseen else ''}", flush=True)
    print(f"\n{len(results)} runs, {bad} with problems")
    if args.json:
        args.json.write_text(json.dumps({"schema": 1, "results": results}, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
