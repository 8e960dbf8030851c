"""Going on behind what a job left: the same bytes as without the interruption, or a refusal."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scorer.errors import (
    DeviceError,
    InterruptError,
    IsolationError,
    ModelError,
    StopAtError,
    UsageError,
)
from scorer.job import run as job_run
from scorer.job.job import Job
from scorer.job.output import RowFile
from scorer.job.shard import Shard
from scorer.job.summary import Summary
from scorer.progress import Reporter
from scorer.records.source import Source
from scorer.scoring import Scorer
from tests.commands import read_rows, write_lines
from tests.model_free import ModelFreeReader, model_free, write_tokenizer_only
from tests.models import MERGES, QWEN_ADDED
from tests.tiny_tokenizer import write_tokenizer

Fault = Callable[[int], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that passes for a model."""
    base = tmp_path_factory.mktemp("resume")
    tokenizer = write_tokenizer(base / "tokenizer", merges=MERGES, added=QWEN_ADDED)
    return write_tokenizer_only(base / "model", tokenizer)


def records(count: int) -> list[object]:
    """Good ones and bad ones, short and long."""
    lines: list[object] = []
    for n in range(count):
        if n % 11 == 5:
            lines += [b"", b'{"id": "no end']
        else:
            lines.append({"id": f"r{n}", "prompt": f"{n} " * (1 + n % 40), "logprobs": n % 3})
    return lines


