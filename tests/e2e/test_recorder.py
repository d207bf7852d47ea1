"""The recorder inside real PyTorch programs: what it says must be what the program itself holds, and the program must not notice."""
import csv
import json
import shutil
import signal
from pathlib import Path

import pytest

from conftest import BUILD, PROGRAMS, PYTHON, TONNAGE, category_bytes, check_adds_up, clean_environment, run_plain

SITE = next(Path(PYTHON).parent.parent.glob("lib/python3*/site-packages"))

# What some programs end with, and a training of three steps, for programs that are put together here.
HOLD, STEPS = ((PROGRAMS / name).read_text() for name in ("hold.py", "three_steps.py"))


def held(result):
    assert result.code == 0, result.err[-3000:]
    check_adds_up(result.report)
    line = next(line for line in result.out.splitlines() if line.startswith("HELD "))
    return json.loads(line[5:])


def check_held(result, *categories):
    said = held(result)
    peak = result.device["peak_allocated"]
    assert peak["bytes"] == said["peak"]
    assert {c: category_bytes(peak, c) for c in categories} == {c: said[c] for c in categories}
    return said


def test_optimizers(program):
    """One model for each kind of optimizer, all kept: every state is optimizer state, every gradient a gradient."""
    check_held(program("optimizers.py"), "parameters", "gradients", "optimizer_state")


def test_closures(program):
    """Where the optimizer's step calls the forward pass (LBFGS; Lightning with every optimizer), all is seen as elsewhere."""
    result = program("closures.py")
    check_held(result, "parameters", "gradients")
    steps = [s for s in result.device["steps"] if s["complete"]]
    assert len(steps) == 6


def test_scaler_and_accumulation(program):
    """Gradients that gather over several backward passes are gradients, whatever made them."""
    check_held(program("scaler_and_accumulation.py"), "parameters", "gradients", "optimizer_state")


def test_modules_and_hooks(program):
    """Modules in modules keep their names, and hooks that free, shard or refill memory as FSDP's do are followed."""
    result = program("modules_and_hooks.py")
    held(result)
    peak = result.device["peak_allocated"]
    assert category_bytes(peak, "optimizer_state") == 2 * (category_bytes(peak, "parameters"))
    names = {t["name"] for t in result.device["largest"]}
    assert "head.weight.exp_avg" in names and "encoder.layer.0.attention.out.weight" in names, names


@pytest.mark.parametrize("flags", [["-S"], ["-I"], ["-E"]])
def test_python_without_its_environment(run, tmp_path, flags):
    """Where Python ignores PYTHONPATH or sitecustomize, only names are missing, and the report says so."""
    script = tmp_path / "plain.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(SITE)!r})\n" + HOLD + STEPS + "hold([model], [optimizer])\n")
    result = run(PYTHON, *flags, script)
    check_held(result, "parameters", "gradients")
    assert any("Names of parameters" in m["text"] for m in result.report["messages"]), result.report["messages"]
    assert len([s for s in result.device["steps"] if s["complete"]]) == 3


def test_cuda_before_pytorch(program):
    """The driver is started before PyTorch is loaded: the recorder comes when PyTorch does."""
    result = program("cuda_before_pytorch.py")
    check_held(result, "parameters", "gradients", "optimizer_state")
    assert result.report["torch_version"]


def test_facts(program):
    result = program("facts.py")
    torch_version, python_version = result.out.split("SAID ")[1].split()
    assert result.report["torch_version"] == torch_version
    assert result.report["alloc_conf"] == "max_split_size_mb:64"
    assert result.report["info"]["python_version"] == python_version
    assert result.report["processes"][0]["command"].endswith("facts.py")


def test_inside_of_casts(program):
    """Casts and transposes of unknown data are not looked into: their memory and their backward pass still have their lines."""
    result = program("inside_of_casts.py")
    assert result.code == 0, result.err
    check_adds_up(result.report)
    assert "IDS [3, 1, 2]" in result.out
    assert not result.report["unknown_reads"]
    made = {(t["site"]["user_line"]["line"], t["size_bytes"]): t["site"]["op"] for t in result.device["largest"]}
    assert made[(4, 2 << 20)] == "aten::_to_copy"
    assert made[(4, 4 << 20)] == "torch::autograd::AccumulateGrad"  # of what the cast's node handed on


