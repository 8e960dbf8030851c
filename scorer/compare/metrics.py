"""What the order of the options did to the answers: every figure of ``scorer compare``.

Pure: blocks of readings in, numbers out. A figure that is undefined is None with the reason, never
0. A **tie** (several labels equally likely, bit for bit) chooses nothing: it is no pick and no
flip, it is never right, and ``tie_rate`` counts it. Rates are fractions from 0 to 1,
log-probabilities nats. Sums are exact (``math.fsum``), so no figure depends on the order of a file.

Sources by their arXiv number: 2309.03882 (Zheng et al., "Large Language Models Are Not Robust
Multiple Choice Selectors"), 2308.11483 (Pezeshkpour and Hruschka, "Large Language Models
Sensitivity to The Order of Options in Multiple-Choice Questions"), 2307.06281 (Liu et al.,
"MMBench").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.compare.blocks import NONE, Block, Float64s, Ints, best
from scorer.compare.orderings import Order, cyclic
from scorer.compare.stats import Share

MARGIN_EDGES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Lower edges of the margin buckets, nats; the last is open above."""

LEAST_EXPECTED = 5
"""Expected count in every cell below which chi-squared's p-value is not given (Cochran 1954)."""


Parts = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Numerators and denominators of a block's questions, ``[n]`` each."""


def share(blocks: Sequence[Block], parts: Callable[[Block], Parts]) -> Share:
    """Return numerators and denominators over all blocks' questions, in their order."""
    columns = [parts(block) for block in blocks]
    return Share(
        np.concatenate([top.astype(np.float64) for top, _ in columns]),
        np.concatenate([bottom.astype(np.float64) for _, bottom in columns]),
    )


# Accuracy. All need gold answers; questions without have no part.


def accuracy(blocks: Sequence[Block]) -> Share:
    """Mean over questions of the share of a question's orderings that chose the gold answer."""
    return share(blocks, lambda b: (b.right.mean(axis=1), b.has_gold))


def accuracy_listed(blocks: Sequence[Block]) -> Share:
    """Share of questions right in the order in which the options are listed.

    Over the questions that were asked in that order.
    """

    def parts(block: Block) -> Parts:
        places = block.places_of(tuple(range(block.k)))
        asked = (places != NONE) & block.has_gold
        right = np.take_along_axis(block.right, np.maximum(places, 0)[:, None], axis=1)[:, 0]
        return right & asked, asked

    return share(blocks, parts)


def accuracy_averaged(blocks: Sequence[Block]) -> Share:
    """Share of questions whose answer by mean probability over the orderings is right.

    The "cyclic" and "full permutation" baselines of 2309.03882, by the orders asked. An averaged
    tie is not right.
    """
    return share(blocks, lambda b: ((b.answers == b.gold) & b.has_gold, b.has_gold))


def always_right(blocks: Sequence[Block]) -> Share:
    """Share of questions right in every one of their orderings: the least that order can do."""
    return share(blocks, lambda b: (b.right.sum(axis=1) == b.m, b.has_gold))


def sensitivity_gap(blocks: Sequence[Block]) -> Share:
    """Share of questions right in some of their orderings but not in all.

    The accuracy under the best order of each question less that under the worst, 2308.11483: the
    gap between maximum and minimum performance by reordering. Grows with the number of orders
    asked: compare like with like.
    """

    def parts(block: Block) -> Parts:
        times = block.right.sum(axis=1)
        return (times > 0) & (times < block.m), block.has_gold

    return share(blocks, parts)


def circular_accuracy(blocks: Sequence[Block]) -> Share:
    """Share of questions right in each of the k cyclic orders (CircularEval, 2307.06281).

    Over the questions that were asked in all k of them.
    """

    def parts(block: Block) -> Parts:
        asked = block.has_gold.copy()
        right = np.ones(block.n, dtype=bool)
        for order in cyclic(block.k):
            places = block.places_of(order)
            asked &= places != NONE
            right &= np.take_along_axis(block.right, np.maximum(places, 0)[:, None], axis=1)[:, 0]
        return right & asked, asked

    return share(blocks, parts)


