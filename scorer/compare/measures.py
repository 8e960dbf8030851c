"""The figures of one comparison, each with its interval and its reason where it has none.

``measure`` goes from blocks to :class:`Measures`, which is what ``--summary`` writes, what
``--fail-if`` reads, and what both reports show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from scorer.compare import metrics
from scorer.compare.blocks import NONE, Block, Float64s
from scorer.compare.orderings import Order
from scorer.compare.pride import Answers, debias
from scorer.compare.stats import RESAMPLES, Share, chi_squared_tail, interval, resampled

SHOWN_ORDERS = 24
"""Orderings of one k in the table by ordering, of those that all its questions share."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A figure. ``n`` is what it is over; ``low`` and ``high`` are its 95 % interval.

    ``value`` is None with a ``reason`` where it is undefined. No interval: where a bootstrap sample
    had none, and for figures that have none by nature.
    """

    value: float | None
    n: int
    low: float | UnsetType = UNSET
    high: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ByPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A rate at one position of questions with ``options`` options."""

    options: int
    position: int
    rate: Metric


class ByOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One ordering: accuracy, and how often each listed option was chosen."""

    order: Order
    questions: int
    accuracy: Metric
    answers: tuple[float, ...]
    ties: float


class MarginBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Reads of a margin of ``low`` to below ``high`` nats (None: no limit)."""

    low: float
    high: float | None
    flip_rate: Metric


class LabelPrior(msgspec.Struct, frozen=True, kw_only=True):
    """PriDe's prior of the labels of questions with ``len(prior)`` options."""

    prior: tuple[float, ...]
    estimated_on: int
    applied_to: int


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures. ``metrics`` holds those that stand for themselves, by name."""

    questions: int
    with_gold: int
    readings: int
    options: dict[int, int]
    metrics: dict[str, Metric]
    pick_rates: tuple[ByPosition, ...]
    recalls: tuple[ByPosition, ...]
    orders: tuple[ByOrder, ...]
    orders_left_out: int
    margins: tuple[MarginBucket, ...]
    priors: tuple[LabelPrior, ...]
    label_masses: tuple[int, ...]
    seed: int
    resamples: int = RESAMPLES


@dataclass(frozen=True, slots=True)
class About:
    """What a metric's name stands for. ``unit``: rate, nats, p (a p-value), or "" for a number."""

    title: str
    unit: str
    text: str


ABOUT: dict[str, About] = {
    "accuracy": About("Accuracy", "rate", "mean over the orders asked"),
    "accuracy_listed": About("Accuracy, listed order", "rate", "options in the order given"),
    "accuracy_averaged": About("Accuracy, averaged answer", "rate", "by mean probability"),
    "chance": About("Accuracy of guessing", "rate", "mean of 1/k"),
    "circular_accuracy": About("Circular accuracy", "rate", "right in all k cyclic orders"),
    "circular_chance": About("Circular accuracy of guessing", "rate", "mean of k^-k"),
    "always_right": About("Right in every order", "rate", "of the orders asked"),
    "sensitivity_gap": About("Sensitivity gap", "rate", "right in some orders, not in all"),
    "order_range": About("Range over orders", "rate", "best less worst order for all questions"),
    "flip_rate": About("Flip rate", "rate", "questions with two different answers"),
    "pairwise_flip_rate": About("Pairwise flip rate", "rate", "two random orders disagree"),
    "tie_rate": About("Ties", "rate", "orderings without one best label"),
    "rstd": About("RStd", "rate", "spread of recall over gold positions"),
    "pick_v": About("Position bias V", "", "Cramér's V of picks by position, 0 to 1"),
    "pick_chi_squared": About("Position bias χ²", "", "picks against an even spread"),
    "pick_degrees": About("Degrees of freedom of χ²", "", "positions less one"),
    "pick_p": About("Position bias p", "p", "of χ², reads taken as independent"),
    "kendall_tau": About("Kendall τ between orders", "", "do two orders rank options alike"),
    "pride_plain_accuracy": About("Accuracy without PriDe", "rate", "listed order, held out"),
    "pride_accuracy": About("Accuracy with PriDe", "rate", "listed order, held out"),
    "pride_gain": About("PriDe gain", "rate", "with less without"),
    "pride_plain_rstd": About("RStd without PriDe", "rate", "listed order, held out"),
    "pride_rstd": About("RStd with PriDe", "rate", "listed order, held out"),
    "label_mass": About("Label mass", "rate", "probability that the labels hold"),
    "label_mass_p05": About("Label mass, 5th percentile", "rate", "of orderings"),
    "label_mass_min": About("Label mass, least", "rate", "of orderings"),
    "margin": About("Margin", "nats", "best less second-best label, mean"),
    "noise_flips": About("Noise floor: flips", "rate", "the same ordering read twice"),
    "noise_differing": About("Noise floor: values that differ", "rate", "in any bit"),
    "noise_largest": About("Noise floor: largest difference", "nats", "of a log-probability"),
}

