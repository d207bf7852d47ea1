"""Small training programs, one function each, that print what PyTorch says of their memory. usage: training.py NAME

They are ordinary programs: nothing in them knows about Tonnage. The same ones were run on a real card (h200.json beside the
tests), so their last line must be the same to the byte.
"""
import json
import os
import sys

if len(sys.argv) > 1 and sys.argv[1] == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn as nn
import torch.nn.functional as F


def figures(device=0):
    """What PyTorch itself counts, in bytes."""
    s = torch.cuda.memory_stats(device)
    return {"peak": s["allocated_bytes.all.peak"], "peak_reserved": s["reserved_bytes.all.peak"], "allocated": s["allocated_bytes.all.current"],
            "reserved": s["reserved_bytes.all.current"], "allocations": s["allocation.all.allocated"]}


def steps(model, batch, loss, optimizer=None, n=4, scaler=None, autocast=None):
    """n training steps; the figures after each."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    out = []
    for _ in range(n):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=autocast or torch.float16, enabled=autocast is not None):
            value = loss(model, batch())
        if scaler:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            value.backward()
            optimizer.step()
        out.append(figures())
        del value
    return {"steps": out}


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 1, 1),
                                  nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2 * width, 4 * width, 5, 2, 2), nn.ReLU())
        self.head = nn.Linear(4 * width, 100)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def images(batch=16, size=112):
    return torch.randn(batch, 3, size, size, device="cuda"), torch.randint(0, 100, (batch,), device="cuda")


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Block(nn.Module):
    def __init__(self, width=256, heads=4, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers=3, width=256, vocabulary=5000, checkpoint=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.checkpoint = checkpoint

    def forward(self, tokens):
        from torch.utils.checkpoint import checkpoint
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(x)


def tokens(batch=4, length=512):
    return torch.randint(0, 5000, (batch, length), device="cuda")


def next_token(model, x):
    return F.cross_entropy(model(x).flatten(0, 1), x.flatten())


def cnn():
    return steps(Net().cuda(), images, classify)


def cnn_benchmark():
    torch.backends.cudnn.benchmark = True
    return steps(Net().cuda(), images, classify)


def cnn_amp():
    return steps(Net().cuda().to(memory_format=torch.channels_last), images, classify, scaler=torch.amp.GradScaler("cuda", init_scale=256.0), autocast=torch.float16)


def attention(backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return steps(Transformer().cuda(), tokens, next_token, autocast=torch.bfloat16)


def attention_flash():
    return attention("FLASH_ATTENTION")


def attention_efficient():
    return attention("EFFICIENT_ATTENTION")


def attention_math():
    return attention("MATH")


def attention_cudnn():
    return attention("CUDNN_ATTENTION")


def lstm():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.out = nn.Embedding(5000, 128), nn.LSTM(128, 256, 2, dropout=0.2, batch_first=True, bidirectional=True), nn.Linear(512, 5000)

        def forward(self, x):
            return self.out(self.rnn(self.embed(x))[0])
    return steps(Tagger().cuda(), lambda: tokens(16, 64), next_token)


def checkpointing():
    return steps(Transformer(checkpoint=True).cuda(), tokens, next_token, autocast=torch.bfloat16)


def compiled():
    model = Transformer(layers=1).cuda()
    fast = torch.compile(model)
    return steps(model, tokens, lambda _, x: next_token(fast, x), autocast=torch.bfloat16)


def loader():
    """Worker processes, pinned memory."""
    from torch.utils.data import DataLoader, TensorDataset
    data = DataLoader(TensorDataset(torch.randn(128, 3, 112, 112), torch.randint(0, 100, (128,))), 16, num_workers=2, pin_memory=True)
    batches = iter(data)
    return steps(Net().cuda(), lambda: [x.cuda(non_blocking=True) for x in next(batches)], classify)


def expandable():
    return steps(Transformer().cuda(), lambda: tokens(4, 256 + 64 * int(torch.randint(0, 4, (1,)))), next_token)


def cuda_graph():
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = torch.randn(256, 512, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    before = figures()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    return {"steps": [before, figures()]}


def read_back():
    """Shapes that follow from values on the device: the longest length, a mask's count, an integer's own value, unique ids."""
    torch.manual_seed(1)
    lengths = torch.randint(20, 400, (8,)).cuda()
    longest = int(lengths.max())
    x = torch.zeros(8, longest, dtype=torch.long, device="cuda")
    mask = torch.arange(longest, device="cuda")[None] < lengths[:, None]
    model = Transformer(layers=1).cuda()
    chosen = {}

    def loss(m, ids):
        logits = m(ids)[mask]  # one row for each true element
        chosen["selected"] = logits.shape[0]
        parts = torch.split(logits, lengths.tolist())
        chosen["parts"] = [p.shape[0] for p in parts]
        chosen["unique"] = int(torch.unique(lengths % 5).numel())
        if (lengths > 300).any():
            logits = torch.cat([logits, logits[:100]])
        return logits.float().square().mean()
    out = steps(model, lambda: x, loss)
    return {**out, "longest": longest, **chosen}


def out_of_memory():
    """Runs out, catches it, and goes on with half."""
    batch, caught, model = 65536, [], Net().cuda()
    done = None
    while done is None:
        try:
            done = steps(model, lambda: images(batch), classify, torch.optim.SGD(model.parameters(), lr=0.1), n=1)
        except torch.OutOfMemoryError as e:
            caught.append(str(e))
        if done is None:
            model.zero_grad(set_to_none=True)
            batch //= 2
    return {**done, "batch": batch, "caught": caught}


def two_gpus():
    first, second = Net().to("cuda:0"), nn.Sequential(nn.Linear(100, 4096), nn.ReLU(), nn.Linear(4096, 100)).to("cuda:1")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    for _ in range(3):
        x, y = images()
        optimizer.zero_grad()
        F.cross_entropy(second(first(x).to("cuda:1")), y.to("cuda:1")).backward()
        optimizer.step()
    return {"devices": torch.cuda.device_count(), "steps": [figures(0)], "second": figures(1)}


if __name__ == "__main__":
    torch.manual_seed(0)
    print("FIGURES " + json.dumps(globals()[sys.argv[1]](), sort_keys=True), flush=True)
