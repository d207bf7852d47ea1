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