def test_lines_behind_views(program, tonnage, tmp_path):
    """Views are not observed; what is made in their backward pass has its line, and a parameter that is used through one is one."""
    record, table = tmp_path / "kept.tonnage", tmp_path / "kept.csv"
    result = program("lines_behind_views.py", options=["--record", record])
    assert result.code == 0, result.err
    assert tonnage("report", "--csv", table, record).code == 0
    rows = list(csv.DictReader(table.open()))
    made = {(r["op"], int(r["requested_bytes"]), r["phase"]): (int(r["line"].rsplit(":", 1)[1]), r["category"]) for r in rows}
    assert made["aten::randn", 2 << 20, "init"] == (3, "parameters")
    assert made["aten::mm", 2 << 20, "backward"] == (6, "gradients")
    assert made["aten::clone", 1 << 20, "backward"][0] == 7
    assert made["aten::zeros", 1 << 20, "backward"][0] == 9


def test_gradients_used_up_by_their_hooks(program):
    """An optimizer in the backward pass frees each gradient at once: while it lives, it is one."""
    result = program("gradients_used_up_by_their_hooks.py")
    assert result.code == 0, result.err
    check_adds_up(result.report)
    assert category_bytes(result.device["peak_allocated"], "gradients") == 2048 * 2048 * 4


def test_graph_replay_forgets_what_it_writes(program):
    """Known before the replay; after it nobody can say, and the report names the read."""
    result = program("graph_replay_forgets_what_it_writes.py")
    assert result.code == 0, result.err[-3000:]
    assert "before 5" in result.out and "after 5" not in result.out
    assert result.report["unknown_reads"]
    check_adds_up(result.report)


def test_unknown_kernel_forgets_its_own_blocks_only(program):
    """A kernel outside all operators may write what its arguments point at; the blocks beside them stay known."""
    result = program("unknown_kernel_forgets_its_own_blocks_only.py")
    assert result.code == 0, result.err[-3000:]
    assert "beside 3 7" in result.out
    assert "mine 5" not in result.out and len(result.report["unknown_reads"]) == 1


# A session without a record: the virtual driver alone. The record's path begins at byte 24 of the session (src/abi/session.h).
DRIVER_ALONE = r'''copy=$(mktemp) && cp "$TONNAGE_SESSION" "$copy" && printf '\0' | dd of="$copy" bs=1 seek=24 conv=notrunc status=none &&
TONNAGE_SESSION=$copy "$@"; code=$?; rm -f "$copy"; exit $code'''


def test_users_own_memory_history(run):
    """A program that records PyTorch's history gets the same one, byte for byte, and so do we."""
    def history(*before):
        result = run(*before, PYTHON, PROGRAMS / "users_own_memory_history.py")
        assert result.code == 0, result.err[-3000:]
        return result, json.loads(next(line for line in result.out.splitlines() if line.startswith("HISTORY "))[8:])
    result, recorded = history()
    _, alone = history("bash", "-c", DRIVER_ALONE, "bash")
    assert len(recorded) > 100
    assert recorded == alone
    assert category_bytes(result.device["peak_allocated"], "parameters") > 0
    check_adds_up(result.report)


def test_users_own_profiler(program):
    """PyTorch's profiler beside the recorder: both see every operator, and known values stay known."""
    result = program("users_own_profiler.py")
    check_held(result, "parameters", "gradients", "optimizer_state")
    assert "chosen 250" in result.out
    events = json.loads(next(line for line in result.out.splitlines() if line.startswith("EVENTS "))[7:])
    assert events == {"aten::squeeze": 1, "aten::linear": 6, "aten::t": events["aten::t"], "aten::addmm": 6, "my part": 1, "Optimizer.step#AdamW.step": 3}
    assert events["aten::t"] >= 6


