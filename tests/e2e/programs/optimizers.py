"""One model for each kind of optimizer, all kept: every state is optimizer state, every gradient a gradient."""
import torch

from hold import hold

kinds = [lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9), lambda p: torch.optim.Adam(p, foreach=False), lambda p: torch.optim.AdamW(p, fused=True),
         lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True), lambda p: torch.optim.RMSprop(p, momentum=0.9), lambda p: torch.optim.Adagrad(p),
         lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.NAdam(p, capturable=True)]
models, optimizers = [], []
for kind in kinds:
    model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 300)).cuda()
    models.append(model)
    optimizers.append(kind(model.parameters()))
for _ in range(3):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.randn(64, 300, device='cuda')).square().mean().backward()
        optimizer.step()
hold(models, optimizers)
