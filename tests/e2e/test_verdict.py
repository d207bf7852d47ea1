"""Whether it fits: what `run` says of commands that end in every way there is."""

import json
import re
import signal
import subprocess
import time

import pytest

from conftest import BUILD, PROGRAMS, PYTHON, TONNAGE, clean_environment


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
    assert (
        run("sh", "-c", "exit 7").report["headline"].startswith("The command failed (exit code 7)")
    )
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


BESIDE_PYTORCH = """
import ctypes, sys, torch
x = torch.zeros(1 << 20, device="cuda")
torch.cuda.empty_cache()
cuda, address, kept = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), 0
while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0:
    kept += 1
{then}
"""


def test_a_refusal_beside_pytorch_that_ended_the_command(python):
    """Another allocator in the process: its refusals count as PyTorch's do. CuPy's and RMM's errors are MemoryErrors."""
    result = python(
        BESIDE_PYTORCH.format(then="raise MemoryError(f'{kept} were served')"), gpu="rtx3060"
    )
    assert result.code == 1 and "11 were served" in result.err
    assert result.report["verdict"] == "does_not_fit"
    refusal = ending(result)
    assert (refusal["asker"], refusal["from_pytorch"], refusal["request_bytes"]) == (
        "program",
        False,
        1 << 30,
    )
    assert refusal["moment"]["site"]["user_line"]["line"] == 6
    assert "the program asked for 1.00 GiB" in result.report["headline"]


def test_a_refusal_beside_pytorch_after_which_the_command_went_on(python):
    result = python(
        BESIDE_PYTORCH.format(then="torch.zeros(1 << 20, device='cuda'); print(kept)"),
        gpu="rtx3060",
    )
    assert result.code == 0 and result.out.split() == ["11"]
    assert result.report["verdict"] == "fits"
    assert "one request was refused, and the command went on" in result.report["headline"]
    assert result.device["out_of_memory"][0]["went_on"]


def test_no_room_for_nccl(run):
    result = run(
        PYTHON.parent / "torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        PROGRAMS / "no_room_for_nccl.py",
        gpu="rtx3060x2",
    )
    assert result.code != 0
    assert result.report["verdict"] == "does_not_fit"
    assert ending(result)["asker"] == "nccl"
    for device in result.report["devices"]:
        assert device["peak_device"]["bytes"] <= device["total_bytes"]


def test_everything_that_the_driver_takes_can_be_refused(run):
    result = run(PYTHON, PROGRAMS / "over_the_card.py", gpu="rtx3060")
    device = result.device
    assert device["peak_device"]["bytes"] <= device["total_bytes"]
    assert {"pytorch", "streams"} <= {refusal["asker"] for refusal in device["out_of_memory"]}


