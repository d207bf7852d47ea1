"""`tonnage run --real` in front of a stand-in: the virtual driver plays the real one."""
import json
import shutil
import subprocess

import pytest

from conftest import BUILD, PYTHON, TONNAGE, clean_environment

PROGRAM = """
import torch
x = torch.randn(2048, 2048, device="cuda")
for _ in range(3):
    y = (x @ x).relu()
streams = [torch.cuda.Stream() for _ in range(40)]
for stream in streams:
    with torch.cuda.stream(stream):
        y = y + 1
torch.cuda.synchronize()
keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def real_driver(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    shutil.copy(BUILD / "lib/vgpu/libcuda.so.1", folder)
    shutil.copy(BUILD / "tests/passthrough/libnvidia-ml.so.1", folder)
    return folder / "libcuda.so.1"


def figures(path):
    device = json.loads(path.read_text())["devices"][0]
    peak = device["peak_device"]
    context = next(row for row in peak["breakdown"]["rows"] if row["category"] == "context")
    return device, peak, context


def test_the_drivers_own_memory_is_measured_and_means_the_same(tmp_path, real_driver):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    virtual, real = tmp_path / "virtual.json", tmp_path / "real.json"
    command = [str(PYTHON), str(program)]
    done = subprocess.run([str(TONNAGE), "run", "--gpu", "h200", "-q", "--json", "--output", str(virtual), "--", *command],
                          env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # The outer run lends the card that the inner one takes for a real one.
    script = 'TONNAGE_STAND_IN_SESSION=$TONNAGE_SESSION exec "$@"'
    done = subprocess.run([str(TONNAGE), "run", "--gpu", "h200", "-q", "--", "sh", "-c", script, "sh", str(TONNAGE), "run",
                           "--real", "-q", "--json", "--output", str(real), "--", *command],
                          env=clean_environment(TONNAGE_REAL_CUDA=str(real_driver)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    _, virtual_peak, modelled = figures(virtual)
    device, real_peak, measured = figures(real)
    assert modelled["modelled"] and not measured["modelled"]
    # Small requests share 2 MiB, which cannot be seen from outside: each counts as 2 MiB of its own.
    assert abs(measured["bytes"] - modelled["bytes"]) <= 2 << 20
    assert abs(real_peak["bytes"] - virtual_peak["bytes"]) <= 2 << 20
    assert device["uses_pytorch"]
