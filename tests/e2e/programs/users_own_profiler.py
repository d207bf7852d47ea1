"""PyTorch's profiler beside the recorder: both see every operator, and known values stay known."""
import json

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from hold import hold

mask = torch.zeros(1000, dtype=torch.bool, device='cuda')
mask[::4] = True
spare = torch.zeros(4, 8, device='cuda')
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as p:
    spare.squeeze()  # the first thing that it sees
    with record_function('my part'):
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(64, 512, device='cuda')).square().mean().backward()
            optimizer.step()

    print('chosen', mask.nonzero().shape[0])
events = {e.key: e.count for e in p.key_averages()}
print('EVENTS ' + json.dumps({k: events.get(k, 0) for k in ('aten::squeeze', 'aten::linear', 'aten::t', 'aten::addmm', 'my part', 'Optimizer.step#AdamW.step')}))
hold([model], [optimizer])