@dataclass
class Bench:
    """An input, and jobs over it that are stopped and gone on with."""

    folder: Path
    model: Path
    lines: list[object] = field(default_factory=lambda: records(300))

    def __post_init__(self) -> None:
        self.out = self.folder / "out.jsonl"
        self.manifest = self.folder / "out.jsonl.manifest.json"
        self.records = write_lines(self.folder / "in.jsonl", self.lines)

    def run(
        self, fault: Fault | None = None, *, out: Path | None = None, **changes: Any
    ) -> Summary:
        """Run a job; keywords are those of Job, of the reader (numerics, bits) and of Scorer."""
        path = out or self.out
        job_keys = ("resume", "limit", "shard", "on_error", "replace")
        given = {key: changes.pop(key) for key in job_keys if key in changes}
        reader = ModelFreeReader(before_launch=fault)
        for key in ("numerics", "numerics_key", "bits"):
            if key in changes:
                setattr(reader, key, changes.pop(key))
        with Source(self.records) as source:
            job = Job(
                source,
                path,
                Path(f"{path}.manifest.json"),
                given.pop("limit", None),
                given.pop("replace", False),
                Reporter(quiet=True),
                **given,
            )
            counts = job.check()
            return job.run(_scorer(self.model, reader, changes), counts)

    def whole(self, **changes: Any) -> bytes:
        """The rows of a job that nothing disturbs."""
        path = self.folder / f"whole-{len(list(self.folder.iterdir()))}.jsonl"
        self.run(out=path, **changes)
        return path.read_bytes()

    def told(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
        return manifest


_SCORERS: dict[str, Scorer] = {}


def _scorer(model: Path, reader: ModelFreeReader, options: dict[str, Any]) -> Scorer:
    """A scorer with these options and this reader; made once, as reading a tokenizer takes time."""
    key = f"{model} {options}"
    if key not in _SCORERS:
        _SCORERS[key] = model_free(model, **options)
    reader.n_ids = _SCORERS[key].prompter.n_ids
    _SCORERS[key].__dict__["reader"] = reader
    return _SCORERS[key]


@pytest.fixture
def bench(tmp_path: Path, folder: Path) -> Bench:
    return Bench(tmp_path, folder)


def failing(forward: int) -> Fault:
    """The device fails in this forward."""

    def fault(number: int) -> None:
        if number == forward:
            raise DeviceError("CUDA error: an illegal memory access was encountered")

    return fault


def stopped(bench: Bench, forward: int = 5, **changes: Any) -> str:
    """Run until the device fails; returns what the error says."""
    with pytest.raises(DeviceError) as caught:
        bench.run(failing(forward), **changes)
    return "; ".join([str(caught.value), *caught.value.__notes__])


def refused(bench: Bench, **changes: Any) -> str:
    """A refusal changes nothing."""
    before = bench.out.read_bytes(), bench.manifest.read_bytes()
    with pytest.raises(UsageError) as caught:
        bench.run(resume=True, **changes)
    assert (bench.out.read_bytes(), bench.manifest.read_bytes()) == before
    return str(caught.value)


# -- going on


@pytest.mark.parametrize("forward", [0, 1, 2, 5, 20])
def test_a_device_that_fails_leaves_whole_rows_and_the_job_goes_on(
    bench: Bench, forward: int
) -> None:
    whole = bench.whole()

    said = stopped(bench, forward)

    rows = read_rows(bench.out)
    assert whole.startswith(bench.out.read_bytes())
    assert (bench.told()["rows"], bench.told()["complete"]) == (len(rows), False)
    assert said == (
        "CUDA error: an illegal memory access was encountered; "
        f"{len(rows)} of 300 rows are in {bench.out}; the same command with --resume goes on"
    )
    if forward > 1:
        assert rows  # what the forwards before computed is not lost

    summary = bench.run(resume=True)

    assert bench.out.read_bytes() == whole
    assert summary.records == bench.told()["rows"] == 300
    assert summary.errors == {"invalid_json": 27}
    assert bench.told()["timings"]["runs"] == 2


def test_the_manifest_of_a_resumed_job_is_that_of_an_undisturbed_one(bench: Bench) -> None:
    other = bench.folder / "other.jsonl"
    bench.run(out=other)
    stopped(bench)
    bench.run(resume=True)

    undisturbed = json.loads(Path(f"{other}.manifest.json").read_text(encoding="utf-8"))
    resumed = bench.told()
    work = ("forwards", "reads", "read_tokens", "forward_tokens")
    for manifest in (undisturbed, resumed):
        del manifest["timings"]
        for name in work:
            assert manifest["counts"].pop(name) > 0
    assert resumed == undisturbed


def test_work_is_counted_over_all_runs(bench: Bench) -> None:
    stopped(bench)
    before = bench.told()["counts"]["forwards"]
    bench.run(resume=True)
    assert before == 5
    assert bench.told()["counts"]["forwards"] > before


def test_resume_without_an_output_begins(bench: Bench) -> None:
    bench.run(resume=True)
    assert bench.out.read_bytes() == bench.whole()


def test_resume_when_the_job_died_before_its_manifest(bench: Bench) -> None:
    bench.out.touch()
    bench.run(resume=True)
    assert bench.out.read_bytes() == bench.whole()


def test_resume_of_a_complete_output_needs_no_model(bench: Bench) -> None:
    bench.run()
    before = bench.out.read_bytes(), bench.manifest.read_bytes()

    summary = bench.run(failing(0), resume=True)

    assert (bench.out.read_bytes(), bench.manifest.read_bytes()) == before
    assert summary.records == 300


def test_all_rows_but_not_the_manifest(bench: Bench) -> None:
    """Killed between the last row and the last manifest."""
    stopped(bench)
    unfinished = bench.manifest.read_bytes()
    bench.run(resume=True)
    whole, finished = bench.out.read_bytes(), bench.told()
    bench.manifest.write_bytes(unfinished)

    bench.run(failing(0), resume=True)

    assert bench.out.read_bytes() == whole
    for key in ("complete", "rows", "rows_sha256", "scored_input", "numerics", "model", "input"):
        assert bench.told()[key] == finished[key], key


@pytest.mark.parametrize("cut", [1, 2, 17, 100])
def test_a_torn_last_line_is_repaired(bench: Bench, cut: int) -> None:
    whole = bench.whole()
    stopped(bench, 2)
    kept = bench.out.read_bytes()
    torn = whole[: len(kept) + cut]  # rows that reached the disk after the checkpoint
    bench.out.write_bytes(torn)
    bench.run(resume=True)
    assert bench.out.read_bytes() == whole


def test_every_place_to_be_torn_at(bench: Bench) -> None:
    """Behind the manifest's rows, whole rows stay and a part of one goes; cut UTF-8 too."""
    bench.lines = [{"id": f"é漢🙂{n}", "prompt": "x", "targets": [n]} for n in range(2)]
    bench.__post_init__()
    whole = bench.whole()
    stopped(bench, 0)
    assert bench.out.read_bytes() == b""
    empty = bench.manifest.read_bytes()
    for size in [0, 1, *range(whole.index(b"\n") - 1, len(whole) + 1)]:
        bench.out.write_bytes(whole[:size])
        bench.manifest.write_bytes(empty)
        bench.run(resume=True)
        assert bench.out.read_bytes() == whole, size


@pytest.mark.parametrize("rubbish", [b"\0" * 4096, b"\0" * 100 + b"\n", b"{}\n", b'{"id": 1\n'])
def test_what_a_power_failure_leaves_behind_the_checkpoint(bench: Bench, rubbish: bytes) -> None:
    whole = bench.whole()
    stopped(bench)
    with bench.out.open("ab") as file:
        file.write(rubbish)
    bench.run(resume=True)
    assert bench.out.read_bytes() == whole


def test_resumed_again_and_again(bench: Bench) -> None:
    whole = bench.whole()
    stopped(bench, 2)
    for times in range(2, 5):
        stopped(bench, 2, resume=True)
        assert whole.startswith(bench.out.read_bytes())
        assert bench.told()["timings"]["runs"] == times
    bench.run(resume=True)
    assert bench.out.read_bytes() == whole


def test_checkpoints_say_how_far_the_file_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_run, "CHECKPOINT_SECONDS", 0.0)
    seen = []

    def look(_: int) -> None:
        told, rows = bench.told(), read_rows(bench.out)
        assert told["rows"] == len(rows)
        assert told["complete"] is False
        lines = bench.records.read_bytes().splitlines(keepends=True)
        scored = b"".join(lines[: rows[-1]["line"]]) if rows else b""
        assert told["scored_input"]["bytes"] == len(scored)
        seen.append(len(rows))

    bench.run(look)
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


