"""Real PyTorch training on a virtual H200: what PyTorch counts must be what it counted on a real one, to the byte, and the
report must say the same as PyTorch."""
import json
from pathlib import Path

import pytest

from conftest import PROGRAMS, PYTHON, category_bytes, check_adds_up

# Measured by tools/device/expect.sh on an NVIDIA H200.
MEASURED = {}
for line in (Path(__file__).parent / "h200.jsonl").read_text().splitlines():
    row = json.loads(line)
    MEASURED[row["name"]] = row["figures"]

NAMES = ["cnn", "cnn_benchmark", "cnn_amp", "attention_flash", "attention_efficient", "attention_math", "attention_cudnn", "lstm",
         "checkpointing", "loader", "expandable", "cuda_graph", "read_back"]
# Under autocast these have their peak in the backward pass of the last layer, which makes its gradients in bfloat16: no parameter
# has its own yet. In float32 the same moment already has that layer's gradients.
BEFORE_GRADIENTS = ["attention_flash", "attention_efficient", "attention_math", "attention_cudnn", "checkpointing"]


@pytest.mark.parametrize("name", NAMES)
def test_exact(train, name):
    result = train(name)
    figures = result.figures()
    assert result.code == 0
    assert figures == MEASURED[name]
    check_adds_up(result.report)
    last = figures["steps"][-1]
    assert result.device["peak_allocated"]["bytes"] == last["peak"]
    assert result.device["peak_reserved"]["bytes"] == last["peak_reserved"]
    assert result.report["verdict"] == "fits"
    assert category_bytes(result.device["peak_allocated"], "parameters") > 0
    assert (category_bytes(result.device["peak_allocated"], "gradients") > 0) == (name not in BEFORE_GRADIENTS)


def test_compiled_exact(train, tmp_path):
    # A warm cache skips autotuning, which takes memory: both caches start empty, as on the card.
    result = train("compiled", env={**_environment(), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")})
    # How often autotuning repeats a kernel depends on the time it takes, so the number of allocations is the card's own.
    def bytes_only(figures):
        return [{k: v for k, v in step.items() if k != "allocations"} for step in figures["steps"]]
    assert bytes_only(result.figures()) == bytes_only(MEASURED["compiled"])
    check_adds_up(result.report)


def test_optimizer_state_is_seen(train):
    """AdamW keeps two copies of the parameters, and the report says so from the second step on."""
    result = train("lstm")
    peak = result.device["peak_allocated"]
    parameters, state = category_bytes(peak, "parameters"), category_bytes(peak, "optimizer_state")
    assert 2 * parameters <= state <= 2.1 * parameters
    assert len([s for s in result.device["steps"] if s["complete"]]) == 4


def test_out_of_memory_is_caught_as_on_the_card(train):
    result = train("out_of_memory")
    figures, measured = result.figures(), MEASURED["out_of_memory"]
    assert {k: v for k, v in figures.items() if k != "caught"} == {k: v for k, v in measured.items() if k != "caught"}
    # The message says how much was asked for and what PyTorch held: these are the card's own.
    def own(text):
        return text.split(" GPU ")[0], text.split("Of the allocated memory")[1]
    assert [own(m) for m in figures["caught"]] == [own(m) for m in measured["caught"]]
    assert len(result.device["out_of_memory"]) == len(measured["caught"])
    assert all(o["went_on"] for o in result.device["out_of_memory"])
    check_adds_up(result.report)


def test_smaller_card_runs_out_earlier(train):
    result = train("out_of_memory", gpu="RTX 3060")
    figures = result.figures()
    assert result.code == 0
    assert figures["batch"] < MEASURED["out_of_memory"]["batch"]
    assert all("CUDA out of memory. Tried to allocate" in m for m in figures["caught"])
    assert result.device["total_bytes"] < 12 << 30
    assert result.device["peak_device"]["bytes"] <= result.device["total_bytes"]
    check_adds_up(result.report)


def test_memory_option_limits_the_card(train):
    # The program's peak without a limit is 1.09 GiB. At 1 GiB it depends on a few hundred KiB of the modelled context.
    result = train("cnn", options=("--memory", "1152MiB"))
    assert result.device["total_bytes"] == 1152 << 20
    assert result.report["verdict"] == "fits"
    small = train("cnn", options=("--memory", "1000MiB"))
    assert small.code == 1
    assert "CUDA out of memory" in small.err
    assert small.report["verdict"] == "does_not_fit"
    # The context leaves no room for the kernels' code: the driver refuses it, as a real one does.
    smaller = train("cnn", options=("--memory", "600MiB"))
    assert smaller.code == 1
    assert "CUDA error: out of memory" in smaller.err
    assert smaller.report["verdict"] == "does_not_fit"


def test_two_gpus_in_one_process(train):
    result = train("two_gpus", gpu="h200x2")
    figures = result.figures()
    assert figures["devices"] == 2
    assert [d["peak_allocated"]["bytes"] for d in result.report["devices"]] == [figures["steps"][-1]["peak"], figures["second"]["peak"]]
    assert [d["peak_reserved"]["bytes"] for d in result.report["devices"]] == [figures["steps"][-1]["peak_reserved"], figures["second"]["peak_reserved"]]
    if "two_gpus" in MEASURED:
        assert figures == MEASURED["two_gpus"]
    check_adds_up(result.report)


def test_same_figures_without_the_recorder(train):
    """Recording must not change what is recorded."""
    assert train("cnn", options=("--no-stacks", "--no-known-values")).figures() == MEASURED["cnn"]


@pytest.mark.parametrize("script, options", [("train_resnet50.py", ["--batch-size", "8", "--steps", "2", "--amp", "--channels-last"]),
                                             ("train_gpt2.py", ["--batch-size", "1", "--length", "256", "--steps", "2", "--bf16", "--checkpointing"])])
def test_examples(run, script, options):
    result = run(PYTHON, PROGRAMS.parents[2] / "examples" / script, *options, gpu="RTX 3060")
    assert result.code == 0, result.err[-3000:]
    assert "step 2: loss" in result.out
    check_adds_up(result.report)
    peak = result.device["peak_allocated"]
    assert peak["moment"]["site"]["user_line"]["file"].endswith(script)
    assert len(result.device["largest"]) >= 1
    assert len([s for s in result.device["steps"] if s["complete"]]) == 2


def _environment():
    from conftest import clean_environment
    return clean_environment()
