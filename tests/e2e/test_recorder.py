"""The recorder inside real PyTorch programs: what it says must be what the program itself holds, and the program must not notice."""
import csv
import json
import shutil
import signal
from pathlib import Path

import pytest

from conftest import BUILD, PYTHON, TONNAGE, category_bytes, check_adds_up, clean_environment, run_plain

SITE = next(Path(PYTHON).parent.parent.glob("lib/python3*/site-packages"))

# Ends a program with a peak at which everything that it holds is alive, and says how much of each kind that is.
HOLD = """
import json, torch
def bytes_of(tensors):
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None and t.is_cuda}
    return sum(storages.values())
def states(optimizers):
    for o in optimizers:
        for s in o.state.values():
            for v in s.values():
                yield from (x for x in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(x, torch.Tensor))
def hold(models, optimizers=()):
    parameters = [p for m in models for p in m.parameters()]
    filler = torch.empty(max(1 << 30, 4 * torch.cuda.max_memory_allocated()), dtype=torch.uint8, device='cuda')
    print('HELD ' + json.dumps({'parameters': bytes_of(parameters), 'gradients': bytes_of(p.grad for p in parameters),
                                'optimizer_state': bytes_of(states(optimizers)), 'peak': torch.cuda.max_memory_allocated()}), flush=True)
"""


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


STEPS = """
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 512, device='cuda')).square().mean().backward()
    optimizer.step()
"""


def test_optimizers(python):
    """One model for each kind of optimizer, all kept: every state is optimizer state, every gradient a gradient."""
    check_held(python(HOLD + """
kinds = [lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9), lambda p: torch.optim.Adam(p, foreach=False), lambda p: torch.optim.AdamW(p, fused=True),
         lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True), lambda p: torch.optim.RMSprop(p, momentum=0.9), lambda p: torch.optim.Adagrad(p),
         lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.NAdam(p, capturable=True)]
models, optimizers = [], []
for kind in kinds:
    model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 300)).cuda()
    models.append(model)
    optimizers.append(kind(model.parameters()))
for _ in range(3):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.randn(64, 300, device='cuda')).square().mean().backward()
        optimizer.step()
hold(models, optimizers)
"""), "parameters", "gradients", "optimizer_state")


def test_closures(python):
    """Where the optimizer's step calls the forward pass (LBFGS; Lightning with every optimizer), all is seen as elsewhere."""
    result = python(HOLD + """
models = [torch.nn.Sequential(torch.nn.Linear(512, 512)).cuda() for _ in range(2)]
optimizers = [torch.optim.LBFGS(models[0].parameters(), history_size=3, max_iter=4), torch.optim.Adam(models[1].parameters())]
for model, optimizer in zip(models, optimizers):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 512, device='cuda')).square().mean()
        loss.backward()
        return loss
    for _ in range(3): optimizer.step(closure)
hold(models)
""")
    check_held(result, "parameters", "gradients")
    steps = [s for s in result.device["steps"] if s["complete"]]
    assert len(steps) == 6


def test_scaler_and_accumulation(python):
    """Gradients that gather over several backward passes are gradients, whatever made them."""
    check_held(python(HOLD + """
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Flatten(), torch.nn.Linear(64 * 30 * 30, 100)).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), torch.amp.GradScaler('cuda')
for step in range(2):
    optimizer.zero_grad()
    for micro in range(3):
        with torch.autocast('cuda', dtype=torch.float16):
            loss = model(torch.randn(4, 3, 32, 32, device='cuda')).square().mean() / 3
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
hold([model], [optimizer])
"""), "parameters", "gradients", "optimizer_state")


def test_modules_and_hooks(python):
    """Modules in modules keep their names, and hooks that free, shard or refill memory as FSDP's do are followed."""
    result = python(HOLD + """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    def forward(self, x): return self.out(torch.relu(self.query(x)))
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), torch.nn.LayerNorm(256)
    def forward(self, x): return x + self.norm(self.attention(x))
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ModuleList(Layer() for _ in range(4))
    def forward(self, x):
        for layer in self.layer: x = layer(x)
        return x
class Wrapper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), torch.nn.Linear(256, 1000)
    def forward(self, x): return self.head(self.encoder(x))
model = Wrapper().cuda()
full = {}
def gather(module, _):  # the weight exists only while its layer runs
    w = module.attention.query.weight
    w.data.untyped_storage().resize_(w.numel() * 4)
def release(module, *_):
    module.attention.query.weight.data.untyped_storage().resize_(0)
for layer in model.encoder.layer:
    layer.register_forward_pre_hook(gather)
    layer.register_full_backward_pre_hook(lambda m, g: gather(m, g))
    layer.register_forward_hook(release)
    layer.register_full_backward_hook(release)
optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if 'query.weight' not in n])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 256, device='cuda')).square().mean().backward()
    optimizer.step()
hold([model], [optimizer])
""")
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


def test_cuda_before_pytorch(python):
    """The driver is started before PyTorch is loaded: the recorder comes when PyTorch does."""
    result = python("""
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
""" + HOLD + STEPS + "hold([model], [optimizer])\n")
    check_held(result, "parameters", "gradients", "optimizer_state")
    assert result.report["torch_version"]


