"""Measures an unmodified program and stops it: Python imports this file by itself when its folder is on PYTHONPATH.

Writes one JSON line to SPY_OUT: memory after each optimizer step and at the end. The program ends after SPY_STEPS
optimizer steps or SPY_BACKWARD backward passes. Nothing else of it is changed.
"""

import atexit
import builtins
import json
import os
import sys
import time

STEPS = int(os.environ.get("SPY_STEPS", "8"))
BACK = int(os.environ.get("SPY_BACKWARD", "40"))
OUT = os.environ.get("SPY_OUT")
state = {"steps": [], "backward": 0, "done": False, "pid": os.getpid(), "t0": time.time()}


def finish(how):
    if state["done"] or os.getpid() != state["pid"]:
        return
    state["done"] = True
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    s = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    row = {
        "name": os.environ.get("SPY_NAME"),
        "gpu": torch.cuda.get_device_name(),
        "end": how,
        "steps": state["steps"],
        "backward": state["backward"],
        "peak": s.get("allocated_bytes.all.peak", 0),
        "peak_reserved": s.get("reserved_bytes.all.peak", 0),
        "allocated": s.get("allocated_bytes.all.current", 0),
        "num_alloc": s.get("allocation.all.allocated", 0),
        "device_used": total - free,
        "seconds": time.time() - state["t0"],
        "versions": {
            m: getattr(sys.modules[m], "__version__", "")
            for m in (
                "torch",
                "transformers",
                "torchvision",
                "timm",
                "diffusers",
                "peft",
                "pytorch_lightning",
                "lightning",
                "torch_geometric",
                "torchaudio",
                "liger_kernel",
            )
            if m in sys.modules
        },
    }
    with open(OUT, "a") as f:
        f.write(json.dumps(row) + "\n")


def hook(torch):
    import torch.optim.optimizer as oo

    def post(opt, a, k):
        if os.getpid() != state["pid"]:
            return
        state["steps"].append(
            [
                torch.cuda.memory_allocated(),
                torch.cuda.max_memory_allocated(),
                torch.cuda.max_memory_reserved(),
                round(time.time() - state["t0"], 3),
            ]
        )
        if len(state["steps"]) >= STEPS:
            finish("steps")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    oo.register_optimizer_step_post_hook(post)
    back = torch.autograd.backward

    def counted(*a, **k):
        r = back(*a, **k)
        state["backward"] += 1
        if state["backward"] >= BACK and os.getpid() == state["pid"]:
            finish("backward")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        return r

    torch.autograd.backward = counted


if OUT:
    atexit.register(finish, "exit")
    real = builtins.__import__

    def imp(name, *a, **k):
        m = real(name, *a, **k)
        t = sys.modules.get("torch")
        if (
            t is not None
            and hasattr(t, "optim")
            and hasattr(t, "autograd")
            and hasattr(t, "_C")
            and ("torch.optim.optimizer" in sys.modules)
            and hasattr(sys.modules["torch.optim.optimizer"], "register_optimizer_step_post_hook")
            and (getattr(t, "cuda", None) is not None)
            and hasattr(t, "compile")
        ):
            builtins.__import__ = real
            hook(t)
        return m

    builtins.__import__ = imp
