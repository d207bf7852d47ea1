"""Values that programs read back: what a card would have, or what is assumed where nobody can know it."""
from conftest import PROGRAMS, PYTHON, ROOT


def test_random_numbers_are_the_cards_own(run):
    """Digests of the draws, as tests/e2e/programs/random_numbers.py printed them on an H200 (driver 580, torch 2.11.0+cu130)."""
    done = run(PYTHON, PROGRAMS / "random_numbers.py", gpu="h200")
    assert done.code == 0, done.err
    assert done.out.splitlines() == (ROOT / "tests/data/random/h200.txt").read_text().splitlines()


def test_masks_from_random_numbers_have_a_cards_size(run, tmp_path):
    """The count follows from the seed; another card has other threads, and so other numbers."""
    script = tmp_path / "mask.py"
    script.write_text("import torch\ntorch.manual_seed(0)\n"
                      "x = torch.randn(65536, 16, device='cuda')\nprint(len(x[torch.rand(65536, device='cuda') < 0.3]))\n")
    assert run(PYTHON, script, gpu="h200").out.split() == ["19906"]


def test_a_loop_that_waits_for_a_sampled_token_ends(run, tmp_path):
    """Sampled from unknown scores: no end-of-text token, so the length limit ends it, which is the largest it can get."""
    script = tmp_path / "sample.py"
    script.write_text("import torch\n"
                      "text = torch.zeros(4, 1, dtype=torch.long, device='cuda')\n"
                      "scores = torch.nn.Linear(8, 1000, device='cuda')(torch.randn(4, 100000, 8, device='cuda')[:, 0])\n"
                      "while True:\n"
                      "    token = torch.multinomial(scores.softmax(-1), 1)\n"
                      "    text = torch.cat([text, token], -1)\n"
                      "    done = (text[:, -1] == 999) | (text.shape[1] >= 20)\n"
                      "    if done.all(): break\n"
                      "print(text.shape[1])\n")
    done = run(PYTHON, script, gpu="h200")
    assert done.out.split() == ["20"], done.err


def test_a_loss_that_is_unknown_does_not_end_the_training(run, tmp_path):
    """Convergence tests, limits and "best so far" see a number near 1 that falls, and the report counts the reads."""
    script = tmp_path / "converge.py"
    script.write_text("import torch\n"
                      "m = torch.nn.Linear(64, 64).cuda()\nlast, best, better, steps = None, float('inf'), 0, 0\n"
                      "for _ in range(10):\n"
                      "    loss = m(torch.randn(4096, 64, device='cuda')).square().mean()\n    loss.backward()\n"
                      "    if not torch.isfinite(loss): break\n"
                      "    if loss > 1e6: break\n"
                      "    value = loss.item()\n"
                      "    if last is not None and abs(value - last) < 1e-9: break\n"
                      "    better += value < best\n    best = min(best, value)\n    last = value\n    steps += 1\n"
                      "print(steps, better)\n")
    done = run(PYTHON, script, gpu="h200")
    assert done.out.split() == ["10", "10"], done.err


def test_checks_of_whole_tensors_are_answered_from_their_contents(run, tmp_path):
    """torch.equal and the check inside istft; and a line search that stops at a slope above zero goes on."""
    script = tmp_path / "checks.py"
    script.write_text("import torch\n"
                      "a, b = torch.arange(5).cuda(), torch.arange(1, 6).cuda()\n"
                      "print(torch.equal(a, a.clone()), torch.equal(a, b))\n"
                      "window = torch.hann_window(512, device='cuda')\n"
                      "spectrum = torch.stft(torch.randn(2, 32000).cuda(), 512, 128, window=window, return_complex=True)\n"
                      "print(torch.istft(spectrum, 512, 128, window=window, length=32000).shape[1])\n"
                      "m = torch.nn.Linear(64, 64).cuda()\nx = torch.randn(4096, 64, device='cuda')\n"
                      "o = torch.optim.LBFGS(m.parameters(), max_iter=5)\ncalls = 0\n"
                      "def closure():\n    global calls\n    calls += 1\n    o.zero_grad()\n    loss = m(x).square().mean()\n    loss.backward()\n    return loss\n"
                      "o.step(closure)\nprint(calls)\n")
    done = run(PYTHON, script, gpu="h200")
    assert done.out.split() == ["True", "False", "32000", "5"], done.err