NO_GOLD = "no question has a gold answer"
_FEW_ORDERS = "no question has two orderings that chose an option"


def measure(blocks: Sequence[Block], *, seed: int, pride_fraction: float) -> Measures:
    """Return every figure of these questions.

    seed: of the bootstrap and of PriDe's split. Needs at least one question.
    """
    return _Measuring(blocks, seed).measures(pride_fraction)


class _Measuring:
    """Collects shares first, so that all are resampled with the same draws, at once."""

    def __init__(self, blocks: Sequence[Block], seed: int) -> None:
        self._blocks = blocks
        self._seed = seed
        self._shares: list[Share] = []
        self._replicates: Float64s | None = None

    def _take(self, share: Share) -> int:
        self._shares.append(share)
        return len(self._shares) - 1

    def _metric(self, at: int, reason: str) -> Metric:
        assert self._replicates is not None
        share = self._shares[at]
        if share.value is None:
            return Metric(value=None, n=0, reason=reason)
        return _metric(share.value, share.count, self._replicates[:, at])

    def measures(self, pride_fraction: float) -> Measures:
        blocks = self._blocks
        ks = sorted({block.k for block in blocks})
        plain = {name: self._take(function(blocks)) for name, (function, _) in _SHARES.items()}
        picks = {(k, p): self._take(metrics.pick_rate(blocks, k, p)) for k in ks for p in range(k)}
        recalls = {(k, p): self._take(metrics.recall(blocks, k, p)) for k in ks for p in range(k)}
        edges = [*metrics.MARGIN_EDGES, math.inf]
        margins = [
            self._take(metrics.flips_by_margin(blocks, low, high)) for low, high in pairwise(edges)
        ]
        debiased = debias(blocks, pride_fraction, self._seed)
        pride = {
            "pride_plain_accuracy": self._take(debiased.plain.accuracy),
            "pride_accuracy": self._take(debiased.debiased.accuracy),
            "pride_gain": self._take(_difference(debiased.plain, debiased.debiased)),
        }
        pride_recalls = {
            name: {k: [self._take(share) for share in own] for k, own in answers.recalls.items()}
            for name, answers in (
                ("pride_plain_rstd", debiased.plain),
                ("pride_rstd", debiased.debiased),
            )
        }
        shared = {k: metrics.shared_orders(blocks, k) for k in ks}
        shown = {
            order: self._take(metrics.accuracy_in(blocks, order))
            for k in ks
            for order in shared[k].orders[:SHOWN_ORDERS]
        }
        self._replicates = resampled(self._shares, self._seed)

        found = {name: self._metric(plain[name], _SHARES[name][1]) for name in plain}
        found["order_range"] = _order_range(blocks, shared)
        found["rstd"] = self._rstd({k: [recalls[k, p] for p in range(k)] for k in ks})
        found |= _pick_metrics(blocks)
        reason = "no question is left to apply a prior to" if pride_fraction else "not asked for"
        if not any(block.has_gold.any() for block in blocks):
            reason = NO_GOLD
        found |= {name: self._metric(at, reason) for name, at in pride.items()}
        found |= {name: self._rstd(own, reason) for name, own in pride_recalls.items()}
        found |= _mass_metrics(blocks)
        largest = metrics.noise_largest(blocks)
        found["noise_largest"] = _plain(largest, found["noise_differing"].n, _NO_SECOND)
        return Measures(
            questions=sum(block.n for block in blocks),
            with_gold=sum(int(block.has_gold.sum()) for block in blocks),
            readings=sum(block.n * block.m for block in blocks),
            options=dict(sum((Counter({b.k: b.n}) for b in blocks), Counter[int]())),
            metrics={name: found[name] for name in ABOUT},
            pick_rates=tuple(
                ByPosition(options=k, position=p, rate=self._metric(at, "every ordering is a tie"))
                for (k, p), at in picks.items()
            ),
            recalls=tuple(
                ByPosition(options=k, position=p, rate=self._metric(at, "no gold answer here"))
                for (k, p), at in recalls.items()
            ),
            orders=tuple(
                _by_order(blocks, order, self._metric(at, NO_GOLD)) for order, at in shown.items()
            ),
            orders_left_out=sum(len(own.orders) + own.others for own in shared.values())
            - len(shown),
            margins=tuple(
                MarginBucket(
                    low=low,
                    high=None if high == math.inf else high,
                    flip_rate=self._metric(at, "no read has such a margin"),
                )
                for (low, high), at in zip(pairwise(edges), margins, strict=True)
            ),
            priors=tuple(
                LabelPrior(
                    prior=tuple(prior.values.tolist()),
                    estimated_on=prior.estimated,
                    applied_to=prior.applied,
                )
                for prior in debiased.priors.values()
            ),
            label_masses=_histogram(blocks),
            seed=self._seed,
        )

    def _rstd(self, recalls: dict[int, list[int]], reason: str = NO_GOLD) -> Metric:
        """Give the spread of recalls over positions; over several k the mean by questions."""
        assert self._replicates is not None
        weights, values, replicates = [], [], []
        for k, places in recalls.items():
            shares = [self._shares[at] for at in places]
            questions = sum(share.count for share in shares)
            if not questions:
                continue
            if empty := [p for p, share in enumerate(shares) if not share.count]:
                return Metric(
                    value=None,
                    n=0,
                    reason=f"no gold answer of {k} options stands at position {empty[0] + 1}",
                )
            weights.append(questions)
            values.append(metrics.spread(list(map(_value, shares))))
            replicates.append(_spreads(self._replicates[:, places]))
        if not weights:
            return Metric(value=None, n=0, reason=reason)
        total = sum(weights)
        mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
        mixed = sum(
            (w / total * own for w, own in zip(weights, replicates, strict=True)),
            np.zeros(RESAMPLES),
        )
        return _metric(mean, total, mixed)


