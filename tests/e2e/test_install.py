"""`cmake --install` into a folder: what is there works from there."""
import json

from conftest import PYTHON, check_adds_up, run_plain


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


def test_installed_toolkit_is_found(prefix, tmp_path):
    """find_package(Tonnage) makes a target from the installed sources (test_toolkit_package.py builds it)."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\nfind_package(Tonnage 0.1 REQUIRED)\n"
        "add_executable(user main.cpp)\ntarget_link_libraries(user PRIVATE Tonnage::torch)\n"
        "get_target_property(sources tonnage_torch_memory SOURCES)\nmessage(STATUS \"sources: ${sources}\")\n")
    (tmp_path / "main.cpp").write_text("int main() {}\n")
    torch_root = next(PYTHON.parent.parent.glob("lib/python3*/site-packages/torch"))
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"]
    result = run_plain([*configure, f"-DTONNAGE_TORCH_ROOT={torch_root}"])
    assert result.code == 0, result.err
    assert f"{prefix}/share/tonnage/toolkit_src/checkpoint.cpp" in result.out
    result = run_plain(["cmake", "-S", tmp_path, "-B", tmp_path / "other", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTONNAGE_TORCH_ROOT={tmp_path}"])
    assert result.code != 0 and "has no lib/libtorch.so" in " ".join(result.err.split())
