"""Orderings of a question's options: which are asked, and averages by content.

Pure. An ordering says which option stands at which position: ``order[p]`` is the option's index in
the record's own list. Every ordering of one question is a record of its own with permuted options,
so that nothing about prompts, labels or reads is special here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, TypeVar, cast

import msgspec
import numpy as np

from scorer.errors import ErrorCode, RowError, UsageError
from scorer.numeric import exp
from scorer.records.jsonline import cut, shown, value_of
from scorer.records.record import Record

Order = tuple[int, ...]
OrdersKind = Literal["cyclic", "all", "balanced", "given"]

MAX_ALL = 720
"""Orderings that ``all`` asks without ``--max-orders``: those of 6 options."""

GIVEN_KEY = "orders"
"""The record's key that ``given`` reads: a list of permutations of 0 … k - 1."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Orders:
    """Which orderings are asked of every question.

    kind: as ``cyclic``, ``all_orders``, ``balanced`` below, or the record's own list. limit: the
    most orderings of one question; more are sampled (``seed`` and the question's content decide,
    never its place in the file). None for no sampling. Raises UsageError.
    """

    kind: OrdersKind = "cyclic"
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--max-orders must be at least 1, got {self.limit}")

    def of(self, record: Record) -> tuple[Order, ...]:
        """Return the orderings of a lettered question, at least one, no two equal.

        Raises RowError for a record that is no lettered question, for ``all`` beyond MAX_ALL
        without a limit, and for ``given`` without a valid list.
        """
        if record.question is None or record.options is None:
            raise RowError(
                ErrorCode.INVALID_VALUE,
                "compare asks lettered questions, whose options have an order: give question and "
                "options instead of a prompt",
            )
        k = len(record.options)
        if self.kind == "given":
            return _limited(_given(record), self.limit, f"{self.seed}:{content_sha256(record)}")
        if self.kind == "all":
            return self._all(record, record.options)
        orders = cyclic(k) if self.kind == "cyclic" else balanced(k)
        return _limited(orders, self.limit, f"{self.seed}:{content_sha256(record)}")

    def _all(self, record: Record, options: Sequence[str]) -> tuple[Order, ...]:
        k = len(options)
        count = math.factorial(k)
        if self.limit is None and count > MAX_ALL:
            raise RowError(
                ErrorCode.TOO_MANY_OPTIONS,
                f"--orders all asks {k} options in {count:,} orders; more than {MAX_ALL} need "
                "--max-orders N, which draws a sample of N",
            )
        if self.limit is None or count <= self.limit:
            return tuple(permutations(range(k)))
        # Drawn over the options in the order of their texts, so that the same sample is asked
        # in whatever order they are listed.
        listed = sorted(range(k), key=options.__getitem__)
        draw = _draws(f"{self.seed}:{content_sha256(record)}")
        sample: dict[Order, None] = {}
        while len(sample) < self.limit:
            shuffled = list(range(k))
            for last in range(k - 1, 0, -1):
                other = next(draw) % (last + 1)
                shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
            sample[tuple(listed[place] for place in shuffled)] = None
        return tuple(sample)


def cyclic(k: int) -> tuple[Order, ...]:
    """Return the k cyclic shifts, the listed order first: each option once at each position."""
    return tuple(tuple((p + shift) % k for p in range(k)) for shift in range(k))


