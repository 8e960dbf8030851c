"""Batches in flight: how many, in which order they come back, and what a fault leaves whole."""

from __future__ import annotations

import gc
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from threading import get_ident

import pytest

from scorer.errors import DeviceError, IsolationError, ScorerError, UsageError
from scorer.records.lines import Lines, pieces
from scorer.records.mapping import as_records
from scorer.rows import Score
from scorer.scoring import Scorer
from scorer.shapes import Batch, BatchShape
from scorer.turns import PYTHONS_OWN
from tests.model_free import Flight, ModelFreeReader, model_free, write_tokenizer_only
from tests.models import MERGES, QWEN_ADDED
from tests.tiny_tokenizer import write_tokenizer

RECORDS = [
    {"prompt": f"{n} " * (1 + n % 17), "logprobs": 0, "options": ["a", f" b{n}"]}
    for n in range(200)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("scoring")
    tokenizer = write_tokenizer(base / "tokenizer", merges=MERGES, added=QWEN_ADDED)
    return write_tokenizer_only(base / "model", tokenizer)


class Watched(ModelFreeReader):
    """A reader that allows so many batches in flight, and no other use than that of a device."""

    def __init__(self, depth: int, fault: Callable[[int], None] | None = None) -> None:
        super().__init__(BatchShape(64, 8), depth=depth, before_launch=fault)
        self.in_flight: list[Flight] = []
        self.most = 0

    def launch(self, batch: Batch) -> Flight:
        flight = super().launch(batch)
        assert len(self.in_flight) < self.depth, "more are in flight than the reader takes"
        self.in_flight.append(flight)
        self.most = max(self.most, len(self.in_flight))
        return flight

    def wait(self, flight: Flight) -> None:
        if flight in self.in_flight:
            assert flight is self.in_flight.pop(0), "the oldest is waited for first"

    def results(self, flight: Flight) -> list[object]:  # type: ignore[override]
        self.wait(flight)
        return super().results(flight)  # type: ignore[return-value]


def rows(scorer: Scorer) -> tuple[list[Score], ScorerError | None]:
    got: list[Score] = []
    try:
        got.extend(scorer.score(RECORDS))
    except ScorerError as error:
        return got, error
    return got, None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_as_many_batches_in_flight_as_the_reader_takes(model: Path, depth: int) -> None:
    expected, _ = rows(model_free(model, ModelFreeReader(BatchShape(64, 8))))
    reader = Watched(depth)
    got, error = rows(model_free(model, reader))
    assert error is None
    assert got == expected
    assert len(got) == len(RECORDS)
    assert reader.most == depth
    assert reader.in_flight == []


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_launch_that_fails_leaves_what_was_in_flight(model: Path, depth: int) -> None:
    expected, _ = rows(model_free(model, ModelFreeReader(BatchShape(64, 8))))
    counts = []
    for kind in (DeviceError, IsolationError):

        def fault(forward: int, kind: type[ScorerError] = kind) -> None:
            if forward == 30:
                raise kind("no more")

        reader = Watched(depth, fault)
        got, error = rows(model_free(model, reader))
        assert type(error) is kind
        assert 0 < len(got) < len(expected)
        assert got == expected[: len(got)]
        assert reader.in_flight == []
        counts.append(len(got))
    assert counts[0] == counts[1]


def test_the_garbage_collector_looks_at_what_a_job_makes_only(model: Path) -> None:
    during: list[int] = []
    reader = ModelFreeReader(
        BatchShape(64, 8), before_launch=lambda _: during.append(gc.get_freeze_count())
    )
    assert gc.get_freeze_count() < PYTHONS_OWN

    scores = model_free(model, reader).score(RECORDS)
    assert not gc.is_tracked(next(scores))
    assert min(during) > 10_000
    del scores  # not to the end
    assert gc.get_freeze_count() < PYTHONS_OWN


def test_what_another_has_frozen_stays_frozen(model: Path) -> None:
    during: list[int] = []
    reader = ModelFreeReader(
        BatchShape(64, 8), before_launch=lambda _: during.append(gc.get_freeze_count())
    )
    scorer = model_free(model, reader)
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        assert len(list(scorer.score(RECORDS))) == len(RECORDS)
        assert max(during) <= before  # nothing comes to it; what dies leaves it
        assert before // 2 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("depth", "first"), [(1, 8), (2, 1), (3, 1)])
def test_a_device_beside_the_host_begins_with_the_first_batch_there_is(
    model: Path, depth: int, first: int
) -> None:
    """How many forwards of tokens had been taken from the input at the first ten launches."""
    taken: list[int] = []
    seen = 0

    def look(_: int) -> None:
        taken.append(seen)

    def records() -> Iterator[dict[str, object]]:
        nonlocal seen
        for number in range(40_000):
            seen += 1
            yield {"prompt_token_ids": [number % 200, 1], "logprobs": 0}

    reader = ModelFreeReader(BatchShape(2000, 2000), depth=depth, before_launch=look)
    scores = model_free(model, reader).score(records())
    while len(taken) < 10:
        next(scores)
    ahead = [-(-count // 1000) - launched for launched, count in enumerate(taken)]
    slack = 2  # records are taken in chunks, and one chunk ahead
    assert first <= ahead[0] <= first + slack
    assert all(a <= b + slack for a, b in pairwise(ahead))
    assert 8 <= ahead[9] <= 8 + slack


def test_rows_that_are_not_taken_leave_nothing_in_flight(model: Path) -> None:
    reader = Watched(3)
    scorer = model_free(model, reader)
    expected = list(scorer.score(RECORDS))
    scores = scorer.score(RECORDS)
    assert next(scores) == expected[0]
    assert reader.in_flight
    scores.close()  # type: ignore[attr-defined]
    assert reader.in_flight == []
    assert list(scorer.score(RECORDS)) == expected


def test_records_are_taken_in_the_thread_that_takes_the_rows(model: Path) -> None:
    takers: set[int] = set()

    def records() -> Iterator[dict[str, object]]:
        for record in RECORDS * 5:
            takers.add(get_ident())
            yield record

    scorer = model_free(model)
    assert len(list(scorer.score(records()))) == 1000
    assert len(list(scorer.prepare(as_records(records())))) == 1000
    source = records()
    for _ in scorer.score(source):
        break
    source.close()  # type: ignore[attr-defined]  # nobody is inside it
    assert takers == {get_ident()}


def test_lines_are_taken_in_the_thread_that_takes_the_rows(model: Path) -> None:
    takers: set[int] = set()

    def lines() -> Iterator[Lines]:
        data = b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS * 40)
        for some in pieces(io.BufferedReader(io.BytesIO(data))):
            takers.add(get_ident())
            yield some

    scorer = model_free(model)
    with scorer.hands(0) as hands:
        rows = list(scorer.write(lines(), hands))
    assert sum(own.counted.records for own in rows) == 8000
    assert takers == {get_ident()}


def test_records_of_a_database_cursor(model: Path) -> None:
    """It is for the thread that made it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table records (prompt text, logprobs integer)")
        rows = [(f"{n} " * (1 + n % 17), 0) for n in range(600)]
        connection.executemany("insert into records values (?, ?)", rows)
        cursor = connection.cursor()
        cursor.row_factory = lambda _, row: {"prompt": row[0], "logprobs": row[1]}
        cursor.execute("select * from records order by rowid")
        got = list(model_free(model).score(cursor))
    plain = [{"prompt": prompt, "logprobs": logprobs} for prompt, logprobs in rows]
    assert got == list(model_free(model).score(plain))
    assert len(got) == 600


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("device", "mps", "device must be one of auto, cpu, cuda, got 'mps'"),
        ("dtype", "float64", "dtype must be one of auto, bfloat16, float16, float32"),
        ("isolation", "none", "isolation must be one of packed, alone"),
        ("reduction", "gpu", "reduction must be one of auto, host, device"),
        ("logprobs", "5", "logprobs must be a whole number, got '5'"),
        ("prompt_logprobs", True, "prompt_logprobs must be a whole number, got True"),
        ("tokens_per_forward", 1.5, "tokens_per_forward must be a whole number, got 1.5"),
        ("rows_per_forward", "8", "rows_per_forward must be a whole number"),
        ("question_template", "", "uses neither question nor state"),
        ("question_template", "my_template.j2", "the template's text, not its path"),
        ("labels", ["yes", "no"], "labels must be a string"),
        ("system", 3, "system must be a string, got 3"),
    ],
)
def test_what_the_command_line_refuses_is_refused(
    model: Path, name: str, value: object, said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Scorer(model, **{name: value})  # type: ignore[arg-type]
