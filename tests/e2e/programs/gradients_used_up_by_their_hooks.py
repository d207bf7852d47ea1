"""An optimizer in the backward pass frees each gradient at once: while it lives, it is one."""
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
