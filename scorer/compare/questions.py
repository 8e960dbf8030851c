"""Questions in, compare rows out: every question asked in several orders of its options.

An ordering is an ordinary record with permuted options, and its read an isolated read like any
other: nothing here knows of batches. What comes back is put together question by question, in the
order of the input.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from scorer.answers import Plan
from scorer.compare.blocks import Collector
from scorer.compare.orderings import GIVEN_KEY, Order, Orders, content_sha256, reordered
from scorer.compare.rows import CompareRow, Ordering, completed, reading_of
from scorer.errors import InputError, RowError
from scorer.records.record import BadLine, Record
from scorer.rows import Failure, Score

if TYPE_CHECKING:
    from scorer.compare.measures import Measures

SENSITIVE_SHOWN = 10
"""The most order-sensitive questions that a report shows."""

Repeats = Mapping[tuple[int, Order], tuple[float, ...]]
"""The second pass: log-probabilities by position, by a record's line and the ordering."""


Scores = Callable[[Iterable[Record]], Iterator[Score]]
"""What asks the model: ``Scorer.score``, one score a record, in order."""


@dataclass(slots=True)
class _Question:
    """A record on its way: its orderings and their scores so far, or why it is not asked."""

    source: Record | BadLine
    orders: tuple[Order, ...]
    error: RowError | None
    scores: list[Score] = field(default_factory=list)


def ask(
    score: Scores, records: Iterable[Record | BadLine], orders: Orders, repeats: Repeats
) -> Iterator[CompareRow]:
    """Yield one row a record, in the order of the records; streams as ``score`` does.

    All orderings of a question come in a row, with its line.
    """
    waiting: deque[_Question] = deque()

    def derived() -> Iterator[Record]:
        for source in records:
            question = _question(source, orders)
            waiting.append(question)
            if isinstance(source, Record):
                yield from (reordered(source, order) for order in question.orders)

    for answer in score(derived()):
        yield from _refused(waiting)
        question = waiting[0]
        question.scores.append(answer)
        if len(question.scores) == len(question.orders):
            waiting.popleft()
            yield _row(question, orders, repeats)
    yield from _refused(waiting)


def plan(
    prepare: Callable[[Iterable[Record]], Iterator[Plan | Score]],
    records: Iterable[Record | BadLine],
    orders: Orders,
) -> Iterator[tuple[Record | BadLine, list[Plan], Failure | None]]:
    """Yield each record with its orderings' plans, or why it can't be asked; without a model.

    prepare: ``Scorer.prepare``.
    """
    for source in records:
        question = _question(source, orders)
        if question.error is not None:
            yield source, [], Failure(code=question.error.code, message=str(question.error))
            continue
        assert isinstance(source, Record)
        items = list(prepare(reordered(source, order) for order in question.orders))
        failures = [item.error for item in items if isinstance(item, Score) and item.error]
        plans = [item for item in items if isinstance(item, Plan)]
        yield source, plans, failures[0] if failures else None


def second_pass(
    score: Scores, records: Iterable[Record | BadLine], orders: Orders, sample: int
) -> dict[tuple[int, Order], tuple[float, ...]]:
    """Read all orderings of ``sample`` questions, in another order and company than ``ask`` does.

    Which questions, and the order of the reads, are decided by the seed and their contents. An
    ordering that can't be read is left out: ``ask`` says why.
    """
    if not sample:
        return {}

    def lot(record: Record, order: Order = ()) -> bytes:
        key = f"{orders.seed}:repeat:{content_sha256(record)}:{record.line}:{order}"
        return hashlib.sha256(key.encode()).digest()

    good = (record for record in records if isinstance(record, Record))
    chosen = heapq.nsmallest(
        sample, (record for record in good if _question(record, orders).orders), key=lot
    )
    asked = [(record, order) for record in chosen for order in _question(record, orders).orders]
    asked.sort(key=lambda item: lot(*item))
    answers = score(reordered(record, order) for record, order in asked)
    return {
        (record.line, order): tuple(option.logprob for option in answer.options)
        for (record, order), answer in zip(asked, answers, strict=False)  # a stop ends it early
        if answer.options is not UNSET
    }


def _question(source: Record | BadLine, orders: Orders) -> _Question:
    if isinstance(source, BadLine):
        return _Question(source, (), source.error)
    try:
        return _Question(source, orders.of(source), None)
    except RowError as error:
        return _Question(source, (), error)