_NO_SECOND = "nothing was read twice"
_SHARES = {
    "accuracy": (metrics.accuracy, NO_GOLD),
    "accuracy_listed": (metrics.accuracy_listed, "no question with gold was asked as listed"),
    "accuracy_averaged": (metrics.accuracy_averaged, NO_GOLD),
    "chance": (metrics.chance, NO_GOLD),
    "circular_accuracy": (
        metrics.circular_accuracy,
        "no question with a gold answer was asked in all its cyclic orders",
    ),
    "circular_chance": (metrics.circular_chance, NO_GOLD),
    "always_right": (metrics.always_right, NO_GOLD),
    "sensitivity_gap": (metrics.sensitivity_gap, NO_GOLD),
    "flip_rate": (metrics.flip_rate, _FEW_ORDERS),
    "pairwise_flip_rate": (metrics.pairwise_flip_rate, _FEW_ORDERS),
    "tie_rate": (metrics.tie_rate, ""),
    "kendall_tau": (metrics.kendall_tau, "no question has two orderings that rank its options"),
    "label_mass": (metrics.label_mass, "no ordering has a known label mass"),
    "margin": (metrics.margin, ""),
    "noise_flips": (metrics.noise_flips, _NO_SECOND),
    "noise_differing": (metrics.noise_values, _NO_SECOND),
}


def _metric(value: float, n: int, replicates: Float64s) -> Metric:
    bounds = interval(replicates)
    if bounds is None:
        return Metric(value=value, n=n)
    return Metric(value=value, n=n, low=bounds[0], high=bounds[1])


