"""Writes scaled_fused_values.h: what torch.amp.GradScaler and PyTorch's fused optimizers do on the CPU, step by step.

  .venv/bin/python toolkit/tests/scaled_fused.py > toolkit/tests/scaled_fused_values.h

precision_test.cpp runs the same steps in C++ and compares every bit.
"""
import re

import torch

INFINITE = (0, 0, 1, 0, 0, 1, 1, 0, 0, 0)  # steps whose loss is infinite; not the first: fused SGD's momentum would be uninitialised
UNSCALED = 4  # every fourth step, from the second on, calls unscale_ itself
START = (0.5, -1.0, 2.0, 0.125, -0.75)


def trajectory(optimizer, dtype):
    p = torch.tensor(START, dtype=dtype).requires_grad_()
    o = optimizer([p])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_factor=2, backoff_factor=0.5, growth_interval=2)
    rows = []
    for i, infinite in enumerate(INFINITE):
        o.zero_grad()
        loss = (p * torch.arange(1, 6, dtype=dtype) / 4).sum() * (float("inf") if infinite else 1.0)
        scaler.scale(loss).backward()
        if i % UNSCALED == 1 and dtype == torch.float32:
            scaler.unscale_(o)
        scaler.step(o)
        scaler.update()
        count = int(o.state[p]["step"]) if "step" in o.state[p] else -1
        rows.append((p.detach().float().tolist(), count, scaler.get_scale()))
    return rows


def main():
    cases = (
        ("Adam", lambda p: torch.optim.Adam(p, lr=0.0625, weight_decay=0.125, amsgrad=True, fused=True), torch.float32),
        ("AdamW", lambda p: torch.optim.AdamW(p, lr=0.0625, weight_decay=0.125, fused=True), torch.float32),
        ("SGD", lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.75, weight_decay=0.125, nesterov=True, fused=True), torch.float32),
        ("AdamWHalf", lambda p: torch.optim.AdamW(p, lr=0.0625, weight_decay=0.125, fused=True), torch.float16),
    )
    print(f"// Made by scaled_fused.py with PyTorch {torch.__version__.split('+')[0]}.")
    print("#pragma once\n\nnamespace scaled_fused {\n")
    print("struct Row {\n  float parameters[5];\n  int step;  // of the state; -1: it has none\n  double scale;\n};")
    print(f"inline constexpr bool kInfinite[] = {{{', '.join(str(bool(i)).lower() for i in INFINITE)}}};")
    print(f"inline constexpr int kUnscaled = {UNSCALED};")
    print(f"inline constexpr float kStart[] = {{{', '.join(f'{x}f' for x in START)}}};")
    for name, optimizer, dtype in cases:
        print(f"inline constexpr Row k{name}[] = {{")
        for parameters, step, scale in trajectory(optimizer, dtype):
            print(f"    {{{{{', '.join(re.sub(r'[.]?0+p', 'p', x.hex()) + 'f' for x in parameters)}}}, {step}, {scale}}},")
        print("};")
    print("\n}  // namespace scaled_fused")


if __name__ == "__main__":
    main()
