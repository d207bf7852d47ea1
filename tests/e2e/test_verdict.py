"""Whether it fits: what `run` says of commands that end in every way there is."""
import json

import signal
import subprocess
import time

import pytest

from conftest import PROGRAMS, PYTHON, TONNAGE, clean_environment


def ending(result):
    """The refusal that ended the command."""
    return [o for d in result.report["devices"] for o in d["out_of_memory"] if o["ended"]][-1]


def test_an_error_of_its_own_is_no_verdict_on_memory(run):
    result = run(PYTHON, PROGRAMS / "fails_for_its_own_reason.py")
    assert result.code == 1
    assert result.report["verdict"] == "failed"
    assert "ValueError: bad shape, at fails_for_its_own_reason.py:3" in result.report["headline"]
    assert result.report["end"]["errors"][0]["type"] == "ValueError"
    assert "ValueError: bad shape" in result.err  # as Python itself prints it


def test_an_error_before_any_gpu(run):
    result = run(PYTHON, "-c", "import no_such_module")
    assert (result.code, result.report["verdict"]) == (1, "failed")
    assert "ModuleNotFoundError" in result.report["headline"]


def test_exit_codes_of_other_programs(run):
    assert run("sh", "-c", "exit 7").report["headline"].startswith("The command failed (exit code 7)")
    assert run("sh", "-c", "kill -SEGV $$").report["verdict"] == "failed"
    assert run("sh", "-c", "kill -KILL $$").report["verdict"] == "cut"
    assert run("true").report["verdict"] == "nothing_used"


def test_no_room_for_cublas(run):
    result = run(PYTHON, PROGRAMS / "no_room_for_cublas.py", gpu="rtx3060")
    assert result.code == 1
    assert "CUBLAS_STATUS_ALLOC_FAILED" in result.err
    assert result.report["verdict"] == "does_not_fit"
    refusal = ending(result)
    assert refusal["asker"] == "cublas"
    assert refusal["moment"]["site"]["user_line"]["line"] == 8
    assert refusal["request_bytes"] > refusal["free_bytes"]
    assert "cuBLAS asked for" in result.report["headline"]


def test_no_room_for_nccl(run):
    result = run(PYTHON.parent / "torchrun", "--nproc-per-node", "2", PROGRAMS / "no_room_for_nccl.py", gpu="rtx3060x2")
    assert result.code != 0
    assert result.report["verdict"] == "does_not_fit"
    assert ending(result)["asker"] == "nccl"
    for device in result.report["devices"]:
        assert device["peak_device"]["bytes"] <= device["total_bytes"]


def test_a_refusal_after_which_the_command_went_on(run):
    result = run(PYTHON, PROGRAMS / "fraction_caught.py")
    assert result.code == 0
    assert result.report["verdict"] == "fits"
    assert "one request was refused, and the command went on" in result.report["headline"]
    assert result.device["out_of_memory"][0]["went_on"]


def test_a_refusal_that_was_caught_and_ended_it_all_the_same(python):
    result = python("""
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1 << 22)).cuda()
try:
    model(torch.randn(1 << 20, 64, device="cuda")).sum().backward()
except torch.OutOfMemoryError:
    print("too large")
""")
    assert result.code == 0
    assert result.report["verdict"] == "does_not_fit"
    assert "the command caught the error" in result.report["headline"]


def test_another_error_that_came_of_a_refusal(python):
    code = """
import torch
torch.zeros(1, device="cuda")
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    raise RuntimeError("training failed") from error
"""
    assert python(code).report["verdict"] == "does_not_fit"
    assert python(code.replace("raise RuntimeError", "torch.ones(9, device='cuda'); import sys; sys.exit"
                               ).replace(" from error", "")).report["verdict"] == "failed"


def test_a_private_pool_that_is_full(run):
    result = run(PYTHON, PROGRAMS / "mempool_no_retry.py", gpu="rtx3060")
    assert result.code == 0
    assert result.report["verdict"] == "fits"
    assert all(o["went_on"] for o in result.device["out_of_memory"])


def test_the_driver_was_only_loaded(run):
    result = run(PYTHON, PROGRAMS / "driver_loaded_only.py")
    assert result.code == 0
    assert result.report["verdict"] == "nothing_used"
    assert "nothing was put on a device" in result.report["headline"]


def test_sizes_that_were_assumed_are_at_most(python):
    result = python("""
import torch
x = torch.randn(1 << 22, device="cuda")
y = x[x > 0.5].clone()
""")
    assert result.report["verdict"] == "fits_at_most"
    assert result.report["headline"].startswith("Fits: at most ")


