"""Casts and transposes of unknown data are not looked into: their memory and their backward pass still have their lines."""
import torch
source = torch.randn(1024, 1024, device='cuda', requires_grad=True)
half = source.to(torch.bfloat16)  # 2 MiB; its backward pass makes source's gradient, 4 MiB
loss = (half.t() * 2).sum()
loss.backward()
ids = torch.tensor([3, 1, 2], device='cuda').to(torch.float32).t().to(torch.int64)
print('IDS', ids.tolist(), torch.cuda.memory_allocated(), flush=True)
filler = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')