def _plain(value: float | None, n: int, reason: str) -> Metric:
    """Return a figure without an interval."""
    if value is None:
        return Metric(value=None, n=0, reason=reason)
    return Metric(value=value, n=n)


def _difference(before: Answers, after: Answers) -> Share:
    return Share(
        after.accuracy.numerators - before.accuracy.numerators, after.accuracy.denominators
    )


def _spreads(columns: Float64s) -> Float64s:
    """Return metrics.spread of each row; columns are added one by one, in order."""
    k = columns.shape[1]
    shifted = columns - columns[:, :1]
    mean = sum((shifted[:, p] for p in range(k)), np.zeros(len(columns))) / k
    squares = [(shifted[:, p] - mean) ** 2 for p in range(k)]
    spreads: Float64s = np.sqrt(sum(squares, np.zeros(len(columns))) / k)
    return spreads


def _order_range(blocks: Sequence[Block], shared: dict[int, metrics.SharedOrders]) -> Metric:
    """Give the best less the worst accuracy of one ordering, over those asked of every question.

    Over several k the mean by questions.
    """
    weights, values = [], []
    for k, own in shared.items():
        questions = sum(int(block.has_gold.sum()) for block in blocks if block.k == k)
        if not questions:
            continue
        if len(own.orders) < 2:
            reason = f"no two orders were asked of every question with {k} options"
            return Metric(value=None, n=0, reason=reason)
        weights.append(questions)
        values.append(max(own.accuracies) - min(own.accuracies))
    if not weights:
        return Metric(value=None, n=0, reason=NO_GOLD)
    total = math.fsum(w * v for w, v in zip(weights, values, strict=True))
    return Metric(value=total / sum(weights), n=sum(weights))


def _pick_metrics(blocks: Sequence[Block]) -> dict[str, Metric]:
    names = ("pick_v", "pick_chi_squared", "pick_degrees", "pick_p")
    counts = metrics.pick_counts(blocks)
    if not counts:
        reason = "no question shows each option equally often at each position and chooses one"
        return {name: Metric(value=None, n=0, reason=reason) for name in names}
    n = sum(int(own.sum()) for own in counts.values())
    statistic, degrees = metrics.pick_chi_squared(counts)
    found = {
        "pick_v": Metric(value=metrics.cramers_v(counts), n=n),
        "pick_chi_squared": Metric(value=statistic, n=n),
        "pick_degrees": Metric(value=float(degrees), n=n),
        "pick_p": Metric(value=chi_squared_tail(statistic, degrees), n=n),
    }
    least = min(int(own.sum()) / k for k, own in counts.items())
    if least < metrics.LEAST_EXPECTED:
        found["pick_p"] = Metric(
            value=None,
            n=0,
            reason=f"an expected count is {least:.2g}, chi-squared needs "
            f"{metrics.LEAST_EXPECTED} in every cell",
        )
    return found


def _mass_metrics(blocks: Sequence[Block]) -> dict[str, Metric]:
    masses = metrics.known_masses(blocks)
    n = len(masses)
    reason = "no ordering has a known label mass"
    low = metrics.quantile(masses, 0.05) if n else None
    return {
        "label_mass_p05": _plain(low, n, reason),
        "label_mass_min": _plain(float(masses[0]) if n else None, n, reason),
    }


def _histogram(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Count known label masses in 20 equal parts of 0 to 1, the last one closed above."""
    places = np.floor(metrics.known_masses(blocks) * 20).astype(np.int64)
    return tuple(np.bincount(np.clip(places, 0, 19), minlength=20).tolist())


def _by_order(blocks: Sequence[Block], order: Order, accuracy: Metric) -> ByOrder:
    shares = [metrics.answer_share(blocks, order, option) for option in range(len(order))]
    return ByOrder(
        order=order,
        questions=shares[0].count,
        accuracy=accuracy,
        answers=tuple(map(_value, shares)),
        ties=_value(metrics.answer_share(blocks, order, NONE)),
    )


def _value(share: Share) -> float:
    """Return the value of a share that has one."""
    assert share.value is not None
    return share.value
