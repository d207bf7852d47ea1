"""`tonnage explain` on real histories: each program is recorded by PyTorch (a snapshot, with C++ frames as by default) and by Tonnage,
and both must give the same answer, with the program's own line."""
import csv
import json
import shutil
import subprocess

import pytest

from conftest import PROGRAMS, PYTHON

PROGRAM = PROGRAMS / "explain_cases.py"
LINES = {text.split("# ")[1].strip(): number for number, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.rstrip().endswith(" line")}


@pytest.fixture
def explained(run, tonnage, tmp_path):
    """explained(NAME): the explanations of the snapshot and of the record."""
    def call(name):
        snapshot, record = tmp_path / f"{name}.pickle", tmp_path / f"{name}.tonnage"
        result = run(PYTHON, PROGRAM, name, snapshot, gpu="RTX 3060", options=["--record", record])
        assert result.code == 0, result.err
        answer = tonnage("explain", "--json", snapshot, record)
        assert answer.code == 0, answer.err
        return json.loads(answer.out)["explanations"]
    return call


@pytest.mark.parametrize("name, cause, line", [("activations", "activations", "forward line"), ("optimizer_state", "optimizer_first_step", "step line"), ("long_sample", "large_sample", "forward line"),
                                               ("kept_losses", "kept_across_steps", "kept line"), ("retry", "kept_by_exception", "forward line")])
def test_the_cause_and_its_line(explained, name, cause, line):
    for explanation in explained(name):
        findings = [finding for finding in explanation["findings"] if finding["primary"]]
        assert findings and findings[0]["cause"] == cause, explanation["summary"]
        site = findings[0]["site"]["user_line"]
        assert site["file"].endswith("explain_cases.py") and site["line"] == LINES[line], (explanation["source"], site)
        assert any(advice["saves_bytes"] for advice in findings[0]["advice"])


def test_nothing_is_found_where_nothing_is_wrong(explained):
    for explanation in explained("healthy"):
        assert explanation["failures"] == [] and not [finding for finding in explanation["findings"] if finding["kind"] == "leak"]


def growth(explanation):
    return [finding for finding in explanation["findings"] if finding["bytes_per_step"]]


def test_a_graph_that_a_backward_pass_keeps_is_one_finding(explained):
    for explanation in explained("create_graph"):
        finding, = growth(explanation)
        assert "and its backward pass" in finding["title"] and finding["confidence"] > 0.9, explanation["source"]
        assert finding["site"]["user_line"]["line"] == LINES["graph line"]
        # What the passes saved, what backward made, and the samples.
        assert len([evidence for evidence in finding["evidence"] if evidence["text"].startswith("of it ")]) >= 3


def test_a_queue_that_is_filling_and_one_that_is_full(explained):
    for explanation in explained("filling_queue"):
        finding, = growth(explanation)
        assert finding["site"]["user_line"]["line"] == LINES["queue line"] and finding["bytes_per_step"] == 4 << 20
        assert finding["confidence"] <= 0.6 and "not full yet" in finding["text"]
    for explanation in explained("full_queue"):
        assert growth(explanation) == [], explanation["source"]


GROWTH = PROGRAMS / "growth_cases.py"
GROWTH_LINES = {
    text.split("# ")[-1].strip(): number
    for number, text in enumerate(GROWTH.read_text().splitlines(), 1) if "  # " in text}
# What the title of the main finding says.
GROWS = {
    "losses_in_a_list": "a whole autograd graph",
    "running_total": "a whole autograd graph",
    "hidden_state_not_detached": "a whole autograd graph",
    "evaluation_with_gradients": "keeps its autograd graphs",
    "features_in_a_dict": "leaves tensors",
    "optimizers_made_anew": "an optimizer's state",
    "snapshots_of_the_weights": "leaves tensors",
    "metrics_as_tensors": "leaves tensors",
    "gradients_with_a_graph": "its backward pass",
}
# With so little memory it runs out; what the finding then names.
FILLS = {
    "gated_by_hand": ("1500MiB", "written as a formula"),
    "gelu_by_hand": ("1500MiB", "written as a formula"),
    "gelu_by_hand_in_autocast": ("1500MiB", "written as a formula"),
    "head_of_a_language_model": ("1400MiB", "logits"),
    "frozen_weights_in_32_bits": ("900MiB", "conversions"),
}


@pytest.mark.parametrize("name", GROWS)
def test_what_grows_and_why(run, tonnage, tmp_path, name):
    """Small trainings, each with one habit that fills memory; the line is the program's own."""
    record = tmp_path / "run.tonnage"
    result = run(PYTHON, GROWTH, name, gpu="RTX 3060", options=["--record", record])
    assert result.code == 0, result.err
    explanation, = json.loads(tonnage("explain", "--json", record).out)["explanations"]
    found = growth(explanation)
    assert found and GROWS[name] in found[0]["title"], explanation["summary"]
    if name not in ("gradients_with_a_graph", "optimizers_made_anew"):  # made in a helper of theirs
        assert found[0]["site"]["user_line"]["line"] == GROWTH_LINES[name], found[0]["site"]


@pytest.mark.parametrize("name", FILLS)
def test_what_fills_memory_has_a_name(run, tonnage, tmp_path, name):
    memory, words = FILLS[name]
    record = tmp_path / "run.tonnage"
    result = run(PYTHON, GROWTH, name, gpu="RTX 3060",
                 options=["--record", record, "--memory", memory])
    assert result.code == 1 and "OutOfMemoryError" in result.err
    explanation, = json.loads(tonnage("explain", "--json", record).out)["explanations"]
    first = explanation["findings"][0]
    assert words in first["text"] + first["title"], explanation["summary"]


def test_exports(run, tonnage, tmp_path):
    trace, table, events, page = (tmp_path / name for name in ("trace.json", "table.csv", "events.csv", "page.html"))
    result = run(PYTHON, PROGRAM, "healthy", tmp_path / "s.pickle", "python", gpu="RTX 3060", options=["--perfetto", trace, "--csv", table, "--csv-events", events, "--html", page])
    assert result.code == 0, result.err
    peak = result.device["peak_allocated"]["bytes"]
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"step 1", "step 10", "forward", "backward", "allocated by category"} <= names
    with open(table, newline="") as file:
        assert sum(int(row["block_bytes"]) for row in csv.DictReader(file) if row["live_at_peak"] == "1" and row["kind"] == "pytorch") == peak
    with open(events, newline="") as file:
        assert max(int(row["allocated_bytes"] or 0) for row in csv.DictReader(file)) == peak
    again = tonnage("explain", tmp_path / "s.pickle", "--perfetto", trace)
    assert again.code == 2 and "exists" in again.err and trace.stat().st_size > 0
    assert tonnage("explain", tmp_path / "s.pickle", "--perfetto", trace, "--force", "--brief").code == 0


@pytest.mark.skipif(not shutil.which("node"), reason="no node to run the page's code")
def test_the_page_makes_the_map_of_any_moment(tonnage, tmp_path):
    root = PROGRAMS.parents[2]
    pages = []
    for name in ("streams_expandable", "leak_loss", "steps_unet_b4", "oom_fragment"):
        pages.append(tmp_path / f"{name}.html")
        answer = tonnage("explain", "--brief", root / f"tests/data/snapshots/{name}.pickle.xz", "--html", pages[-1])
        assert answer.code == 0, answer.err
    checked = subprocess.run(["node", root / "tests/e2e/segment_maps.js", root / "src/report/assets/segments.js", *pages], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert int(checked.stdout) >= 12
