"""The toolkit's tour of means against memory: each does what it says, on the CPU and on the virtual GPU."""
import re

import pytest

from conftest import BUILD, run_plain

PROGRAM = BUILD / "bin" / "memory_tour"


def peaks(output):
    return {name: float(value) for name, value in re.findall(r"^  (.+): peak ([0-9.]+) MiB above", output, re.M)}


@pytest.mark.parametrize("where", ["cpu", "virtual"])
def test_tour(run, tmp_path, where):
    graph = tmp_path / "graph.dot"
    arguments = [PROGRAM, "--graph", graph]
    result = run_plain([*arguments, "--cpu"]) if where == "cpu" else run(*arguments)
    assert result.code == 0, result.err
    peak = peaks(result.out)
    assert peak["checkpoint_sequential, 6 parts"] < 0.6 * peak["plain"]
    assert peak["run_chain with it"] < 0.6 * peak["plain"]
    assert peak["halved by a hook of one's own"] < 0.8 * peak["plain"]
    assert peak["compressed to int8"] < 0.6 * peak["plain"]
    assert "made by aten::mean in training" in result.out
    assert "LoRA trains: 72.50 KiB of 1.07 MiB" in result.out
    assert "int8 in 2 layers takes: 280.12 KiB of 1.07 MiB" in result.out
    assert "half of a growing stack took: 514.00 KiB of 1.00 MiB" in result.out
    assert "largest batch: 300" in result.out and "batch size 512 -> 256" in result.out
    assert graph.read_text().startswith("digraph autograd {") and "GeluBackward0" in graph.read_text()
    if where == "virtual":
        assert peak["offloaded"] < 0.75 * peak["plain"]
        assert "Memory of device cuda:0" in result.out