def chance(blocks: Sequence[Block]) -> Share:
    """Accuracy expected of a uniform guess: the mean of 1 / k."""
    return share(blocks, lambda b: (b.has_gold / b.k, b.has_gold))


def circular_chance(blocks: Sequence[Block]) -> Share:
    """Circular accuracy expected of independent uniform guesses: the mean of k^-k."""
    return share(blocks, lambda b: (b.has_gold * float(b.k) ** -b.k, b.has_gold))


def recall(blocks: Sequence[Block], k: int, position: int) -> Share:
    """Recall of a gold position: right orderings / orderings with the gold answer there.

    2309.03882, pooled over the orderings asked (there over one order): with ``cyclic``, ``all`` and
    ``balanced`` every question counts equally often at every position, so that recalls differ
    by position alone and not by which questions happen to have their answer there.
    """

    def parts(block: Block) -> Parts:
        here = (block.orders[:, :, position] == block.gold[:, None]) & block.has_gold[:, None]
        return (block.right & here).sum(axis=1), here.sum(axis=1)

    return share(blocks, _only(k, parts))


def spread(values: Sequence[float]) -> float:
    """Population standard deviation; of recalls: RStd of 2309.03882 (there times 100)."""
    shifted = [value - values[0] for value in values]  # so that equal values have none at all
    mean = math.fsum(shifted) / len(values)
    return math.sqrt(math.fsum((value - mean) * (value - mean) for value in shifted) / len(values))


def accuracy_in(blocks: Sequence[Block], order: Order) -> Share:
    """Share of questions right in one ordering, over those asked in it and with gold."""

    def parts(block: Block) -> Parts:
        same = (block.orders == np.array(order)).all(axis=2) & block.has_gold[:, None]
        return (block.right & same).sum(axis=1), same.sum(axis=1)

    return share(blocks, _only(len(order), parts))


@dataclass(frozen=True, slots=True)
class SharedOrders:
    """The orderings that every question with k options was asked in, and their accuracies.

    accuracies: over the questions with gold, empty where there is none. others: how many more
    orderings were asked of some questions.
    """

    orders: tuple[Order, ...]
    accuracies: tuple[float, ...]
    others: int


