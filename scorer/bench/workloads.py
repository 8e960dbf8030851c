"""The prompts of a benchmark: seeded random token ids of given lengths, two targets each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.errors import UsageError
from scorer.reduction import RowRequests
from scorer.shapes import BatchShape, IntArray, Read

NAMES: Final = ("60", "170", "mix", "orderings")
TARGETS: Final = (32, 33)
"""The ids whose log-probability is asked for: of two labels, ``A`` and ``B`` in Qwen3."""

_SHORTEST, _LONGEST = 20, 1500
_MEDIAN, _SIGMA = 170, 0.9


@dataclass(frozen=True, slots=True)
class Orderings:
    """Records that are asked in several orders: what their reads have in common, and what not.

    reads: of a record. prefix: tokens that all of them begin with. own: tokens of each behind it.
    """

    reads: int = 4
    prefix: int = 256
    own: int = 48


ORDERINGS: Final = Orderings()


@dataclass(frozen=True, slots=True)
class Workload:
    """Reads of one kind, in the order in which they come.

    together: how many in a row are of one record.
    """

    name: str
    about: str
    reads: tuple[Read, ...]
    together: int = 1

    @property
    def tokens(self) -> int:
        """The tokens of all reads."""
        return sum(len(read) for read in self.reads)


def make(
    name: str,
    shape: BatchShape,
    *,
    forwards: int,
    n_ids: int,
    max_tokens: int,
    seed: int,
    orderings: Orderings = ORDERINGS,
) -> Workload:
    """Return reads that hold at least ``forwards`` times T tokens.

    name: one of NAMES; a number is every read's length, ``mix`` draws it from a lognormal
    distribution (median 170, sigma 0.9 of its logarithm) cut to 20 … 1500 tokens. Reads of one
    length come in multiples of what a forward holds, so that none is part empty. n_ids: ids are
    drawn below it. max_tokens: the model's limit; nothing longer is drawn. orderings: what
    ``orderings`` are like; a prefix counts once for the tokens. Raises UsageError for reads that
    don't fit one forward or the model.
    """
    rng = np.random.default_rng([seed, NAMES.index(name)])
    wanted = forwards * shape.tokens
    if name == "orderings":
        return _orderings(orderings, shape, wanted, n_ids, max_tokens, rng)
    if name == "mix":
        longest = min(_LONGEST, max_tokens)
        lengths = _mixed(wanted, longest, rng)
        about = f"lognormal mix of {_SHORTEST} to {longest} tokens, {lengths.mean():.0f} on average"
    else:
        length = int(name)
        together = max(min(shape.rows, shape.tokens // length), 1)
        count = -(-wanted // (length * together)) * together
        lengths = np.full(count, length)
        about = f"{name} tokens each"
    return Workload(name, about, tuple(_read(int(n), n_ids, rng) for n in lengths))


def _orderings(
    asked: Orderings,
    shape: BatchShape,
    wanted: int,
    n_ids: int,
    max_tokens: int,
    rng: np.random.Generator,
) -> Workload:
    length, most = asked.prefix + asked.own, min(shape.tokens, max_tokens)
    if length > most:
        raise UsageError(
            f"--prefix {asked.prefix} and --own {asked.own} are {length} tokens together, more "
            f"than the {most} that a forward of this model takes; shorten them"
        )
    once = asked.prefix + asked.reads * asked.own
    together = max(min(shape.rows // asked.reads, shape.tokens // once), 1)
    count = -(-wanted // (once * together)) * together
    reads: list[Read] = []
    for _ in range(count):
        prefix = rng.integers(0, n_ids, size=asked.prefix, dtype=np.int32)
        for _ in range(asked.reads):
            own = rng.integers(0, n_ids, size=asked.own, dtype=np.int32)
            reads.append(_of(np.concatenate([prefix, own])))
    about = f"{asked.reads} orderings of {asked.prefix} shared and {asked.own} own tokens"
    return Workload("orderings", about, tuple(reads), together=asked.reads)


def _mixed(wanted: int, longest: int, rng: np.random.Generator) -> IntArray:
    lengths = np.zeros(0, dtype=np.int32)
    while lengths.sum() < wanted:
        drawn = np.rint(rng.lognormal(np.log(_MEDIAN), _SIGMA, size=1024)).astype(np.int32)
        lengths = np.concatenate([lengths, drawn[(drawn >= _SHORTEST) & (drawn <= longest)]])
    return lengths[: int(np.searchsorted(lengths.cumsum(), wanted)) + 1]


def one_read(length: int, n_ids: int, seed: int) -> Read:
    """Return a read by itself, for a start."""
    return _read(length, n_ids, np.random.default_rng(seed))


def _read(length: int, n_ids: int, rng: np.random.Generator) -> Read:
    return _of(rng.integers(0, n_ids, size=length, dtype=np.int32))


def _of(tokens: IntArray) -> Read:
    return Read(tokens, np.array([len(tokens) - 1], np.int32), RowRequests.of([TARGETS], [0]))


def spread(reads: Sequence[Read], count: int) -> list[int]:
    """Return the indices of at most ``count`` reads whose lengths are spread as those of all."""
    by_length = sorted(range(len(reads)), key=lambda index: len(reads[index]))
    count = min(count, len(reads))
    return [by_length[(2 * place + 1) * len(reads) // (2 * count)] for place in range(count)]
