"""One training configuration in a fresh process; prints one JSON line of measured memory.

usage: train.py MODEL BATCH PRECISION OPTIMIZER [SNAPSHOT.pickle]
  PRECISION   fp32, bf16 and fp16 (autocast), bf16_pure (the model itself)
  OPTIMIZER   sgd, sgdm, adam, adamw, adamw_fused, adamw_loop
STEPS in the environment sets the number of steps (4).
"""

import json
import os
import sys
import time

import torch
from models import MODELS

name, bs, prec, opt, snap = (
    sys.argv[1],
    int(sys.argv[2]),
    sys.argv[3],
    sys.argv[4],
    sys.argv[5] if len(sys.argv) > 5 else "",
)
dev = "cuda"
torch.manual_seed(0)
free0, total = torch.cuda.mem_get_info()
if snap:
    torch.cuda.memory._record_memory_history(max_entries=1000000, stacks="python")
m, loss_fn = MODELS[name](bs, dev)
m.to(dev).train()
if prec == "bf16_pure":
    m.to(torch.bfloat16)
after_model = torch.cuda.memory_allocated()
p = [q for q in m.parameters() if q.requires_grad]
O = {
    "sgd": lambda: torch.optim.SGD(p, 0.01),
    "sgdm": lambda: torch.optim.SGD(p, 0.01, momentum=0.9),
    "adam": lambda: torch.optim.Adam(p, 0.0001),
    "adamw": lambda: torch.optim.AdamW(p, 0.0001),
    "adamw_fused": lambda: torch.optim.AdamW(p, 0.0001, fused=True),
    "adamw_loop": lambda: torch.optim.AdamW(p, 0.0001, foreach=False),
}[opt]()
scaler = torch.amp.GradScaler("cuda", init_scale=256.0) if prec == "fp16" else None
ac = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(prec)
r = dict(
    model=name,
    batch=bs,
    precision=prec,
    optimizer=opt,
    torch=torch.__version__,
    gpu=torch.cuda.get_device_name(),
    params=sum((q.numel() for q in m.parameters())),
    param_bytes=sum((q.numel() * q.element_size() for q in m.parameters())),
    buffer_bytes=sum((b.numel() * b.element_size() for b in m.buffers())),
    after_model=after_model,
    steps=[],
)
try:
    for step in range(int(os.environ.get("STEPS", "4"))):
        torch.cuda.reset_peak_memory_stats()
        t0 = time.perf_counter()
        opt_zero = O.zero_grad()
        if ac:
            with torch.autocast("cuda", dtype=ac):
                loss = loss_fn(m)
        else:
            loss = loss_fn(m)
        a_fwd, pk_fwd = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        (scaler.scale(loss) if scaler else loss).backward()
        a_bwd, pk_bwd = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        if scaler:
            scaler.step(O)
            scaler.update()
        else:
            O.step()
        torch.cuda.synchronize()
        r["steps"].append(
            dict(
                after_forward=a_fwd,
                peak_forward=pk_fwd,
                after_backward=a_bwd,
                peak_backward=pk_bwd,
                after_step=torch.cuda.memory_allocated(),
                peak=torch.cuda.max_memory_allocated(),
                reserved=torch.cuda.memory_reserved(),
                peak_reserved=torch.cuda.max_memory_reserved(),
                seconds=time.perf_counter() - t0,
            )
        )
        del loss
    f, _ = torch.cuda.mem_get_info()
    r["device_used"] = free0 - f
    st = torch.cuda.memory_stats()
    r["num_alloc"] = st["allocation.all.allocated"]
    r["segments"] = st["segment.all.current"]
    if snap:
        torch.cuda.memory._dump_snapshot(snap)
except torch.OutOfMemoryError as e:
    r["oom"] = str(e)
print("JSON" + json.dumps(r), flush=True)
