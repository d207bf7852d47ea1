"""What the binary says of itself: the last runs, schemas of its JSON, completions, man pages,
examples."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess

import jsonschema
import pytest

from conftest import BUILD, PROGRAMS, PYTHON, ROOT, TONNAGE, clean_environment

COMMANDS = [
    "run",
    "gpus",
    "report",
    "explain",
    "diff",
    "check",
    "doctor",
    "recorder",
    "version",
    "schema",
    "completion",
]
SNAPSHOT = ROOT / "tests/data/snapshots/leak_loss.pickle.xz"
FAILED = ROOT / "tests/data/snapshots/oom_fragment.pickle.xz"
LEAK = """
import torch
kept = []
for step in range(8):
    kept.append(torch.zeros(16 << 20, device="cuda"))  # kept line
    torch.cuda.synchronize()
"""


@pytest.fixture
def plain_run(tonnage, tmp_path):
    """plain_run(CODE): `tonnage run` as a user types it, with the report as text at 80 columns."""

    def call(code, *options, gpu="RTX 3060", env=None, name="train.py"):
        script = tmp_path / name
        script.write_text(code)
        return tonnage(
            "run",
            "--gpu",
            gpu,
            *options,
            "--",
            PYTHON,
            script,
            env=clean_environment(COLUMNS="80", **(env or {})),
        )

    return call


def kept(state_home):
    folder = state_home / "tonnage/runs"
    return sorted(folder.iterdir()) if folder.exists() else []


# --- the last runs ---

FITS = "import torch\nx = torch.zeros(1 << 20, device='cuda')\n"


def test_the_last_run_is_explained_without_a_file(plain_run, tonnage, state_home):
    assert "no run has been kept" in tonnage("explain").err
    done = plain_run(FITS)
    assert done.code == 0 and done.err.rstrip().splitlines()[-1] == "More: tonnage explain"
    (run,) = kept(state_home)
    assert (
        stat.S_IMODE(run.stat().st_mode) == 0o600
        and stat.S_IMODE(run.parent.stat().st_mode) == 0o700
    )
    said = tonnage("explain", "--brief")
    assert (
        said.code == 0
        and said.out.startswith("last (")
        and "train.py" in said.out.split("\n\n")[0]
        and "did not run out of memory" in said.out
    )
    assert tonnage("report", "--brief").out.startswith("Fits: ")
    assert json.loads(tonnage("report", "--json").out)["source"].startswith("last (")


def test_the_main_finding_stands_in_the_report_of_the_run(plain_run, tonnage):
    full = plain_run(
        "import torch\nblocks = [torch.zeros(1 << 28, device='cuda') for _ in range(40)]\n",
        "--no-true-need",
        "--brief",
    )
    assert full.code == 1
    lines = full.err[full.err.index("Does not fit") :].splitlines()
    assert (
        "train.py:2" in " ".join(lines[:3])
        and any(line.startswith("Reason: ") for line in lines)
        and lines[-1] == "More: tonnage explain"
    )
    assert tonnage("explain", "--brief").out.count("train.py:2")


def test_two_runs_are_compared_without_files(plain_run, tonnage):
    plain_run(FITS)
    plain_run(FITS.replace("20", "22"))
    for arguments in ([], ["last~1"], ["last~1", "last"]):
        said = json.loads(tonnage("diff", *arguments, "--json").out)
        row = {metric["name"]: metric for metric in said["devices"][0]["metrics"]}["allocated_peak"]
        assert (row["before"], row["after"]) == (4 << 20, 16 << 20), arguments
    missing = tonnage("diff", "last~7", "last")
    assert missing.code == 1 and "only 2 runs are kept" in missing.err


def test_what_is_not_kept(plain_run, tonnage, state_home):
    assert "More:" not in plain_run(FITS, "--no-keep").err and kept(state_home) == []
    assert (
        "More:" not in plain_run(FITS, env={"TONNAGE_KEEP_RUNS": "0"}).err
        and kept(state_home) == []
    )
    for _ in range(3):
        plain_run(FITS, env={"TONNAGE_KEEP_RUNS": "2"})
    assert len(kept(state_home)) == 2


def test_a_file_that_was_asked_for_is_named(plain_run, tmp_path, state_home):
    done = plain_run(FITS, "--record", tmp_path / "a b.tonnage")
    assert (
        done.err.rstrip().endswith(f"More: tonnage explain '{tmp_path / 'a b.tonnage'}'")
        and len(kept(state_home)) == 1
    )


def test_a_folder_that_cannot_be_used_costs_one_line(plain_run, state_home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (state_home / "tonnage").mkdir(parents=True)
    (state_home / "tonnage/runs").symlink_to(tmp_path / "elsewhere")
    done = plain_run(FITS)
    assert done.code == 0 and list((tmp_path / "elsewhere").iterdir()) == []
    said = [line for line in done.err.splitlines() if line.startswith("tonnage: ")]
    assert (
        len(said) == 1
        and "not kept" in said[0]
        and "Fits: " in done.err
        and "More:" not in done.err
    )


def test_the_users_line_is_whole_at_80_columns(plain_run, tonnage, tmp_path):
    """Long names of modules and tensors: the line that the user wrote is not what is cut off."""
    code = """
