"""Earlier rows scored again: equal, moved, missing, changed prompts, another environment."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from scorer.check.against import Earlier
from scorer.check.diff import diff
from scorer.check.row_index import RowIndex
from scorer.errors import InputError, UsageError
from scorer.manifest import sha256_of
from scorer.rows import Score
from tests.commands import RECORDS, Bench, Done, read_rows, refused, run, write_lines


@pytest.fixture
def earlier(bench: Bench) -> Path:
    """Rows made with settings that are no defaults."""
    out = bench.folder / "scores.jsonl"
    shape = ("--tokens-per-forward", "256", "--rows-per-forward", "8")
    done = bench.score("-o", out, *shape, "--dtype", "bfloat16", "--system", "Brief.", "--quiet")
    assert done.code == 0
    return out


def check(bench: Bench, scores: Path, *options: str | Path) -> tuple[Done, dict[str, Any]]:
    arguments = ("check", bench.records, "--model", bench.model, "--against", scores, "--json")
    done = run(*arguments, *options)
    return done, json.loads(done.out)


def edit_rows(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = read_rows(path)
    change(rows)
    write_lines(path, rows)


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = Path(f"{path}.manifest.json")
    told = json.loads(manifest.read_text())
    change(told)
    manifest.write_text(json.dumps(told))


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: kind["count"] for name, kind in document["against"]["rows"].items() if kind["count"]
    }


def test_the_same_bits_with_the_rows_own_settings(bench: Bench, earlier: Path) -> None:
    done, document = check(bench, earlier)

    assert done.code == document["exit_code"] == 0
    assert "the same bits" in done.err
    found = document["against"]
    assert (found["equal"], found["rows_compared"], found["notes"]) == (True, 5, [])
    assert found["comparisons"] > 50
    assert found["changed_fields"] == {}
    assert document["numerics"]["dtype"] == "bfloat16"
    assert document["numerics"]["tokens_per_forward"] == 256
    assert document["settings"]["system"] == "Brief."
    assert document["numerics_key"] == found["numerics_key"]


def test_the_input_is_known_from_the_manifest(bench: Bench, earlier: Path) -> None:
    assert run("check", "--model", bench.model, "--against", earlier).code == 0
    bench.records.rename(bench.folder / "elsewhere.jsonl")
    done = run("check", "--model", bench.model, "--against", earlier)
    refused(done, f"its input {bench.records} is not there; give the input as INPUT")


def test_one_bit_is_a_mismatch(bench: Bench, earlier: Path) -> None:
    def one_ulp(rows: list[dict[str, Any]]) -> None:
        entry = rows[1]["options"][0]
        entry["logprob"] = math.nextafter(entry["logprob"], 0)

    edit_rows(earlier, one_ulp)
    done, document = check(bench, earlier)

    assert done.code == document["exit_code"] == 1
    assert counts(document) == {"moved": 1}
    assert document["against"]["rows"]["moved"]["ids"] == ["p"]
    assert document["against"]["mismatches"] == 1
    assert 0 < document["against"]["largest_nats"] < 1e-14
    assert "not the ones their manifest speaks of" in done.err
    assert "id 'p', option" in done.err


def test_missing_rows_and_changed_prompts_are_told_apart(bench: Bench, earlier: Path) -> None:
    edit_rows(earlier, lambda rows: rows.pop(3))
    records = [*RECORDS, {"id": "new", "prompt": "More?", "logprobs": 0}]
    records[0] = {**records[0], "question": "Is the sky green?"}
    del records[4]
    write_lines(bench.records, records)
    done, document = check(bench, earlier)

    assert done.code == 1
    # "m" has no row any more, "new" never had one; the last record's id was its line number
    assert counts(document) == {"prompts": 1, "only_after": 2, "only_before": 1}
    assert document["against"]["rows"]["prompts"]["ids"] == ["q"]
    assert document["against"]["rows"]["only_after"]["ids"] == ["m", "new"]
    assert document["against"]["rows"]["only_before"]["ids"] == [5]
    assert document["against"]["mismatches"] == 0
    assert any("the input is not the one" in note for note in document["against"]["notes"])


def test_another_key_is_an_environment_change(bench: Bench, earlier: Path) -> None:
    done, document = check(bench, earlier, "--tokens-per-forward", "512")

    assert done.code == document["exit_code"] == 3
    assert document["against"]["changed_fields"] == {
        "tokens_per_forward": {"before": 256, "after": 512}
    }
    assert document["against"]["comparisons"] > 50  # the deviations are told all the same
    assert "tokens_per_forward" in done.err


def test_a_difference_in_another_environment_is_still_exit_3(bench: Bench, earlier: Path) -> None:
    done, document = check(bench, earlier, "--dtype", "float32")
    assert done.code == 3
    assert document["against"]["changed_fields"]["dtype"] == {
        "before": "bfloat16",
        "after": "float32",
    }
    assert counts(document)["moved"] == 5
    assert document["against"]["largest_nats"] > 1e-4


def test_a_sample_is_the_same_whatever_the_order(bench: Bench, earlier: Path) -> None:
    def compared() -> int:
        done, document = check(bench, earlier, "--sample", "2")
        assert done.code == 0
        assert document["against"]["rows_compared"] == 2
        comparisons: int = document["against"]["comparisons"]
        return comparisons

    first = compared()
    edit_rows(earlier, lambda rows: rows.reverse())
    assert compared() == first


def test_a_sample_of_all_is_all(bench: Bench, earlier: Path) -> None:
    _, document = check(bench, earlier, "--sample", "100")
    assert document["against"]["rows_compared"] == 5
    assert document["against"]["sample"] == 100


def test_failed_rows_fail_again(bench: Bench) -> None:
    write_lines(bench.records, [*RECORDS, b"{nonsense", {"id": "e", "prompt": ""}])
    out = bench.folder / "scores.jsonl"
    assert bench.score("-o", out, "--quiet").code == 1
    done, document = check(bench, out)
    assert done.code == 0
    assert document["against"]["rows_compared"] == 7


@pytest.mark.parametrize("options", [("--limit", "3"), ("--shard", "2/2")])
def test_rows_of_a_part_are_compared_with_that_part(bench: Bench, options: tuple[str, str]) -> None:
    out = bench.folder / "scores.jsonl"
    assert bench.score("-o", out, "--quiet", *options).code == 0
    done, document = check(bench, out)
    assert done.code == 0
    assert document["against"]["rows_compared"] == 3


def test_the_report_is_written(bench: Bench, earlier: Path) -> None:
    report = bench.folder / "check.json"
    _, document = check(bench, earlier, "--report", report)
    assert json.loads(report.read_text()) == document


def test_two_runs_by_diff(bench: Bench, earlier: Path) -> None:
    again = bench.folder / "again.jsonl"
    assert bench.score("-o", again, "--dtype", "bfloat16", "--system", "Brief.").code == 0
    difference = diff(earlier, again)  # another T: other bits, the same prompts
    assert (difference.compared, difference.prompts.count) == (5, 0)
    third = bench.folder / "third.jsonl"
    assert bench.score("-o", third, "--dtype", "bfloat16", "--system", "Brief.").code == 0
    assert diff(again, third).equal


# -- refusals


def test_rows_without_a_manifest(bench: Bench, earlier: Path) -> None:
    Path(f"{earlier}.manifest.json").unlink()
    with pytest.raises(InputError, match="scorer diff"):
        Earlier.read(earlier)
    with pytest.raises(InputError, match="no such file"):
        Earlier.read(bench.folder / "none.jsonl")


def test_what_is_no_manifest(earlier: Path) -> None:
    edit_manifest(earlier, lambda told: told.pop("numerics_key"))
    with pytest.raises(InputError, match=r"not a manifest of scores: .*numerics_key"):
        Earlier.read(earlier)


def test_notes_of_what_the_manifest_says(bench: Bench, earlier: Path) -> None:
    def change(told: dict[str, Any]) -> None:
        told["complete"] = False
        told["earlier_numerics"] = [{"driver": "1"}]
        told["model"]["template_sha256"] = "0"

    edit_manifest(earlier, change)
    done, document = check(bench, earlier)
    assert done.code == 0
    assert [note.partition(" ")[0] for note in document["against"]["notes"]] == [
        *("the", "some", "the"),
    ]
    assert "template_sha256" in document["against"]["notes"][2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "repeat"), "--against compares rows and runs no scenarios"),
        (("--quick",), "--against compares rows and runs no scenarios"),
        (("--sample", "0"), "must be at least 1, got 0"),
    ],
)
def test_options_that_do_not_go_together(
    bench: Bench, earlier: Path, options: tuple[str, ...], message: str
) -> None:
    done = run("check", bench.records, "-m", bench.model, "--against", earlier, *options)
    refused(done, message)


def test_a_given_option_beats_the_rows_own(bench: Bench, earlier: Path) -> None:
    given: dict[str, Any] = {"device": None, "dtype": "float32", "labels": None}
    options = Earlier.read(earlier).options(given)
    assert (options["device"], options["dtype"], options["labels"]) == ("cpu", "float32", "letters")
    assert options["tokens_per_forward"] == 256
    bench.records.unlink()
    with pytest.raises(UsageError, match="is not there"):
        Earlier.read(earlier).input_name()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interruption_leaves_a_report_of_what_was_compared(
    bench: Bench, earlier: Path, monkeypatch: pytest.MonkeyPatch, sent: int, code: int
) -> None:
    taken: list[str] = []
    take = RowIndex.take

    def interrupted(index: RowIndex, key: str) -> Score | None:
        taken.append(key)
        if len(taken) == 3:
            os.kill(os.getpid(), sent)
        return take(index, key)

    monkeypatch.setattr(RowIndex, "take", interrupted)
    report = bench.folder / "report.json"
    done, document = check(bench, earlier, "--report", report)
    assert done.code == code
    assert json.loads(report.read_text()) == document
    assert (document["complete"], document["exit_code"], document["passed"]) == (False, code, False)
    assert document["against"]["rows_compared"] == 2
    assert "stopped before the end; until then the same bits" in done.err


def test_a_report_that_cant_be_written_is_found_before_scoring(
    bench: Bench, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("scorer.check.job.replace_file", full)
    monkeypatch.setattr("scorer.check.against.score_again", None)
    options = ("--against", earlier, "--report", bench.folder / "report.json")
    done = run("check", bench.records, "--model", bench.model, *options)
    refused(done, "report.json: can't be written: No space left on device")


def test_a_report_that_fails_in_the_end_loses_no_result(
    bench: Bench, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Path] = []

    def full(path: Path, data: bytes) -> None:
        writes.append(path)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("scorer.check.job.replace_file", full)
    done, document = check(bench, earlier, "--report", bench.folder / "report.json")
    assert done.code == 2
    assert document["exit_code"] == 0
    assert "the same bits" in done.err
    assert "can't be written" in done.err


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.jsonl.manifest.json", "in.jsonl"])
def test_a_report_replaces_nothing_that_is_read(bench: Bench, earlier: Path, name: str) -> None:
    before = (bench.folder / name).read_bytes()
    options = ("--against", earlier, "--report", bench.folder / name, "--force-new")
    done = run("check", bench.records, "--model", bench.model, *options)
    refused(done, "is read by this check; write elsewhere")
    assert (bench.folder / name).read_bytes() == before


def test_a_manifest_that_was_changed_is_none(bench: Bench, earlier: Path) -> None:
    edit_manifest(earlier, lambda told: told["numerics"].pop("kernels_sha256"))  # it is null
    with pytest.raises(InputError, match="numerics_key is not the hash of its numerics"):
        Earlier.read(earlier)
    edit_manifest(earlier, lambda told: told.update(numerics_key=sha256_of(told["numerics"])))
    done, document = check(bench, earlier)  # as a version without that field would have written
    assert done.code == document["exit_code"] == 3
    assert list(document["against"]["changed_fields"]) == ["kernels_sha256"]


@pytest.mark.parametrize(
    "change",
    [{"limit": "3"}, {"shard": 5}, {"logprobs": "x"}, {"system": 7}, {"labels": 3}],
    ids=str,
)
def test_settings_of_a_wrong_type_are_refused(earlier: Path, change: dict[str, Any]) -> None:
    edit_manifest(earlier, lambda told: told["settings"].update(change))
    (name,) = change
    with pytest.raises(InputError, match=rf"not a manifest of scores: .*\$\.settings\.{name}"):
        Earlier.read(earlier)


def test_rows_that_all_failed_prove_nothing(bench: Bench) -> None:
    records = bench.folder / "bad.jsonl"
    records.write_text('{"prompt": 3}\n' * 2)
    out = bench.folder / "bad-scores.jsonl"
    assert run("score", records, "-o", out, "--model", bench.model, "--quiet").code == 1
    for done in (run("diff", out, out), run("check", "-m", bench.model, "--against", out)):
        assert done.code == 1
        assert "nothing proven: no value was compared" in done.err
        assert "2 rows, for the same reason each" in done.err
