"""A 40 GiB model on the device, in a process that may have 6 GiB."""
import resource, torch
xs = [torch.empty(1 << 30, dtype=torch.bfloat16, device='cuda').normal_() for _ in range(20)]
y = xs[0] * 2; y.sum().item()
print('rss', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
