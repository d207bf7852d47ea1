"""find_package(Tonnage) from an installed prefix: a project of its own is configured, built and run."""
import os
import re
import shutil

import pytest

from conftest import PROGRAMS, PYTHON, ROOT, clean_environment, run_plain

PACKAGE = "lib/python3*/site-packages/torch"
TORCH_ROOT = next(PYTHON.parent.parent.glob(PACKAGE))
# The builds of bench/truth/other_torch.py, where they are there: 2.6 has another kind of strings, and neither has all of 2.11's interface.
OTHERS = {name: next((ROOT / f".venv-{name}").glob(PACKAGE), None) for name in ("torch26", "torch29")}

USER = PROGRAMS / "toolkit_user"  # a project that uses the installed package


@pytest.mark.parametrize("build", ["own", *OTHERS])
def test_a_project_builds_and_runs(build, prefix, tmp_path):
    torch_root = TORCH_ROOT if build == "own" else OTHERS[build]
    if not torch_root:
        pytest.skip(f"no .venv-{build}: bench/truth/other_torch.py makes it")
    # Nothing of this tree is seen but what was installed. Without optimisation: the test is of the package, and the time goes into headers.
    options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTONNAGE_TORCH_ROOT={torch_root}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0"]
    environment = clean_environment(CUDA_VISIBLE_DEVICES="")
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        environment |= {"CCACHE_BASEDIR": os.path.commonpath([prefix, tmp_path]), "CCACHE_NOHASHDIR": "1"}  # the folders have other names every time
    result = run_plain(["cmake", "-S", USER, "-B", tmp_path / "build", "-G", "Ninja", *options], env=environment)
    assert result.code == 0, result.err
    result = run_plain(["cmake", "--build", tmp_path / "build"], env=environment, timeout=550)
    assert result.code == 0, result.out[-4000:]
    assert "warning:" not in result.out, result.out[-4000:]
    result = run_plain([tmp_path / "build" / "user"], env=environment)
    assert (result.code, result.out) == (0, "the same bits, 1.5 KiB is 1.50 KiB\n"), result.err


def test_it_takes_find_package_torch(prefix, tmp_path, nvcc):
    """Without TONNAGE_TORCH_ROOT: PyTorch's own CMake package, which asks for a CUDA toolkit when it is a CUDA build."""
    lists = (USER / "CMakeLists.txt").read_text()
    (tmp_path / "CMakeLists.txt").write_text(lists.replace("find_package(Tonnage", "find_package(Torch REQUIRED)\nfind_package(Tonnage"))
    shutil.copy(USER / "main.cpp", tmp_path)
    result = run_plain(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix};{TORCH_ROOT}"],
                       env=clean_environment(CUDACXX=nvcc))
    assert result.code == 0, result.err
    ninja = (tmp_path / "build" / "build.ninja").read_text()
    assert f"{prefix}/share/tonnage/toolkit_src" in ninja and "libtorch.so" in ninja


def test_an_old_libtorch_is_told(prefix, tmp_path):
    headers = "include/torch/csrc/api/include/torch"
    (tmp_path / "old/lib").mkdir(parents=True)
    (tmp_path / "old" / headers).mkdir(parents=True)

    def configure():
        result = run_plain(["cmake", "-S", USER, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTONNAGE_TORCH_ROOT={tmp_path}/old"])
        assert result.code != 0
        return " ".join(result.err.split())
    assert f"{tmp_path}/old has no lib/libtorch.so" in configure()
    (tmp_path / "old/lib/libtorch.so").touch()
    assert f"{tmp_path}/old has no {headers}/version.h" in configure()
    (tmp_path / "old" / headers / "version.h").write_text("#define TORCH_VERSION_MAJOR 2\n\n#define TORCH_VERSION_MINOR 5\n")
    assert f"libtorch 2.5 in {tmp_path}/old is too old for the toolkit" in configure()


def test_headers_name_their_own_needs(prefix):
    """Every installed header includes what it uses: nothing of the sources' own folder."""
    for header in sorted((prefix / "include/tonnage/torch").glob("*.h")):
        text = header.read_text()
        assert "#pragma once" in text, header
        for name in re.findall(r'#include "(.*?)"', text):
            assert (prefix / "include" / name).exists(), (header, name)
