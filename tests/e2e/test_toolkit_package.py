"""find_package(Tonnage) from an installed prefix: a project of its own is configured, built and run."""
import os
import re
import shutil

import pytest

from conftest import PYTHON, ROOT, clean_environment, run_plain

PACKAGE = "lib/python3*/site-packages/torch"
TORCH_ROOT = next(PYTHON.parent.parent.glob(PACKAGE))
# The builds of bench/truth/other_torch.py, where they are there: 2.6 has another kind of strings, and neither has all of 2.11's interface.
OTHERS = {name: next((ROOT / f".venv-{name}").glob(PACKAGE), None) for name in ("torch26", "torch29")}

LISTS = """cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(Tonnage 0.1 REQUIRED)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE Tonnage::torch_memory)
"""

# A user's program, checked against plain training. It takes one half of the library: the other is compiled in the same way, and takes as long.
MAIN = r"""
#include <torch/nn/modules/linear.h>  // torch/torch.h would take as long to compile as all of this
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <tonnage/torch/checkpoint.h>
#include <tonnage/torch/memory.h>
#include <cstdio>

torch::Tensor train(bool with_toolkit) {
  torch::manual_seed(1);
  torch::nn::Linear first(8, 32), second(32, 4);
  std::vector<torch::Tensor> parameters = first->parameters();
  for (const auto& p : second->parameters()) parameters.push_back(p);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
  const torch::Tensor x = torch::randn({16, 8});
  for (int step = 0; step < 5; step++) {
    optimizer.zero_grad();
    auto hidden = [first](torch::Tensor in) mutable { return torch::gelu(first(in)); };
    second(with_toolkit ? tonnage::checkpoint(hidden, x) : hidden(x)).square().mean().backward();
    optimizer.step();
  }
  return torch::nn::utils::parameters_to_vector(parameters).detach();
}

int main() {
  const bool equal = torch::equal(train(true), train(false));
  std::printf("%s, 1.5 KiB is %s\n", equal ? "the same bits" : "different", tonnage::format_bytes(1536).c_str());
  return equal ? 0 : 1;
}
"""


@pytest.mark.parametrize("build", ["own", *OTHERS])
def test_a_project_builds_and_runs(build, prefix, tmp_path):
    torch_root = TORCH_ROOT if build == "own" else OTHERS[build]
    if not torch_root:
        pytest.skip(f"no .venv-{build}: bench/truth/other_torch.py makes it")
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    (tmp_path / "main.cpp").write_text(MAIN)
    # Nothing of this tree is seen but what was installed. Without optimisation: the test is of the package, and the time goes into headers.
    options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTONNAGE_TORCH_ROOT={torch_root}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0"]
    environment = clean_environment(CUDA_VISIBLE_DEVICES="")
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        environment |= {"CCACHE_BASEDIR": os.path.commonpath([prefix, tmp_path]), "CCACHE_NOHASHDIR": "1"}  # the folders have other names every time
    result = run_plain(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", *options], env=environment)
    assert result.code == 0, result.err
    result = run_plain(["cmake", "--build", tmp_path / "build"], env=environment, timeout=550)
    assert result.code == 0, result.out[-4000:]
    assert "warning:" not in result.out, result.out[-4000:]
    result = run_plain([tmp_path / "build" / "user"], env=environment)
    assert (result.code, result.out) == (0, "the same bits, 1.5 KiB is 1.50 KiB\n"), result.err


def test_it_takes_find_package_torch(prefix, tmp_path, nvcc):
    """Without TONNAGE_TORCH_ROOT: PyTorch's own CMake package, which asks for a CUDA toolkit when it is a CUDA build."""
    (tmp_path / "CMakeLists.txt").write_text(LISTS.replace("find_package(Tonnage", "find_package(Torch REQUIRED)\nfind_package(Tonnage"))
    (tmp_path / "main.cpp").write_text(MAIN)
    result = run_plain(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix};{TORCH_ROOT}"],
                       env=clean_environment(CUDACXX=nvcc))
    assert result.code == 0, result.err
    ninja = (tmp_path / "build" / "build.ninja").read_text()
    assert f"{prefix}/share/tonnage/toolkit_src" in ninja and "libtorch.so" in ninja


def test_an_old_libtorch_is_told(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    (tmp_path / "main.cpp").write_text(MAIN)
    headers = "include/torch/csrc/api/include/torch"
    (tmp_path / "old/lib").mkdir(parents=True)
    (tmp_path / "old" / headers).mkdir(parents=True)

    def configure():
        result = run_plain(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTONNAGE_TORCH_ROOT={tmp_path}/old"])
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
