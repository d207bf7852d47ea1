"""Known before the replay; after it nobody can say, and the report names the read."""
import torch
x, other = torch.zeros(16, dtype=torch.long, device='cuda'), torch.full((16,), 7, dtype=torch.long, device='cuda')
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(side):
    x.add_(1)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    x.add_(1)
x.fill_(5)
print('before', x[0].item())
graph.replay()
print('after', x[0].item())
print('other', other[0].item())
model = torch.nn.Linear(256, 256).cuda()
called = torch.cuda.make_graphed_callables(model, (torch.randn(8, 256, device='cuda', requires_grad=True),))
for _ in range(2): called(torch.randn(8, 256, device='cuda', requires_grad=True)).sum().backward()