def test_spawned_workers_and_threads(program):
    """Worker processes that load data and training in a thread: one report."""
    result = program("spawned_workers_and_threads.py")
    check_held(result, "parameters", "gradients", "optimizer_state")
    assert len([s for s in result.device["steps"] if s["complete"]]) == 6


def test_killed_in_the_middle(python):
    """SIGKILL: every step that was over is in the report."""
    result = python("import os, signal, torch\n" + STEPS.replace("range(3)", "range(5)") + "os.kill(os.getpid(), signal.SIGKILL)\n")
    assert result.code == 128 + signal.SIGKILL
    assert len([s for s in result.device["steps"] if s["complete"]]) == 5
    assert category_bytes(result.device["peak_allocated"], "optimizer_state") > 0
    check_adds_up(result.report)


def test_no_recorder(tmp_path):
    """PyTorch's build has no recorder and none can be compiled: the program runs on, and the report says what is missing."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    shutil.copy(TONNAGE, tmp_path / "bin/tonnage")
    (tmp_path / "lib/vgpu").symlink_to(BUILD / "lib/vgpu")
    script, output = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(HOLD + STEPS + "hold([model], [optimizer])\n")
    env = clean_environment(XDG_CACHE_HOME=str(tmp_path / "cache"), CXX="/no/such/compiler")
    result = run_plain([tmp_path / "bin/tonnage", "run", "--gpu", "h200", "--json", "--output", output, "--", PYTHON, script], env=env)
    assert result.code == 0, result.err[-3000:]
    assert "HELD" in result.out
    report = json.loads(output.read_text())
    why = [m["text"] for m in report["messages"] if "no recorder for the PyTorch" in m["text"] and m["level"] == "warning"]
    assert why and "cannot start the compiler" in why[0] and "/no/such/compiler" in why[0] and "apt-get install g++" in why[0], report["messages"]
    assert report["torch_version"]
    assert report["devices"][0]["peak_device"]["bytes"] > 1 << 30


def test_only_what_is_trained_counts_as_parameters(program):
    """A module's, an optimizer's and a hand-updated tensor do; an input whose gradient is wanted does not."""
    result = program("only_what_is_trained_counts_as_parameters.py")
    assert result.code == 0, result.err
    assert category_bytes(result.device["peak_allocated"], "parameters") == 4 * (1024 * 1024 + 1024 * 2048 + 2048 * 3072)


INFERENCE = """
import json, sys, torch
class Block(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(w), torch.nn.Linear(w, w)
        self.register_buffer("table", torch.zeros(w, w))
    def forward(self, x): return x + self.up(self.norm(x)) + self.table[0]
def make():
    net = torch.nn.Sequential(*[Block(1024) for _ in range(4)]).cuda().eval()
    return net.requires_grad_(False) if MODE == "frozen" else net
MODE = sys.argv[1]
mode = torch.inference_mode if MODE in ("inference", "whole") else torch.no_grad
if MODE == "whole":
    with mode(): net = make()
else: net = make()
for _ in range(3):
    with mode(): y = net(torch.randn(64, 1024, device="cuda"))
print("HELD " + json.dumps({"parameters": sum(p.nbytes for p in net.parameters()), "buffers": sum(b.nbytes for b in net.buffers())}))
with mode(): net[3](torch.randn(16384, 1024, device="cuda"))
"""


@pytest.mark.parametrize("mode", ["no_grad", "inference", "whole", "frozen"])
def test_inference(python, mode):
    """Without any backward pass: weights and buffers have their names, work its phase and its module."""
    result = python(INFERENCE, mode)
    assert result.code == 0, result.err[-3000:]
    check_adds_up(result.report)
    said = json.loads(next(line for line in result.out.splitlines() if line.startswith("HELD "))[5:])
    peak = result.device["peak_allocated"]
    assert {c: category_bytes(peak, c) for c in said} == said
    assert peak["moment"]["phase"] == "eval"
    names = {t["name"] for t in result.device["largest"]}
    assert "0.table" in names and "0.up.weight" in names, names
    modules = {t["site"].get("module") for t in result.device["largest"]}
    assert any(m and m.startswith("3") for m in modules), modules


GENERATION = """
import torch
class Attention(torch.nn.Module):
    def __init__(self, w=512, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, torch.nn.Linear(w, 3 * w), torch.nn.Linear(w, w)
    def forward(self, x, cache):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        k, v = self.update(cache, k, v)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)), (k, v)
    def update(self, cache, k, v):
        return (k, v) if cache is None else (torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2))
