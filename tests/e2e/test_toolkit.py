"""The C++ toolkit's training program: it learns on the CPU, and `tonnage run` knows what its memory is for."""
import re

import pytest

from conftest import BUILD, category_bytes, check_adds_up, clean_environment, run_plain

PROGRAM = BUILD / "bin" / "train_cpp"
# GPT-2 --small: tied embedding 256 x 64, positions 32 x 64, 2 blocks, the last norm; elements.
BLOCK = (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
ELEMENTS = 256 * 64 + 32 * 64 + 2 * BLOCK + 2 * 64


def losses(output):
    return [float(x) for x in re.findall(r"^step \d+/\d+: loss ([0-9.]+)", output, re.M)]


@pytest.mark.parametrize("options", [(), ("--optimizer", "adamw8bit", "--checkpoint"), ("--optimizer", "in-backward")])
def test_it_learns(options):
    result = run_plain([PROGRAM, "--cpu", "--small", "--batch-size", 16, "--steps", 25, *options], env=clean_environment(OMP_NUM_THREADS="1"))
    assert result.code == 0, result.err
    values = losses(result.out)
    assert len(values) == 25
    assert sum(values[-5:]) / 5 < values[0] - 0.2


def test_categories(run):
    result = run(PROGRAM, "--small", "--steps", 3)
    assert result.code == 0, result.err
    assert len(losses(result.out)) == 3 and "peak" in result.out
    peak = result.device["peak_allocated"]
    parameters, state = category_bytes(peak, "parameters"), category_bytes(peak, "optimizer_state")
    assert parameters == 4 * ELEMENTS
    assert state == 2 * 4 * ELEMENTS
    check_adds_up(result.report)


def test_wrong_options():
    assert run_plain([PROGRAM, "--model", "vgg"]).code == 2
    assert run_plain([PROGRAM, "--steps"]).code == 2