# -- what may not differ


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"system": "Be brief."}, 'settings.system: was null, is "Be brief."'),
        ({"logprobs": 3}, "settings.logprobs: was null, is 3"),
        ({"parse_special": True}, "settings.parse_special: was false, is true"),
        ({"question_template": "{{ question }}"}, "settings.question_template: was null, is"),
        ({"shard": Shard(1, 2)}, 'settings.shard: was null, is "1/2"'),
        (
            {"numerics": {"weights_sha256": "other", "driver": "1.0", "gpu": "none"}},
            'weights_sha256: was "none", is "other"',
        ),
        (
            {"numerics": {"weights_sha256": "none", "driver": "2.0", "gpu": "H200"}},
            'driver: was "1.0", is "2.0"; gpu: was "none", is "H200"',
        ),
    ],
)
def test_another_run_is_refused(bench: Bench, changes: dict[str, Any], named: str) -> None:
    stopped(bench)
    message = refused(bench, **changes)
    assert named in message
    assert message.endswith("make it the same, or --force-new starts over")


def test_another_model_is_refused(bench: Bench, tmp_path: Path) -> None:
    stopped(bench)
    other = write_tokenizer(tmp_path / "other", merges=MERGES, added=(*QWEN_ADDED, "<|more|>"))
    bench.model = write_tokenizer_only(tmp_path / "model", other)
    message = refused(bench)
    assert "model.tokenizer_sha256: was" in message
    assert "model.config_sha256: was" in message


def test_another_version_of_scorer_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(bench)
    monkeypatch.setattr("scorer.job.identity.__version__", "9.9")
    assert 'scorer: was "' in refused(bench)


def test_a_line_that_is_scored_may_not_change(bench: Bench) -> None:
    stopped(bench)
    size = bench.told()["scored_input"]["bytes"]
    write_lines(bench.records, [{"id": "r0", "prompt": "!"}, *bench.lines[1:]])
    assert f"the input (its first {size} bytes, which are scored already)" in refused(bench)


def test_a_line_that_is_not_scored_yet_may_change(bench: Bench) -> None:
    stopped(bench)
    with bench.out.open("ab") as file:  # a row behind the checkpoint: of which input?
        file.write(bench.whole()[bench.out.stat().st_size :][:3000])
    bench.lines[-1] = {"id": "new", "prompt": "another", "logprobs": 2}
    write_lines(bench.records, bench.lines)

    bench.run(resume=True)

    assert bench.out.read_bytes() == bench.whole()


@pytest.mark.parametrize("newline", [b"\n", b""])
def test_an_input_that_has_grown(bench: Bench, newline: bytes) -> None:
    bench.records.write_bytes(bench.records.read_bytes().removesuffix(b"\n") + newline)
    bench.run()
    with bench.records.open("ab") as file:
        file.write((b"" if newline else b"\r\n") + b'{"id": "more", "prompt": "x", "logprobs": 0}')

    summary = bench.run(resume=True)

    assert summary.records == 301
    assert bench.out.read_bytes() == bench.whole()
    assert bench.told()["input"]["records"] == 301


