"""The command: what it prints, the report, exit codes, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from scorer.check import job as check_job
from scorer.check import plain as check_plain
from scorer.check.subject import Subject
from scorer.errors import DeviceError
from tests.checks import NAMES, in_this_process
from tests.commands import PROGRAM, REPO, Bench, Done, refused, run, run_apart
from tests.faults import FAULTS
from tests.models import copy_model, environment, write_model

SMALL = ("--device", "cpu", "--tokens-per-forward", "128", "--rows-per-forward", "8", "--quick")


def check(bench: Bench, *options: str | Path) -> Done:
    with patch("scorer.check.fresh_process.subprocess.run", in_this_process):
        return run("check", bench.records, "--model", bench.model, *SMALL, *options)


def test_green(bench: Bench) -> None:
    """With a new interpreter in earnest, as a user has it."""
    report = bench.folder / "check.json"
    command = ("check", bench.records, "--model", bench.model, *SMALL)
    done = run(*command, "--report", report, "--json")

    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert json.loads(report.read_text()) == document
    assert (document["passed"], document["complete"], document["exit_code"]) == (True, True, 0)
    assert document["control"] == "shown"
    assert document["level"] == "quick"
    assert document["records"] == 5
    assert document["summary"]["scenarios"] == {
        "passed": 11,
        "reported": 1,
        "shown": 1,
        "not run": 3,
    }
    assert [entry["name"] for entry in document["scenarios"]] == list(NAMES)
    fresh = document["scenarios"][NAMES.index("fresh-process")]
    assert fresh["status"] == "passed"
    assert fresh["comparisons"] > 50
    for key in ("numerics", "environment", "model", "settings", "input", "numerics_key"):
        assert document[key]
    assert document["model"]["weights_sha256"] == document["numerics"]["weights_sha256"]
    assert "REPRODUCIBLE" in done.err
    assert "11 scenarios" in done.err
    assert "ordinary padded batches by transformers" in done.err
    assert "graphs need CUDA" in done.err


def test_red(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[0]
    fault.plant(monkeypatch)
    report = bench.folder / "check.json"
    done = check(bench, "--report", report)

    assert done.code == 1
    assert "NOT REPRODUCIBLE" in done.err
    document = json.loads(report.read_text())
    assert (document["passed"], document["complete"], document["exit_code"]) == (False, True, 1)
    failed = {e["name"] for e in document["scenarios"] if e["status"] == "failed"}
    assert failed == fault.found_by
    assert all(name in done.err for name in fault.found_by)
    assert document["summary"]["mismatches"] > 0
    assert 0 < document["summary"]["largest_nats"] < 1e-13


def test_a_failure_without_a_moved_bit_is_no_proof(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: Any, **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 2, "", "scorer: no such thing\n")

    monkeypatch.setattr("tests.test_check_job.in_this_process", fail)
    done = check(bench, "--only", "fresh-process", "--only", "repeat")
    assert done.code == 1
    assert "NOT PROVEN" in done.err
    assert "exit code 2: scorer: no such thing" in " ".join(done.err.split())


def test_a_control_that_shows_nothing_is_said_plainly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = check_plain._batch

    def one_by_one(subject: Subject, plain: Any, prompts: Any) -> Any:
        return [honest(subject, plain, [prompt])[0] for prompt in prompts]

    monkeypatch.setattr(check_plain, "_batch", one_by_one)
    done = check(bench, "--only", "repeat", "--only", "control", "--json")

    assert done.code == 0
    assert json.loads(done.out)["control"] == "not shown"
    assert "this machine did not show the problem" in " ".join(done.err.split())


def test_the_list_needs_no_model() -> None:
    done = run("check", "--list")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.decode().splitlines()] == list(NAMES)
    assert done.err == ""


def test_quiet(bench: Bench) -> None:
    done = check(bench, "--only", "repeat", "--quiet")
    assert (done.code, done.out, done.err) == (0, b"", "")


def test_the_settings_are_the_users(bench: Bench) -> None:
    template = bench.folder / "question.jinja"
    template.write_text(
        "{{ question }} {% for o in options %}{{ o.label }} {{ o.text }} {% endfor %}"
    )
    options = ("--dtype", "bfloat16", "--system", "-x: be brief", "--question-template", template)
    done = check(bench, "--only", "fresh-process", "--json", "--limit", "2", *options)
    document = json.loads(done.out)
    assert done.code == 0, done.err
    assert document["settings"]["system"] == "-x: be brief"
    assert document["settings"]["question_template"] == template.read_text()
    assert document["numerics"]["dtype"] == "bfloat16"
    assert document["records"] == 2


def test_records_that_can_not_be_scored_are_left_out(bench: Bench) -> None:
    with bench.records.open("a") as file:
        file.write('{"prompt": ""}\nnonsense\n')
    done = check(bench, "--only", "shuffled", "--json")
    document = json.loads(done.out)
    assert (document["passed"], document["records"], document["records_skipped"]) == (True, 5, 2)
    assert "5 of 7 that were looked at" in done.err
    assert "2 records that can't be scored: empty_prompt 1, invalid_json 1" in done.err


def test_the_bundled_examples_are_the_default(tiny_model: Path) -> None:
    """One record of each file in turn."""
    done = run("check", "--model", tiny_model, *SMALL, "--only", "repeat", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    names = [Path(entry["name"]).name for entry in document["input"]]
    assert names == ["chat.jsonl", "continuations.jsonl", "sentiment.jsonl"]
    assert document["records"] + document["records_skipped"] == 12


# -- runs that end early


def test_a_device_that_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise DeviceError("cuda:0 is gone")

    monkeypatch.setattr(Subject, "stranger", fail)
    report = bench.folder / "check.json"
    done = check(bench, "--report", report, "--skip", "fresh-process")

    assert done.code == 4
    assert done.err.splitlines()[-1] == "scorer: cuda:0 is gone"
    document = json.loads(report.read_text())
    assert (document["passed"], document["complete"], document["exit_code"]) == (False, False, 4)
    assert document["scenarios"][0]["status"] == "failed"
    assert {entry["status"] for entry in document["scenarios"][1:]} == {"not run"}


def test_the_report_is_whole_after_every_scenario(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = bench.folder / "check.json"
    seen: list[tuple[bool, list[str]]] = []
    honest = check_job.Report.keep

    def keep(self: Any, document: Any) -> None:
        honest(self, document)
        told = json.loads(report.read_text())
        seen.append((told["complete"], [entry["name"] for entry in told["scenarios"]]))

    monkeypatch.setattr(check_job.Report, "keep", keep)
    assert check(bench, "--report", report, "--only", "repeat", "--only", "alone").code == 0
    assert seen == [
        (False, []),
        (False, ["repeat"]),
        (False, ["repeat", "alone"]),
        (True, ["repeat", "alone"]),
    ]


def test_an_interruption_leaves_a_valid_report(bench: Bench) -> None:
    report = bench.folder / "check.json"
    options = ("--full", "--device", "cpu", "--report", str(report))
    with subprocess.Popen(
        [*PROGRAM, "check", str(bench.records), "--model", str(bench.model), *options],
        cwd=REPO,
        env=environment(bench.folder / "cache"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("company:"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130
    assert "no verdict" in said

    document = json.loads(report.read_text())
    assert (document["complete"], document["exit_code"], document["passed"]) == (False, 130, False)
    status = {entry["name"]: entry["status"] for entry in document["scenarios"]}
    assert status["repeat"] == "passed"
    assert "interrupted" in status.values()
    assert status["control"] == "not run"


def test_a_termination_leaves_a_valid_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "stranger", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    report = bench.folder / "check.json"
    done = check(bench, "--report", report, "--only", "hidden-states", "--only", "repeat")
    assert done.code == 143
    document = json.loads(report.read_text())
    assert (document["complete"], document["exit_code"]) == (False, 143)
    assert [entry["status"] for entry in document["scenarios"]] == ["interrupted", "not run"]


# -- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "repeated"), "no scenario 'repeated'"),
        (("--quick", "--full"), "choose one"),
        (("--sample", "3"), "--sample needs --against SCORES"),
        (("--limit", "0"), "must be at least 1"),
        (("--report", "/no/such/folder/check.json"), "there is no folder"),
        (("--report", "/dev/null"), "exists; --force-new replaces a file"),
    ],
)
def test_refused(bench: Bench, options: tuple[str, ...], message: str) -> None:
    refused(run("check", bench.records, "--model", bench.model, *options), message)


def test_a_report_that_exists_is_kept(bench: Bench) -> None:
    report = bench.folder / "check.json"
    report.write_text("mine")
    refused(check(bench, "--report", report), "exists; --force-new replaces a file")
    assert report.read_text() == "mine"
    assert check(bench, "--report", report, "--force-new", "--only", "repeat").code == 0
    assert json.loads(report.read_text())["passed"]


@pytest.mark.parametrize("name", ["in.jsonl", "model/config.json"])
def test_a_report_replaces_nothing_that_is_read(bench: Bench, name: str) -> None:
    copy_model(bench.model, bench.folder / "model")
    before = (bench.folder / name).read_bytes()
    options = ("--model", bench.folder / "model", "--report", bench.folder / name, "--force-new")
    done = run("check", bench.records, *options, *SMALL, "--only", "repeat")
    refused(done, "write elsewhere")
    assert (bench.folder / name).read_bytes() == before


@pytest.mark.parametrize(
    "only", [("control",), ("alone",), ("shared-prefix", "control")], ids=" ".join
)
def test_a_check_without_a_proof_has_not_passed(bench: Bench, only: tuple[str, ...]) -> None:
    chosen = [word for name in only for word in ("--only", name)]
    done = check(bench, *chosen, "--json")
    assert done.code == 1
    document = json.loads(done.out)
    assert (document["passed"], document["complete"]) == (False, True)
    assert "the check ran no proof; 0 values compared bit by bit" in done.err


def test_files_of_the_current_folder_are_not_imported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.folder / "queue.py").write_text("raise SystemExit(7)")
    (bench.folder / "scorer").mkdir()
    (bench.folder / "scorer" / "__init__.py").touch()
    monkeypatch.chdir(bench.folder)
    options = (*SMALL, "--only", "fresh-process")
    done = run("check", bench.records, "--model", bench.model, *options)
    assert done.code == 0, done.err


def test_names_and_ids_of_any_bytes(bench: Bench) -> None:
    """A report is ASCII, stdout is UTF-8, whatever the locale and the names of files."""
    records = bench.folder / os.fsdecode(b"in-\xff.jsonl")
    records.write_text('{"id": "\u00e9", "prompt": "one two", "logprobs": 1}\n', encoding="utf-8")
    report, out = bench.folder / "check.json", bench.folder / "out.jsonl"
    latin = {**environment(bench.folder / "cache"), "PYTHONIOENCODING": "latin-1"}
    command = ("check", records, "--model", bench.model, *SMALL, "--only", "repeat", "--json")
    done = run_apart(*command, "--report", report, env=latin)
    assert done.code == 0, done.err
    document = json.loads(report.read_text(encoding="ascii"))
    assert json.loads(done.out) == document
    assert document["input"][0]["name"].endswith("/in-\\udcff.jsonl")

    done = run_apart("score", records, "-o", out, "--model", bench.model, env=latin)
    assert done.code == 0, done.err
    manifest = json.loads(Path(f"{out}.manifest.json").read_bytes())
    assert manifest["input"]["name"] == document["input"][0]["name"]
    other = bench.folder / "other.jsonl"
    other.write_bytes(out.read_bytes().replace("\u00e9".encode(), "\u00e8".encode()))
    done = run_apart("diff", out, other, "--json", "--quiet", env=latin)
    assert json.loads(done.out)["rows"]["only_before"]["ids"] == ["\u00e9"]


def test_on_a_narrow_terminal_results_are_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = check(bench, "--only", "repeat", "--only", "partner-lengths", "--only", "control")
    lines = [line.split() for line in done.err.splitlines()]
    assert ["repeat", "passed", "0"] in lines
    assert ["partner-lengths", "passed", "0"] in lines
    assert any(line[:2] == ["control", "shown"] for line in lines)


def test_a_closed_stdout_loses_no_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(check_job, "print_out", closed)
    report = bench.folder / "check.json"
    assert check(bench, "--only", "repeat", "--json", "--report", report).code == 141
    document = json.loads(report.read_text())
    assert (document["complete"], document["passed"], document["exit_code"]) == (True, True, 0)


def test_no_model(bench: Bench) -> None:
    refused(run("check", bench.records), "check needs --model")


def test_a_model_for_which_nothing_can_be_scored(bench: Bench, tmp_path: Path) -> None:
    model = write_model(tmp_path / "short", max_position_embeddings=2)
    done = run("check", bench.records, "--model", model, *SMALL)
    refused(done, "none of the 5 records that were looked at can be scored")
