"""Batch shapes: how large a read's forward is, and where reads lie in the one they share.

Pure: nothing here knows of models or devices. The shape of the forward in which a read is computed
is a function of the read's own token count. Which reads keep it company, where it lies, and whether
it shares its beginning with others, may be anything: no bit of a score depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scorer.errors import UsageError
from scorer.reduction import RowRequests

IntArray = npt.NDArray[np.int32]

FILLER_TOKEN = 0
"""The id that fills a forward behind its last read. Its content can't reach any read."""

FILLER_SEGMENT = 256
"""Longest run of filler tokens that attend to one another; keeps the attention of filler cheap."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """One token sequence, one forward pass, next-token distributions at chosen positions.

    tokens: int32 ``[n]``, n >= 1.
    positions: int32 ``[m]``, strictly increasing in ``0 … n - 1``: the tokens after which the
        distribution of the next token is read.
    requests: what to report of those m distributions, one row each, in the same order.
    """

    tokens: IntArray
    positions: IntArray
    requests: RowRequests

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if n == 0:
            raise ValueError("a read needs at least one token, got none")
        if len(self.positions) != len(self.requests.top_k):
            raise ValueError(
                f"a read needs one request row for each position, got {len(self.positions)} "
                f"positions and {len(self.requests.top_k)} request rows"
            )
        inside = len(self.positions) == 0 or (self.positions[0] >= 0 and self.positions[-1] < n)
        several = len(self.positions) > 1
        if not inside or (several and bool(np.any(np.diff(self.positions) <= 0))):
            raise ValueError(f"positions must increase strictly within 0 … {n - 1}")

    def __len__(self) -> int:
        return len(self.tokens)


def last_read(tokens: IntArray) -> Read:
    """Return a read of which the last distribution's chosen token is asked for."""
    return Read(tokens, np.array([len(tokens) - 1], np.int32), RowRequests.of([[]], [0]))


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The two sizes that every matrix product of a process sees.

    tokens: T, the tokens of every forward pass. rows: R, the rows of every lm_head call.
    """

    tokens: int
    rows: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"--tokens-per-forward must be at least 1, got {self.tokens}")
        if self.rows < 1:
            raise UsageError(f"--rows-per-forward must be at least 1, got {self.rows}")

    def rung(self, length: int) -> int:
        """Return the tokens of the forward in which a read of ``length`` tokens is computed.

        T when the read fits, else the first of 2T, 4T, … that holds it. A function of the read's
        own length alone.
        """
        rung = self.tokens
        while rung < length:
            rung *= 2
        return rung

    def rungs(self, limit: int) -> list[int]:
        """Return every rung that a read of up to ``limit`` tokens can need, ascending."""
        rungs = [self.tokens]
        while rungs[-1] < limit:
            rungs.append(rungs[-1] * 2)
        return rungs


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What one forward of T tokens is given.

    input_ids: int32 ``[T]``. position_ids: int32 ``[T]``, each token's logical position in its
    read. segments: int32 ``[n, 4]``; columns start, length, prefix_start, prefix_length. Segments
    lie end to end and cover T, filler in pieces of at most ``FILLER_SEGMENT``. A segment's tokens
    have the logical positions ``prefix_length … prefix_length + length - 1``; its keys at logical
    positions ``p < prefix_length`` lie at ``prefix_start + p``, the others at
    ``start + p - prefix_length``. What shares nothing has prefix_start and prefix_length 0.
    rows: int32 ``[rows]``: where in the forward each requested distribution is read, read by read.
    """

    input_ids: IntArray
    position_ids: IntArray
    segments: IntArray
    rows: IntArray

    @property
    def shared(self) -> bool:
        """Whether any segment has a prefix."""
        return bool(self.segments[:, 3].any())

    @property
    def offsets(self) -> list[int]:
        """The ascending offsets ``[0, …, T]`` between segments; only where nothing is shared."""
        assert not self.shared, "segments with a prefix are more than offsets"
        return [*self.segments[:, 0].tolist(), len(self.input_ids)]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Reads of one record whose first ``prefix`` tokens are the same and are computed once.

    reads: in order, at least one. keys: the caller's own name of each. prefix: 0 for a read by
    itself, at most the length of the shortest. tokens: those that are computed, the prefix once and
    each read's own rest. read_tokens: those of the reads, as if nothing were shared.
    """

    reads: tuple[Read, ...]
    keys: tuple[int, ...]
    prefix: int = 0
    tokens: int = field(init=False)
    read_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        whole = sum([len(read.tokens) for read in self.reads])
        object.__setattr__(self, "read_tokens", whole)
        object.__setattr__(self, "tokens", whole - self.prefix * (len(self.reads) - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Groups of reads laid end to end in one forward of ``tokens`` tokens, the rest filler.

    groups: in the order in which they lie. tokens: the tokens of the forward; the groups' sum is
    at most this.
    """

    groups: tuple[Group, ...]
    tokens: int

    @classmethod
    def apart(cls, reads: Sequence[Read], tokens: int) -> Batch:
        """Return a batch of reads that share nothing; their keys are their places."""
        groups = [Group((read,), (place,)) for place, read in enumerate(reads)]
        return cls(tuple(groups), tokens)

    @property
    def reads(self) -> tuple[Read, ...]:
        """All reads, in order."""
        return tuple(read for group in self.groups for read in group.reads)

    @property
    def keys(self) -> tuple[int, ...]:
        """The caller's name of each read, in the order of ``reads``."""
        return tuple(key for group in self.groups for key in group.keys)

    @property
    def real_tokens(self) -> int:
        """The tokens that are computed and no filler: a shared prefix counts once."""
        return sum(group.tokens for group in self.groups)

    @property
    def read_tokens(self) -> int:
        """The tokens of the reads, as if nothing were shared."""
        return sum(group.read_tokens for group in self.groups)

    def layout(self) -> Layout:
        """Lay the batch out: a group's prefix, then each read's own rest, then filler.

        A read that is no longer than its group's prefix has no segment of its own.
        """
        ids: list[IntArray] = []
        segments: list[tuple[int, int, int, int]] = []
        places: list[tuple[int, int, int]] = []  # of each read: prefix, where it and the rest lie
        end = 0
        for group in self.groups:
            prefix, prefix_start = group.prefix, end if group.prefix else 0
            if prefix:
                ids.append(group.reads[0].tokens[:prefix])
                segments.append((end, prefix, 0, 0))
                end += prefix
            for read in group.reads:
                places.append((prefix, prefix_start, end - prefix))
                if own := len(read.tokens) - prefix:
                    ids.append(read.tokens[prefix:] if prefix else read.tokens)
                    segments.append((end, own, prefix_start, prefix))
                    end += own
        ids.append(np.full(self.tokens - end, FILLER_TOKEN, dtype=np.int32))
        segments += [
            (start, min(FILLER_SEGMENT, self.tokens - start), 0, 0)
            for start in range(end, self.tokens, FILLER_SEGMENT)
        ]
        table = np.array(segments, dtype=np.int32)
        first = np.repeat(table[:, 3] - table[:, 0], table[:, 1])
        return Layout(
            input_ids=np.concatenate(ids),
            position_ids=np.arange(self.tokens, dtype=np.int32) + first,
            segments=table,
            rows=_rows(self.reads, places),
        )


def _rows(reads: Sequence[Read], places: Sequence[tuple[int, int, int]]) -> IntArray:
    """Return where the positions that reads ask about lie in the forward."""
    positions = np.concatenate([read.positions for read in reads])
    table = np.array(places, dtype=np.int32)
    counts = [len(read.positions) for read in reads]
    prefix, prefix_start, rest = np.repeat(table, counts, axis=0).T
    rows: IntArray = positions + np.where(positions < prefix, prefix_start, rest)
    return rows


def max_segments(tokens: int, rows: int) -> int:
    """Return the most segments of a layout of ``tokens`` tokens.

    A bound by shape alone, so that tables of segments have one size whatever the batch: R reads,
    a prefix for every two of them, and filler. There is room for 32 reads at least, which the
    self-test's probes need.
    """
    reads = max(rows, 32)
    return reads + reads // 2 + -(-tokens // FILLER_SEGMENT)
