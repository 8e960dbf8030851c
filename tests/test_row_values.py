"""Every value of a row is compared, but for those that are listed: each is altered and removed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from scorer.check.row_values import (
    NO_RESULTS,
    Verdict,
    compare_rows,
    compare_values,
    spelled,
    values_of,
)
from scorer.check.tally import Tally
from scorer.compare.rows import CompareRow, Ordering
from scorer.rows import (
    Failure,
    OptionScore,
    PositionLogprobs,
    ReadLogprobs,
    Score,
    TokenScore,
    decode_score,
    encode_score,
)
from scorer.scoring import Scorer
from tests.commands import run, write_lines
from tests.rows import failed, row, token

RECORDS: list[dict[str, Any]] = [
    {"id": "q", "question": "Is the sky blue?", "options": ["yes", "no"], "label": "yes", "a": 1},
    {"id": "p", "prompt": "Is it?", "options": [" yes", " no"], "targets": [" no", " yes"]},
    {"id": "l", "prompt": "Is it a y", "options": ["es", " maybe"], "logprobs": 3},
    {"id": "m", "prompt": "So", "prompt_logprobs": 2, "logprobs": 0},
    {"id": "null", "prompt_token_ids": [65], "prompt_logprobs": 1},
    {"id": "nothing", "prompt": "Is it?"},
    {"id": "long", "messages": [{"role": "user", "content": "x" * 600}], "logprobs": 1},
    {"id": "bad", "prompt": ""},
]

Json = Any
Change = Callable[[Json], None]
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def score_rows(tiny_model: Path) -> list[Score]:
    """Rows of all kinds; the last ones with what no record brings about at will."""
    scorer = Scorer(tiny_model, device="cpu", tokens_per_forward=128, truncate_prompt=True)
    rows = list(scorer.score(RECORDS))
    by_id = {row.id: row for row in rows}
    tied = msgspec.structs.replace(by_id["p"], answer=None, answer_index=None, tied=(0, 1))
    return [*rows, tied]


@pytest.fixture(scope="module")
def compared_rows(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[CompareRow]:
    folder = tmp_path_factory.mktemp("compare")
    questions = [
        {**RECORDS[0], "state": {"mood": [1.5, "calm"]}},
        {"question": "Which?", "options": ["a", "b", "c"]},
        {"question": "Which?", "options": ["a"]},
    ]
    source, out = write_lines(folder / "in.jsonl", questions), folder / "rows.jsonl"
    done = run("compare", source, "--model", tiny_model, "--device", "cpu", "-o", out, "-q")
    assert done.code == 1  # one question has an error row
    lines = out.read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=CompareRow) for line in lines]
    tied = msgspec.structs.replace(rows[0], tied=(0, 1), warnings=("what it says",))
    assert tied.orderings
    first = msgspec.structs.replace(tied.orderings[0], tied=(0, 1))
    return [*rows, msgspec.structs.replace(tied, orderings=(first, *tied.orderings[1:]))]


def alterations(value: Json, path: Path_ = ()) -> Iterator[tuple[Path_, str, Change]]:
    """Yield each thing that can be done to a part of a row: where, what, and how."""
    if path:
        for name, other in changed(value):
            yield path, name, put(path[-1], other)
        yield path, "removed", lambda parent: parent.__delitem__(path[-1])
    if isinstance(value, list) and value != value[::-1]:
        yield path, "reversed", put(path[-1], value[::-1])
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from alterations(item, (*path, key))


def put(key: str | int, other: Json) -> Change:
    return lambda parent: parent.__setitem__(key, other)


def changed(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the least other values of a leaf."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int):
        yield "one more", value + 1
    elif isinstance(value, float):
        yield "an ulp less", math.nextafter(value, -math.inf)
        yield "an ulp more", math.nextafter(value, math.inf)
    elif isinstance(value, str):
        yield "a letter more", f"{value}x"
    elif value is None:
        entry = {"token_id": 1, "text": "x", "bytes": [1], "logprob": -1.0, "rank": 1}
        other = {"token": entry, "chosen": entry, "top": []}
        yield from (("a value", something) for something in (0, "x", 0.5, other))


def altered(line: bytes, path: Path_, how: Change) -> Json:
    document = copy.deepcopy(json.loads(line))
    parent = document
    for part in path[:-1]:
        parent = parent[part]
    how(parent)
    return document


def check_every_part(rows: list[Any], decode: Callable[[bytes], Any]) -> set[str]:
    """Alter each part of each row; return the names of fields that were."""
    encoder = msgspec.json.Encoder()
    seen: set[str] = set()
    for original in rows:
        line = encoder.encode(original)
        for path, what, how in alterations(json.loads(line)):
            try:
                other = decode(json.dumps(altered(line, path, how)).encode())
            except msgspec.ValidationError:
                continue  # what is no row any more is refused
            fields = [part for part in path if isinstance(part, str)]
            seen.update(fields)
            ignored = fields[0] in NO_RESULTS or fields == ["error", "message"]
            tally = Tally()
            compare_values(tally, values_of(original), values_of(other), "row")
            assert (tally.mismatches > 0) != ignored, (original.id, path, what)
            if isinstance(original, Score):
                verdict = compare_rows(Tally(), original, other)
                assert (verdict is not Verdict.equal) != ignored, (original.id, path, what)
    return seen


def fields_of(*structs: type[msgspec.Struct]) -> set[str]:
    return set().union(*(struct.__struct_fields__ for struct in structs))


def test_every_part_of_a_score(score_rows: list[Score]) -> None:
    kinds = (Score, OptionScore, TokenScore, ReadLogprobs, PositionLogprobs, Failure)
    seen = check_every_part(score_rows, decode_score)
    assert seen >= fields_of(*kinds)
    assert score_rows[4].prompt_logprobs == (None,)


def test_every_part_of_a_comparison(compared_rows: list[CompareRow]) -> None:
    decoder = msgspec.json.Decoder(CompareRow)
    seen = check_every_part(compared_rows, decoder.decode)
    assert seen >= fields_of(CompareRow, Ordering, Failure)


def test_what_is_not_compared() -> None:
    assert sorted(NO_RESULTS) == ["extra", "gold_index", "id", "line", "message", "warnings"]


def test_the_values_of_a_row() -> None:
    """Each of its own: the same token chosen, listed and standing there has three values."""
    place = PositionLogprobs(token=token(8, -1.0), chosen=token(8, -2.0), top=(token(8, -3.0),))
    full = row(
        1,
        options=UNSET,
        targets=(token(9, -4.0, 8),),
        logprobs=ReadLogprobs(chosen=token(5, -0.5), top=(token(5, -0.25), token(6, -0.75, 2))),
        prompt_logprobs=(None, place),
    )

    def entry(*name: str | int, token_id: int, logprob: float, rank: int = 1) -> dict[Any, object]:
        return {
            (*name, "token_id"): token_id,
            (*name, "text"): "x",
            (*name, "bytes"): (120,),
            (*name, "logprob"): logprob,
            (*name, "rank"): rank,
        }

    assert values_of(full) == {
        ("prompt_tokens",): 3,
        ("prompt_sha256",): "aa",
        ("answer",): "yes",
        ("margin",): 0.25,
        ("targets",): (9,),
        **entry("targets", 9, token_id=9, logprob=-4.0, rank=8),
        **entry("logprobs", "chosen", token_id=5, logprob=-0.5),
        ("logprobs", "top"): (5, 6),
        **entry("logprobs", "top", 5, token_id=5, logprob=-0.25),
        **entry("logprobs", "top", 6, token_id=6, logprob=-0.75, rank=2),
        ("prompt_logprobs",): 2,
        ("prompt_logprobs", 0): None,
        **entry("prompt_logprobs", 1, "token", token_id=8, logprob=-1.0),
        **entry("prompt_logprobs", 1, "chosen", token_id=8, logprob=-2.0),
        ("prompt_logprobs", 1, "top"): (8,),
        **entry("prompt_logprobs", 1, "top", 8, token_id=8, logprob=-3.0),
    }


def test_a_token_that_is_asked_for_twice_has_two_values() -> None:
    twice = row(1, targets=(token(9, -4.0), token(9, -4.0)))
    first = row(1, targets=(token(9, math.nextafter(-4.0, 0)), token(9, -4.0)))
    assert compare_rows(Tally(), twice, twice) == "equal"
    assert compare_rows(Tally(), twice, first) == "moved"
    assert compare_rows(Tally(), twice, row(1, targets=(token(9, -4.0),))) == "moved"


def test_a_value_that_only_one_row_has_is_a_difference() -> None:
    tally = Tally()
    logprobs = ReadLogprobs(chosen=token(5, -0.5), top=())
    assert compare_rows(tally, row(1, label_mass=0.5), row(1, logprobs=logprobs)) == "moved"
    assert tally.examples == [
        "id 1, label_mass: only before",
        "id 1, logprobs chosen token_id: only after",
        "id 1, logprobs chosen text: only after",
        "id 1, logprobs chosen bytes: only after",
        "id 1, logprobs chosen logprob: only after",
    ]


def test_a_prompt_that_only_one_row_names_is_a_difference() -> None:
    tally = Tally()
    assert compare_rows(tally, row(1), row(1, prompt_sha256=UNSET)) == "moved"
    assert tally.examples == ["id 1, prompt_sha256: only before"]


def test_log_probabilities_have_a_distance_in_nats() -> None:
    def moved(**fields: Any) -> float:
        tally = Tally()
        compare_rows(tally, row(1), row(1, **fields))
        assert tally.mismatches == 1
        return tally.largest

    options = row(1).options
    assert options
    other = msgspec.structs.replace(options[1], logprob=options[1].logprob - 0.5)
    assert moved(options=(options[0], other)) == 0.5
    other = msgspec.structs.replace(options[1], probability=0.125)
    assert moved(options=(options[0], other)) == 0.0
    assert moved(margin=1.25) == 1.0


def test_names_in_words() -> None:
    assert spelled(("options", (5, 6), "logprob")) == "options 5+6 logprob"
    assert spelled(("prompt_logprobs", 3, "top", 7, "rank")) == "prompt_logprobs 3 top 7 rank"


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


def test_rows_read_back_have_the_values_that_were_written(score_rows: list[Score]) -> None:
    for original in score_rows:
        assert values_of(decode_score(encode_score(original))) == values_of(original)
