"""What was read of many questions, as arrays: what rows are made of and metrics are taken from.

Pure. Questions with equally many options and orderings share a block, so that a metric is a few
array operations. Within a block questions stand in the order of their content hashes: no result
depends on the order of a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scorer.compare.orderings import Order, content_means, softmaxes

Float64s = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = -1
"""In an array of indices: a tie, or no gold answer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one question; m orderings of k options.

    key: the content hash. gold: index of the right option as listed, None where unknown.
    logprobs: m × k, natural logarithms, by position. masses: the labels' joint probability in each
    ordering, None where unknown. repeats: the second pass of each ordering, None where there was
    none.
    """

    key: str
    gold: int | None
    orders: tuple[Order, ...]
    logprobs: tuple[tuple[float, ...], ...]
    masses: tuple[float | None, ...]
    repeats: tuple[tuple[float, ...] | None, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """n questions with m orderings of k options each.

    keys: the content hashes. gold: int64 ``[n]``, NONE where unknown. orders: int64 ``[n, m, k]``,
    the listed index of the option at each position. logprobs: float64 ``[n, m, k]``, by position.
    masses: float64 ``[n, m]``, NaN where unknown. repeats: float64 ``[n, m, k]``, NaN where there
    was no second pass.
    """

    keys: tuple[str, ...]
    gold: Ints
    orders: Ints
    logprobs: Float64s
    masses: Float64s
    repeats: Float64s

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Block:
        """Return readings of equal m and k as arrays, in their order."""
        m, k = len(readings[0].orders), len(readings[0].orders[0])
        nothing = (math.nan,) * k
        return cls(
            keys=tuple(r.key for r in readings),
            gold=np.array([NONE if r.gold is None else r.gold for r in readings], dtype=np.int64),
            orders=np.array([r.orders for r in readings], dtype=np.int64).reshape(-1, m, k),
            logprobs=np.array([r.logprobs for r in readings], dtype=np.float64).reshape(-1, m, k),
            masses=np.array([r.masses for r in readings], dtype=np.float64).reshape(-1, m),
            repeats=np.array(
                [[nothing if again is None else again for again in r.repeats] for r in readings],
                dtype=np.float64,
            ).reshape(-1, m, k),
        )

    @property
    def n(self) -> int:
        """Questions."""
        return int(self.orders.shape[0])

    @property
    def m(self) -> int:
        """Orderings of each question."""
        return int(self.orders.shape[1])

    @property
    def k(self) -> int:
        """Options of each question."""
        return int(self.orders.shape[2])

    @cached_property
    def probabilities(self) -> Float64s:
        """Softmax over the labels of each ordering, ``[n, m, k]``, by position."""
        rows = self.logprobs.reshape(-1, self.k).tolist()
        return np.array(softmaxes(rows)).reshape(self.logprobs.shape)

    @cached_property
    def position_of(self) -> Ints:
        """Where each option stands, ``[n, m, k]``: the inverse permutations."""
        positions: Ints = np.argsort(self.orders, axis=2)
        return positions

    def by_content(self, values: Float64s) -> Float64s:
        """Return values ``[n, m, k]`` by position as values by listed option."""
        placed: Float64s = np.take_along_axis(values, self.position_of, axis=2)
        return placed

    @cached_property
    def picks(self) -> Ints:
        """The position of the best label in each ordering, ``[n, m]``; NONE for a tie."""
        return best(self.logprobs)

    @cached_property
    def choices(self) -> Ints:
        """The listed option chosen in each ordering, ``[n, m]``; NONE for a tie."""
        return self.chosen(self.picks)

    def chosen(self, picks: Ints) -> Ints:
        """Return the listed options at positions ``[n, m]``, NONE where they are."""
        chosen = np.take_along_axis(self.orders, np.maximum(picks, 0)[:, :, None], axis=2)[:, :, 0]
        found: Ints = np.where(picks == NONE, NONE, chosen)
        return found

    @cached_property
    def margins(self) -> Float64s:
        """Best less second-best log-probability of each ordering, nats, ``[n, m]``."""
        top = np.partition(self.logprobs, self.k - 2, axis=2)
        margins: Float64s = top[:, :, -1] - top[:, :, -2]
        return margins

    @cached_property
    def mean_probabilities(self) -> Float64s:
        """Mean probability of each option over the orderings, ``[n, k]``, exactly summed."""
        return self._means(self.probabilities)

    @cached_property
    def mean_logprobs(self) -> Float64s:
        """Mean log-probability of each option over the orderings, ``[n, k]``, exactly summed."""
        return self._means(self.logprobs)

    @cached_property
    def label_means(self) -> Float64s:
        """Mean log-probability of each label over the orderings, ``[n, k]``, exactly summed."""
        means = [
            [math.fsum(column) / self.m for column in zip(*rows, strict=True)]
            for rows in self.logprobs.tolist()
        ]
        return np.array(means)

    def _means(self, values: Float64s) -> Float64s:
        pairs = zip(self.orders.tolist(), values.tolist(), strict=True)
        return np.array([content_means(orders, rows) for orders, rows in pairs])

    @cached_property
    def answers(self) -> Ints:
        """The option of the greatest mean probability, ``[n]``; NONE for a tie."""
        return best(self.mean_probabilities)

    @cached_property
    def choice_counts(self) -> Ints:
        """In how many orderings each option was chosen, ``[n, k]``; ties choose none."""
        counts: Ints = (self.choices[:, :, None] == np.arange(self.k)).sum(axis=1)
        return counts

    @cached_property
    def pairs(self) -> Ints:
        """Pairs of orderings that both chose, ``[n]``."""
        return _pairs(self.choice_counts.sum(axis=1))

    @cached_property
    def flipped_pairs(self) -> Ints:
        """Those of the pairs that chose different options, ``[n]``."""
        flipped: Ints = self.pairs - _pairs(self.choice_counts).sum(axis=1)
        return flipped

    @cached_property
    def right(self) -> Bools:
        """Whether each ordering chose the gold answer, ``[n, m]``; a tie did not."""
        right: Bools = (self.choices == self.gold[:, None]) & self.has_gold[:, None]
        return right

    @cached_property
    def has_gold(self) -> Bools:
        """Whether the right answer is known, ``[n]``."""
        known: Bools = self.gold != NONE
        return known

    @cached_property
    def is_balanced(self) -> Bools:
        """Whether each option stands equally often at each position, ``[n]``."""
        even = np.ones(self.n, dtype=bool)
        for option in range(self.k):  # one at a time: all at once need k times the memory
            counts = (self.orders == option).sum(axis=1)
            even &= (counts * self.k == self.m).all(axis=1)
        return even

    def places_of(self, order: Order) -> Ints:
        """Return which of a question's orderings is ``order``, ``[n]``; NONE where none is."""
        same = (self.orders == np.array(order)).all(axis=2)
        places: Ints = np.where(same.any(axis=1), same.argmax(axis=1), NONE)
        return places