def balanced(k: int) -> tuple[Order, ...]:
    """Return a Williams design, the listed order first: k orderings for even k, 2k for odd k.

    Each option stands equally often at each position, and each follows each other option equally
    often. E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
    treatments", Australian Journal of Scientific Research A 2 (1949) 149-168: a first row
    0, 1, k-1, 2, k-2, …, its cyclic shifts, and for odd k the mirror image of all of them. Options
    are renamed so that the first row is the listed order.
    """
    first = [(p + 1) // 2 if p % 2 else (k - p // 2) % k for p in range(k)]
    name = {symbol: p for p, symbol in enumerate(first)}
    rows = [tuple(name[(symbol + shift) % k] for symbol in first) for shift in range(k)]
    if k % 2:
        rows += [tuple(reversed(row)) for row in rows]
    return tuple(dict.fromkeys(rows))


def content_sha256(record: Record) -> str:
    """Return a hex hash of what a question asks: question, state, the options in any order.

    What is sampled or split is drawn by it, so that no draw depends on a record's place in its
    file or on the order in which its options are listed.
    """
    state = record.state
    text = bytes(state).decode() if isinstance(state, msgspec.Raw) else json.dumps(state)
    parts = [record.question, text, sorted(record.options or ())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def reordered(record: Record, order: Order) -> Record:
    """Return the record with its options in ``order``, and nothing else asked of it."""
    options = record.options or ()
    return Record(
        line=record.line,
        id=record.id,
        question=record.question,
        state=record.state,
        options=tuple(options[index] for index in order),
    )


def by_content(order: Order, values: Sequence[_T]) -> list[_T]:
    """Return values given by position in the order of the record's own list of options."""
    placed = list(values)
    for position, index in enumerate(order):
        placed[index] = values[position]
    return placed


def softmaxes(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the softmax of each row of finite log-probabilities, in few calls.

    Shifted by the row's maximum, its denominator summed exactly (``math.fsum``): an option's
    probability has the same bits in whatever position it stands.
    """
    shifted = [value - peak for row in rows for peak in (max(row),) for value in row]
    weights: list[float] = exp(np.array(shifted, dtype=np.float64)).tolist()
    result = []
    start = 0
    for row in rows:
        own = weights[start : start + len(row)]
        start += len(row)
        total = math.fsum(own)
        result.append([weight / total for weight in own])
    return result


def content_means(orders: Sequence[Order], rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean by content of values given by position, an entry an option as listed.

    ``(1 / m) Σ_r rows[r][position of the option in orders[r]]`` over the m orderings, summed
    exactly, so that the same set of orderings gives the same bits in any order.
    """
    placed = [by_content(order, row) for order, row in zip(orders, rows, strict=True)]
    return [math.fsum(column) / len(placed) for column in zip(*placed, strict=True)]


def check_order(order: Sequence[int], k: int) -> bool:
    """Whether ``order`` is a permutation of 0 … k - 1."""
    return sorted(order) == list(range(k))


def _given(record: Record) -> tuple[Order, ...]:
    k = len(record.options or ())
    if GIVEN_KEY not in record.extra:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f'--orders given needs "{GIVEN_KEY}" in every record, got none: add a list of '
            f"permutations of 0 to {k - 1}, or choose other orders",
        )
    where = f"$.{GIVEN_KEY}"
    values = value_of(record.extra[GIVEN_KEY], where)
    if not isinstance(values, list) or not values:
        raise RowError(
            ErrorCode.WRONG_TYPE,
            f"{where}: expected a list of at least one permutation, got {shown(values)}; write "
            f"{json.dumps([list(order) for order in cyclic(k)[:2]])} for the first two shifts",
        )
    orders: dict[Order, int] = {}
    for place, value in enumerate(values):
        ints = isinstance(value, list) and all(type(index) is int for index in value)
        if not ints or not check_order(cast("list[int]", value), k):
            raise RowError(
                ErrorCode.INVALID_VALUE,
                f"{where}[{place}]: expected a permutation of 0 to {k - 1}, got "
                f"{cut(json.dumps(value))}; name every option's index once",
            )
        order = tuple(cast("list[int]", value))
        if order in orders:
            raise RowError(
                ErrorCode.INVALID_VALUE,
                f"{where}[{place}]: expected orders that differ, got {list(order)} again (first at "
                f"{where}[{orders[order]}]); remove one",
            )
        orders[order] = place
    return tuple(orders)


def _limited(orders: tuple[Order, ...], limit: int | None, key: str) -> tuple[Order, ...]:
    """Return the first of the orders and a sample of the others, ``limit`` in all."""
    if limit is None or len(orders) <= limit:
        return orders
    others = sorted(range(1, len(orders)), key=lambda place: _hash(f"{key}:{place}"))
    return tuple(orders[place] for place in sorted([0, *others[: limit - 1]]))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _draws(key: str) -> Iterator[int]:
    """Yield 64-bit numbers that depend on ``key`` alone, on every machine."""
    count = 0
    while True:
        yield int.from_bytes(_hash(f"{key}:draw:{count}")[:8], "little")
        count += 1