def test_stopped_as_asked(tmp_path):
    code = """
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10**9):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        open("ready", "w").close()
    time.sleep(0.01)
"""
    (tmp_path / "loop.py").write_text(code)
    command = [TONNAGE, "run", "--json", "--output", "out.json", "--", PYTHON, "loop.py"]
    process = subprocess.Popen([str(c) for c in command], cwd=tmp_path, env=clean_environment(), stdin=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    for _ in range(1200):
        if (tmp_path / "ready").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["verdict"] == "fits"
    assert report["end"]["stopped"]
    assert report["headline"].startswith("Fits so far: ")


def test_run_report_and_explain_say_the_same(run, tonnage, tmp_path):
    record = tmp_path / "run.tonnage"
    result = run(PYTHON, PROGRAMS / "no_room_for_cublas.py", gpu="rtx3060", options=("--record", record))
    headline = result.report["headline"]
    assert json.loads(tonnage("report", "--json", record).out)["headline"] == headline
    explained = json.loads(tonnage("explain", "--json", record).out)["explanations"][0]
    assert explained["report"]["headline"] == headline
    assert not explained["failures"][-1]["recovered"]
    flat = " ".join(tonnage("explain", "--brief", record).out.split())
    assert headline.replace("  ", " ") in flat


# --- What it would really have needed ---------------------------------------------------------------


def test_true_need(run, tmp_path):
    out = tmp_path / "steps.txt"
    result = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "64", "--out", out,
                 gpu="rtx3060", options=("--memory", "620MiB"), true_need=True)
    assert result.report["verdict"] == "does_not_fit"
    need = result.report["need"]
    assert need["repeats"]
    assert not out.exists()  # the second run writes nothing
    real = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "64", gpu="rtx3060")
    assert real.report["verdict"] == "fits"
    assert need["devices"][0]["device_bytes"] == real.device["peak_device"]["bytes"]
    assert need["devices"][0]["allocated_bytes"] == real.device["peak_allocated"]["bytes"]
    assert need["cards"][0]["total_bytes"] >= need["devices"][0]["device_bytes"]


@pytest.mark.xfail(reason="a smaller batch is counted, not run, and the count leaves out temporaries of the optimizer")
def test_the_smaller_batch_that_is_advised_is_enough(run):
    result = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "64", gpu="rtx3060", options=("--memory", "620MiB"), true_need=True)
    smaller = next(r for r in result.report["need"]["remedies"] if r["enough"])
    batch = int(smaller["text"].split(" of ")[1].split()[0])
    assert 0 < batch < 64
    again = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", str(batch), gpu="rtx3060", options=("--memory", "620MiB"))
    assert again.report["verdict"] == "fits"


def test_no_true_need(run):
    result = run(PYTHON, PROGRAMS / "needs_more.py", gpu="rtx3060", options=("--memory", "500MiB"))
    assert result.report["need"] is None


def test_input_that_was_read_is_not_read_twice(tmp_path):
    (tmp_path / "read.py").write_text("import sys, torch; torch.empty(int(sys.stdin.read()), dtype=torch.uint8, device='cuda')")
    done = subprocess.run([str(TONNAGE), "run", "--gpu", "rtx3060", "--", str(PYTHON), "read.py"], cwd=tmp_path, text=True,
                          input=str(1 << 40), capture_output=True, env=clean_environment(), timeout=300)
    assert "may have read its standard input" in " ".join(done.stderr.split())


# --- check and diff ---------------------------------------------------------------------------------


def test_check(run, tonnage, tmp_path):
    good, failed, full = (tmp_path / name for name in ("good", "failed", "full"))
    run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "4", options=("--record", good))
    run(PYTHON, PROGRAMS / "fails_for_its_own_reason.py", options=("--record", failed))
    run(PYTHON, PROGRAMS / "needs_more.py", gpu="rtx3060", options=("--record", full, "--memory", "500MiB"))

    def check(*arguments):
        return tonnage("check", *arguments)
    assert check(good, "--max-peak", "10GiB").code == 0
    assert check(good, "--max-peak", "10MiB").code == 3
    assert check(good, "--baseline", good).code == 0
    assert check(good, "--no-leak").code == 0
    assert check(good).code == 2
    for record in (failed, full):
        result = check(record, "--max-peak", "100GiB")
        assert result.code == 3 and "FAILED" in result.out
        assert check(record, "--no-leak").code == 3
    assert check(good, "--baseline", full).code == 3
    cut = tmp_path / "cut"
    cut.write_bytes(good.read_bytes()[:-100])
    assert check(cut, "--max-peak", "100GiB").code == 3
    as_json = json.loads(check(failed, "--max-peak", "100GiB", "--json").out)
    assert not as_json["passed"]
    assert {row["name"] for row in as_json["checks"]} == {"verdict", "max_peak"}


def test_diff_says_which_side_was_cut(run, tonnage, tmp_path):
    small, full = tmp_path / "small", tmp_path / "full"
    run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "4", options=("--record", small))
    run(PYTHON, PROGRAMS / "needs_more.py", gpu="rtx3060", options=("--record", full, "--memory", "500MiB"))
    text = tonnage("diff", small, full).out
    assert f"! {full}: Does not fit" in " ".join(text.split())
    assert f"! {small}" not in text
    assert json.loads(tonnage("diff", small, full, "--json").out)["notes"][0]["source"] == str(full)
