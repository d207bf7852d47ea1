"""Values that programs read back: what a card would have, or what is assumed where nobody can know it."""
from conftest import PROGRAMS, PYTHON, ROOT


def test_random_numbers_are_the_cards_own(run):
    """Digests of the draws, as tests/e2e/programs/random_numbers.py printed them on an H200 (driver 580, torch 2.11.0+cu130)."""
    done = run(PYTHON, PROGRAMS / "random_numbers.py", gpu="h200")
    assert done.code == 0, done.err
    assert done.out.splitlines() == (ROOT / "tests/data/random/h200.txt").read_text().splitlines()


def test_masks_from_random_numbers_have_a_cards_size(run):
    """The count follows from the seed; another card has other threads, and so other numbers."""
    assert run(PYTHON, PROGRAMS / "masks_from_random_numbers_have_a_cards_size.py", gpu="h200").out.split() == ["19906"]


def test_a_loop_that_waits_for_a_sampled_token_ends(run):
    """Sampled from unknown scores: no end-of-text token, so the length limit ends it, which is the largest it can get."""
    done = run(PYTHON, PROGRAMS / "a_loop_that_waits_for_a_sampled_token_ends.py", gpu="h200")
    assert done.out.split() == ["20"], done.err


def test_a_loss_that_is_unknown_does_not_end_the_training(run):
    """Convergence tests, limits and "best so far" see a number near 1 that falls, and the report counts the reads."""
    done = run(PYTHON, PROGRAMS / "a_loss_that_is_unknown_does_not_end_the_training.py", gpu="h200")
    assert done.out.split() == ["10", "10"], done.err


def test_checks_of_whole_tensors_are_answered_from_their_contents(run):
    """torch.equal and the check inside istft; and a line search that stops at a slope above zero goes on."""
    done = run(PYTHON, PROGRAMS / "checks_of_whole_tensors_are_answered_from_their_contents.py", gpu="h200")
    assert done.out.split() == ["True", "False", "32000", "5"], done.err


def test_what_only_moves_known_values_keeps_them(run):
    """Writes by index into memory that nobody filled, selections and lists with unknown parts, indices of sparse gradients."""
    done = run(PYTHON, PROGRAMS / "what_only_moves_known_values_keeps_them.py", gpu="h200")
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["[5, 4, 3, 2, 1, 0]"] * 2 + ["[7, 7, 7, 2, 1, 0]", "[3.0, 3.0]", "[-1000000000.0, -1000000000.0]", "499500 1000", "True",
                                                                 "[3, 10, 7, 5]"]


def test_any_of_unknown_numbers_is_as_they_are_judged(run):
    """Numbers near 1, or -1 beside negative ones: a search goes on, a check for NaN passes. Each read is counted."""
    done = run(PYTHON, PROGRAMS / "any_of_unknown_numbers_is_as_they_are_judged.py", gpu="h200")
    assert done.out.split("\n")[0] == "[True, False, False, False, False, True]"
    assert sum(read["count"] for read in done.report["unknown_reads"]) == 6


def test_ranges_and_fills_are_known(run):
    """arange and fill_ of every type that training uses, read back as the host would compute them."""
    done = run(PYTHON, PROGRAMS / "ranges_and_fills_are_known.py", gpu="h200")
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


def test_what_operators_write_into_known_memory_follows_from_what_was_known(program):
    """PyTorch's own list of operators, in place and with out=, with known and unknown inputs."""
    done = program("what_operators_write.py")
    assert done.code == 0, done.err[-2000:]
    assert done.out.splitlines()[-1] == "True 0", done.out[-3000:]
