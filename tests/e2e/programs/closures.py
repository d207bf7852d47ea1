"""Where the optimizer's step calls the forward pass (LBFGS; Lightning with every optimizer), all is seen as elsewhere."""
import torch

from hold import hold

models = [torch.nn.Sequential(torch.nn.Linear(512, 512)).cuda() for _ in range(2)]
optimizers = [torch.optim.LBFGS(models[0].parameters(), history_size=3, max_iter=4), torch.optim.Adam(models[1].parameters())]
for model, optimizer in zip(models, optimizers):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 512, device='cuda')).square().mean()
        loss.backward()
        return loss
    for _ in range(3): optimizer.step(closure)
hold(models)
