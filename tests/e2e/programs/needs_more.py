"""A training loop whose activations grow with the batch; it writes a file at the end."""
import argparse
import pathlib
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--out", type=pathlib.Path)
arguments = parser.parse_args()
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    x = torch.randn(arguments.batch_size * 64, 1024, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if arguments.out:
    arguments.out.write_text("trained\n")