def test_facts(python):
    result = python("""
import os
os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'
import platform, torch
x = torch.zeros(1 << 20, device='cuda')
print('SAID', torch.__version__, platform.python_version())
""")
    torch_version, python_version = result.out.split("SAID ")[1].split()
    assert result.report["torch_version"] == torch_version
    assert result.report["alloc_conf"] == "max_split_size_mb:64"
    assert result.report["info"]["python_version"] == python_version
    assert result.report["processes"][0]["command"].endswith("script.py")


def test_inside_of_casts(python):
    """Casts and transposes of unknown data are not looked into: their memory and their backward pass still have their lines."""
    result = python("""
import torch
source = torch.randn(1024, 1024, device='cuda', requires_grad=True)
half = source.to(torch.bfloat16)  # 2 MiB; its backward pass makes source's gradient, 4 MiB
loss = (half.t() * 2).sum()
loss.backward()
ids = torch.tensor([3, 1, 2], device='cuda').to(torch.float32).t().to(torch.int64)
print('IDS', ids.tolist(), torch.cuda.memory_allocated(), flush=True)
filler = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')
""")
    assert result.code == 0, result.err
    check_adds_up(result.report)
    assert "IDS [3, 1, 2]" in result.out
    assert not result.report["unknown_reads"]
    made = {(t["site"]["user_line"]["line"], t["size_bytes"]): t["site"]["op"] for t in result.device["largest"]}
    assert made[(4, 2 << 20)] == "aten::_to_copy"
    assert made[(4, 4 << 20)] == "torch::autograd::AccumulateGrad"  # of what the cast's node handed on


def test_lines_behind_views(python, tonnage, tmp_path):
    """Views are not observed; what is made in their backward pass has its line, and a parameter that is used through one is one."""
    record, table = tmp_path / "kept.tonnage", tmp_path / "kept.csv"
    result = python("""
import torch
weight = torch.nn.Parameter(torch.randn(1024, 512, device='cuda'))
x = torch.randn(256, 512, device='cuda', requires_grad=True)
turned = weight.t()
y = torch.mm(x, turned)  # its backward pass makes the weight's gradient
z = y.view(16, 16, 1024)  # and this one's a copy
z = z.transpose(0, 1)
z = z.select(0, 3)  # and this one's zeros
(z * 3).sum().backward()
""", options=["--record", record])
    assert result.code == 0, result.err
    assert tonnage("report", "--csv", table, record).code == 0
    rows = list(csv.DictReader(table.open()))
    made = {(r["op"], int(r["requested_bytes"]), r["phase"]): (int(r["line"].rsplit(":", 1)[1]), r["category"]) for r in rows}
    assert made["aten::randn", 2 << 20, "init"] == (3, "parameters")
    assert made["aten::mm", 2 << 20, "backward"] == (6, "gradients")
    assert made["aten::clone", 1 << 20, "backward"][0] == 7
    assert made["aten::zeros", 1 << 20, "backward"][0] == 9


def test_gradients_used_up_by_their_hooks(python):
    """An optimizer in the backward pass frees each gradient at once: while it lives, it is one."""
    result = python("""
import torch
layers = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(3)]).cuda()
def use_up(p):
    if p is layers[0].weight:
        filler = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')  # the peak: this gradient alone is there
        print('GRADIENT', p.grad.numel() * 4, flush=True)
    p.grad = None
for p in layers.parameters():
    p.register_post_accumulate_grad_hook(use_up)
for _ in range(2):
    layers(torch.randn(8, 2048, device='cuda')).sum().backward()
""")
    assert result.code == 0, result.err
    check_adds_up(result.report)
    assert category_bytes(result.device["peak_allocated"], "gradients") == 2048 * 2048 * 4


def test_graph_replay_forgets_what_it_writes(python):
    """Known before the replay; after it nobody can say, and the report names the read."""
    result = python("""
import torch
x, other = torch.zeros(16, dtype=torch.long, device='cuda'), torch.full((16,), 7, dtype=torch.long, device='cuda')
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(side):
    x.add_(1)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    x.add_(1)
x.fill_(5)
print('before', x[0].item())
graph.replay()
print('after', x[0].item())
print('other', other[0].item())
model = torch.nn.Linear(256, 256).cuda()
called = torch.cuda.make_graphed_callables(model, (torch.randn(8, 256, device='cuda', requires_grad=True),))
for _ in range(2): called(torch.randn(8, 256, device='cuda', requires_grad=True)).sum().backward()
""")
    assert result.code == 0, result.err[-3000:]
    assert "before 5" in result.out and "after 5" not in result.out
    assert result.report["unknown_reads"]
    check_adds_up(result.report)


