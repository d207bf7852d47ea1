"""What the end-to-end tests share: the built binary, the Python that programs run with, and one way to run things."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TONNAGE_BUILD", ROOT / "build"))
TONNAGE = BUILD / "bin" / "tonnage"
PYTHON = Path(os.environ.get("TONNAGE_PYTHON", ROOT / ".venv/bin/python"))
PROGRAMS = Path(__file__).resolve().parent / "programs"


class Outcome:
    """How a command ended, and Tonnage's report of it where one was asked for."""

    def __init__(self, code, out, err, report):
        self.code, self.out, self.err, self.report = code, out, err, report

    @property
    def device(self):
        return self.report["devices"][0]

    def figures(self):
        """The line that training.py ends with."""
        lines = [line for line in self.out.splitlines() if line.startswith("FIGURES ")]
        assert lines, f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return json.loads(lines[-1][len("FIGURES "):])


def clean_environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TONNAGE_", "PYTORCH_", "CUDA_VISIBLE", "NVIDIA_"))}
    env.setdefault("OMP_NUM_THREADS", "2")
    env.update(extra)
    return env


def run_plain(command, env=None, timeout=300, cwd=None):
    done = subprocess.run([str(c) for c in command], env=env or clean_environment(), cwd=cwd, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", timeout=timeout)
    return Outcome(done.returncode, done.stdout, done.stderr, None)


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory, monkeypatch):
    """Each test has kept runs of its own: the user's stay as they are."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def tonnage():
    """tonnage(arguments…): the binary itself."""
    assert TONNAGE.exists(), f"{TONNAGE} is not there: run make"

    def call(*arguments, env=None, timeout=300, cwd=None):
        return run_plain([TONNAGE, *arguments], env=env, timeout=timeout, cwd=cwd)
    return call


@pytest.fixture
def run(tonnage, tmp_path):
    """run(command…, gpu=, options=): `tonnage run` with the JSON report read back (None where none was written).
    true_need: a command that runs out of memory runs once more, as it does by itself."""
    count = 0

    def call(*command, gpu="h200", options=(), true_need=False, env=None, timeout=300, cwd=None):
        nonlocal count
        count += 1
        output = tmp_path / f"report-{count}.json"
        if not true_need:
            options = ("--no-true-need", *options)
        result = tonnage("run", "--gpu", gpu, "--json", "--output", output, *options, "--", *command, env=env, timeout=timeout, cwd=cwd)
        if output.exists():
            result.report = json.loads(output.read_text())
        return result
    return call


@pytest.fixture
def train(run):
    """train(NAME): one of programs/training.py."""
    def call(name, **options):
        return run(PYTHON, PROGRAMS / "training.py", name, **options)
    return call


@pytest.fixture
def program(run):
    """program(FILE): one of programs/."""
    def call(name, *arguments, **options):
        return run(PYTHON, PROGRAMS / name, *arguments, **options)
    return call


@pytest.fixture
def python(run, tmp_path):
    """python(CODE): a few lines of the test's own; longer programs are files (program)."""
    def call(code, *arguments, name="script.py", **options):
        script = tmp_path / name
        script.write_text(code)
        return run(PYTHON, script, *arguments, **options)
    return call


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """What `cmake --install` makes of the build."""
    folder = tmp_path_factory.mktemp("prefix")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder], check=True, stdout=subprocess.DEVNULL, timeout=120)
    return folder


@pytest.fixture(scope="session")
def nvcc():
    found = shutil.which("nvcc") or next((str(p) for p in [Path("/usr/local/cuda/bin/nvcc"), *ROOT.glob(".venv-test/lib/python3*/site-packages/nvidia/cu13/bin/nvcc")] if p.exists()), None)
    assert found, "no nvcc: make test installs one"
    return found


def check_adds_up(report):
    """What every report must keep: labels add up to the totals, and PyTorch counts the same."""
    assert report["inconsistencies"] == 0
    for device in report["devices"]:
        for name in ("peak_allocated", "peak_reserved", "peak_device"):
            peak = device[name]
            if peak is None:
                continue
            rows = peak["breakdown"]["rows"]
            assert sum(r["bytes"] for r in rows) == peak["breakdown"]["total_bytes"], (name, rows)
            assert all(r["bytes"] >= 0 for r in rows), (name, rows)
        for counter in device["counters"]:
            assert counter["equal"] is not False, counter


def category_bytes(peak, category):
    return sum(r["bytes"] for r in peak["breakdown"]["rows"] if r["category"] == category)
