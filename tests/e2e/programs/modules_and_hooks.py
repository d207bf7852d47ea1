"""Modules in modules keep their names, and hooks that free, shard or refill memory as FSDP's do are followed."""
import torch

from hold import hold

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    def forward(self, x): return self.out(torch.relu(self.query(x)))
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), torch.nn.LayerNorm(256)
    def forward(self, x): return x + self.norm(self.attention(x))
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ModuleList(Layer() for _ in range(4))
    def forward(self, x):
        for layer in self.layer: x = layer(x)
        return x
class Wrapper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), torch.nn.Linear(256, 1000)
    def forward(self, x): return self.head(self.encoder(x))
model = Wrapper().cuda()
full = {}
def gather(module, _):  # the weight exists only while its layer runs
    w = module.attention.query.weight
    w.data.untyped_storage().resize_(w.numel() * 4)
def release(module, *_):
    module.attention.query.weight.data.untyped_storage().resize_(0)
for layer in model.encoder.layer:
    layer.register_forward_pre_hook(gather)
    layer.register_full_backward_pre_hook(lambda m, g: gather(m, g))
    layer.register_forward_hook(release)
    layer.register_full_backward_hook(release)
optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if 'query.weight' not in n])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 256, device='cuda')).square().mean().backward()
    optimizer.step()
hold([model], [optimizer])