def test_unknown_kernel_forgets_its_own_blocks_only(python):
    """A kernel outside all operators may write what its arguments point at; the blocks beside them stay known."""
    result = python("""
import torch
first, mine, last = (torch.full((64,), n, dtype=torch.long, device='cuda') for n in (3, 5, 7))
kernel = torch.cuda._compile_kernel('extern "C" __global__ void bump(long long* x) { x[threadIdx.x]++; }', 'bump')
kernel((1, 1, 1), (64, 1, 1), (mine,))
print('beside', first[1].item(), last[1].item())
print('mine', mine[1].item())
""")
    assert result.code == 0, result.err[-3000:]
    assert "beside 3 7" in result.out
    assert "mine 5" not in result.out and len(result.report["unknown_reads"]) == 1


# What PyTorch's own history says, without what differs from run to run.
HISTORY = """
import json, sys, torch
torch.cuda.memory._record_memory_history(stacks='python')
""" + STEPS + """
trace = torch.cuda.memory._snapshot()['device_traces'][0]
segments = [(e['addr'], e['size']) for e in trace if e['action'] == 'segment_alloc']
def place(address):  # where segments lie is the machine's choice
    return next(([i, address - begin] for i, (begin, size) in enumerate(segments) if begin <= address < begin + size), None)
print('HISTORY ' + json.dumps([[e['action'], e['size'], place(e['addr']), e['stream'], [[f['filename'], f['line'], f['name']] for f in e['frames']]] for e in trace]))
"""

# A session without a record: the virtual driver alone. The record's path begins at byte 24 of the session (src/abi/session.h).
DRIVER_ALONE = r'''copy=$(mktemp) && cp "$TONNAGE_SESSION" "$copy" && printf '\0' | dd of="$copy" bs=1 seek=24 conv=notrunc status=none &&
TONNAGE_SESSION=$copy "$@"; code=$?; rm -f "$copy"; exit $code'''


def test_users_own_memory_history(run, tmp_path):
    """A program that records PyTorch's history gets the same one, byte for byte, and so do we."""
    script = tmp_path / "history.py"
    script.write_text(HISTORY)
    def history(*before):
        result = run(*before, PYTHON, script)
        assert result.code == 0, result.err[-3000:]
        return result, json.loads(next(line for line in result.out.splitlines() if line.startswith("HISTORY "))[8:])
    result, recorded = history()
    _, alone = history("bash", "-c", DRIVER_ALONE, "bash")
    assert len(recorded) > 100
    assert recorded == alone
    assert category_bytes(result.device["peak_allocated"], "parameters") > 0
    check_adds_up(result.report)


def test_users_own_profiler(python):
    """PyTorch's profiler beside the recorder: both see every operator, and known values stay known."""
    result = python(HOLD + """
from torch.profiler import profile, ProfilerActivity, record_function
mask = torch.zeros(1000, dtype=torch.bool, device='cuda')
mask[::4] = True
spare = torch.zeros(4, 8, device='cuda')
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as p:
    spare.squeeze()  # the first thing that it sees
    with record_function('my part'):
""" + "".join("        " + line + "\n" for line in STEPS.strip().splitlines()) + """
    print('chosen', mask.nonzero().shape[0])
events = {e.key: e.count for e in p.key_averages()}
print('EVENTS ' + json.dumps({k: events.get(k, 0) for k in ('aten::squeeze', 'aten::linear', 'aten::t', 'aten::addmm', 'my part', 'Optimizer.step#AdamW.step')}))
hold([model], [optimizer])
""")
    check_held(result, "parameters", "gradients", "optimizer_state")
    assert "chosen 250" in result.out
    events = json.loads(next(line for line in result.out.splitlines() if line.startswith("EVENTS "))[7:])
    assert events == {"aten::squeeze": 1, "aten::linear": 6, "aten::t": events["aten::t"], "aten::addmm": 6, "my part": 1, "Optimizer.step#AdamW.step": 3}
    assert events["aten::t"] >= 6


def test_spawned_workers_and_threads(python):
    """Worker processes that load data and training in a thread: one report."""
    result = python(HOLD + """
import threading
class Data(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return torch.full((512,), float(i))
def work(method):
    global model, optimizer
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context=method, pin_memory=True):
        optimizer.zero_grad()
        model(x.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
if __name__ == '__main__':
    work('spawn')
    thread = threading.Thread(target=work, args=('fork',))
    thread.start(); thread.join()
    hold([model], [optimizer])
""")
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
    assert any("no recorder for the PyTorch" in m["text"] and m["level"] == "warning" for m in report["messages"]), report["messages"]
    assert report["torch_version"]
    assert report["devices"][0]["peak_device"]["bytes"] > 1 << 30


def test_only_what_is_trained_counts_as_parameters(python):
    """A module's, an optimizer's and a hand-updated tensor do; an input whose gradient is wanted does not."""
    result = python("""
import torch
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
taken = torch.randn(1024, 2048, device="cuda", requires_grad=True)
by_hand = torch.randn(2048, 3072, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([*model.parameters(), taken], lr=0.1)
for _ in range(3):
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    (model(x) @ taken @ by_hand).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        by_hand -= 0.1 * by_hand.grad
    by_hand.grad = None
""")
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
    cache = [t for t in result.device["largest"] if t["name"] == "key-value cache"]
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
