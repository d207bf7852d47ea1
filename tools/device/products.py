"""Times matrix products with and without aligned rows on a real card: the figures behind src/driver/kernel_time.h.

  python tools/device/products.py products.json     # rows: type, TF32, m, k, n, transposed a, b, µs a product, [kernel, ns]…
"""
import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

PAIRS = [(2048, 768, 50257), (2048, 50257, 768), (4096, 4096, 4097), (4096, 4097, 4096), (1024, 1024, 1023), (1023, 1024, 1024),
         (1024, 1024, 1022), (512, 512, 511), (8192, 1024, 1001), (16384, 3072, 770), (256, 9217, 4096), (2048, 2049, 2049)]


def product_time(a, b):
    for _ in range(3):
        torch.mm(a, b)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        torch.mm(a, b)
    end.record()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        torch.mm(a, b)
        torch.cuda.synchronize()
    kernels = [(e.name(), e.duration_ns()) for e in p.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CUDA]
    return round(begin.elapsed_time(end) * 100, 2), kernels


rows = []
for dtype, tf32 in ((torch.bfloat16, False), (torch.float16, False), (torch.float32, False), (torch.float32, True)):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    for shape in PAIRS:
        for m, k, n in (shape, tuple((x + 7) // 8 * 8 for x in shape)):
            for ta, tb in ((0, 0), (0, 1), (1, 0)):
                a = torch.randn((k, m) if ta else (m, k), device="cuda", dtype=dtype)
                b = torch.randn((n, k) if tb else (k, n), device="cuda", dtype=dtype)
                rows.append([str(dtype), tf32, m, k, n, ta, tb, *product_time(a.t() if ta else a, b.t() if tb else b)])
with open(sys.argv[1], "w") as file:
    json.dump(rows, file)