def test_the_asynchronous_allocator_counts_for_itself(run, tonnage, tmp_path):
    record = tmp_path / "r.tonnage"
    result = run(PYTHON, PROGRAMS / "malloc_async.py", options=("--record", record))
    figures = json.loads(result.out.splitlines()[0])
    counts = {check["name"]: check["pytorch"] for check in result.device["counters"]}
    assert (
        counts["allocated_bytes.all.peak"] > figures["max_memory_allocated"] > 0
    )  # the end fills the card
    assert counts["reserved_bytes.all.peak"] >= counts["allocated_bytes.all.peak"]
    assert not [m for m in result.report["messages"] if m["level"] == "warning"]
    text = tonnage("report", record).out
    assert "PyTorch itself counted" in text and "! " not in text
    (explained,) = json.loads(tonnage("explain", "--json", record).out)["explanations"]
    causes = [finding["cause"] for finding in explained["findings"]]
    assert causes == ["capacity"], "neither one large tensor nor another allocator's memory"


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
    assert (
        python(
            code.replace(
                "raise RuntimeError", "torch.ones(9, device='cuda'); import sys; sys.exit"
            ).replace(" from error", "")
        ).report["verdict"]
        == "failed"
    )


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
    process = subprocess.Popen(
        [str(c) for c in command],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell's background command ignores the signal, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
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
    result = run(
        PYTHON, PROGRAMS / "no_room_for_cublas.py", gpu="rtx3060", options=("--record", record)
    )
    headline = result.report["headline"]
    assert json.loads(tonnage("report", "--json", record).out)["headline"] == headline
    explained = json.loads(tonnage("explain", "--json", record).out)["explanations"][0]
    assert explained["report"]["headline"] == headline
    assert not explained["failures"][-1]["recovered"]
    flat = " ".join(tonnage("explain", "--brief", record).out.split())
    assert headline.replace("  ", " ") in flat


def page_data(page):
    """What the HTML report shows of the run."""
    text = page.read_text()
    data = json.loads(re.search(r'<script[^>]* id="data">(.*?)</script>', text, re.S)[1])
    return data["explanations"][0]


HOLD = BUILD / "tests/processes/hold"
LOOP = """
import os, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10**9):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        os.kill(os.getpid(), 15)
"""
KINDS = {  # name: (command, verdict, the headline begins with)
    "fits": ([HOLD, 1, 0], "fits", "Fits: peak "),
    "does not fit": ([HOLD, 20, 0], "does_not_fit", "Does not fit on "),
    "does not fit, with its need": (
        [PYTHON, PROGRAMS / "needs_more.py", "--batch-size", 6000],
        "does_not_fit",
        "Does not fit on ",
    ),
    "got over": (["sh", "-c", f"{HOLD} 20 0; {HOLD} 1 0"], "fits", "Fits: peak "),
    "failed": (["sh", "-c", f"{HOLD} 1 0; exit 7"], "failed", "The command failed (exit code 7)"),
    "failed by the host": (
        [BUILD / "tests/processes/host_memory", 1 << 20],
        "failed",
        "The command failed (exit code 2)",
    ),
    "cut": ([HOLD, 1, 0, 9], "cut", "No verdict: the command was killed"),
    "lost": (
        ["sh", "-c", f"{HOLD} 1 0; ulimit -f 0; {HOLD} 8 0"],
        "cut",
        "No verdict: a part of the record is missing",
    ),
    "stopped": ([PYTHON, "-c", LOOP], "fits", "Fits so far: "),
    "no GPU used": (["true"], "nothing_used", "No GPU memory was used: no program"),
    "driver only": (
        [BUILD / "tests/processes/device_uuids"],
        "nothing_used",
        "No GPU memory was used: the CUDA driver",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_say_the_same(run, tonnage, tmp_path, kind):
    command, verdict, begins = KINDS[kind]
    record, page = tmp_path / "r.tonnage", tmp_path / "r.html"
    first = run(
        *command,
        gpu="rtx3060",
        options=("--record", record, "--html", page),
        true_need="need" in kind,
    ).report
    assert first["verdict"] == verdict, first["headline"]
    assert first["headline"].startswith(begins), first["headline"]
    assert (first["need"] is not None) == ("need" in kind)
    reported = json.loads(tonnage("report", "--json", record).out)
    explained = json.loads(tonnage("explain", "--json", record).out)["explanations"][0]["report"]
    shown = page_data(page)
    assert shown["verdict"]["headline"] == first["headline"]
    assert " ".join(shown["verdict"]["main_finding"][:1]) == (first["main_finding"] or "")
    assert bool(shown["verdict"]["need"]) == (first["need"] is not None)
    for other in (reported, explained, shown["report"]):
        for key in ("verdict", "headline", "need", "cut", "host_refusals", "end"):
            assert other[key] == first[key], key
        assert [(d["verdict"], d["verdict_text"]) for d in other["devices"]] == [
            (d["verdict"], d["verdict_text"]) for d in first["devices"]
        ]
    for text in (tonnage("report", record).out, tonnage("explain", "--brief", record).out):
        assert first["headline"] in " ".join(text.split()).replace("\u00a0", " "), text
    passed = tonnage("check", record, "--max-peak", "100GiB").code == 0
    assert passed == (verdict == "fits")


# --- What it would really have needed ---------------------------------------------------------------


def test_true_need(run, tmp_path):
    out = tmp_path / "steps.txt"
    result = run(
        PYTHON,
        PROGRAMS / "needs_more.py",
        "--batch-size",
        "64",
        "--out",
        out,
        gpu="rtx3060",
        options=("--memory", "620MiB"),
        true_need=True,
    )
    assert result.report["verdict"] == "does_not_fit"
    need = result.report["need"]
    assert need["repeats"]
    assert not out.exists()  # the second run writes nothing
    real = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "64", gpu="rtx3060")
    assert real.report["verdict"] == "fits"
    assert need["devices"][0]["device_bytes"] == real.device["peak_device"]["bytes"]
    assert need["devices"][0]["allocated_bytes"] == real.device["peak_allocated"]["bytes"]
    assert need["cards"][0]["total_bytes"] >= need["devices"][0]["device_bytes"]


def test_the_smaller_batch_that_is_advised_is_enough(run, tonnage, tmp_path):
    record = tmp_path / "r.tonnage"
    card = {"gpu": "rtx3060", "options": ("--memory", "620MiB")}
    result = run(
        PYTHON,
        PROGRAMS / "needs_more.py",
        "--batch-size",
        "64",
        true_need=True,
        gpu="rtx3060",
        options=("--memory", "620MiB", "--record", record),
    )
    smaller = next(r for r in result.report["need"]["remedies"] if r["enough"])
    assert smaller["was_run"]
    batch = smaller["batch"]
    assert 0 < batch < 64 and f"a batch of {batch} instead of 64" in smaller["text"]
    again = run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", str(batch), **card)
    assert again.report["verdict"] == "fits"
    assert again.device["peak_device"]["bytes"] == smaller["needs_bytes"]
    assert "it ran" in result.report["main_finding"]
    explained = json.loads(tonnage("explain", "--json", record).out)["explanations"][0]
    advice = [entry["text"] for finding in explained["findings"] for entry in finding["advice"]]
    assert any(
        f"(a batch of {batch} instead of 64 is enough: it ran" in text for text in advice
    ), advice


LAYERS = """
import torch
from torch import nn
batch = 64 * {batch}
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    loss = model(torch.randn(batch, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BUFFERS = """
import torch
from torch import nn
batch = 16 * {batch}
stays = [torch.zeros(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
queue = torch.zeros(65536, 256, device="cuda")
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)], nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(6):
    loss = (model(torch.randn(batch, 1024, device="cuda")) @ queue[:4096].T).logsumexp(1).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "code, batch, memory",
    [(LAYERS, 64, "620MiB"), (BUFFERS, 256, "900MiB")],
    ids=["layers", "buffers"],
)
def test_what_is_counted_is_enough_where_the_batch_cannot_be_set(python, code, batch, memory):
    """The batch is in the script: nothing can be run with another one."""
    card = {"gpu": "rtx3060", "options": ("--memory", memory)}
    result = python(code.format(batch=batch), true_need=True, **card)
    remedies = [r for r in result.report["need"]["remedies"] if r["enough"]]
    assert remedies and not any(r["was_run"] for r in remedies)
    alone = next(r for r in remedies if r["text"].startswith("at most"))
    smaller = int(batch * alone["batch_share"])
    assert smaller > batch / 16
    again = python(code.format(batch=smaller), name="again.py", **card)
    assert again.report["verdict"] == "fits"


def test_no_true_need(run):
    result = run(PYTHON, PROGRAMS / "needs_more.py", gpu="rtx3060", options=("--memory", "500MiB"))
    assert result.report["need"] is None


def test_input_that_was_read_is_not_read_twice(tmp_path):
    (tmp_path / "read.py").write_text(
        "import sys, torch; torch.empty(int(sys.stdin.read()), dtype=torch.uint8, device='cuda')"
    )
    done = subprocess.run(
        [str(TONNAGE), "run", "--gpu", "rtx3060", "--", str(PYTHON), "read.py"],
        cwd=tmp_path,
        text=True,
        input=str(1 << 40),
        capture_output=True,
        env=clean_environment(),
        timeout=300,
    )
    assert "may have read its standard input" in " ".join(done.stderr.split())


# --- check and diff ---------------------------------------------------------------------------------


def test_check(run, tonnage, tmp_path):
    good, failed, full = (tmp_path / name for name in ("good", "failed", "full"))
    run(PYTHON, PROGRAMS / "needs_more.py", "--batch-size", "4", options=("--record", good))
    run(PYTHON, PROGRAMS / "fails_for_its_own_reason.py", options=("--record", failed))
    run(
        PYTHON,
        PROGRAMS / "needs_more.py",
        gpu="rtx3060",
        options=("--record", full, "--memory", "500MiB"),
    )

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
    run(
        PYTHON,
        PROGRAMS / "needs_more.py",
        gpu="rtx3060",
        options=("--record", full, "--memory", "500MiB"),
    )
    text = tonnage("diff", small, full).out
    assert f"! {full}: Does not fit" in " ".join(text.split())
    assert f"! {small}" not in text
    assert json.loads(tonnage("diff", small, full, "--json").out)["notes"][0]["source"] == str(full)
