"""Programs that use the GPU without PyTorch: JAX, CuPy, Numba, Warp. `make frameworks` installs them into .venv-frameworks; without it,
or without one of them, its programs are left out."""

import os
import re
from pathlib import Path

import pytest

from conftest import PROGRAMS, ROOT, check_adds_up

FRAMEWORKS_PYTHON = Path(
    os.environ.get("TONNAGE_FRAMEWORKS_PYTHON", ROOT / ".venv-frameworks/bin/python")
)
PACKAGES = FRAMEWORKS_PYTHON.parent.parent
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def framework(run, tmp_path):
    """framework(NAME): one of programs/frameworks, and the words of the line that it ends with."""

    def call(name, gpu="RTX 3060", **environment):
        package = name.split("_")[0]
        if not next(PACKAGES.glob(f"lib/python3*/site-packages/{package}"), None):
            pytest.skip(f"no {package}: make frameworks")
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TONNAGE_", "XLA_", "JAX_", "CUDA_VISIBLE"))
        }
        # Compiled programs of an earlier run change what is loaded.
        env |= {
            "CUPY_CACHE_DIR": str(tmp_path / "cupy"),
            "WARP_CACHE_PATH": str(tmp_path / "warp"),
            "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
            **environment,
        }
        result = run(
            FRAMEWORKS_PYTHON, PROGRAMS / "frameworks" / f"{name}.py", gpu=gpu, env=env, timeout=550
        )
        assert result.code == 0, result.err[-3000:]
        check_adds_up(result.report)
        result.words = next(
            line for line in result.out.splitlines()[::-1] if re.match("[A-Z]+ ", line)
        ).split()[1:]
        return result

    return call


def lines(result, name):
    """Bytes of the largest allocations by the program's own line."""
    return {
        (row["site"]["user_line"]["line"], row["size_bytes"])
        for row in result.device["largest"]
        if row["site"]["user_line"] and row["site"]["user_line"]["file"].endswith(name + ".py")
    }


def notes(result, start):
    return [m["text"] for m in result.report["messages"] if m["text"].startswith(start)]


def test_cupy_arrays(framework):
    result = framework("cupy_arrays")
    assert result.words[:2] == [str(8 * MIB), str(24 * MIB)] and "3060" in " ".join(result.words)
    assert {(4, 4 * MIB), (5, 4 * MIB), (6, 8 * MIB)} <= lines(result, "cupy_arrays")
    assert any(
        "24.0 MiB" in text and "8.0 MiB are in use" in text for text in notes(result, "CuPy's pool")
    )


def test_cupy_kernels(framework):
    result = framework("cupy_kernels")
    assert result.words == [str(8 * MIB)]
    assert lines(result, "cupy_kernels") == {(6, 4 * MIB), (7, 4 * MIB)}
    assert not notes(result, "CuPy's pool")  # all that it holds is in use


def test_cupy_async_pool(framework):
    result = framework("cupy_async_pool")
    assert result.words == [str(16 * MIB)]
    assert lines(result, "cupy_async_pool") == {
        (5, 32 * MIB)
    }  # what a driver's pool takes at a time; both arrays are in it


@pytest.mark.parametrize("name", ["cupy_out_of_memory", "numba_out_of_memory"])
def test_out_of_memory(framework, name):
    """11 GiB of 11.65 are served, and the refusal is in the report with its line."""
    result = framework(name)
    assert result.words[0] == "11"
    assert result.device["out_of_memory"]


def test_numba_kernel(framework):
    result = framework("numba_kernel")
    assert lines(result, "numba_kernel") == {(13, 8 * MIB), (16, 4 * MIB)}
    assert result.device["peak_device"]["bytes"] == result.device["total_bytes"] - int(
        result.words[0]
    )


def test_numba_streams(framework):
    result = framework("numba_streams")
    assert result.words == ["4096"]
    assert (21, 4 * MIB) in lines(result, "numba_streams")


def test_warp_simulation(framework):
    result = framework("warp_simulation")
    assert int(result.words[0]) >= 72 * MIB  # six arrays
    assert {line for line, _ in lines(result, "warp_simulation")} >= {14, 15}
    assert notes(result, "Warp on GPU 0: ")


def test_jax_finds_the_card(framework):
    """And the report tells what is in use from what XLA took at its start, with the way to end that."""
    result = framework("jax_matmul")
    assert "3060" in " ".join(result.words)
    [text] = notes(result, "JAX on GPU 0: ")
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in text
    used = float(re.search(r"([0-9.]+) MiB in use at most", text).group(1))
    assert used == pytest.approx(int(result.words[-1]) / MIB, abs=0.1)
    assert max(size for _, size in lines(result, "jax_matmul")) > 8 * GIB


def test_jax_without_preallocation(framework):
    result = framework("jax_matmul", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert result.device["peak_device"]["bytes"] < 2 * GIB
    [text] = notes(result, "JAX on GPU 0: ")
    assert "PREALLOCATE" not in text


@pytest.mark.parametrize("name", ["jax_training", "jax_convolution"])
def test_jax_programs(framework, name):
    result = framework(name)
    assert notes(result, "JAX on GPU 0: ")


def test_jax_out_of_memory(framework):
    result = framework("jax_out_of_memory")
    assert result.words[0] == "8"  # 75 % of 11.65 GiB
    [refusal] = result.device["out_of_memory"]
    assert (refusal["asker"], refusal["request_bytes"], refusal["went_on"]) == (
        "jax_pool",
        GIB,
        True,
    )
    assert refusal["free_bytes"] < GIB
    assert refusal["moment"]["site"]["user_line"]["file"].endswith("jax_out_of_memory.py")
    assert result.report["verdict"] == "fits"
    assert "JAX's allocator refused 1.00 GiB, and the command went on" in result.report["headline"]


def test_jax_out_of_memory_of_the_driver(framework):
    """Its pool grows: the driver refuses, and JAX's error says no more than that."""
    result = framework("jax_out_of_memory", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    askers = {refusal["asker"] for refusal in result.device["out_of_memory"]}
    assert askers in ({"jax"}, {"jax_pool"})
    assert result.report["verdict"] == "fits"


def test_jax_two_cards(framework):
    result = framework("jax_two_cards", gpu="h200x2")
    assert result.words == ["2", "2"]
    assert len(notes(result, "JAX on GPU ")) == 2