def test_what_only_moves_known_values_keeps_them(run, tmp_path):
    """Writes by index into memory that nobody filled, selections and lists with unknown parts, indices of sparse gradients."""
    script = tmp_path / "moves.py"
    script.write_text("""
import torch
order, numbers = torch.tensor([5, 4, 3, 2, 1, 0], device="cuda"), torch.arange(6, device="cuda")
print(torch.empty_like(order).scatter_(0, order, numbers).tolist())
by_index = torch.empty_like(order)
by_index[order] = numbers
print(by_index.tolist())
part = torch.empty(8, dtype=torch.long, device="cuda")
part[:3] = 7
part[order[:3]] = numbers[:3]
print(part[:6].tolist())
part.index_put_((order,), numbers, accumulate=True)  # on what was there: unknown now
unknown = torch.randn(300, 300, device="cuda").sum(0)
print(torch.cat([unknown, torch.full((2,), 3.0, device="cuda")])[300:].tolist())
print(torch.where(torch.zeros(300, dtype=torch.bool, device="cuda"), unknown, -1e9)[:2].tolist())
index = torch.arange(8192, device="cuda") % 1000
sparse = torch.sparse_coo_tensor(index[None], torch.randn(8192, 4, device="cuda"), (2000, 4), check_invariants=False).coalesce()
print(sparse.indices().sum().item(), sparse.indices().unique().numel())
embedding = torch.nn.Embedding(200000, 128, sparse=True).cuda()
once = torch.randint(0, 200000, (8192,), device="cuda")
(embedding(once).sum() + embedding(torch.randint(0, 200000, (8192, 5), device="cuda")).sum()).backward()
torch.sparse_coo_tensor(index[None], torch.randn(8192, 4, device="cuda"), (2000, 4), check_invariants=False).coalesce()
gathered = embedding.weight.grad._indices()  # not touched by another tensor's kernels
print(embedding.weight.grad.coalesce()._indices().numel() == gathered.unique().numel() < 49152)
lengths = torch.tensor([3, 10, 7, 5])
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(4, 10, 3, device="cuda"), lengths, batch_first=True, enforce_sorted=False)
print(torch.nn.utils.rnn.pad_packed_sequence(packed)[1].tolist())
""")
    done = run(PYTHON, script, gpu="h200")
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["[5, 4, 3, 2, 1, 0]"] * 2 + ["[7, 7, 7, 2, 1, 0]", "[3.0, 3.0]", "[-1000000000.0, -1000000000.0]", "499500 1000", "True",
                                                                 "[3, 10, 7, 5]"]


def test_any_of_unknown_numbers_is_as_they_are_judged(run, tmp_path):
    """Numbers near 1, or -1 beside negative ones: a search goes on, a check for NaN passes. Each read is counted."""
    script = tmp_path / "any.py"
    script.write_text("import torch\nx = torch.randn(300, 300, device='cuda').sum(0)\n"
                      "print([t.any().item() for t in (x > -1e9, x.isnan(), x.isinf(), x < 0, x > 1e6, x > 0.5)])\n")
    done = run(PYTHON, script, gpu="h200")
    assert done.out.split("\n")[0] == "[True, False, False, False, False, True]"
    assert sum(read["count"] for read in done.report["unknown_reads"]) == 6


