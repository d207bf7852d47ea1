"""`cmake --install` into a folder: what is there works from there."""
import json
import subprocess

import pytest

from conftest import BUILD, PYTHON, check_adds_up, run_plain


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder], check=True, stdout=subprocess.DEVNULL, timeout=120)
    return folder


def test_installed_command_runs(prefix, tmp_path):
    output = tmp_path / "report.json"
    result = run_plain([prefix / "bin/tonnage", "run", "--gpu", "RTX 3060", "--json", "--output", output, "--", PYTHON, "-c",
                        "import torch; x = torch.zeros(4 << 20, device='cuda'); print(open('/proc/self/maps').read())"])
    assert result.code == 0, result.err
    libraries = {line.split()[-1] for line in result.out.splitlines() if "libcuda.so" in line or "libtonnage_torch" in line}
    assert libraries and all(path.startswith(str(prefix)) for path in libraries), libraries
    report = json.loads(output.read_text())
    assert report["devices"][0]["peak_allocated"]["bytes"] == 16 << 20
    check_adds_up(report)


def test_installed_catalogue(prefix):
    result = run_plain([prefix / "bin/tonnage", "gpus"])
    assert result.code == 0
    assert "3060" in result.out