import torch
class a_module_with_a_very_long_name_of_its_own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a_layer_with_a_name_that_takes_most_of_a_line = torch.nn.Linear(1024, 1024)
    def forward(self, x):
        return self.a_layer_with_a_name_that_takes_most_of_a_line(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.another_long_name_of_a_part = a_module_with_a_very_long_name_of_its_own()
    def forward(self, x):
        return self.another_long_name_of_a_part(x)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 1024, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    done = plain_run(code)
    assert done.code == 0, done.err
    for text in (
        done.err,
        tonnage("explain", env=clean_environment(COLUMNS="80")).out,
        tonnage("report", env=clean_environment(COLUMNS="80")).out,
    ):
        largest = text[text.index("Largest tensors") :].split("\n\n")[0].splitlines()[1:]
        assert largest and all(re.search(r"train\.py:\d+", line) for line in largest), text
        # A path alone, which cannot be broken, may be longer.
        too_long = [line for line in text.splitlines() if len(line) > 80 and len(line.split()) > 1]
        assert not too_long, too_long


# --- schemas ---


def strict(schema):
    """The published schema as the tests read it: no field that it does not name, no other word."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items()}
    if "properties" in out and not out.get("x-more"):
        out.setdefault("additionalProperties", False)
    if "x-words" in out:
        out["enum"] = out["x-words"] + ([None] if "null" in out.get("type", []) else [])
    return out


@pytest.fixture
def valid(tonnage):
    def call(name, document):
        published = json.loads(tonnage("schema", name).out)
        jsonschema.Draft202012Validator.check_schema(published)
        jsonschema.Draft202012Validator(published).validate(document)
        jsonschema.Draft202012Validator(strict(published)).validate(document)
        # More fields than today's are no fault for whoever uses the published one.
        if isinstance(document, dict):
            (
                jsonschema.Draft202012Validator(published).validate({**document, "a_new_field": 1})
                if name != "gpus"
                else None
            )
        return document

    return call


def test_schemas_are_listed_and_printed(tonnage):
    names = [line.split()[0] for line in tonnage("schema").out.splitlines()]
    assert names == ["report", "explain", "diff", "check", "gpus", "doctor"]
    assert json.loads(tonnage("schema", "run").out) == json.loads(tonnage("schema", "report").out)
    assert tonnage("schema", "nothing").code == 2


def test_a_schema_misses_nothing_and_takes_nothing_else(tonnage, valid):
    document = json.loads(tonnage("doctor", "--json").out)
    valid("doctor", document)
    for broken in (
        {**document, "schema": 2},
        {**document, "problems": "1"},
        {key: value for key, value in document.items() if key != "problems"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            valid("doctor", broken)
    published = strict(json.loads(tonnage("schema", "doctor").out))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(published).validate({**document, "a_new_field": 1})


@pytest.mark.parametrize(
    "name, options",
    [
        ("facts.py", []),
        ("fails_for_its_own_reason.py", []),
        ("needs_more.py", ["--memory", "500MiB", "--true-need"]),
        ("fraction_caught.py", []),
    ],
)
def test_reports_of_runs_are_valid(run, valid, tonnage, tmp_path, name, options):
    record = tmp_path / "run.tonnage"
    result = run(
        PYTHON,
        PROGRAMS / name,
        gpu="RTX 3060",
        true_need=bool(options),
        options=[*options, "--record", record],
    )
    assert result.report is not None, result.err
    assert not options or result.report["need"]["devices"]
    valid("report", result.report)
    valid("report", json.loads(tonnage("report", record, "--json").out))
    valid("explain", json.loads(tonnage("explain", record, "--json").out))


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "tests/data/snapshots").glob("*.pickle.xz")),
    ids=lambda path: path.name.split(".")[0],
)
def test_explanations_of_snapshots_are_valid(tonnage, valid, file):
    valid("explain", json.loads(tonnage("explain", file, "--json", "--memory", "24GiB").out))


def test_explanations_of_logs_are_valid(tonnage, valid):
    logs = [
        path for path in sorted((ROOT / "tests").rglob("*.log")) if path.stat().st_size < 1 << 20
    ]
    assert logs
    for start in range(0, len(logs), 40):
        said = tonnage("explain", "--json", *logs[start : start + 40])
        assert said.code == 0, said.err
        valid("explain", json.loads(said.out))


def test_the_other_answers_are_valid(tonnage, valid):
    valid("diff", json.loads(tonnage("diff", SNAPSHOT, FAILED, "--json").out))
    valid(
        "check",
        json.loads(
            tonnage(
                "check", FAILED, "--json", "--max-peak", "1GiB", "--no-leak", "--baseline", SNAPSHOT
            ).out
        ),
    )
    valid("gpus", json.loads(tonnage("gpus", "--json").out))
    for card in ("h100", "RTX 3060", "a100 1g.10gb"):
        valid("gpus", json.loads(tonnage("gpus", card, "--json").out))


# --- completions ---


@pytest.fixture(scope="session")
def completions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completions")
    files = {}
    for shell in ("bash", "zsh", "fish"):
        files[shell] = folder / f"tonnage.{shell}"
        files[shell].write_text(
            subprocess.run(
                [TONNAGE, "completion", shell],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        )
    return files


@pytest.fixture
def complete(completions, tmp_path):
    """complete(word…): what bash offers for the last of the words, as bash itself parts them."""

    def call(*words):
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here/train.log").touch()
        (tmp_path / "here/my run.tonnage").touch()
        script = (
            f"source {completions['bash']}\n"
            f"COMP_WORDS=({' '.join(shlex.quote(word) for word in words)})\n"
            f"COMP_CWORD={len(words) - 1}\n_tonnage\n"
            "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            capture_output=True,
            text=True,
            cwd=tmp_path / "here",
            timeout=60,
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        return [line for line in done.stdout.split("\n") if line]

    return call


def test_bash_completes_commands_and_options(complete):
    assert set(COMMANDS) <= set(complete("tonnage", ""))
    assert complete("tonnage", "exp") == ["explain"]
    assert complete("tonnage", "run", "--no-s") == ["--no-stacks"]
    assert "--baseline" in complete("tonnage", "check", "a.tonnage", "--")
    assert complete("tonnage", "check", "--metric", "") == ["device", "reserved", "allocated"]
    assert complete("tonnage", "check", "--metric", "=", "re") == ["reserved"]
    assert complete("tonnage", "completion", "") == ["bash", "zsh", "fish"]
    assert complete("tonnage", "run", "--memory", "") == []


def test_bash_completes_gpus_with_blanks(complete):
    assert "RTX\\ 3060" in complete("tonnage", "run", "--gpu", "rtx")
    assert "RTX 3060" in complete("tonnage", "run", "--gpu", '"RTX 30')
    assert "RTX\\ 3060" in complete("tonnage", "run", "--gpu", "RTX\\ 306")
    assert "h100-sxm" in complete("tonnage", "run", "--gpu", "=", "h1")
    assert "RTX\\ 3060" in complete("tonnage", "gpus", "RTX")


def test_bash_completes_files_and_the_command(complete):
    assert complete("tonnage", "explain", "tr") == ["train.log"] and complete(
        "tonnage", "run", "--record", "my"
    ) == ["my run.tonnage"]
    assert "bash" in complete("tonnage", "run", "--gpu", "h100", "--", "bas")
    assert complete("tonnage", "run", "--gpu", "h100", "--", "cat", "tr") == ["train.log"]
    assert complete("tonnage", "run", "cat", "tr") == ["train.log"]


def test_every_gpu_that_is_offered_is_one(complete, tonnage):
    names = [name.replace("\\", "") for name in complete("tonnage", "run", "--gpu", "")]
    assert len(names) > 100 and any(" " in name for name in names)
    for name in names[::9]:
        assert tonnage("gpus", name, "--json").code == 0, name


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_reads_its_completions(completions, tmp_path):
    done = subprocess.run(
        ["zsh", "-n", completions["zsh"]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    (tmp_path / "_tonnage").write_text(completions["zsh"].read_text())
    # A terminal of zsh's own: what Tab lists.
    script = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
said() {{ local piece; REPLY=; while zpty -r -t shell piece 2> /dev/null; do REPLY+=$piece; done }}
zpty -w shell 'PS1=; unsetopt zle_bracketed_paste; fpath=({tmp_path} $fpath)'
zpty -w shell 'autoload -U compinit; compinit -u -D; zstyle ":completion:*" menu no; print re"ady"'
for i in {{1..100}}; do sleep 0.1; said; [[ $REPLY == *ready* ]] && break; done
zpty -w -n shell $'tonnage check --metric al\\t'
sleep 2; said; print -r -- $REPLY
zpty -w -n shell $'\\x15tonnage run --gpu rtx\\\\ 3060-\\t'
sleep 2; said; print -r -- $REPLY
"""
    done = subprocess.run(
        ["zsh", "-f", "-c", script],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        env=clean_environment(TERM="dumb", HOME=str(tmp_path)),
    )
    assert "allocated" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish_completes(completions, tmp_path):
    assert (
        subprocess.run(
            ["fish", "--no-execute", completions["fish"]], capture_output=True, timeout=60
        ).returncode
        == 0
    )

    def complete(line):
        done = subprocess.run(
            ["fish", "-N", "-c", f"source {completions['fish']}; complete -C {shlex.quote(line)}"],
            capture_output=True,
            text=True,
            timeout=60,
            env=clean_environment(HOME=str(tmp_path)),
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        return [entry.split("\t")[0] for entry in done.stdout.splitlines()]

    assert set(COMMANDS) <= set(complete("tonnage "))
    assert complete("tonnage check --metric al") == ["allocated"]
    assert "RTX 3060" in complete("tonnage run --gpu RTX") and "--no-stacks" in complete(
        "tonnage run --no-"
    )


# --- man pages and help ---


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([TONNAGE, "man", "--folder", folder], check=True, timeout=60)
    return folder


def test_there_is_a_man_page_for_each_command(pages):
    assert sorted(path.name for path in pages.iterdir()) == sorted(
        ["tonnage.1", *(f"tonnage-{name}.1" for name in COMMANDS)]
    )
    text = (pages / "tonnage-run.1").read_text()
    for option in ("no\\-keep", "true\\-need", "gpu"):
        assert f"\\fB\\-\\-{option}\\fR" in text


@pytest.mark.skipif(not shutil.which("mandoc"), reason="no mandoc")
def test_mandoc_has_nothing_to_say_of_them(pages):
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wstyle", *sorted(pages.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [
        line
        for line in done.stdout.splitlines()
        if "outdated mandoc.db" not in line
        and "bad cross reference" not in line
        and "referenced manual not found" not in line
    ]
    assert said == []


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_groff_has_nothing_to_say_of_them(pages):
    for page in pages.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "NAME" in text and "SYNOPSIS" in text


def examples_of(tonnage, command):
    lines = tonnage(command, "--help").out.splitlines()
    assert "Examples:" in lines, command
    return [line.strip() for line in lines[lines.index("Examples:") + 1 :] if line.startswith("  ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_are_right(tonnage, command, tmp_path):
    """The command line itself parses an example: with --help behind its options nothing is run."""
    examples = examples_of(tonnage, command)
    assert 1 <= len(examples) <= 6
    for example in examples:
        words = shlex.split(
            re.sub(
                r"\$\(.*\)",
                "x",
                example.split("|")[-1 if "| tonnage" in example else 0].split(" > ")[0],
            )
        )
        assert words[0] == "tonnage" and words[1] in (command, "--version"), example
        end = words.index("--") if "--" in words else len(words)
        done = tonnage(*words[1:end], "--help", cwd=tmp_path)
        assert done.code == 0, (example, done.err)
        if command != "run":
            continue
        options = [word.split("=")[0] for word in words[2:end] if word.startswith("-")]
        assert end < len(words) and all(
            option in tonnage("run", "--help").out for option in options
        ), example


def test_what_is_installed(prefix):
    assert (prefix / "share/man/man1/tonnage.1").exists() and (
        prefix / "share/man/man1/tonnage-run.1"
    ).exists()
    for name in (
        "bash-completion/completions/tonnage",
        "zsh/site-functions/_tonnage",
        "fish/vendor_completions.d/tonnage.fish",
    ):
        assert (prefix / "share" / name).stat().st_size > 1000
    assert json.loads((prefix / "share/tonnage/schema/report.schema.json").read_text())[
        "$schema"
    ].endswith("2020-12/schema")
