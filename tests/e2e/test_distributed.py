"""Several ranks: NCCL runs for real, and what ranks tell each other reaches them. The cases are those that were measured on two H200s
(bench/truth/several_cards_cases.py), the values and figures what these gave."""
import json
import time

import pytest
from conftest import PROGRAMS, PYTHON, ROOT, category_bytes, check_adds_up

CASES = ROOT / "bench/truth/several_cards_cases.py"
MEASURED = {}
for line in (ROOT / "bench/truth/h200-several-cards.jsonl").read_text().splitlines():
    row = json.loads(line)
    MEASURED.setdefault((row["case"], row["rank"]), row)


@pytest.fixture
def ranks(run, tmp_path):
    """ranks(CASE): the report, and each rank's notes."""
    def call(case):
        result = run(PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", CASES, case, tmp_path / case, gpu="h200x2")
        assert result.code == 0, result.err[-4000:]
        return result.report, [json.loads((tmp_path / f"{case}-{rank}").read_text()) for rank in (0, 1)]
    return call


@pytest.mark.parametrize("case", ["collectives", "objects", "experts"])
def test_ranks_read_what_the_others_sent(ranks, case):
    report, notes = ranks(case)
    for rank in (0, 1):
        real = MEASURED[case, rank]
        assert notes[rank]["values"] == real["values"]
        assert notes[rank]["steps"] == real["steps"]
        for moment, used in real["device"].items():
            assert abs(notes[rank]["device"][moment][0] - used[0]) <= 0.002 * used[0], moment
    check_adds_up(report)


def test_data_parallel_training(ranks):
    report, notes = ranks("ddp_gpt")
    for rank in (0, 1):
        real = MEASURED["ddp_gpt", rank]["steps"]
        assert notes[rank]["steps"][0] == real[0]
        # Buckets are made anew in the second step. PyTorch's watchdog lets go of the old ones at the next tenth of a second: on a
        # real card, and mostly here, after the last step.
        weights_and_less = real[-1][0][0] - real[1][0][0]
        for step in range(1, len(real)):
            assert real[step][0][0] - weights_and_less <= notes[rank]["steps"][step][0][0] <= real[step][0][0]
        device = report["devices"][rank]
        assert device["peak_allocated"]["bytes"] == notes[rank]["steps"][-1][0][0]
        # What has names is known on both cards.
        weights = sum(4 * n for n in (8192 * 512, 6 * 12 * 512 * 512, 6 * 13 * 512, 2 * 512, 8192 * 512))
        assert category_bytes(device["peak_allocated"], "parameters") == pytest.approx(weights, rel=0.01)
        assert category_bytes(device["peak_allocated"], "optimizer_state") == pytest.approx(2 * weights, rel=0.01)
    check_adds_up(report)


def test_a_rank_that_ends_early_keeps_nobody_waiting(run):
    start = time.monotonic()
    result = run(PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PROGRAMS / "a_rank_that_ends_early_keeps_nobody_waiting.py", gpu="h200x2")
    assert result.code == 1  # torchrun's
    assert result.out.count("SUM [3, 3]") == 2
    assert "NEVER" not in result.out
    assert time.monotonic() - start < 60
