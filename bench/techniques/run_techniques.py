"""The toolkit's techniques in C++ and the same steps in Python, on one GPU: peak memory and step time.

  python bench/techniques/run_techniques.py --binary build/bin/bench_techniques --json techniques.json

The models, sizes, data and settings are those of model_cases.cpp, toolkit/examples/gpt2.h and toolkit/examples/resnet50.h. Only torch is
needed. Without --binary only Python is measured. Rows without a Python twin have "-" there. Every case, in C++ and in Python, has a process
of its own: nothing of another case is on the device, and cuBLAS and cuDNN start anew.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

from memory_cases import memory_cases

RESNET_BATCH, RESNET_SIZE = 128, 224
GPT_BATCH, GPT_LENGTH = 8, 1024
DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads, linear, attention):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)
        self.heads, self.attention = heads, attention

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def plain_attention(q, k, v):
    scores = (q / q.size(-1) ** 0.5) @ k.transpose(-2, -1)
    hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


class Gpt2(nn.Module):
    def __init__(self, tie=True, linear=nn.Linear, attention=fused_attention, layers=12, width=768, heads=12, vocabulary=50257):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(GPT_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, linear, attention) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tie:
            self.head.weight = self.tokens.weight
        with torch.no_grad():
            for p in self.parameters():
                if p.dim() == 2:
                    p.normal_(0, 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = convolution(inputs, width, 1), convolution(width, width, 3, stride), convolution(width, 4 * width, 1)
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.shortcut = None
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(convolution(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        return F.relu(y.add_(x if self.shortcut is None else self.shortcut(x)), inplace=True)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        self.stages, inputs = nn.ModuleList(), 64
        for stage, count in enumerate((3, 4, 6, 3)):
            blocks = nn.Sequential()
            for i in range(count):
                blocks.append(Bottleneck(inputs, 64 << stage, 2 if i == 0 and stage > 0 else 1))
                inputs = 4 * (64 << stage)
            self.stages.append(blocks)
        self.head = nn.Linear(2048, 1000)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images)), inplace=True), 3, 2, 1)
        for stage in self.stages:
            x = stage(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


ALL = slice(None)


def gpt2(**options):
    """The model, and its loss on rows of the batch."""
    torch.manual_seed(0)
    model = Gpt2(**options).to(DEVICE)
    ids, targets = (torch.randint(0, 50257, (GPT_BATCH, GPT_LENGTH), device=DEVICE) for _ in range(2))
    return model, lambda rows=ALL: model(ids[rows], targets[rows])


def resnet50():
    torch.manual_seed(0)
    model = ResNet50().to(DEVICE)
    images = torch.randn(RESNET_BATCH, 3, RESNET_SIZE, RESNET_SIZE, device=DEVICE)
    labels = torch.randint(0, 1000, (RESNET_BATCH,), device=DEVICE)
    return model, lambda rows=ALL: model(images[rows], labels[rows])


def training(job, optimizer):
    model, forward = job
    o = optimizer([p for p in model.parameters() if p.requires_grad])

    def step():
        o.zero_grad()
        forward().backward()
        o.step()

    return step


def in_backward(job):
    model, forward = job
    optimizers = {p: torch.optim.AdamW([p], lr=1e-4, fused=True) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return lambda: forward().backward()


def freeze(job, trains):
    for name, p in job[0].named_parameters():
        p.requires_grad_(trains(name))
    return job


def low_rank(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 192, bias=False), nn.Linear(192, outputs))


def distillation():
    rows = GPT_BATCH * GPT_LENGTH
    student = torch.randn(rows, 50257, device=DEVICE, requires_grad=True)
    labels, teacher = torch.randint(0, 50257, (rows,), device=DEVICE), torch.randn(rows, 50257, device=DEVICE)

    def step():
        student.grad = None
        kl = F.kl_div(F.log_softmax(student / 2, -1), F.log_softmax(teacher / 2, -1), reduction="batchmean", log_target=True)
        (0.5 * 4 * kl + 0.5 * F.cross_entropy(student, labels)).backward()

    return step


def embedding():
    table = nn.Embedding(50257, 768).to(DEVICE)
    o = torch.optim.AdamW(table.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 50257, (GPT_BATCH, GPT_LENGTH), device=DEVICE)

    def step():
        o.zero_grad()
        table(ids).square().mean().backward()
        o.step()

    return step


def inference():
    _, forward = gpt2()
    return torch.no_grad()(forward)


def adamw(**how):
    return lambda p: torch.optim.AdamW(p, lr=1e-4, **how)


def sgd(**how):
    return lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, **how)


def cases():
    """(model, technique, variant) -> a function that makes the step."""
    fused = adamw(fused=True)
    out = {}
    for model, job in (("gpt2", gpt2), ("resnet50", resnet50)):
        for technique, variant, optimizer in (
            ("adamw", "torch::optim", adamw(foreach=False)),
            ("adamw", "fused", fused),
            ("adamw", "foreach", adamw(foreach=True)),
            ("adafactor", "with", lambda p: torch.optim.Adafactor(p, lr=1e-3)),
            ("sgd", "torch::optim", sgd(foreach=False)),
            ("sgd", "fused", sgd(fused=True)),
            ("sgd", "foreach", sgd(foreach=True)),
        ):
            out[model, technique, variant] = lambda job=job, optimizer=optimizer: training(job(), optimizer)
        out[model, "optimizer in backward", "with"] = lambda job=job: in_backward(job())
    out["gpt2", "tied weights", "without"] = lambda: training(gpt2(tie=False), fused)
    out["gpt2", "tied weights", "with"] = lambda: training(gpt2(), fused)
    out["gpt2", "freeze", "all but 2 blocks"] = lambda: training(freeze(gpt2(), lambda n: n.startswith(("blocks.10.", "blocks.11."))), fused)
    out["gpt2", "low rank", "rank 192"] = lambda: training(gpt2(linear=low_rank), fused)
    out["gpt2", "attention", "plain"] = lambda: training(gpt2(attention=plain_attention), fused)
    out["gpt2", "attention", "fused kernel"] = lambda: training(gpt2(), fused)
    out["gpt2", "int8 linear", "without"] = inference
    out["gpt2", "distillation loss", "without"] = distillation
    out["gpt2", "hash embedding", "without"] = embedding
    out["resnet50", "freeze", "all but the last stage"] = lambda: training(
        freeze(resnet50(), lambda n: n.startswith(("stages.3.", "head."))), sgd(fused=True))
    out |= memory_cases({
        "gpt2": (gpt2, fused, lambda m: m.blocks, GPT_BATCH),
        "resnet50": (resnet50, sgd(fused=True), lambda m: [b for s in m.stages for b in s], RESNET_BATCH),
    })
    return out


def measure(make, steps):
    before = torch.cuda.memory_allocated()
    try:
        step = make()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times_ms = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times_ms.append((time.perf_counter() - begin) * 1e3)
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "kept_bytes": torch.cuda.memory_allocated(),
            "allocated_before_bytes": before,
            "median_ms": statistics.median(times_ms),
            "fastest_ms": min(times_ms),
            "slowest_ms": max(times_ms),
        }
    except torch.OutOfMemoryError as error:
        return {"error": str(error)}


def one_case(name, steps, path):
    torch.set_float32_matmul_precision("high")
    result = measure(cases()[tuple(name.split(" | "))], steps)
    with open(path, "w") as file:
        json.dump(result, file)


def run_python(key, steps, folder):
    path = os.path.join(folder, "python.json")
    subprocess.run([sys.executable, os.path.abspath(__file__), "--case", " | ".join(key), "--steps", str(steps), "--json", path], check=True)
    with open(path) as file:
        return json.load(file)


class Binary:
    """bench_techniques, with the torch that this Python has."""

    def __init__(self, path):
        library = os.path.join(os.path.dirname(torch.__file__), "lib")
        self.path = path
        self.environment = dict(os.environ, LD_LIBRARY_PATH=library + os.pathsep + os.environ.get("LD_LIBRARY_PATH", ""))

    def cases(self):
        listed = subprocess.run([self.path, "--list"], check=True, env=self.environment, capture_output=True, text=True).stdout
        return [tuple(line.split(" | ")) for line in listed.splitlines()]

    def run(self, key, steps, folder):
        path = os.path.join(folder, "cpp.json")
        subprocess.run([self.path, "--case", " | ".join(key), "--steps", str(steps), "--json", path], check=True, env=self.environment, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)["cases"][0]


def cell(result, key, scale):
    return "-" if not result else "failed" if "error" in result else f"{result[key] / scale:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", help="bench_techniques")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--filter", default="", help="only rows that contain this text")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one Python case, for run_python
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("run_techniques.py: no CUDA device")
    if args.case:
        one_case(args.case, args.steps, args.json)
        return
    binary = Binary(args.binary) if args.binary else None
    in_cpp, in_python = binary.cases() if binary else [], list(cases())
    rows = [key for key in in_cpp + [key for key in in_python if key not in in_cpp] if args.filter in " ".join(key)]
    cpp, python = {}, {}
    print(f"{'model':9} {'technique':22} {'variant':24} {'C++ MiB':>9} {'Python':>9} {'C++ ms':>8} {'Python':>8}")
    for key in rows:
        with tempfile.TemporaryDirectory() as folder:
            c = cpp[key] = binary.run(key, args.steps, folder) if key in in_cpp else None
            p = python[key] = run_python(key, args.steps, folder) if key in in_python else None
        for result in (c, p):
            if result and result.get("allocated_before_bytes", 0) != 0:
                sys.exit(f"run_techniques.py: {key} did not start on an empty device: {result}")
        print(f"{key[0]:9} {key[1]:22} {key[2]:24} {cell(c, 'peak_allocated_bytes', 1 << 20):>9} {cell(p, 'peak_allocated_bytes', 1 << 20):>9} "
              f"{cell(c, 'median_ms', 1):>8} {cell(p, 'median_ms', 1):>8}", flush=True)
    if args.json:
        figures = ("peak_allocated_bytes", "peak_reserved_bytes", "kept_bytes", "allocated_before_bytes", "median_ms", "fastest_ms", "slowest_ms", "error")
        report = {
            "schema": 1,
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "steps": args.steps,
            "rows": [
                {"model": k[0], "technique": k[1], "variant": k[2]}
                | {language: {f: r[f] for f in figures if f in r} if r else None for language, r in (("cpp", cpp[k]), ("python", python[k]))}
                for k in rows
            ],
        }
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
