"""Commands that go wrong, or that use no GPU, or that use it in unusual ways: the command behaves as it would alone, its exit
code passes through, and Tonnage says one clear line."""
import json
import signal
import subprocess
import time

import pytest

from conftest import PROGRAMS, PYTHON, TONNAGE, check_adds_up, clean_environment

USE = "import torch\nx = torch.zeros(1 << 20, device='cuda')\n"


def test_unknown_card(tonnage):
    result = tonnage("run", "--gpu", "RTX 3061", "--", "true")
    assert result.code == 2
    assert "RTX 3061" in result.err and "3060" in result.err


@pytest.mark.parametrize("text", ["", "{", '{"name": 5}', "[]", '{"name": "x", "memory_bytes": -1}', "\x00\xff", '{"a":' * 5000])
def test_malformed_card_file(tonnage, tmp_path, text):
    card = tmp_path / "card.json"
    card.write_text(text, errors="surrogateescape")
    result = tonnage("run", "--gpu", card, "--", "true")
    assert result.code in (1, 2)
    assert "card.json" in result.err


def test_missing_card_file(tonnage, tmp_path):
    result = tonnage("run", "--gpu", tmp_path / "none.json", "--", "true")
    assert result.code in (1, 2)
    assert "none.json" in result.err


def test_unknown_command(tonnage):
    result = tonnage("run", "--", "no-such-command-here")
    assert result.code == 127
    assert "no-such-command-here" in result.err


def test_not_executable(tonnage, tmp_path):
    script = tmp_path / "plain.txt"
    script.write_text("hello")
    result = tonnage("run", "--", script)
    assert result.code == 126
    assert "plain.txt" in result.err


def test_no_command(tonnage):
    assert tonnage("run").code == 2
    assert tonnage("run", "--gpu", "h200").code == 2
    assert tonnage("rnu").code == 2


def test_no_gpu_use(tonnage):
    result = tonnage("run", "--", "sh", "-c", "echo hello; exit 7")
    assert (result.code, result.out) == (7, "hello\n")
    assert "no GPU memory was used" in " ".join(result.err.split())  # lines are broken at 80 columns


def test_crash_keeps_its_traceback(python):
    result = python(USE + "raise KeyError('lost')\n")
    assert result.code == 1
    assert "KeyError: 'lost'" in result.err
    assert result.device["peak_allocated"]["bytes"] == 4 << 20


@pytest.mark.parametrize("code", [0, 5, 255])
def test_os_exit(python, code):
    result = python(USE + f"import os, sys; sys.stdout.flush(); os._exit({code})\n")
    assert result.code == code
    assert result.device["peak_allocated"]["bytes"] == 4 << 20


def test_sys_exit(python):
    assert python(USE + "import sys; sys.exit(9)\n").code == 9


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
def test_killed(python, tonnage, tmp_path, number):
    record = tmp_path / "killed.tonnage"
    result = python(USE + f"import os; torch.cuda.synchronize(); os.kill(os.getpid(), {int(number)})\n", options=("--record", record))
    assert result.code == 128 + number
    assert "signal" in result.err
    assert result.report is not None
    again = tonnage("report", record, "--json")
    assert again.code == 0
    assert json.loads(again.out)["kind"] == "report"


def test_cut_record_is_readable(python, tonnage, tmp_path):
    record = tmp_path / "whole.tonnage"
    python(USE + "for i in range(3000): y = x + i\n", options=("--record", record))
    data = record.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        cut = tmp_path / "cut.tonnage"
        cut.write_bytes(data[:int(len(data) * share)])
        result = tonnage("report", cut, "--json")
        assert result.code in (0, 1)
        if result.code == 0:
            check_adds_up(json.loads(result.out))
        else:
            assert "cut.tonnage" in result.err


def test_signal_reaches_the_command(tmp_path):
    child = subprocess.Popen([TONNAGE, "run", "--quiet", "--", PYTHON, PROGRAMS / "signal_reaches_the_command.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment())
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 42


def test_fork_before_use(program):
    """A forked child that uses the card on its own: both are in the report."""
    result = program("fork_before_use.py")
    assert result.code == 0, result.err
    assert "child 3" in result.out
    assert len([p for p in result.report["processes"] if p["peak_allocated_bytes"]]) == 2


def test_fork_after_use_fails_as_pytorch_says(program):
    result = program("fork_after_use_fails_as_pytorch_says.py")
    assert (result.code, "child 4" in result.out) == (0, True), result.err


def test_visible_devices(python):
    count = "import torch; print('count', torch.cuda.device_count(), torch.cuda.is_available())\n"
    assert "count 3 True" in python(count, gpu="a100-80gbx3").out
    assert "count 0 False" in python(count, env=clean_environment(CUDA_VISIBLE_DEVICES="")).out
    assert "count 1 True" in python(count, gpu="a100-80gbx3", env=clean_environment(CUDA_VISIBLE_DEVICES="2")).out
    # Set by the script itself, before it starts CUDA.
    assert "count 2 True" in python("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0,2'\n" + count, gpu="a100-80gbx3").out


def test_two_processes_share_a_card(program):
    result = program("two_processes_share_a_card.py", gpu="RTX 3060")
    assert result.code == 0, result.err
    assert "refused" in result.out
    taken = int(result.out.split("taken ")[1].split()[0])
    assert 4 << 30 < taken < 5 << 30  # and the child's context


def test_threads(program):
    result = program("threads.py")
    assert result.code == 0, result.err
    assert result.device["peak_allocated"]["bytes"] == int(result.out.split("peak ")[1])
    check_adds_up(result.report)


def test_host_access_faults(python):
    result = python(USE + "import ctypes; ctypes.string_at(x.data_ptr(), 1)\n")
    assert result.code == 128 + signal.SIGSEGV


def test_host_memory_stays_small(program):
    """A 40 GiB model on the device, in a process that may have 6 GiB."""
    result = program("host_memory_stays_small.py")
    assert result.code == 0, result.err
    assert int(result.out.split("rss ")[1]) < 3 << 20  # KiB
    assert result.device["peak_allocated"]["bytes"] > 40 << 30


def test_output_of_the_command_is_untouched(tonnage):
    result = tonnage("run", "--quiet", "--", PYTHON, "-c", "import sys; sys.stdout.write('out'); sys.stderr.write('err')")
    assert result.out == "out"
    assert "err" in result.err


def test_json_alone_on_standard_output(tonnage):
    result = tonnage("run", "--json", "--", PYTHON, "-c", USE + "print('noise')")
    report = json.loads(result.out)
    assert report["kind"] == "report" and isinstance(report["schema"], int)
    assert "noise" in result.err


def test_nothing_is_overwritten(tonnage, tmp_path):
    for option in ("--record", "--output"):
        there = tmp_path / f"there{option}"
        there.write_text("mine")
        result = tonnage("run", option, there, "--", "true")
        assert result.code in (1, 2)
        assert there.read_text() == "mine"
        assert "--force" in result.err


def test_environment_names_the_card(tonnage):
    result = tonnage("run", "--quiet", "--", PYTHON, "-c", "import torch; print(torch.cuda.get_device_name())", env=clean_environment(TONNAGE_GPU="a100-80gb"))
    assert "A100" in result.out


def test_start_adds_little(tonnage):
    """Not a benchmark (bench/speed is): only that nothing hangs for seconds."""
    start = time.monotonic()
    assert tonnage("run", "--", "true").code == 0
    assert time.monotonic() - start < 10