def test_ranges_and_fills_are_known(run, tmp_path):
    """arange and fill_ of every type that training uses, read back as the host would compute them."""
    script = tmp_path / "ranges.py"
    script.write_text("import torch\n"
                      "d = 'cuda'\n"
                      "def same(a, b): assert a.dtype == b.dtype and a.shape == b.shape and (a.cpu() == b).all(), (a, b)\n"
                      "same(torch.arange(7, device=d), torch.arange(7))\n"
                      "for a in [(3, 20, 4), (9, -5, -3), (5, 5, 1), (-(1 << 40), -(1 << 40) + 6, 2)]:\n"
                      "    same(torch.arange(*a, device=d), torch.arange(*a))\n"
                      "same(torch.arange(4, 9, dtype=torch.int32, device=d), torch.arange(4, 9, dtype=torch.int32))\n"
                      "same(torch.arange(0, 2, 0.25, device=d), torch.arange(0, 2, 0.25))\n"
                      "same(torch.arange(5, dtype=torch.bfloat16, device=d), torch.arange(5, dtype=torch.bfloat16))\n"
                      "same(torch.arange(5, dtype=torch.int16, device=d), torch.arange(5, dtype=torch.int16))\n"
                      "out = torch.empty(0, dtype=torch.long, device=d)\n"
                      "same(torch.arange(2, 8, 2, out=out), torch.tensor([2, 4, 6]))\n"
                      "strided = torch.zeros(6, dtype=torch.long, device=d)\n"
                      "torch.arange(3, out=strided[::2])\n"
                      "same(strided, torch.tensor([0, 0, 1, 0, 2, 0]))\n"
                      "for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):\n"
                      "    for value in (0, 1, 5, 100):\n"
                      "        same(torch.full((3, 5), value, dtype=t, device=d), torch.full((3, 5), value, dtype=t))\n"
                      "        part = torch.zeros(4, 6, dtype=t, device=d); part[:, 1:4].fill_(value)\n"
                      "        host = torch.zeros(4, 6, dtype=t); host[:, 1:4].fill_(value)\n"
                      "        same(part, host)\n"
                      "same(torch.full((3,), -1, device=d), torch.full((3,), -1))\n"
                      "x = torch.ones(4, dtype=torch.uint8, device=d)\n"
                      "for bad in (lambda: x.fill_(3 + 4j), lambda: torch.arange(1, 0, 1, out=x)):\n"
                      "    try: bad()\n    except RuntimeError: continue\n    raise SystemExit('no error')\n"
                      "print('same')\n")
    done = run(PYTHON, script, gpu="h200")
    assert done.code == 0 and done.out.split() == ["same"], done.err
    assert not done.report["unknown_reads"]


# Every operator that writes; what was known is not said to be there any more.
UNKNOWN_INTO_KNOWN = """
import torch
u = (torch.randn(2048, 2048, device="cuda") @ torch.randn(2048, 64, device="cuda")).sum(0)
i, m = torch.arange(64, device="cuda"), torch.ones(64, device="cuda", dtype=torch.bool)
writes = {
    "index": lambda z: z.__setitem__(i, u), "mask": lambda z: z.__setitem__(m, u), "slice": lambda z: z.__setitem__(slice(None), u),
    "index add": lambda z: z.__setitem__(i, z[i] + u), "index_put_": lambda z: z.index_put_((i,), u),
    "accumulate": lambda z: z.index_put_((i,), u, accumulate=True), "masked_scatter_": lambda z: z.masked_scatter_(m, u),
    "scatter_": lambda z: z.scatter_(0, i, u), "scatter_add_": lambda z: z.scatter_add_(0, i, u), "index_copy_": lambda z: z.index_copy_(0, i, u),
    "index_add_": lambda z: z.index_add_(0, i, u), "copy_": lambda z: z.copy_(u), "out": lambda z: torch.add(u, 1, out=z),
    "view": lambda z: z.view(8, 8).add_(u.view(8, 8)), "foreach": lambda z: torch._foreach_add_([z], [u]), "foreach copy": lambda z: torch._foreach_copy_([z], [u]),
    "half": lambda z: z.copy_(u.half()), "lerp_": lambda z: z.lerp_(u, 0.5), "take": lambda z: z.put_(i, u),
}
for name, write in writes.items():
    for old in (0., 2.):
        z = torch.full((64,), old, device="cuda")
        write(z)
        if z.sum().item() in (64 * old, 0.): print("still known:", name, old)
known = torch.full((64,), 2., device="cuda")
known[i[:8]] = u[:8]
print(known[8:].sum().item())
"""


def test_unknown_data_makes_known_memory_unknown(python):
    done = python(UNKNOWN_INTO_KNOWN)
    assert done.code == 0 and done.out.split() == ["112.0"], done.out + done.err[-2000:]
    assert done.report["unknown_reads"]


