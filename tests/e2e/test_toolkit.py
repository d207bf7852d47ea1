"""The C++ toolkit's training program: it learns on the CPU, and `tonnage run` knows what its memory is for."""
import re

import pytest

from conftest import BUILD, category_bytes, check_adds_up, clean_environment, run_plain

PROGRAM = BUILD / "bin" / "train_cpp"
# GPT-2 --small: tied embedding 256 x 64, positions 32 x 64, 2 blocks, the last norm; elements.
BLOCK = (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
ELEMENTS = 256 * 64 + 32 * 64 + 2 * BLOCK + 2 * 64
RESNET50_ELEMENTS, RESNET50_CHANNELS = 25557032, 26560  # those of batch norm


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
    assert category_bytes(peak, "parameters") == 4 * ELEMENTS
    assert category_bytes(peak, "optimizer_state") == 2 * 4 * ELEMENTS
    check_adds_up(result.report)


def test_all_categories_at_once(run):
    """A peak late in the backward pass: parameters, most gradients, states and activations are there, to the byte where that is known."""
    result = run(PROGRAM, "--model", "resnet50", "--small", "--batch-size", 4, "--steps", 3)
    assert result.code == 0, result.err
    peak = result.device["peak_allocated"]
    parameters = 4 * RESNET50_ELEMENTS
    assert category_bytes(peak, "parameters") == parameters
    assert category_bytes(peak, "optimizer_state") == 2 * parameters
    assert category_bytes(peak, "buffers") == 2 * 4 * RESNET50_CHANNELS + 8 * 53  # batch norm's running statistics and counters
    assert 0.5 * parameters < category_bytes(peak, "gradients") <= parameters
    assert category_bytes(peak, "activations") > 1 << 20
    assert category_bytes(peak, "unknown") < 0.001 * peak["bytes"]
    assert [s["complete"] for s in result.device["steps"]] == [True] * 3
    check_adds_up(result.report)


# Models whose states are among the largest blocks: Adafactor's are only for kernels of 3 x 3.
@pytest.mark.parametrize("optimizer, model, states", [
    ("adamw8bit", "gpt2", {"exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"}),
    ("adafactor", "resnet50", {"row_var", "col_var", "variance"}),
    ("in-backward", "gpt2", {"exp_avg", "exp_avg_sq"}),
])
def test_states_have_their_parameters_names(run, optimizer, model, states):
    result = run(PROGRAM, "--model", model, "--small", "--batch-size", 1, "--steps", 2, "--optimizer", optimizer)
    assert result.code == 0, result.err
    names = [row["name"] for row in result.device["largest"] if row["category"] == "optimizer_state"]
    assert names
    for name in names:
        parameter, _, state = name.rpartition(".")
        assert state in states and parameter.endswith((".weight", ".bias")), name
    check_adds_up(result.report)


def test_wrong_options():
    assert run_plain([PROGRAM, "--model", "vgg"]).code == 2
    assert run_plain([PROGRAM, "--steps"]).code == 2