def _refused(waiting: deque[_Question]) -> Iterator[CompareRow]:
    """Yield the rows at the front that were never asked."""
    while waiting and (error := waiting[0].error) is not None:
        source = waiting.popleft().source
        yield CompareRow(
            id=source.id,
            line=source.line,
            extra=dict(source.extra) or UNSET,
            error=Failure(code=error.code, message=str(error)),
        )


def _row(question: _Question, orders: Orders, repeats: Repeats) -> CompareRow:
    record = question.source
    assert isinstance(record, Record)
    extra = dict(record.extra)
    if orders.kind == "given":
        del extra[GIVEN_KEY]  # the row's orderings say it
    warnings = dict.fromkeys(
        warning for score in question.scores if score.warnings for warning in score.warnings
    )
    row = CompareRow(
        id=record.id,
        line=record.line,
        question=UNSET if record.question is None else record.question,
        state=UNSET if record.state is None else msgspec.Raw(msgspec.json.encode(record.state)),
        options=record.options or UNSET,
        gold_index=UNSET if record.gold_index is None else record.gold_index,
        warnings=tuple(warnings) or UNSET,
        extra=extra or UNSET,
    )
    orderings = []
    for order, score in zip(question.orders, question.scores, strict=True):
        if score.error is not UNSET:
            message = f"with the options in the order {list(order)}: {score.error.message}"
            failure = Failure(code=score.error.code, message=message)
            return msgspec.structs.replace(row, error=failure)
        assert score.options is not UNSET
        orderings.append(
            Ordering(
                order=order,
                labels=tuple(option.label or "" for option in score.options),
                logprobs=tuple(option.logprob for option in score.options),
                prompt_tokens=score.prompt_tokens,
                prompt_sha256=score.prompt_sha256,
                repeat=repeats.get((record.line, order), UNSET),
            )
        )
    row = msgspec.structs.replace(
        row, content_sha256=content_sha256(record), orderings=tuple(orderings)
    )
    return completed(row, reading_of(row))


class Comparison:
    """Takes rows as they come; gives the figures and what a report shows of single questions."""

    def __init__(self) -> None:
        self.rows = 0
        self.errors: Counter[str] = Counter()
        self._labels: dict[int, tuple[str, ...] | None] = {}
        self._collector = Collector()
        self._sensitive: list[tuple[tuple[float, float, str, str], int, CompareRow]] = []

    def add(self, row: CompareRow) -> None:
        """Take one row of ``ask`` or ``decode_rows``."""
        self.rows += 1
        if row.error is not UNSET:
            self.errors[row.error.code] += 1
            return
        read = reading_of(row)
        self._collector.add(read)
        assert row.orderings is not UNSET
        for ordering in row.orderings:
            if ordering.labels is not UNSET:
                labels = tuple(label.strip() for label in ordering.labels)
                if self._labels.setdefault(len(labels), labels) != labels:
                    self._labels[len(labels)] = None
        if row.pairs and row.flipped_pairs:
            assert row.spread is not UNSET
            rank = (row.flipped_pairs / row.pairs, row.spread, read.key, str(row.id))
            heapq.heappush(self._sensitive, (rank, self.rows, row))
            if len(self._sensitive) > SENSITIVE_SHOWN:
                heapq.heappop(self._sensitive)

    @property
    def sensitive(self) -> list[CompareRow]:
        """The questions that flipped most: by share of flipped pairs, then by spread."""
        return [row for _, _, row in sorted(self._sensitive, reverse=True)]

    def label(self, k: int, position: int) -> str:
        """What stood at a position of questions with k options; its number where that varied.

        The number also where no row says it.
        """
        labels = self._labels.get(k)
        return f"{position + 1}." if labels is None else labels[position]

    @property
    def error_counts(self) -> list[tuple[str, int]]:
        """Error codes and how often they came, the most frequent first."""
        return sorted(self.errors.items(), key=lambda item: (-item[1], item[0]))

    def measures(self, *, seed: int, pride_fraction: float) -> Measures:
        """Return the figures. Raises InputError when there is no question to take them from."""
        from scorer.compare.measures import measure

        blocks = self._collector.blocks()
        if not blocks:
            kinds = ", ".join(f"{code} {count:,}" for code, count in self.error_counts)
            raise InputError(
                f"no question to compare among {self.rows} rows, {self.errors.total()} of them "
                f"errors{f' ({kinds})' if kinds else ''}; give lettered questions"
            )
        return measure(blocks, seed=seed, pride_fraction=pride_fraction)