class Static(Attention):
    def update(self, cache, k, v):
        if cache is None: cache = self.cache = [torch.zeros(k.shape[0], k.shape[1], 96, k.shape[3], device="cuda") for _ in "kv"]; self.at = 0
        for whole, new in zip(self.cache, (k, v)): whole[:, :, self.at:self.at + k.shape[2]] = new
        self.at += k.shape[2]
        return self.cache
for kind in (Attention, Static):
    layer = kind().cuda().eval()
    with torch.no_grad():
        y, cache = layer(torch.randn(2, 64, 512, device="cuda"), None)
        for _ in range(32): y, cache = layer(y[:, -1:], cache)
    print("CACHE", sum(c.nbytes for c in cache))
    filler = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    del filler
    if kind is Attention: del layer, y, cache
"""


def test_a_key_value_cache_has_a_name(python):
    """Grown by concatenation, and written into memory that was made for it."""
    result = python(GENERATION)
    assert result.code == 0, result.err[-3000:]
    check_adds_up(result.report)
    sizes = [int(line.split()[1]) for line in result.out.splitlines() if line.startswith("CACHE")]
    cache = [t for t in result.device["largest"] if t["category"] == "key_value_cache"]
    assert sum(t["size_bytes"] * t.get("count", 1) for t in cache) in sizes, (sizes, result.device["largest"])


def test_training_without_torch_optim(python):
    """Updates through .data with gradients enabled, as fastai's optimizers do: steps, and the optimizer's state."""
    result = python("""
import torch
class Optimizer:
    def __init__(self, parameters): self.parameters, self.state = list(parameters), {}
    def step(self):
        for p in self.parameters:
            state = self.state.setdefault(p, {})
            if not state: state["average"], state["square"] = torch.zeros_like(p.grad.data), torch.zeros_like(p.grad.data)
            p.data.mul_(1 - 1e-4)
            state["average"].mul_(.9).add_(p.grad.data, alpha=.1)
            state["square"].mul_(.99).addcmul_(p.grad.data, p.grad.data, value=.01)
            p.data.addcdiv_(state["average"], state["square"].sqrt() + 1e-5, value=-1e-3)
            p.grad = None
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = Optimizer(model.parameters())
for _ in range(4):
    model(torch.randn(64, 512).cuda()).square().mean().backward()
    optimizer.step()
held = model(torch.randn(1 << 15, 512, device="cuda"))
""")
    assert result.code == 0, result.err[-3000:]
    check_adds_up(result.report)
    assert len([s for s in result.device["steps"] if s["complete"]]) == 4
    peak = result.device["peak_allocated"]
    assert category_bytes(peak, "optimizer_state") == 2 * category_bytes(peak, "parameters") > 8 << 20


def test_no_optimizer_where_there_is_none(python):
    """Work without gradients between backward passes (FSDP gathers its parameters so) is no optimizer's."""
    result = python("""
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
for _ in range(3):
    with torch.no_grad():
        gathered = [torch.empty(1 << 22, device="cuda").copy_(torch.ones(1 << 22, device="cuda")) for _ in range(4)]
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    model.zero_grad()
""")
    assert result.code == 0, result.err[-3000:]
    assert category_bytes(result.device["peak_allocated"], "optimizer_state") == 0
    assert result.device["peak_allocated"]["moment"]["phase"] != "optimizer"
    assert not result.device["steps"]


def test_absent_ranks_are_not_waited_for(python):
    """PyTorch's fake group: one rank stands for all."""
    result = python("""
import time, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
x, begin = torch.full((4,), 7., device="cuda"), time.time()
for _ in range(3):
    dist.all_reduce(x)
    print(x[0].item())
assert time.time() - begin < 10
""")
    assert result.code == 0 and result.out.split() == ["7.0"] * 3, result.err[-3000:]
