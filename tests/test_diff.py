"""Two files of rows: what is the same, what moved, what is missing, what was asked differently."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from scorer.check.diff import IDS_KEPT, changed_fields, diff
from scorer.check.row_index import RowIndex, key_of
from scorer.check.row_values import compare_rows, spelled, values_of
from scorer.check.tally import Tally
from scorer.errors import InputError
from scorer.rows import (
    Failure,
    OptionScore,
    PositionLogprobs,
    ReadLogprobs,
    Score,
    TokenScore,
    encode_score,
)
from tests.commands import Done, refused, run


def option(text: str, token: int, logprob: float) -> OptionScore:
    return OptionScore(
        text=text,
        token_ids=(token,),
        logprob=logprob,
        probability=math.exp(logprob),
        rank=1,
        is_greedy=True,
    )


def token(token_id: int, logprob: float, rank: int = 1) -> TokenScore:
    return TokenScore(token_id=token_id, text="x", bytes=(120,), logprob=logprob, rank=rank)


def row(id_: str | int | None, line: int = 1, **fields: Any) -> Score:
    values: dict[str, Any] = {
        "prompt_tokens": 3,
        "prompt_sha256": "aa",
        "answer": "yes",
        "margin": 0.25,
        "options": (option("yes", 5, -0.5), option("no", 6, -0.75)),
    }
    return Score(id=id_, line=line, **(values | fields))


def failed(id_: str | int | None, code: str, line: int = 1) -> Score:
    return Score(id=id_, line=line, error=Failure(code=code, message="in words"))


def write(path: Path, rows: Iterable[Score]) -> Path:
    path.write_bytes(b"".join(map(encode_score, rows)))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def two(before: Iterable[Score], after: Iterable[Score]) -> tuple[Path, Path]:
        return write(tmp_path / "a.jsonl", before), write(tmp_path / "b.jsonl", after)

    return two


# -- the values of a row


def test_every_float_of_a_row_is_a_value() -> None:
    full = row(
        1,
        label_mass=0.75,
        targets=(token(9, -4.0, 8),),
        logprobs=ReadLogprobs(chosen=token(5, -0.5), top=(token(5, -0.5), token(6, -0.75, 2))),
        prompt_logprobs=(
            None,
            PositionLogprobs(token=token(7, -3.0, 4), chosen=token(8, -1.0), top=(token(8, -1.0),)),
        ),
    )
    assert values_of(full) == {
        ("answer",): "yes",
        ("label_mass",): 0.75,
        ("margin",): 0.25,
        ("option", (5,), "logprob"): -0.5,
        ("option", (5,), "probability"): math.exp(-0.5),
        ("option", (5,), "rank"): 1,
        ("option", (5,), "is_greedy"): True,
        ("option", (6,), "logprob"): -0.75,
        ("option", (6,), "probability"): math.exp(-0.75),
        ("option", (6,), "rank"): 1,
        ("option", (6,), "is_greedy"): True,
        ("target", 9, "logprob"): -4.0,
        ("target", 9, "rank"): 8,
        ("chosen",): 5,
        ("next", 5, "logprob"): -0.5,
        ("next", 5, "rank"): 1,
        ("next", 6, "logprob"): -0.75,
        ("next", 6, "rank"): 2,
        ("chosen at", 1): 8,
        ("at", 1, 7, "logprob"): -3.0,
        ("at", 1, 7, "rank"): 4,
        ("at", 1, 8, "logprob"): -1.0,
        ("at", 1, 8, "rank"): 1,
    }


def test_a_value_that_only_one_row_has_is_a_difference() -> None:
    tally = Tally()
    more = row(1, targets=(token(9, -4.0),))
    assert compare_rows(tally, row(1), more) == "moved"
    assert sorted(tally.examples) == [
        "id 1, target 9 logprob: only after",
        "id 1, target 9 rank: only after",
    ]


def test_names_in_words() -> None:
    assert spelled(("option", (5, 6), "logprob")) == "option 5+6 logprob"
    assert spelled(("at", 3, 7, "rank")) == "at 3 7 rank"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (row(1), row(1, line=9, extra=UNSET), "equal"),
        (row(1), row(1, margin=math.nextafter(0.25, 1)), "moved"),
        (row(1), row(1, answer=None), "moved"),
        (row(1), row(1, prompt_sha256="bb", margin=0.5), "prompt changed"),
        (row(1), failed(1, "prompt_too_long"), "error changed"),
        (failed(1, "prompt_too_long"), row(1), "error changed"),
        (failed(1, "prompt_too_long"), failed(1, "empty_prompt"), "error changed"),
        (failed(1, "prompt_too_long"), failed(1, "prompt_too_long"), "equal"),
    ],
)
def test_verdicts(before: Score, after: Score, verdict: str) -> None:
    tally = Tally()
    assert compare_rows(tally, before, after) == verdict
    assert (tally.mismatches > 0) == (verdict not in ("equal", "prompt changed"))
    assert (tally.comparisons > 0) == (verdict != "prompt changed")


# -- files


def test_equal_files_in_another_order(files: Any) -> None:
    rows = [row(number if number % 2 else str(number), line=number) for number in range(1, 60)]
    rows.append(failed(None, "invalid_json", line=60))
    difference = diff(*files(rows, random.Random(1).sample(rows, len(rows))))

    assert difference.equal
    assert difference.compared == 60
    assert difference.tally.comparisons == 59 * 10 + 1


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


def test_a_missing_file_is_one_line(files: Any, tmp_path: Path) -> None:
    before, _ = files([row(1)], [])
    refused(run_diff(before, tmp_path / "none.jsonl"), "none.jsonl: can't be read")
    refused(run_diff(tmp_path / "none.jsonl", before), "none.jsonl: can't be read")
