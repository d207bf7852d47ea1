"""Convergence tests, limits and "best so far" see a number near 1 that falls, and the report counts the reads."""
import torch
m = torch.nn.Linear(64, 64).cuda()
last, best, better, steps = None, float('inf'), 0, 0
for _ in range(10):
    loss = m(torch.randn(4096, 64, device='cuda')).square().mean()
    loss.backward()
    if not torch.isfinite(loss): break
    if loss > 1e6: break
    value = loss.item()
    if last is not None and abs(value - last) < 1e-9: break
    better += value < best
    best = min(best, value)
    last = value
    steps += 1
print(steps, better)
