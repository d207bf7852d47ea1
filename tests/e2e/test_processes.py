"""How processes end, and what is left of their memory, their record and their files."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BUILD, PYTHON, TONNAGE, clean_environment

PROCESSES = BUILD / "tests/processes"
GPU = "rtx-3060"  # 11.65 GiB


def start(*command, options=(), env=None, gpu=GPU, **kwargs):
    return subprocess.Popen(
        [str(TONNAGE), "run", "--gpu", gpu, *map(str, options), "--", *map(str, command)],
        env=env or clean_environment(),
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        **kwargs,
    )


def finish(*command, timeout=120, **kwargs):
    kwargs.setdefault("stdout", subprocess.PIPE)
    kwargs.setdefault("stderr", subprocess.PIPE)
    process = start(*command, **kwargs)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def report_of(tmp_path, *command, **kwargs):
    file = tmp_path / "report.json"
    result = finish(*command, options=["-q", "--json", "--force", "--output", file], **kwargs)
    return result, json.loads(file.read_text())


@pytest.fixture
def small_folder(tmp_path):
    """A file system of 260 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=260k", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", folder])


# --- Memory ---


@pytest.mark.parametrize("way", [0, 1, 2])
def test_the_dead_give_their_memory_back_before_they_are_waited_for(way):
    code, out, _ = finish(PROCESSES / "dies_holding", way, options=["-q"])
    assert code == 0 and "parent: served" in out, out
    assert int(out.split("zombie: ")[1].split()[0]) < 1000


def test_kills_within_allocations_leave_an_exact_account(tmp_path):
    (code, out, err), _ = report_of(
        tmp_path, PROCESSES / "kill_within_allocations", 100, timeout=300
    )
    assert code == 0 and "over the card: 0" in out, err
    in_use = int(out.split("in use: ")[1].split()[0])
    context = in_use  # the last process holds a context and nothing else
    alone, out, _ = finish(PROCESSES / "hold", 0, 0, options=["-q"])
    assert in_use < 600 << 20 and context > 0


def test_the_report_of_killed_processes_stays_within_the_card(tmp_path):
    _, report = report_of(tmp_path, PROCESSES / "kill_within_allocations", 20, timeout=300)
    device = report["devices"][0]
    assert device["peak_device"]["bytes"] <= device["total_bytes"]


def holders(*each):
    return "; ".join(f"{PROCESSES}/hold {one}" for one in each)


@pytest.mark.parametrize("way", [0, 1, 2])
def test_what_the_dead_held_ends_in_the_report(tmp_path, way):
    (code, _, _), report = report_of(tmp_path, PROCESSES / "dies_holding", way)
    assert code == 0
    assert report["verdict"] == "fits"
    assert 8 << 30 < report["devices"][0]["peak_device"]["bytes"] < 9 << 30


@pytest.mark.parametrize(
    "script, most",
    [
        (holders("8 0 9", "8 0 9", "8 0"), 9),  # twice in a row
        (
            f"{PROCESSES}/hold 1 8 & sleep 1; {holders('8 0 9', '9 0 _exit', '7 0')}; wait",
            11,
        ),  # while another lives
        (
            f"{PROCESSES}/hold 5 1 9 & {PROCESSES}/hold 5 2 9 & sleep 4; {holders('10 0')}; wait",
            11,
        ),  # two at once
    ],
)
def test_processes_killed_one_after_another_fit_as_each_of_them_did(tmp_path, script, most):
    (code, out, _), report = report_of(tmp_path, "sh", "-c", script)
    assert code == 0 and "refused" not in out, out
    device = report["devices"][0]
    assert report["verdict"] == "fits", report["headline"]
    assert device["peak_device"]["bytes"] < most << 30
    assert (
        sum(row["bytes"] for row in device["peak_device"]["breakdown"]["rows"])
        == device["peak_device"]["bytes"]
    )


def test_killed_ranks_on_two_cards(tmp_path):
    script = "; ".join(
        "for device in 0 1; do "
        f"CUDA_VISIBLE_DEVICES=$device {PROCESSES}/hold {size} 1 9 & done; wait"
        for size in (8, 7)
    )
    file = tmp_path / "report.json"
    code, out, _ = finish(
        "sh", "-c", script, gpu="rtx-3060x2", options=["-q", "--json", "--output", file]
    )
    assert out.count("served") == 4
    report = json.loads(file.read_text())
    assert [d["index"] for d in report["devices"]] == [0, 1]
    for device in report["devices"]:
        assert 8 << 30 < device["peak_device"]["bytes"] < 9 << 30


