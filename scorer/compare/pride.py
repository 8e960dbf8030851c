"""PriDe: the labels' prior, estimated on some questions and taken out of the others' answers.

Pure. Zheng et al., "Large Language Models Are Not Robust Multiple Choice Selectors", arXiv
2309.03882, section 4, and their code (github.com/chujiezheng/LLM-MCQ-Bias, debias_pride.py). What
is read, P(label | question, order), is taken to be proportional to P_prior(label) × P(content).
Over orders that show every content behind every label equally often the contents cancel in the
mean logarithm:

    prior of a question  softmax over labels of the mean over orders of ln P(label)
    prior                mean of the priors of the estimation questions
    answer               argmax over labels of ln P(label | listed order) - ln prior(label)

The figures here are over the questions that the prior was not estimated on; the authors' tables
also count the estimation questions, answered by the mean over their orders.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorer.compare.blocks import NONE, Block, Bools, Float64s, Ints, best
from scorer.compare.orderings import softmaxes
from scorer.compare.stats import Share
from scorer.errors import UsageError
from scorer.numeric import ln


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The labels' prior of questions with k options, float64 ``[k]``, and what it comes from.

    estimated: questions it is estimated on. applied: questions it is applied to.
    """

    values: Float64s
    estimated: int
    applied: int


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Answers in the listed order, over the questions with gold that the prior is applied to.

    accuracy: whether right. recalls: the same by k and gold position.
    """

    accuracy: Share
    recalls: dict[int, list[Share]]


@dataclass(frozen=True, slots=True, eq=False)
class Debiased:
    """The priors by k, and the answers without and with them.

    A k is missing where no question is left to estimate on or to apply to.
    """

    priors: dict[int, Prior]
    plain: Answers
    debiased: Answers


def check_fraction(fraction: float) -> None:
    """Raise UsageError unless the fraction of questions to estimate on is 0 (none) to below 1."""
    if not 0 <= fraction < 1:
        raise UsageError(f"--pride-fraction must be at least 0 and below 1, got {fraction}")


def debias(blocks: Sequence[Block], fraction: float, seed: int) -> Debiased:
    """Estimate on a fraction of the questions (at least one of each k), apply to the rest.

    Which questions are drawn is decided by the seed and their content hashes. A prior comes from
    orders that show each option equally often at each position; it is applied to questions that
    were asked in the listed order. fraction 0: nothing is estimated.
    """
    drawn = _drawn(blocks, fraction, seed)
    listed = [block.places_of(tuple(range(block.k))) for block in blocks]
    applied = [(at != NONE) & ~own for at, own in zip(listed, drawn, strict=True)]
    priors = {}
    for k in sorted({block.k for block in blocks}):
        own = [at for at, block in enumerate(blocks) if block.k == k]
        rest = sum(int(applied[at].sum()) for at in own)
        means = [row for at in own for row in blocks[at].label_means[drawn[at]].tolist()]
        if means and rest:
            priors[k] = Prior(_mean(softmaxes(means)), len(means), rest)
    before, after = [], []
    for block, at, rest_of in zip(blocks, listed, applied, strict=True):
        if block.k not in priors:
            rest_of[:] = False
            prior = np.zeros(block.k)
        else:
            prior = ln(priors[block.k].values)
        read = block.logprobs[np.arange(block.n), np.maximum(at, 0)]
        before.append(best(read))
        after.append(best(read - prior))
    return Debiased(
        priors,
        _answers(blocks, applied, before, list(priors)),
        _answers(blocks, applied, after, list(priors)),
    )


def _drawn(blocks: Sequence[Block], fraction: float, seed: int) -> list[Bools]:
    """Return which questions of each block a prior is estimated on, ``[n]`` each."""
    lots = {
        key: hashlib.sha256(f"{seed}:pride:{key}".encode()).digest()
        for block in blocks
        for key in block.keys
    }
    limits = {}
    for k in {block.k for block in blocks}:
        keys = {
            key
            for block in blocks
            if block.k == k
            for key, even in zip(block.keys, block.is_balanced, strict=True)
            if even
        }
        if keys and fraction:
            limits[k] = sorted(lots[key] for key in keys)[max(1, round(fraction * len(keys))) - 1]
    return [
        np.array([block.k in limits and lots[key] <= limits[block.k] for key in block.keys])
        & block.is_balanced
        for block in blocks
    ]


def _mean(rows: Sequence[Sequence[float]]) -> Float64s:
    return np.array([math.fsum(column) / len(rows) for column in zip(*rows, strict=True)])


def _answers(
    blocks: Sequence[Block], applied: Sequence[Bools], picks: Sequence[Ints], ks: Sequence[int]
) -> Answers:
    def over(k: int | None, position: int | None) -> Share:
        """Count questions with k options and gold at a position, None for any."""
        tops, bottoms = [], []
        for block, own, picked in zip(blocks, applied, picks, strict=True):
            mask = own & block.has_gold
            if k is not None:
                mask &= (block.gold == position) & (block.k == k)
            tops.append(mask & (picked == block.gold))
            bottoms.append(mask)
        return Share(
            np.concatenate(tops).astype(np.float64), np.concatenate(bottoms).astype(np.float64)
        )

    return Answers(over(None, None), {k: [over(k, place) for place in range(k)] for k in ks})