def test_a_mask_written_by_index_is_as_the_mask_itself(python):
    """A detector's usual way to keep boxes: the upper bound in both cases, and the report says so."""
    done = python("""
import torch
s = torch.randn(4000, 300, device="cuda").sum(1)
keep = torch.zeros(4000, dtype=torch.bool, device="cuda")
keep[torch.arange(4000, device="cuda")] = s > 0
x = torch.empty(4000, 1024, device="cuda")
print(len(x[s > 0]), len(x[keep]))
""")
    assert done.out.split() == ["4000", "4000"], done.err
    assert sum(size["count"] for size in done.report["assumed_sizes"]) == 2


def test_extremes_and_quantiles_of_unknown_data_fit_together(python):
    """In whatever order they are read; what is asked with them as bounds is not refused."""
    done = python("""
import torch
x = torch.randn(3000, 3000, device="cuda") @ torch.randn(3000, 3000, device="cuda")
low, high = x.min().item(), x.max().item()
a, b = x.aminmax()
q = [x[:100].quantile(p).item() for p in (.1, .5, .9)]
s = x.flatten().sort().values
m, n = x.mean().item(), x.mean().item()
values = [low, *q, high]
assert values == sorted(values) and low < high, values
assert (a.item(), b.item()) == (low, high) == (s[0].item(), s[-1].item())
assert low < m < high and m == n and low <= x.median().item() <= high
assert x.min(1).values[5].item() <= x[5, 7].item() <= x.max(1).values[5].item()
assert 0 < x.std().item() < high - low
torch.empty(4).uniform_(low, high), torch.histc(x, 10, low, high), torch.histc(x, 10), torch.empty(4, device="cuda").uniform_(low, high)
print("fit")
""")
    assert done.code == 0 and done.out.split() == ["fit"], done.err[-2000:]


def test_all_ways_to_read_a_number_agree(python):
    done = python("""
import torch
x = torch.randn(3000, 3000, device="cuda") @ torch.randn(3000, 3000, device="cuda")
for first in ("item", "cpu", "list", "async", "copy"):
    number = (x + 1).mean()
    read = {"item": lambda: number.item(), "cpu": lambda: number.cpu().item(), "list": lambda: number.tolist(),
            "async": lambda: number.to("cpu", non_blocking=True).item(), "copy": lambda: torch.empty(()).copy_(number).item()}
    value = read[first]()
    also = [r() for r in read.values()] + [float(number), float(number.cpu().numpy()), torch.stack([number, number])[1].item(),
                                           (torch.zeros((), device="cuda") + number).item(), number.clone().cpu().item()]
    assert value > 0 and all(v == value for v in also), (first, value, also)
rows = x.sum(1)
assert rows.tolist()[17] == rows[17].item() == rows.cpu()[17].item()
check = (x == x).all()
assert check.item() is check.cpu().item() is bool(check) is check.tolist() is True
print("agree")
""")
    assert done.code == 0 and done.out.split() == ["agree"], done.err[-2000:]


def test_known_positions_give_known_neighbours(python):
    """Distances by cdist, differences, norms and products; also of more points than a CPU's cache holds."""
    done = python("""
import torch
p = torch.rand(700, 3, device="cuda") * 4
want = len((torch.cdist(p.cpu(), p.cpu()) < 0.5).nonzero())
d = p[:, None] - p[None]
counts = [len(near.nonzero()) for near in (
    torch.cdist(p, p) < 0.5, d.pow(2).sum(-1) < 0.25, d.norm(dim=-1) < 0.5, torch.linalg.norm(d, dim=-1).lt(0.5), (d * d).sum(-1).sqrt() < 0.5,
    (p.square().sum(1)[:, None] + p.square().sum(1) - 2 * p @ p.T).clamp(min=0) < 0.25)]
assert all(abs(c - want) <= 4 for c in counts), (want, counts)
i, j = (d.norm(dim=-1) < 0.5).nonzero().T
print(len(i), len(i[(p[i] - p[j]).norm(dim=-1) < 0.25]) < len(i))
""")
    assert done.code == 0, done.err[-2000:]
    assert not done.report["assumed_sizes"]
    assert done.out.split()[1] == "True"
