"""Gradients that gather over several backward passes are gradients, whatever made them."""
import torch

from hold import hold

model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Flatten(), torch.nn.Linear(64 * 30 * 30, 100)).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), torch.amp.GradScaler('cuda')
for step in range(2):
    optimizer.zero_grad()
    for micro in range(3):
        with torch.autocast('cuda', dtype=torch.float16):
            loss = model(torch.randn(4, 3, 32, 32, device='cuda')).square().mean() / 3
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
hold([model], [optimizer])