def test_two_namespaces_share_one_card():
    if subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make PID namespaces")
    script = f"{PROCESSES}/hold 8 4 & sleep 1; unshare -p -f {PROCESSES}/hold 8 1; wait"
    code, out, _ = finish("sh", "-c", script, options=["-q"])
    assert sorted(line.split(",")[0] for line in out.splitlines()) == [
        "8 GiB: refused",
        "8 GiB: served",
    ], out


def test_a_full_card_refuses_streams_and_contexts(tmp_path):
    (code, out, _), report = report_of(tmp_path, PROCESSES / "fill_card")
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines["all"].startswith("0,") and int(lines["all"].split()[-1]) < 2 << 20
    assert lines["one more"].startswith("2,")
    assert lines["streams"].startswith("2,") and lines["stream after free"].startswith("0,")
    device = report["devices"][0]
    assert device["peak_device"]["bytes"] <= device["total_bytes"]
    assert len(device["out_of_memory"]) >= 2


def test_a_context_that_does_not_fit_is_in_the_report(tmp_path):
    file = tmp_path / "report.json"
    code, out, err = finish(
        PROCESSES / "hold", 1, 0, options=["--memory", "200MiB", "-q", "--json", "--output", file]
    )
    assert code == 2 and "no context: 2" in out
    report = json.loads(file.read_text())
    assert report["devices"][0]["out_of_memory"], "the refusal is missing"
    assert report["verdict"] == "does_not_fit"
    # A program that does not look at what it was answered, and exits with 0.
    code, out, err = finish(
        "sh",
        "-c",
        f"{PROCESSES}/hold 1 0; true",
        options=["--memory", "200MiB", "-q", "--json", "--force", "--output", file],
    )
    report = json.loads(file.read_text())
    assert code == 0 and report["verdict"] == "does_not_fit"
    assert "the driver, for a context, asked for" in report["headline"]


# --- How the command ends ---


@pytest.mark.parametrize("end, code", [("9", 137), ("15", 143), ("11", 139), ("_exit", 3)])
def test_a_process_that_ends_while_idle_has_its_memory_in_the_record(tmp_path, end, code):
    (got, _, err), report = report_of(tmp_path, PROCESSES / "hold", 8, 1, end)
    assert got == code
    assert "never used a GPU" not in err
    assert report["devices"][0]["peak_device"]["bytes"] > 8 << 30


