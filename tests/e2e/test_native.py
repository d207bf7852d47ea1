"""Programs without Python: plain CUDA C++ with nvcc's static runtime, and libtorch."""
import subprocess

import pytest

from conftest import PYTHON, ROOT, check_adds_up, run_plain

MIB = 1 << 20


@pytest.fixture(scope="session")
def cuda_program(nvcc, tmp_path_factory):
    binary = tmp_path_factory.mktemp("cuda") / "train"
    subprocess.run([nvcc, "-O2", "-o", binary, ROOT / "examples/cuda/train.cu"], check=True, timeout=300)
    linked = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    assert "cudart" not in linked  # the runtime is inside
    return binary


@pytest.fixture(scope="session")
def libtorch_program(tmp_path_factory):
    torch_root = next(PYTHON.parent.parent.glob("lib/python3*/site-packages/torch"))
    build = tmp_path_factory.mktemp("libtorch")
    subprocess.run(["cmake", "-S", ROOT / "examples/libtorch", "-B", build, "-G", "Ninja", f"-DTORCH_ROOT={torch_root}",
                    "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build], check=True, timeout=600, stdout=subprocess.DEVNULL)
    return build / "train_libtorch"


def test_static_runtime_program(run, cuda_program):
    batch, steps = 256, 3
    result = run(cuda_program, batch, steps, gpu="RTX 3060")
    assert result.code == 0, result.err
    assert "step 3: loss" in result.out and "RTX 3060" in result.out
    device = result.device
    assert not device["uses_pytorch"]
    # Two weights with their gradients, input, target, loss: 2 MiB granules and the small ones share a granule.
    floats = 2 * (1024 * 4096 + 4096 * 10) + batch * (1024 + 10) + 1
    plain = sum(v for k, v in device["device_bytes_by_kind"].items() if "plain" in k or "alloc" in k.lower())
    assert 4 * floats <= plain <= 4 * floats + 10 * MIB
    check_adds_up(result.report)


def test_static_runtime_program_runs_out(run, cuda_program):
    result = run(cuda_program, 4_000_000, 1, gpu="RTX 3060")
    assert result.code == 1
    assert "out of memory" in result.err
    assert result.report["verdict"] == "does_not_fit"


def test_static_runtime_program_needs_a_driver(cuda_program):
    """Alone, without a GPU, it fails: so the test above really ran on the virtual driver."""
    result = run_plain([cuda_program])
    assert result.code == 1 or "MiB in use" in result.out  # a machine with a real card


def test_libtorch_program(run, libtorch_program):
    result = run(libtorch_program, "--batch-size", 16, "--steps", 3, gpu="RTX 3060", timeout=600)
    assert result.code == 0, result.err
    assert "step 3: loss" in result.out
    assert result.device["uses_pytorch"]
    assert result.device["peak_allocated"]["bytes"] > 30 * MIB
    check_adds_up(result.report)


def test_libtorch_program_runs_out(run, libtorch_program):
    result = run(libtorch_program, "--batch-size", 16384, "--steps", 1, gpu="RTX 3060", timeout=600)
    assert result.code == 1
    assert "CUDA out of memory" in result.err
    assert result.report["verdict"] == "does_not_fit"
