"""Draws on the device from a seeded generator and prints name, digest of the bytes; the draws in this order, since each moves it on."""
import ctypes
import hashlib
import sys

import torch

DRAWS = {
    "randint 100": lambda n: torch.randint(0, 100, (n,), device="cuda"),
    "rand": lambda n: torch.rand(n, device="cuda"),
    "randint 2^40": lambda n: torch.randint(0, 1 << 40, (n,), device="cuda"),
    "randint 2^28": lambda n: torch.randint(-5, (1 << 28) + 7, (n,), device="cuda"),
    "randint int32": lambda n: torch.randint(3, 17, (n,), device="cuda", dtype=torch.int32),
    "randint uint8": lambda n: torch.randint(0, 256, (n,), device="cuda", dtype=torch.uint8),
    "randint bool": lambda n: torch.randint(0, 2, (n,), device="cuda", dtype=torch.bool),
    "bernoulli bool": lambda n: torch.empty(n, device="cuda", dtype=torch.bool).bernoulli_(0.3),
    "bernoulli tensor": lambda n: torch.bernoulli(torch.full((n,), 0.25, device="cuda")),
    "uniform": lambda n: torch.empty(n, device="cuda").uniform_(-3, 5),
    "uniform float64": lambda n: torch.empty(n, device="cuda", dtype=torch.float64).uniform_(-3, 5),
    "uniform float16": lambda n: torch.empty(n, device="cuda", dtype=torch.float16).uniform_(0, 1),
    "uniform bfloat16": lambda n: torch.empty(n, device="cuda", dtype=torch.bfloat16).uniform_(0, 1),
    "random_ int64": lambda n: torch.empty(n, device="cuda", dtype=torch.int64).random_(),
    "random_ int32": lambda n: torch.empty(n, device="cuda", dtype=torch.int32).random_(),
    "random_ all of int64": lambda n: torch.empty(n, device="cuda", dtype=torch.int64).random_(-(2**63), None),
}

if __name__ == "__main__":
    for n in (5, 4096, 300000):
        torch.manual_seed(n)
        for name, make in DRAWS.items():
            value = make(n).cpu()
            data = (value if value.dtype != torch.bool else value.to(torch.uint8)).contiguous().view(torch.uint8)
            print(f"{name} {n}\t{hashlib.sha256(ctypes.string_at(data.data_ptr(), data.numel())).hexdigest()[:16]}")
    sys.stdout.flush()