def best(values: Float64s) -> Ints:
    """Return the places of the greatest values along the last axis, NONE where several are."""
    tied = (values == values.max(axis=-1, keepdims=True)).sum(axis=-1) > 1
    places: Ints = np.where(tied, NONE, values.argmax(axis=-1))
    return places


def _pairs(counts: Ints) -> Ints:
    pairs: Ints = counts * (counts - 1) // 2
    return pairs


class Collector:
    """Takes readings as they come and gives them as blocks.

    Holds one Reading a question: about 1 KB for 4 orderings of 4 options.
    """

    def __init__(self) -> None:
        self._readings: dict[tuple[int, int], list[Reading]] = {}

    def add(self, reading: Reading) -> None:
        """Take one question."""
        shape = (len(reading.orders[0]), len(reading.orders))
        self._readings.setdefault(shape, []).append(reading)

    def blocks(self) -> list[Block]:
        """Return all questions: blocks by (k, m), questions by content hash."""
        return [
            Block.of(sorted(readings, key=_place)) for _, readings in sorted(self._readings.items())
        ]


def _place(reading: Reading) -> tuple[object, ...]:
    """Return what readings are sorted by: the content, then all else that could tell them apart."""
    gold = NONE if reading.gold is None else reading.gold
    masses = tuple(NONE if mass is None else mass for mass in reading.masses)
    repeats = tuple(() if again is None else again for again in reading.repeats)
    return reading.key, gold, reading.orders, reading.logprobs, masses, repeats