def test_signals_of_timeout_arrive_once():
    done = subprocess.run(
        [
            "timeout",
            "-s",
            "TERM",
            "1",
            str(TONNAGE),
            "run",
            "-q",
            "--",
            str(PROCESSES / "count_signals"),
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert "signals: 1" in done.stdout


def test_the_exit_code_is_the_commands_where_the_parent_ignores_its_children():
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert finish("false", options=["-q"], preexec_fn=ignore)[0] == 1
    assert finish("sh", "-c", "exit 7", preexec_fn=ignore)[0] == 7


def test_output_that_cannot_be_written_changes_nothing():
    with open("/dev/full", "w") as full:
        assert finish(PROCESSES / "hold", 1, 0, stderr=full)[0] == 0
        assert finish("false", stderr=full)[0] == 1
        assert finish("sh", "-c", "exit 3", options=["--json"], stdout=full)[0] == 3


def test_a_reader_who_leaves_leaves_no_folder_behind(tmp_path):
    env = clean_environment(TMPDIR=str(tmp_path))
    read, write = os.pipe()
    process = start(PROCESSES / "hold", 1, 1, env=env, stdout=write, stderr=write)
    os.close(write)
    os.close(read)
    assert process.wait(60) in (0, 141)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_run_goes_with_the_next(tmp_path):
    env = clean_environment(TMPDIR=str(tmp_path))
    process = start("sleep", 30, options=["-q"], env=env, start_new_session=True)
    for _ in range(100):
        if list(tmp_path.iterdir()):
            break
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list(tmp_path.iterdir())) == 1
    assert finish("true", options=["-q"], env=env)[0] == 0
    assert not list(tmp_path.iterdir())


# --- Records that cannot be written ---


def no_verdict(report):
    return report["devices"][0]["verdict"] not in ("fits", "fits_at_most") and report.get(
        "verdict"
    ) not in ("fits", "fits_at_most")


def test_a_full_disk_is_said_and_gives_no_verdict(small_folder, tmp_path):
    env = clean_environment(TMPDIR=str(small_folder))
    (code, out, err), report = report_of(tmp_path, PROCESSES / "many_events", 100000, env=env)
    assert code == 0 and "8 GiB: 0" in out
    assert "the record cannot be written any more" in err and "No space left" in err
    assert no_verdict(report)
    assert not list(small_folder.iterdir())


def test_a_limit_on_files_is_said_and_gives_no_verdict(tmp_path):
    record = tmp_path / "run.tonnage"
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"ulimit -f 400; exec {TONNAGE} run -q --gpu {GPU} --record {record} -- "
            f"{PROCESSES}/many_events 200000",
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "8 GiB: 0" in done.stdout
    assert "the record cannot be written any more" in done.stderr and "ulimit -f" in done.stderr
    report = json.loads(
        subprocess.run(
            [str(TONNAGE), "report", "--json", str(record)],
            capture_output=True,
            text=True,
            env=clean_environment(),
        ).stdout
    )
    assert no_verdict(report)


RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(2_000_000, dtype=torch.int32, device="cuda") * (rank + 1)
dist.all_reduce(x)
print("value", x[0].item(), flush=True)
dist.destroy_process_group()
"""


def test_ranks_exchange_values_though_the_disk_is_full(small_folder, tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    env = clean_environment(TMPDIR=str(small_folder))
    began = time.monotonic()
    done = subprocess.run(
        [
            str(TONNAGE),
            "run",
            "-q",
            "--gpu",
            "h200x2",
            "--record",
            str(tmp_path / "r"),
            "--",
            str(PYTHON),
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(program),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (done.stdout.count("value"), done.stdout.count("3")) == (
        2,
        2,
    ), done.stdout  # two ranks write at once
    assert time.monotonic() - began < 200


# --- Files ---


def test_a_record_is_not_written_through_a_link(tmp_path):
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    assert (
        finish(PROCESSES / "hold", 1, 0, options=["-q", "--force", "--record", tmp_path / "link"])[
            0
        ]
        == 0
    )
    assert (tmp_path / "theirs").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "link").read_bytes()[:4] == b"TNGR"


def test_secrets_stay_out_of_records_and_reports(tmp_path):
    record, html = tmp_path / "r.tonnage", tmp_path / "r.html"
    command = [
        "env",
        "HF_TOKEN=s3cr3t-one",
        str(PROCESSES / "hold"),
        "1",
        "0",
        "--api-key=s3cr3t-two",
    ]
    code, _, err = finish(*command, options=["--record", record, "--html", html])
    assert code == 0
    shown = subprocess.run(
        [str(TONNAGE), "report", "--json", str(record)],
        capture_output=True,
        env=clean_environment(),
    ).stdout
    for text in (record.read_bytes(), html.read_bytes(), shown, err.encode()):
        assert b"s3cr3t" not in text
    assert record.stat().st_mode & 0o077 == 0 and html.stat().st_mode & 0o077 == 0


def test_a_limit_on_address_space_is_not_the_cards(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import torch\nfor n in (6, 4):\n"
        "    x = torch.empty(n << 30, dtype=torch.uint8, device='cuda')\n"
        "    globals()[f'x{n}'] = x\n"
    )
    done = subprocess.run(
        ["sh", "-c", f"ulimit -v 20000000; exec {TONNAGE} run --gpu {GPU} -- {PYTHON} {program}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        pytest.skip("the limit leaves room here")
    text = " ".join(done.stderr.split())
    assert "limit on address space (ulimit -v)" in text
    assert "The command failed (exit code 1)" in text and "the card is not the reason" in text
    assert "Does not fit" not in text


def test_pinned_memory_that_the_host_does_not_have(tmp_path):
    (code, _, _), report = report_of(tmp_path, PROCESSES / "host_memory", 1 << 20)
    assert code == 2
    assert report["verdict"] == "failed"
    assert "of pinned memory; the card is not the reason" in report["headline"]
    (refusal,) = report["host_refusals"]
    assert (refusal["limit"], refusal["request_bytes"], refusal["ended"]) == (
        "pinned_memory",
        1 << 50,
        True,
    )
    assert 0 < refusal["limit_bytes"] < 1 << 50
    (code, _, _), report = report_of(tmp_path, PROCESSES / "host_memory", 1 << 20, "caught")
    assert code == 0 and report["verdict"] == "fits"
    assert "of pinned memory, and the command went on" in report["headline"]


# --- Devices ---


@pytest.mark.parametrize(
    "first, second",
    [("0", "1"), ("1", "0"), ("0,1", "1,0"), ("{0}", "{1}"), ("{1},{0}", "{0},{1}"), ("{0}", "1")],
)
def test_processes_that_see_different_devices(tmp_path, first, second):
    code, out, _ = finish(PROCESSES / "device_uuids", gpu="rtx-3060x2", options=["-q"])
    uuids = out.split()
    assert code == 0 and len(uuids) == 2
    first, second = first.format(*uuids), second.format(*uuids)
    script = (
        f"CUDA_VISIBLE_DEVICES={first} {PROCESSES}/hold 3 1 & "
        f"CUDA_VISIBLE_DEVICES={second} {PROCESSES}/hold 6 1; wait"
    )
    file = tmp_path / "report.json"
    finish("sh", "-c", script, gpu="rtx-3060x2", options=["-q", "--json", "--output", file])
    peaks = {
        device["index"]: device["peak_device"]["bytes"] >> 30
        for device in json.loads(file.read_text())["devices"]
    }
    assert peaks == ({1: 3, 0: 6} if first in ("1", f"{uuids[1]},{uuids[0]}") else {0: 3, 1: 6})


# --- Rows ---


def rows_of(device):
    return {row["category"]: row["bytes"] for row in device["peak_device"]["breakdown"]["rows"]}


def test_local_memory_of_kernels_has_its_row(tmp_path):
    record = tmp_path / "r.tonnage"
    code, out, err = finish(PROCESSES / "local_memory", options=["--record", record])
    assert code == 0 and out == "small_stack: 0\nlarge_stack: 0\n"
    assert "local memory" in err and "large_stack" in err
    report = json.loads(
        subprocess.run(
            [TONNAGE, "report", "--json", record], capture_output=True, env=clean_environment()
        ).stdout
    )
    device = report["devices"][0]
    groups = {group["name"]: group["size_bytes"] for group in device["beside_pytorch"]}
    assert set(groups) == {"small_stack", "large_stack"}
    assert rows_of(device)["local_memory"] == sum(groups.values()) > 1 << 30
    assert sum(rows_of(device).values()) == device["peak_device"]["bytes"]


def test_managed_memory_has_its_row_and_its_line(tmp_path):
    program = Path(__file__).parent / "programs/managed_by_line.py"
    (code, _, err), report = report_of(tmp_path, PYTHON, program)
    assert code == 0, err
    device = report["devices"][0]
    assert rows_of(device)["managed"] == 96 << 20
    (group,) = device["beside_pytorch"]
    assert (group["category"], group["size_bytes"]) == ("managed", 96 << 20)
    assert group["site"]["line"]["line"] == 10


# --- Records of later processes ---


def test_a_second_process_whose_record_fails_at_once_is_said(tmp_path):
    """The first process has written its record; the second may not write at all."""
    script = f"{PROCESSES}/hold 1 0; ulimit -f 0; {PROCESSES}/hold 8 3"
    record = tmp_path / "r.tonnage"
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        process = start(
            "sh",
            "-c",
            script,
            options=["-q", "--record", record],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    while process.poll() is None and "cannot be written" not in errors.read_text():
        time.sleep(0.1)
    assert process.poll() is None, "it is said while the process still runs"
    assert process.wait(60) == 0
    report = json.loads(
        subprocess.run(
            [TONNAGE, "report", "--json", record], capture_output=True, env=clean_environment()
        ).stdout
    )
    assert report["verdict"] == "cut"
    assert report["cut"] == "lost_parts"
