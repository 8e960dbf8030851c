"""Two files of rows: what is the same, what moved, what is missing, what was asked differently."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scorer.check.diff import IDS_KEPT, changed_fields, diff
from scorer.check.row_index import RowIndex, key_of
from scorer.errors import InputError
from scorer.rows import Score, encode_score
from tests.commands import Done, refused, run
from tests.rows import failed, option, row


def write(path: Path, rows: Iterable[Score]) -> Path:
    path.write_bytes(b"".join(map(encode_score, rows)))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def two(before: Iterable[Score], after: Iterable[Score]) -> tuple[Path, Path]:
        return write(tmp_path / "a.jsonl", before), write(tmp_path / "b.jsonl", after)

    return two


# -- files


def test_equal_files_in_another_order(files: Any) -> None:
    rows = [row(number if number % 2 else str(number), line=number) for number in range(1, 60)]
    rows.append(failed(None, "invalid_json", line=60))
    difference = diff(*files(rows, random.Random(1).sample(rows, len(rows))))

    assert difference.equal
    assert difference.compared == 60
    assert difference.failed == 1  # where no value can be compared
    assert difference.tally.comparisons == 59 * 17


def test_what_differs_is_told_apart(files: Any) -> None:
    before = [row("same"), row("moved"), row("answer"), row("prompt"), row("error"), row("gone")]
    after = [
        row("new"),
        row("answer", answer="no"),
        row("same"),
        row("moved", options=(option("yes", 5, -0.5), option("no", 6, -1.0))),
        row("prompt", prompt_sha256="bb"),
        failed("error", "nonfinite_logits"),
    ]
    difference = diff(*files(before, after))

    assert not difference.equal
    assert difference.fields()["rows"] == {
        "moved": {"count": 2, "ids": ["moved", "answer"]},
        "answers": {"count": 1, "ids": ["answer"]},
        "prompts": {"count": 1, "ids": ["prompt"]},
        "errors": {"count": 1, "ids": ["error"]},
        "only_before": {"count": 1, "ids": ["gone"]},
        "only_after": {"count": 1, "ids": ["new"]},
    }
    assert difference.compared == 4
    assert difference.tally.largest == 0.25


@pytest.mark.parametrize(
    "after",
    [
        [row(1, prompt_sha256="bb")],
        [row(1), row(2)],
        [failed(1, "nonfinite_logits")],
        [],
        [row(2)],
    ],
)
def test_any_kind_of_difference_is_one(files: Any, after: list[Score]) -> None:
    assert not diff(*files([row(1)], after)).equal


def test_two_empty_files_prove_nothing(files: Any) -> None:
    difference = diff(*files([], []))
    assert not difference.equal
    assert difference.fields()["comparisons"] == 0


def test_only_the_first_ids_are_named(files: Any) -> None:
    rows = [row(number) for number in range(100)]
    fields: Any = diff(*files(rows, [])).fields()
    assert fields["rows"]["only_before"] == {"count": 100, "ids": list(range(IDS_KEPT))}


def test_an_infinite_difference_is_null_in_json(files: Any) -> None:
    tally_before = diff(*files([row(1)], [row(1, margin=None)])).fields()
    assert tally_before["largest_nats"] == 0.0
    assert tally_before["mismatches"] == 1


def test_an_int_id_and_its_text_are_one(files: Any) -> None:
    assert diff(*files([row(3)], [row("3")])).equal


# -- the index


def test_rows_are_taken_once_each(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [row("a"), row("b"), row("a", margin=1.0)])
    with RowIndex(path) as index:
        assert len(index) == 3
        assert index.may_have("a")
        assert not index.may_have("c")
        assert index.take("c") is None
        first, second = index.take("a"), index.take("a")
        assert first is not None
        assert second is not None
        assert (first.margin, second.margin) == (0.25, 1.0)
        assert index.take("a") is None
        assert [left.id for left in index.rest()] == ["b"]


def test_only_wanted_rows_are_held(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [row("a"), row("b"), failed(None, "invalid_json", 7)])
    wanted = {"b", key_of(None, 7)}
    with RowIndex(path, wanted=wanted.__contains__) as index:
        assert len(index) == 2
        assert index.take("a") is None
        assert index.take("b") == row("b")
        assert [left.line for left in index.rest()] == [7]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id": 1, "line": 1}', "b.jsonl:1: a row ends with a newline"),
        (b"nonsense\n", "b.jsonl:1: not a row of scores"),
        (b'{"id": 1}\n', "b.jsonl:1: not a row of scores"),
        (b'{"id": 1, "line": 1, "what": 2}\n', "byte 0: not a row of scores"),
    ],
)
def test_what_is_no_file_of_rows(tmp_path: Path, data: bytes, message: str) -> None:
    before, after = write(tmp_path / "a.jsonl", [row(1)]), tmp_path / "b.jsonl"
    after.write_bytes(data)
    with pytest.raises(InputError, match=message):
        diff(before, after)


# -- fields of the numerics key


def test_changed_fields() -> None:
    before: Any = {"gpu": "A", "torch": "2.1", "environment": {"X": "1", "Y": "2"}, "gone": 1}
    after: Any = {"gpu": "B", "torch": "2.1", "environment": {"X": "1", "Y": "3", "Z": "4"}}
    assert changed_fields(before, after) == {
        "environment.Y": {"before": "2", "after": "3"},
        "environment.Z": {"before": None, "after": "4"},
        "gone": {"before": 1, "after": None},
        "gpu": {"before": "A", "after": "B"},
    }
    assert changed_fields(before, before) == {}
    null: Any = {**before, "new": None}  # another key than without the field
    assert changed_fields(before, null) == {"new": {"before": None, "after": None}}


# -- the command


def run_diff(*arguments: Path | str) -> Done:
    return run("diff", *arguments)


def test_the_command(files: Any) -> None:
    before, after = files([row(1), row(2)], [row(1), row(2, margin=0.5)])

    same = run_diff(before, before, "--json")
    assert same.code == 0
    assert json.loads(same.out)["equal"] is True
    assert "the same bits" in same.err

    other = run_diff(before, after)
    assert (other.code, other.out) == (1, b"")
    assert "NOT the same" in other.err
    assert "values differ" in other.err
    assert "id 2, margin: 0.25 → 0.5" in other.err

    quiet = run_diff(before, after, "--quiet", "--json")
    assert (quiet.code, quiet.err) == (1, "")
    assert json.loads(quiet.out)["rows"]["moved"] == {"count": 1, "ids": [2]}


def test_what_cant_be_read_twice_is_refused_at_once(files: Any, tmp_path: Path) -> None:
    before, _ = files([row(1)], [])
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused(run_diff(before, fifo), "fifo: is no file, and the second one is read twice")
    refused(run_diff(before, "-"), "-: can't be read: No such file or directory; give an output")
    refused(run_diff(before, "a" * 300), "aaa: can't be read: File name too long")
    refused(run_diff("rows.jsonl.gz", before), "rows.jsonl.gz: rows are read as they are written")


def test_a_missing_file_is_one_line(files: Any, tmp_path: Path) -> None:
    before, _ = files([row(1)], [])
    refused(run_diff(before, tmp_path / "none.jsonl"), "none.jsonl: can't be read")
    refused(run_diff(tmp_path / "none.jsonl", before), "none.jsonl: can't be read")
