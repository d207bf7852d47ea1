"""Numbers near 1, or -1 beside negative ones: a search goes on, a check for NaN passes. Each read is counted."""
import torch
x = torch.randn(300, 300, device='cuda').sum(0)
print([t.any().item() for t in (x > -1e9, x.isnan(), x.isinf(), x < 0, x > 1e6, x > 0.5)])