def shared_orders(blocks: Sequence[Block], k: int) -> SharedOrders:
    """Return the orderings that all questions with k options share, in the order of asking."""
    own = [block for block in blocks if block.k == k]
    rows = np.concatenate([block.orders.reshape(-1, k) for block in own])
    right = np.concatenate([block.right.reshape(-1) for block in own])
    unique, first, places, counts = np.unique(
        rows, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    everywhere = counts == sum(block.n for block in own)
    shared = [at for at in np.argsort(first).tolist() if everywhere[at]]
    times_right = np.bincount(places.reshape(-1), weights=right, minlength=len(unique))
    with_gold = sum(int(block.has_gold.sum()) for block in own)
    return SharedOrders(
        orders=tuple(tuple(unique[at].tolist()) for at in shared),
        accuracies=tuple(times_right[at] / with_gold for at in shared) if with_gold else (),
        others=len(unique) - len(shared),
    )


# Flips. None of these needs gold answers.


def flip_rate(blocks: Sequence[Block]) -> Share:
    """Share of questions of which two orderings chose different options.

    Over the questions with at least two orderings that chose.
    """
    return share(blocks, lambda b: (b.flipped_pairs > 0, b.pairs > 0))


def pairwise_flip_rate(blocks: Sequence[Block]) -> Share:
    """Mean over questions of the share of pairs of orderings that chose different options.

    The probability that two random orders of a question disagree; unlike ``flip_rate`` it does not
    grow with the number of orders asked.
    """
    return share(blocks, lambda b: (b.flipped_pairs / np.maximum(b.pairs, 1), b.pairs > 0))


def flips_by_margin(blocks: Sequence[Block], low: float, high: float) -> Share:
    """How often another order disagrees with a read of margin ``low`` ≤ margin < ``high`` (nats).

    Mean over such reads of the share of the question's other orderings that chose otherwise. A read
    is one ordering that chose, of a question with at least two such; its margin is the best less
    the second-best label's log-probability.
    """

    def parts(block: Block) -> Parts:
        chose = (block.choices != NONE) & (block.pairs > 0)[:, None]
        inside = chose & (block.margins >= low) & (block.margins < high)
        own = np.take_along_axis(block.choice_counts, np.maximum(block.choices, 0), axis=1)
        total = block.choice_counts.sum(axis=1, keepdims=True)
        disagree = (total - own) / np.maximum(total - 1, 1)
        return _row_sums(np.where(inside, disagree, 0.0)), inside.sum(axis=1)

    return share(blocks, parts)


def tie_rate(blocks: Sequence[Block]) -> Share:
    """Share of orderings without one best label."""
    return share(blocks, lambda b: ((b.picks == NONE).sum(axis=1), np.full(b.n, b.m)))


def pick_rate(blocks: Sequence[Block], k: int, position: int) -> Share:
    """Share of the orderings of k options that chose the option at a position; 1 / k is even."""
    return share(
        blocks,
        _only(k, lambda b: ((b.picks == position).sum(axis=1), (b.picks != NONE).sum(axis=1))),
    )


def answer_share(blocks: Sequence[Block], order: Order, option: int) -> Share:
    """Share of the questions asked in ``order`` that chose the option listed at ``option``."""

    def parts(block: Block) -> Parts:
        same = (block.orders == np.array(order)).all(axis=2)
        return ((block.choices == option) & same).sum(axis=1), same.sum(axis=1)

    return share(blocks, _only(len(order), parts))


def pick_counts(blocks: Sequence[Block]) -> dict[int, Ints]:
    """How often each position was chosen, int64 ``[k]`` by k.

    Of questions that show each option equally often at each position: only there would a choice by
    content alone spread evenly over the positions.
    """
    counts: dict[int, Ints] = {}
    for block in blocks:
        picks = block.picks[block.is_balanced]
        own = np.bincount(picks[picks != NONE], minlength=block.k)
        counts[block.k] = counts.get(block.k, 0) + own
    return {k: own for k, own in counts.items() if own.sum()}


def pick_chi_squared(counts: dict[int, Ints]) -> tuple[float, int]:
    """Pearson's chi-squared of picks against an even spread, and its degrees of freedom.

    ``Σ (O - E)² / E`` over positions, E = picks / k, with k - 1 degrees; groups of different k are
    added. It takes reads for independent. Those of one question aren't: where content decides they
    spread more evenly than chance and the p-value errs high; the intervals of the pick rates draw
    whole questions and don't assume it.
    """
    cells = []
    for k, observed in counts.items():
        expected = int(observed.sum()) / k
        cells += [(count - expected) ** 2 / expected for count in observed.tolist()]
    return math.fsum(cells), sum(k - 1 for k in counts)


def cramers_v(counts: dict[int, Ints]) -> float:
    """Cramér's V of picks against an even spread: ``√(χ² / Σ_k N_k (k - 1))``, N_k picks among k.

    The greatest possible chi-squared is N (k - 1), all picks on one position: V runs from 0 (even)
    to 1 (one position only), whatever N and k. The form for one margin of H. Cramér, "Mathematical
    Methods of Statistics" (1946), section 21.9.
    """
    statistic, _ = pick_chi_squared(counts)
    return math.sqrt(statistic / sum(int(own.sum()) * (k - 1) for k, own in counts.items()))


def kendall_tau(blocks: Sequence[Block]) -> Share:
    """Mean over questions of Kendall's τ-b between the rankings that two orders give.

    Options are ranked by log-probability, compared by content, averaged over all pairs of
    orderings: 1 for the same ranking always, -1 for the reverse. τ-b = (concordant - discordant) /
    √(n_a n_b) with n the pairs of options that a ranking does not tie (M. G. Kendall, "The
    treatment of ties in ranking problems", Biometrika 33 (1945) 239-251); a ranking that ties all
    options has none, and its pairs are left out.
    """
    return share(blocks, _taus)


# Probabilities.


def label_mass(blocks: Sequence[Block]) -> Share:
    """Mean over orderings of the labels' joint probability: how much of the answer they hold.

    Low mass means that the model wanted to say something else.
    """

    def parts(block: Block) -> Parts:
        return _row_sums(np.nan_to_num(block.masses)), (~np.isnan(block.masses)).sum(axis=1)

    return share(blocks, parts)


def margin(blocks: Sequence[Block]) -> Share:
    """Mean over orderings of the best less the second-best label's log-probability, nats."""
    return share(blocks, lambda b: (_row_sums(b.margins), np.full(b.n, b.m)))


def known_masses(blocks: Sequence[Block]) -> Float64s:
    """All known label masses, ascending."""
    masses = np.concatenate([block.masses.reshape(-1) for block in blocks])
    return np.sort(masses[~np.isnan(masses)])


def quantile(ordered: Float64s, fraction: float) -> float:
    """The smallest value that at least ``fraction`` of the values don't exceed."""
    return float(ordered[max(0, math.ceil(fraction * len(ordered)) - 1)])


# The noise floor: the same orderings, read a second time among other reads.


def noise_flips(blocks: Sequence[Block]) -> Share:
    """Share of the orderings read twice whose two reads chose differently; 0 when isolated."""

    def parts(block: Block) -> Parts:
        twice = np.isnan(block.repeats).sum(axis=2) == 0
        again = best(np.where(twice[:, :, None], block.repeats, block.logprobs))
        return ((again != block.picks) & twice).sum(axis=1), twice.sum(axis=1)

    return share(blocks, parts)


def noise_values(blocks: Sequence[Block]) -> Share:
    """Share of the log-probabilities read twice whose two values differ in any bit."""

    def parts(block: Block) -> Parts:
        twice = ~np.isnan(block.repeats)
        differ = block.repeats.view(np.int64) != block.logprobs.view(np.int64)
        return (differ & twice).sum(axis=(1, 2)), twice.sum(axis=(1, 2))

    return share(blocks, parts)


def noise_largest(blocks: Sequence[Block]) -> float | None:
    """The greatest difference between two reads of one log-probability, nats."""
    differences = [
        abs(block.repeats - block.logprobs)[~np.isnan(block.repeats)] for block in blocks
    ]
    joined = np.concatenate(differences)
    return float(joined.max()) if len(joined) else None


def _only(k: int, parts: Callable[[Block], Parts]) -> Callable[[Block], Parts]:
    """Leave out questions that don't have k options."""
    return lambda block: parts(block) if block.k == k else (np.zeros(block.n), np.zeros(block.n))


def _row_sums(values: Float64s) -> Float64s:
    """Return the exact sums of rows ``[n, m]``: no order of a question's orderings matters."""
    return np.array([math.fsum(row) for row in values.tolist()])


def _taus(block: Block) -> Parts:
    values = block.by_content(block.logprobs)
    a, b = np.triu_indices(block.k, 1)
    signs = np.sign(values[:, :, a] - values[:, :, b])  # [n, m, pairs of options]
    untied = (signs != 0).sum(axis=2)
    # Without ties all norms are equal, and Σ over r < s of S_r · S_s comes from one sum of whole
    # numbers: (|Σ S_r|² - Σ |S_r|²) / 2.
    total = signs.sum(axis=1)
    crossed = ((total * total).sum(axis=1) - untied.sum(axis=1)) / 2
    comparisons = block.m * (block.m - 1) // 2
    taus = crossed / max(len(a) * comparisons, 1)
    defined = np.full(block.n, float(comparisons > 0))
    for q in np.flatnonzero((untied < len(a)).any(axis=1)):
        ranked = np.flatnonzero(untied[q])
        r, s = (ranked[index] for index in np.triu_indices(len(ranked), 1))
        products = (signs[q, r] * signs[q, s]).sum(axis=1)
        own = products / np.sqrt(untied[q, r] * untied[q, s])
        taus[q] = math.fsum(own) / max(len(own), 1)
        defined[q] = len(own) > 0
    return taus, defined
