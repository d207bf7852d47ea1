"""arange and fill_ of every type that training uses, read back as the host would compute them."""
import torch
d = 'cuda'
def same(a, b): assert a.dtype == b.dtype and a.shape == b.shape and (a.cpu() == b).all(), (a, b)
same(torch.arange(7, device=d), torch.arange(7))
for a in [(3, 20, 4), (9, -5, -3), (5, 5, 1), (-(1 << 40), -(1 << 40) + 6, 2)]:
    same(torch.arange(*a, device=d), torch.arange(*a))
same(torch.arange(4, 9, dtype=torch.int32, device=d), torch.arange(4, 9, dtype=torch.int32))
same(torch.arange(0, 2, 0.25, device=d), torch.arange(0, 2, 0.25))
same(torch.arange(5, dtype=torch.bfloat16, device=d), torch.arange(5, dtype=torch.bfloat16))
same(torch.arange(5, dtype=torch.int16, device=d), torch.arange(5, dtype=torch.int16))
out = torch.empty(0, dtype=torch.long, device=d)
same(torch.arange(2, 8, 2, out=out), torch.tensor([2, 4, 6]))
strided = torch.zeros(6, dtype=torch.long, device=d)
torch.arange(3, out=strided[::2])
same(strided, torch.tensor([0, 0, 1, 0, 2, 0]))
for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    for value in (0, 1, 5, 100):
        same(torch.full((3, 5), value, dtype=t, device=d), torch.full((3, 5), value, dtype=t))
        part = torch.zeros(4, 6, dtype=t, device=d); part[:, 1:4].fill_(value)
        host = torch.zeros(4, 6, dtype=t); host[:, 1:4].fill_(value)
        same(part, host)
same(torch.full((3,), -1, device=d), torch.full((3,), -1))
x = torch.ones(4, dtype=torch.uint8, device=d)
for bad in (lambda: x.fill_(3 + 4j), lambda: torch.arange(1, 0, 1, out=x)):
    try: bad()
    except RuntimeError: continue
    raise SystemExit('no error')
print('same')
