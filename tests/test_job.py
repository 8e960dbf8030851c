"""What a job writes: rows, manifest, summary, and what it never writes over."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import re
import resource
import sys
from typing import Any

import numpy as np
import pytest
import torch

from scorer.job.job import Job
from scorer.job.summary import Summary
from scorer.progress import Reporter
from scorer.reader import InFlight, Reader
from scorer.records.source import Source
from scorer.reduction import RowRequests
from scorer.rows import RowDigest, encode_score
from scorer.scoring import Scorer
from scorer.shapes import Batch
from scorer.tables import ReadResult, Results
from tests.commands import (
    RECORDS,
    Bench,
    read_rows,
    refused,
    run,
    write_lines,
)
from tests.model_free import Flight, ModelFreeReader
from tests.models import N_IDS, copy_model, edit_weights


def test_rows_and_manifest_are_equal_between_equal_runs(bench: Bench) -> None:
    first, second = bench.folder / "a.jsonl", bench.folder / "b.jsonl"

    done = bench.score("-o", first)
    assert (done.code, done.out) == (0, b"")
    assert bench.score("-o", second).code == 0

    assert first.read_bytes() == second.read_bytes()
    assert [row["id"] for row in read_rows(first)] == ["q", "p", "l", "m", 5]
    assert [row["line"] for row in read_rows(first)] == [1, 2, 3, 4, 5]
    assert read_rows(first)[3]["extra"] == {"topic": "[b]x"}
    manifests = [
        json.loads((bench.folder / f"{name}.jsonl.manifest.json").read_text()) for name in "ab"
    ]
    timings = [manifest.pop("timings") for manifest in manifests]
    assert manifests[0] == manifests[1]
    assert timings[0].keys() == {"load_seconds", "score_seconds", "selftest", "runs"}
    assert timings[1]["selftest"] == "remembered"
    assert sorted(path.name for path in bench.folder.iterdir()) == [
        "a.jsonl",
        "a.jsonl.manifest.json",
        "b.jsonl",
        "b.jsonl.manifest.json",
        "in.jsonl",
    ]


def test_stdout_has_rows_and_a_manifest_only_where_named(bench: Bench) -> None:
    out, manifest = bench.folder / "out.jsonl", bench.folder / "m.json"
    assert bench.score("-o", out).code == 0

    plain = bench.score()
    named = bench.score("-o", "-", "--manifest", manifest)

    assert plain.code == named.code == 0
    assert plain.out == named.out == out.read_bytes()
    beside = json.loads((bench.folder / "out.jsonl.manifest.json").read_text())
    written = json.loads(manifest.read_text())
    del beside["timings"], written["timings"]
    assert written == beside


def test_every_kind_of_record_gives_what_it_asks_for(bench: Bench) -> None:
    question, prompt, longer, messages, ids = bench.score().rows

    assert [option["label"] for option in question["options"]] == ["A", "B"]
    assert [option["token_ids"] for option in question["options"]] == [[32], [33]]
    assert question["gold_index"] == 0
    assert question["correct"] is (question["answer"] == "yes")
    assert len(prompt["logprobs"]["top"]) == 2
    assert prompt["targets"][0]["logprob"] == prompt["options"][1]["logprob"]
    assert len(longer["options"][0]["token_ids"]) == 9
    assert longer["label_mass"] is None
    assert longer["options"][1]["logprob"] == prompt["options"][1]["logprob"]
    assert longer["prompt_logprobs"][0] is None
    assert len(longer["prompt_logprobs"]) == longer["prompt_tokens"] == 6
    assert messages["logprobs"]["top"] == []
    assert ids["targets"][0]["token_id"] == 7
    assert ids["prompt_tokens"] == 3


def test_stdin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.TextIOWrapper(io.BytesIO(bench.records.read_bytes()))
    monkeypatch.setattr(sys, "stdin", lines)
    manifest = bench.folder / "m.json"

    piped = run("score", "-", "-m", bench.model, "--device", "cpu", "--manifest", manifest)

    assert piped.out == bench.score().out
    assert json.loads(manifest.read_text())["input"]["name"] == "<stdin>"


def test_json_gives_the_summary_where_the_rows_are_not(bench: Bench) -> None:
    done = bench.score("--json", "-q", "-o", bench.folder / "out.jsonl")
    aside = bench.score("--json", "-q")

    summary = json.loads(done.out)
    assert summary["records"] == summary["scored"] == 5
    assert summary["with_gold"] == 1
    assert summary["majority_baseline"] == 1.0
    assert done.err == ""
    assert json.loads(aside.err) == summary
    assert len(aside.rows) == 5


def test_limit_and_options_of_the_run_reach_the_rows_and_the_manifest(bench: Bench) -> None:
    out = bench.folder / "out.jsonl"
    limited = bench.score("--limit", "2", "--logprobs", "3", "--system", "Be brief.", "-o", out)
    none = bench.score("--limit", "0", "-o", bench.folder / "none.jsonl")

    rows = read_rows(out)
    manifest = json.loads((bench.folder / "out.jsonl.manifest.json").read_text())
    assert limited.code == none.code == 0
    assert [row["id"] for row in rows] == ["q", "p"]
    assert [len(row["logprobs"]["top"]) for row in rows] == [3, 2]  # the record's own word counts
    assert rows[0]["prompt_tokens"] > bench.score("--limit", "1").rows[0]["prompt_tokens"]
    assert manifest["settings"]["limit"] == 2
    assert manifest["settings"]["system"] == "Be brief."
    assert manifest["counts"]["records"] == manifest["rows"] == 2
    assert manifest["input"]["records"] == 5
    assert (bench.folder / "none.jsonl").read_bytes() == b""


def test_quiet_leaves_only_errors_on_stderr(bench: Bench) -> None:
    loud, quiet = bench.score(), bench.score("--quiet")

    assert "numerics key" in loud.err
    assert "\x1b" not in loud.err
    assert quiet.err == ""
    assert quiet.out == loud.out


def test_user_text_on_stderr_is_neither_markup_nor_control(bench: Bench) -> None:
    label = "[red]\x1b[31m:smile:\nnext"
    records = write_lines(
        bench.folder / "[b]odd\x1b[1m.jsonl", [{"prompt": "x", "options": ["a"], "label": label}]
    )

    done = run("score", records, "-m", bench.model, "--device", "cpu")

    assert done.code == 1
    assert "\x1b" not in done.err
    assert "[b]odd\\x1b[1m.jsonl:1: $.label" in done.err
    assert "[red]" in done.err
    assert ":smile:" in done.err
    assert done.err.splitlines()[0].endswith("index from 0")  # one line
    assert run("score", bench.folder / "no\x1b[1m", "-m", "x").err.startswith("scorer: ")
    assert "\x1b" not in run("score", bench.folder / "no\x1b[1m", "-m", "x").err


# -- bad lines


BAD: dict[str, object] = {
    "invalid_json": b'{"id": "no end',
    "not_an_object": [1, 2],
    "null": None,
    "lone_surrogate": b'{"prompt": "\\ud83d", "logprobs": 0}',
    "invalid_utf8": b'{"prompt": "\xff"}',
    "wrong_type": {"prompt": 3},
    "conflicting_prompts": {"prompt": "x", "messages": [{"role": "user", "content": "x"}]},
    "no_prompt": {"options": ["yes"]},
    "empty_prompt": {"prompt": "", "logprobs": 0},
    "unknown_label": {"prompt": "x", "options": ["yes"], "label": "no"},
    "prompt_too_long": {"prompt": "long" * 200, "logprobs": 0},
    "equal_options": {"prompt": "x", "options": ["caf\u00e9", "cafe\u0301"]},
    "empty_option": {"prompt": "x", "options": ["yes", ""]},
    "token_out_of_range": {"prompt_token_ids": [1, N_IDS], "logprobs": 0},
    "target_not_one_token": {"prompt": "x", "targets": ["two"]},
    "unknown_key": {"promt": "x"},
    "logprobs_limit": {"prompt": "x", "logprobs": -1},
}


def test_bad_lines_give_error_rows_and_move_no_bit(bench: Bench) -> None:
    lines: list[object] = []
    expected = {}
    for place, (code, bad) in enumerate(BAD.items()):
        lines.append(bad)
        expected[len(lines)] = "not_an_object" if code == "null" else code
        lines.append({**RECORDS[place % 5], "id": f"good {place}"})
        lines.append(b"")
    mixed = write_lines(bench.folder / "mixed.jsonl", lines)
    good = write_lines(
        bench.folder / "good.jsonl",
        [line for line in lines if isinstance(line, dict) and "good" in str(line.get("id"))],
    )

    manifest = bench.folder / "m.json"
    clean = run("score", good, "-m", bench.model, "--device", "cpu")
    done = run("score", mixed, "-m", bench.model, "--device", "cpu", "--manifest", manifest)

    failed = {row["line"]: row["error"] for row in done.rows if "error" in row}
    assert {line: error["code"] for line, error in failed.items()} == expected
    assert all(len(error["message"]) > 20 for error in failed.values())
    assert [row["line"] for row in done.rows] == sorted(row["line"] for row in done.rows)
    assert without_line(row for row in done.rows if "error" not in row) == without_line(clean.rows)
    assert (clean.code, done.code) == (0, 1)
    # ten are named with their place, then no more
    named = re.findall(rf"^{re.escape(str(mixed))}:(\d+): ", done.err, re.MULTILINE)
    assert named == [str(line) for line in expected][:10]
    assert "further errors are in the output only" in done.err
    written = json.loads(manifest.read_text())
    assert sum(written["counts"]["errors"].values()) == len(BAD)
    assert written["input"]["blank_lines"] == len(BAD)


def without_line(rows: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "line"} for row in rows]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_before_scoring(bench: Bench, value: float) -> None:
    broken = copy_model(bench.model, bench.folder / "nan")
    edit_weights(broken, model__norm__weight=torch.full((64,), value))
    out = bench.folder / "out.jsonl"

    done = run("score", bench.records, "-m", broken, "--device", "cpu", "-o", out)

    refused(done, "model.norm.weight holds NaN or infinite weights in torch.float32; fetch")
    assert not out.exists()


# -- files that are there already


def test_existing_outputs_are_refused_until_told_otherwise(bench: Bench) -> None:
    out = bench.folder / "out.jsonl"
    manifest = bench.folder / "out.jsonl.manifest.json"
    out.write_text("precious")
    refused(bench.score("-o", out), f"{out}: exists; --force-new replaces a file")
    out.rename(manifest)
    refused(bench.score("-o", out), f"{manifest}: exists; --force-new replaces a file")
    assert manifest.read_text() == "precious"
    assert not out.exists()

    out.write_text("old " * 10_000)
    done = bench.score("-o", out, "--force-new")

    assert done.code == 0
    assert len(read_rows(out)) == 5
    assert json.loads(manifest.read_text())["rows"] == 5


def test_the_input_is_never_replaced(bench: Bench) -> None:
    before = bench.records.read_bytes()
    link = bench.folder / "link.jsonl"
    link.symlink_to(bench.records)

    for name in (bench.records, link):
        for option in ("--output", "--manifest"):
            refused(bench.score(option, name, "--force-new"), "is the input")

    assert bench.records.read_bytes() == before


def test_the_model_is_never_replaced(bench: Bench) -> None:
    config = bench.model / "config.json"
    before = config.read_bytes()

    for option in ("--output", "--manifest"):
        refused(bench.score(option, config, "--force-new"), "is in the model's folder")

    assert config.read_bytes() == before


@pytest.mark.parametrize("option", ["--output", "--manifest"])
@pytest.mark.parametrize("more", [[], ["--force-new"]])
def test_what_is_no_file_is_refused_by_its_kind(bench: Bench, option: str, more: list[str]) -> None:
    link, fifo, missing = (bench.folder / name for name in ("link", "fifo", "missing"))
    link.symlink_to(missing)
    os.mkfifo(fifo)
    for path, message in (
        (link, f"{link}: is a link to a file that is not there; remove it, or create it"),
        (fifo, f"{fifo}: is a pipe or a device, and no job can be resumed there; name a file, or"),
        ("/dev/null", "/dev/null: is a pipe or a device, and no job can be resumed there"),
        (bench.folder, f"{bench.folder}: is a folder; name a file in it"),
    ):
        refused(bench.score(option, path, *more), message)
    assert not missing.exists()


def test_output_and_manifest_are_two_files(bench: Bench) -> None:
    out = bench.folder / "out"
    refused(bench.score("-o", out, "--manifest", out), "is both output and manifest")


def test_what_was_scored_before_an_interruption_is_whole_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = write_lines(
        bench.folder / "many.jsonl",
        [{"id": n, "prompt": f"{n}" * 100, "logprobs": 1} for n in range(60)],
    )
    out = bench.folder / "out.jsonl"
    whole = run("score", many, "-m", bench.model, "--device", "cpu")
    launch = Reader.launch
    left = iter(range(4))

    def four_times(self: Reader, batch: Batch) -> InFlight:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return launch(self, batch)

    monkeypatch.setattr(Reader, "launch", four_times)
    done = run("score", many, "-m", bench.model, "--device", "cpu", "-q", "-o", out)

    refused(done, "interrupted", 130)
    written = out.read_bytes()
    assert written.endswith(b"}\n")
    assert whole.out.startswith(written)
    assert 0 < len(read_rows(out)) < 60


# -- dry runs


def test_a_dry_run_counts_and_writes_nothing(bench: Bench) -> None:
    lines = [*RECORDS, {"id": "long", "prompt": "long" * 200, "logprobs": 0}, b"broken"]
    records = write_lines(bench.folder / "in.jsonl", lines)
    before = sorted(bench.folder.iterdir())

    done = run("score", records, "-m", bench.model, "--dry-run", "--json", "-o", "out.jsonl")
    real = run("score", records, "-m", bench.model, "--device", "cpu", "--json", "-q")

    summary = json.loads(done.out)
    assert done.code == 1
    assert summary["errors"] == {"invalid_json": 1, "prompt_too_long": 1}
    assert f"{records}:6: the prompt has 800 tokens, the model's limit is 512" in done.err
    assert "reads           6 of " in done.err
    assert sorted(bench.folder.iterdir()) == before
    told = json.loads(real.err)
    for key in ("records", "scored", "errors", "prompt_tokens", "longest_prompt"):
        assert summary[key] == told[key], key


# -- resources


def test_a_full_disk_is_one_line(bench: Bench) -> None:
    """A limit on the size of files stands in for the disk; the system refuses in the same way."""
    many = write_lines(
        bench.folder / "many.jsonl",
        [{"id": n, "prompt": "x", "logprobs": 20} for n in range(20)],
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        done = run("score", many, "-m", bench.model, "--device", "cpu", "-q", "-o", f"{many}.out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    refused(done, f"{many}.out: can't be written: File too large; make room, or write elsewhere")


class InstantReader(ModelFreeReader):
    """Stands for a reader: answers at once, keeps nothing."""

    def results(self, flight: Flight) -> list[ReadResult]:
        return [answered(read.requests) for read in flight.batch.reads]


def answered(requests: RowRequests) -> ReadResult:
    """Half a nat for the first target, more for the others; nothing else was asked."""
    rows, targets = len(requests.top_k), len(requests.target_ids)
    whole = Results(
        nonfinite=[False] * rows,
        chosen_id=[0] * rows,
        chosen_logprob=[-0.5] * rows,
        target_logprob=np.linspace(-0.5, -1.5, targets).tolist(),
        target_rank=[1] * targets,
        top_id=[],
        top_logprob=[],
        top_offsets=[0] * (rows + 1),
    )
    return ReadResult(whole, 0, rows, 0, targets)


def test_memory_does_not_grow_with_the_file(bench: Bench) -> None:
    """No object stays for each record, whatever the records say: ids, texts, errors all differ.

    The 8 bytes of each id lie in one array; the tests of the source measure it.
    """
    few, many = 2_000, 8_000
    path = bench.folder / "many.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for n in range(many):
            options = [f"first {n}", f"second {n}"]
            record = {"id": f"record {n}", "options": options, f"key {n}": n}
            record |= {"question" if n % 3 else "prompt": f"Which, number {n}?"}
            record |= {"label": options[n % 2]} if n % 7 else {"label": f"none {n}"}
            file.write(json.dumps(record) + "\n")
    scorer = Scorer(bench.model)
    scorer.__dict__["reader"] = InstantReader()
    job = Job(Source(path), None, None, None, replace=False, reporter=Reporter(quiet=True))
    digest, summary = RowDigest(), Summary()
    objects = {}

    with job.source:
        job.check()
        for row in scorer.score(job.source.records()):
            digest.update(encode_score(row))
            summary.add(row)
            if digest.rows in (few, many):
                gc.collect()
                objects[digest.rows] = sys.getallocatedblocks()

    assert summary.records == many
    assert summary.errors.total() == -(-many // 7)
    assert objects[many] - objects[few] < (many - few) // 20