def test_a_last_line_that_has_grown_is_refused(bench: Bench) -> None:
    data = bench.records.read_bytes().removesuffix(b"\n")
    bench.records.write_bytes(data)
    bench.run()
    bench.records.write_bytes(data + b" \n")
    assert "which are scored already" in refused(bench)


def test_a_larger_limit_goes_on_and_a_smaller_one_is_refused(bench: Bench) -> None:
    bench.run(limit=100)
    assert "has 100 rows already, more than are asked for" in refused(bench, limit=50)
    bench.run(limit=200, resume=True)
    assert bench.out.read_bytes() == bench.whole(limit=200)
    bench.run(resume=True)
    assert bench.out.read_bytes() == bench.whole()


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda data: data[:-1], "whole rows, not"),
        (lambda data: data[data.index(b"\n") + 1 :], "whole rows, not"),
        (
            lambda data: data.replace(b'"prompt_tokens":1', b'"prompt_tokens":2', 1),
            "the sha256 of its first",
        ),
        (lambda data: data.replace(b'"line":3', b'"line":1', 1), "line 3 is of no later record"),
        (lambda data: data.replace(b'{"id"', b'{"id', 1), "line 1 is no row"),
    ],
)
def test_rows_that_were_changed_are_refused(
    bench: Bench, change: Callable[[bytes], bytes], how: str
) -> None:
    stopped(bench)
    bench.out.write_bytes(change(bench.out.read_bytes()))
    message = refused(bench)
    assert message.startswith(f"{bench.out}: has changed since the job wrote it: ")
    assert how in message


def test_rows_of_other_records_are_refused(bench: Bench) -> None:
    """Behind the checkpoint nothing but the lines tells."""
    whole = bench.whole()
    stopped(bench, 0)
    first, _, third, *_ = whole.splitlines(keepends=True)
    bench.out.write_bytes(first + third)
    assert "its 2 rows are not those of the first records" in refused(bench)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"scorer": "0.1"}'])
def test_without_a_good_manifest(bench: Bench, text: str | None) -> None:
    stopped(bench)
    if text is None:
        bench.manifest.unlink()
        with pytest.raises(UsageError, match="there is no manifest"):
            bench.run(resume=True)
    else:
        bench.manifest.write_text(text, encoding="utf-8")
        assert "not a manifest that a job can go on with" in refused(bench)


def test_rows_that_are_gone_are_not_replaced_unasked(bench: Bench) -> None:
    stopped(bench)
    bench.out.unlink()
    with pytest.raises(UsageError, match="it has 0 whole rows, not"):
        bench.run(resume=True)
    bench.run(replace=True)
    assert bench.out.read_bytes() == bench.whole()


def test_force_new_starts_over(bench: Bench) -> None:
    stopped(bench)
    bench.run(replace=True, logprobs=1)
    assert bench.out.read_bytes() == bench.whole(logprobs=1)
    assert bench.told()["timings"]["runs"] == 1


@pytest.mark.parametrize("forward", [0, 3])
def test_force_new_keeps_the_old_rows_until_there_is_a_new_one(bench: Bench, forward: int) -> None:
    whole = bench.whole()
    bench.run()
    old = bench.manifest.read_bytes()

    said = stopped(bench, forward, replace=True, logprobs=1)

    if not forward:
        assert (bench.out.read_bytes(), bench.manifest.read_bytes()) == (whole, old)
        assert said.endswith(f"; no row was written, and {bench.out} is as it was")
        bench.run(resume=True)
        assert bench.manifest.read_bytes() == old
    else:
        assert 0 < bench.told()["rows"] == len(read_rows(bench.out)) < 300
        assert f"{bench.told()['rows']} of 300 rows are in {bench.out}" in said
        bench.run(resume=True, logprobs=1)
        assert bench.out.read_bytes() == bench.whole(logprobs=1)


