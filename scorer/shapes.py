"""Batch shapes and packing: which reads share a forward pass, and where each one lies in it.

Pure: nothing here knows of models or devices. The shape of the forward in which a read is computed
is a function of the read's own token count. Which reads keep it company, and where it lies, may be
anything: no bit of a score depends on them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

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
class Batch:
    """Reads laid end to end in one forward of ``tokens`` tokens, the rest filler.

    reads: in the order in which they lie. keys: the caller's own name of each read.
    tokens: the tokens of the forward; the sum of the reads' lengths is at most this.
    """

    reads: tuple[Read, ...]
    keys: tuple[int, ...]
    tokens: int

    @property
    def real_tokens(self) -> int:
        """The tokens of the reads, filler not counted."""
        return sum(len(read) for read in self.reads)

    def input_ids(self) -> IntArray:
        """Return int32 ``[tokens]``: the reads' tokens, then filler."""
        ids = np.full(self.tokens, FILLER_TOKEN, dtype=np.int32)
        joined = np.concatenate([read.tokens for read in self.reads])
        ids[: len(joined)] = joined
        return ids

    def boundaries(self) -> list[int]:
        """Return the ascending offsets ``[0, …, tokens]`` between the segments that attend apart.

        One segment a read, then the filler in pieces of at most ``FILLER_SEGMENT``.
        """
        offsets = [0]
        for read in self.reads:
            offsets.append(offsets[-1] + len(read))
        while offsets[-1] < self.tokens:
            offsets.append(min(offsets[-1] + FILLER_SEGMENT, self.tokens))
        return offsets

    def position_ids(self) -> IntArray:
        """Return int32 ``[tokens]``: each segment counts from 0."""
        return np.concatenate(
            [np.arange(end - start, dtype=np.int32) for start, end in pairwise(self.boundaries())]
        )

    def row_indices(self) -> IntArray:
        """Return int32 ``[rows]``: where in the forward each requested distribution is read."""
        offset = 0
        parts = []
        for read in self.reads:
            parts.append(read.positions + np.int32(offset))
            offset += len(read)
        return np.concatenate(parts)


def max_segments(tokens: int, rows: int) -> int:
    """Return the most segments that ``Batch.boundaries`` gives for a forward of ``tokens``.

    A bound by shape alone, so that arrays of boundaries have one size whatever the batch. There is
    room for 32 reads at least, which the self-test's probes need.
    """
    return max(rows, 32) + -(-tokens // FILLER_SEGMENT)


class Packer:
    """A bounded window of reads, handed out as full batches.

    The first half of each batch, by tokens or by reads, are the reads that have waited longest, so
    that none waits for more than a few batches; the rest is the longest waiting read that still
    fits, again and again. At most R reads share a forward, so that their
    last positions fit one lm_head call. Reads longer than T, and every read in ``alone`` mode, go
    by themselves.

    shape: T and R. alone: one read a forward, at its own exact length.
    window: how many tokens wait before a batch is handed out; more fills batches better and
    delays the first result.
    """

    def __init__(self, shape: BatchShape, *, alone: bool, window: int) -> None:
        self.shape = shape
        self.alone = alone
        self.window = window
        self.waiting_tokens = 0
        self._waiting: dict[int, Read] = {}
        self._keys: dict[int, deque[int]] = {}  # by length, each from the oldest to the youngest
        self._lengths: list[int] = []  # those that wait, ascending
        self._order: deque[int] = deque()  # keys from the oldest on, some of them gone already

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether enough reads wait for a well filled batch."""
        return self.waiting_tokens >= self.window or len(self._waiting) >= 8 * self.shape.rows

    def add(self, key: int, read: Read) -> None:
        """Put a read in the window. Keys must be distinct and rise in the order of adding."""
        self._waiting[key] = read
        self._order.append(key)
        length = len(read.tokens)
        keys = self._keys.get(length)
        if keys is None:
            keys = self._keys[length] = deque()
            insort(self._lengths, length)
        keys.append(key)
        self.waiting_tokens += length

    def pop(self) -> Batch:
        """Take the next batch out of the window. Raises IndexError when the window is empty."""
        if not self._waiting:
            raise IndexError("no reads are waiting")
        length = self._oldest_length()
        keys, reads = [], []
        tokens, room = length, 0
        if not self.alone:
            tokens = self.shape.rung(length)
            room = self.shape.tokens
        while True:
            key = self._oldest_of(length)
            keys.append(key)
            reads.append(self._waiting.pop(key))
            room -= length
            if room <= 0 or len(keys) == self.shape.rows or not self._waiting:
                break
            length = self._oldest_length()
            half = 2 * room > self.shape.tokens and 2 * len(keys) < self.shape.rows
            if not half or length > room:
                index = bisect_right(self._lengths, room) - 1
                if index < 0:
                    break
                length = self._lengths[index]
        self.waiting_tokens -= sum(len(read.tokens) for read in reads)
        return Batch(reads=tuple(reads), keys=tuple(keys), tokens=tokens)

    def _oldest_length(self) -> int:
        """The length of the read that has waited longest."""
        while self._order[0] not in self._waiting:
            self._order.popleft()
        return len(self._waiting[self._order[0]].tokens)

    def _oldest_of(self, length: int) -> int:
        """Take out the key of the read of a length that has waited longest."""
        keys = self._keys[length]
        key = keys.popleft()
        if not keys:
            del self._keys[length]
            self._lengths.remove(length)
        return key
