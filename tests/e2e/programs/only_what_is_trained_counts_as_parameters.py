"""A module's, an optimizer's and a hand-updated tensor do; an input whose gradient is wanted does not."""
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
