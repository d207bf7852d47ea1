"""tools/check_wheel.py: a wheel of `make wheel` holds it, and each kind of fault is found."""
import sys
import zipfile

import pytest

from conftest import ROOT, run_plain

CHECK = [sys.executable, ROOT / "tools/check_wheel.py", "--contents"]


def test_contents_of_the_wheel():
    """`make check-wheel` also installs it and runs a training."""
    if not list((ROOT / "dist").glob("tonnage-*.whl")):
        pytest.skip("no wheel here: make wheel")
    result = run_plain([*CHECK, ROOT / "dist"])
    assert result.code == 0, result.out + result.err


def test_faults_are_found(prefix, tmp_path):
    wheel = tmp_path / "tonnage-0.0.9-py3-none-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in prefix.rglob("*"):
            name = f"tonnage/dist/{path.relative_to(prefix)}"
            if not path.is_file() or name.endswith("/unity.cpp") or "/recorder/libtonnage" in name:
                continue
            archive.write(path, name)  # a link becomes a copy
        archive.writestr("tonnage/dist/lib/tonnage/recorder/libtonnage_torch.so.lock", "")
        archive.write(sys.executable, "tonnage/dist/bin/python")
    result = run_plain([*CHECK, wheel])
    assert result.code == 1, result.err
    for fault in ("the version is", "no share/tonnage/recorder_src/recorder/unity.cpp",
                  "no recorder for PyTorch", "a left-over: tonnage/dist/lib/tonnage/recorder",
                  "libcuda.so: does not need libcuda.so.1 alone", "python: needs "):
        assert fault in result.out, (fault, result.out)