def test_error_rows_replace_nothing_before_the_proof(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    old = bench.out.read_bytes(), bench.manifest.read_bytes()
    write_lines(bench.records, [b"rotten"] * 20_000)

    def moved(_: ModelFreeReader) -> None:
        raise IsolationError("a bit moved")

    with monkeypatch.context() as patch:
        patch.setattr(ModelFreeReader, "prove", moved)
        with pytest.raises(IsolationError):
            bench.run(replace=True)
    assert (bench.out.read_bytes(), bench.manifest.read_bytes()) == old

    assert bench.run(replace=True).errors == {"invalid_json": 20_000}
    assert bench.told()["rows"] == 20_000


def test_a_manifest_without_rows_is_left_alone(bench: Bench) -> None:
    bench.manifest.write_text("precious", encoding="utf-8")
    stopped(bench, 0, replace=True)
    assert bench.manifest.read_text(encoding="utf-8") == "precious"
    assert not bench.out.exists()


def test_no_records_replace_what_is_there(bench: Bench) -> None:
    bench.run()
    bench.run(replace=True, limit=0)
    assert bench.out.read_bytes() == b""
    assert (bench.told()["rows"], bench.told()["complete"]) == (0, True)


def test_resume_and_force_new_contradict(bench: Bench) -> None:
    with pytest.raises(UsageError, match="choose one"):
        bench.run(resume=True, replace=True)


# -- another driver


DRIVER = {"weights_sha256": "none", "driver": "2.0", "gpu": "none"}


def test_another_driver_goes_on_when_the_last_rows_come_out_the_same(bench: Bench) -> None:
    stopped(bench)
    rows = len(read_rows(bench.out))
    old = bench.told()

    stopped(bench, 9, resume=True, numerics=DRIVER, numerics_key="key 2")
    bench.run(resume=True, numerics=DRIVER, numerics_key="key 2")

    assert bench.out.read_bytes() == bench.whole()
    assert bench.told()["numerics_key"] == "key 2"
    assert bench.told()["numerics"] == DRIVER
    assert bench.told()["earlier_numerics"] == [
        {"rows": [1, rows], "numerics_key": "key 1", "numerics": old["numerics"]}
    ]


def test_a_third_driver(bench: Bench) -> None:
    stopped(bench)
    first = len(read_rows(bench.out))
    stopped(bench, 9, resume=True, numerics=DRIVER, numerics_key="key 2")
    second = len(read_rows(bench.out))
    bench.run(resume=True, numerics={**DRIVER, "driver": "3.0"}, numerics_key="key 3")

    earlier = bench.told()["earlier_numerics"]
    assert first < second < 300
    assert [(entry["rows"], entry["numerics_key"]) for entry in earlier] == [
        ([1, first], "key 1"),
        ([first + 1, second], "key 2"),
    ]


def test_another_driver_with_other_bits_is_refused(bench: Bench) -> None:
    stopped(bench)
    first = max(1, len(read_rows(bench.out)) - 63)
    line = read_rows(bench.out)[first - 1]["line"]

    message = refused(bench, numerics=DRIVER, numerics_key="key 2", bits=1)

    assert "the driver changed, and the row of " in message
    assert int(message.split(f"{bench.records}:")[1].split(":")[0]) >= line


# -- one error row is enough


def test_on_error_stop_ends_before_the_row_and_goes_on_when_it_is_mended(bench: Bench) -> None:
    with pytest.raises(StopAtError) as caught:
        bench.run(on_error="stop")
    assert str(caught.value).startswith(f"{bench.records}:7: not valid JSON")
    (note,) = caught.value.__notes__
    assert note == (
        f"5 of 300 rows are in {bench.out}; correct the line, then the same command with "
        "--resume goes on"
    )
    assert [row["line"] for row in read_rows(bench.out)] == [1, 2, 3, 4, 5]

    mended = [{"prompt": "mended"} if line == b'{"id": "no end' else line for line in bench.lines]
    write_lines(bench.records, mended)
    summary = bench.run(on_error="stop", resume=True)

    assert not summary.errors
    assert bench.out.read_bytes() == bench.whole()


def test_on_error_stop_can_be_gone_on_with_as_rows(bench: Bench) -> None:
    with pytest.raises(StopAtError):
        bench.run(on_error="stop")
    bench.run(resume=True)
    assert bench.out.read_bytes() == bench.whole()


# -- shards


@pytest.mark.parametrize(("count", "lines"), [(1, 300), (2, 300), (3, 300), (7, 300), (23, 20)])
def test_shards_end_to_end_are_the_whole(bench: Bench, count: int, lines: int) -> None:
    bench.lines = records(lines)
    bench.__post_init__()
    whole = bench.whole()
    parts = []
    for index in range(1, count + 1):
        out = bench.folder / f"part-{index}-of-{count}.jsonl"
        if count == 7 and index == 3:  # one of them is interrupted
            bench.out = out
            bench.manifest = Path(f"{out}.manifest.json")
            with pytest.raises(DeviceError):
                bench.run(failing(0), shard=Shard(index, count))
            bench.run(shard=Shard(index, count), resume=True)
        else:
            bench.run(out=out, shard=Shard(index, count))
        told = json.loads(Path(f"{out}.manifest.json").read_text(encoding="utf-8"))
        assert told["settings"]["shard"] == f"{index}/{count}"
        assert told["rows"] == len(out.read_bytes().splitlines())
        parts.append(out.read_bytes())
    assert b"".join(parts) == whole
    sizes = [part.count(b"\n") for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_shards_of_a_limited_run(bench: Bench) -> None:
    parts = [bench.whole(limit=10, shard=Shard(index, 3)) for index in (1, 2, 3)]
    assert b"".join(parts) == bench.whole(limit=10)


def test_a_shard_of_an_input_that_has_grown_is_refused(bench: Bench) -> None:
    with pytest.raises(DeviceError):
        bench.run(failing(2), shard=Shard(2, 2))
    with bench.records.open("ab") as file:
        file.write(b'{"id": "more", "prompt": "x"}\n')
    assert "a shard's lines depend on the whole of it" in refused(bench, shard=Shard(2, 2))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "-1/3", "a/b", "1/3/5", "1.0/2", ""])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--shard is i/n"):
        Shard.parse(text)


