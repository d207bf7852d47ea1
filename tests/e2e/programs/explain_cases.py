"""Programs that fill a card, one for each thing that `tonnage explain` has to tell apart: explain_cases.py NAME SNAPSHOT [all|python]"""
import collections
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

name, snapshot = sys.argv[1:3]
torch.cuda.memory._record_memory_history(stacks=sys.argv[3] if len(sys.argv) > 3 else "all")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))  # forward line


class Net(nn.Module):
    def __init__(self, width=512, layers=8):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def train(net, shapes, keep=None):
    optimizer = torch.optim.AdamW(net.parameters())
    for batch, length, width in shapes:
        loss = net(torch.randn(batch, length, width, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()  # step line
        optimizer.zero_grad()
        if keep:
            keep(loss)


def activations():
    train(Net(layers=12).cuda(), [(64, 1024, 512)])


def optimizer_state():
    train(Net(2048, 30).cuda(), [(1, 64, 2048)])


def long_sample():
    train(Net(layers=12).cuda(), [(4, length, 512) for length in (256, 300, 280, 256, 310, 30000)])


def kept_losses():
    net, losses = Net().cuda(), []

    def keep(loss):
        losses.append(loss + net(torch.randn(16, 512, 512, device="cuda")).mean())  # kept line
    train(net, [(16, 512, 512)] * 40, keep)


def create_graph():
    # Gradients that are never set to None: each holds the graph that made it, and that holds the one before.
    net = Net(256, 3).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(16):
        net(torch.randn(8, 128, 256, device="cuda")).pow(2).mean().backward(create_graph=True)  # graph line
        optimizer.step()


kept = []


def queue(length, steps=16):
    results = collections.deque(maxlen=length)
    train(Net(256, 3).cuda(), [(8, 128, 256)] * steps, lambda loss: results.append(torch.zeros(1 << 20, device="cuda")))  # queue line
    return results


def filling_queue():
    kept.append(queue(1000))  # still there when the snapshot is taken


def full_queue():
    queue(13)


def retry():
    net = Net(layers=12).cuda()
    try:
        train(net, [(80, 1024, 512)])
    except torch.OutOfMemoryError:
        train(net, [(40, 1024, 512)])


def healthy():
    seen = []
    train(Net(layers=4).cuda(), [(8, 256 + 32 * (i % 3), 512) for i in range(10)], lambda loss: seen.append(loss.item()))


try:
    globals()[name]()
except torch.OutOfMemoryError:
    pass
torch.cuda.memory._dump_snapshot(snapshot)