# -- the file belongs to one job


def test_a_second_job_is_refused_while_the_first_writes(bench: Bench) -> None:
    refusals = []

    def second(_: int) -> None:
        for resume in (True, False):
            with pytest.raises(UsageError) as caught:
                bench.run(resume=resume, replace=not resume)
            refusals.append(str(caught.value))

    bench.run(second)

    assert set(refusals) == {
        f"{bench.out}: another job is writing it; wait for it, or write elsewhere"
    }
    assert bench.out.read_bytes() == bench.whole()


def test_an_output_that_is_removed_while_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "CHECKPOINT_SECONDS", 0.0)

    def remove(number: int) -> None:
        if number == 3:
            bench.out.unlink()

    with pytest.raises(UsageError, match="was removed or replaced while it was written") as caught:
        bench.run(remove)
    assert not hasattr(caught.value, "__notes__")


def test_an_output_folder_that_is_removed_while_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "CHECKPOINT_SECONDS", 0.0)
    away = bench.folder / "away"
    away.mkdir()

    def remove(number: int) -> None:
        if number == 3:
            for path in away.iterdir():
                path.unlink()
            away.rmdir()

    with pytest.raises(UsageError, match="was removed or replaced while it was written"):
        bench.run(remove, out=away / "out.jsonl")


def test_a_model_that_is_refused_when_it_is_loaded_leaves_nothing(bench: Bench) -> None:
    with Source(bench.records) as source:
        job = Job(source, bench.out, bench.manifest, None, False, Reporter(quiet=True))
        counts = job.check()
        with pytest.raises(ModelError):
            job.run(Scorer(bench.model, device="cpu"), counts)  # its weights are an empty file

    assert not bench.out.exists()
    assert not bench.manifest.exists()


def test_interrupted_says_how_far(bench: Bench) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):

        def ask(forward: int, number: signal.Signals = number) -> None:
            if forward == 3:
                os.kill(os.getpid(), number)

        with pytest.raises(InterruptError) as caught:
            bench.run(ask, resume=True)
        assert caught.value.exit_code == code
        (note,) = caught.value.__notes__
        rows = len(read_rows(bench.out))
        assert f"{rows} of 300 rows are in {bench.out}" in note
        assert 0 < rows == bench.told()["rows"] < 300
    bench.run(resume=True)
    assert bench.out.read_bytes() == bench.whole()


def test_rows_are_cut_back_to_whole_lines_where_the_disk_is_full(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "rows"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1005, before[1]))
    try:
        with RowFile(path, create=True) as file:
            for _ in range(30):
                file.write(b"x" * 99 + b"\n")
            with pytest.raises(UsageError, match="can't be written: File too large"):
                file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == (b"x" * 99 + b"\n") * 10
