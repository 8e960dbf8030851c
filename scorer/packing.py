"""Packing: which reads of a record share their beginning, and which records share a forward.

Pure. What a record's reads share is a function of the record alone; what else is in the forward is
whatever fits.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence

from scorer.shapes import Batch, BatchShape, Group, IntArray, Read


class Packer:
    """A bounded window of reads, handed out as full batches.

    The first half of each batch, by tokens or by reads, are those that have waited longest, so that
    none waits for more than a few batches; the rest is the largest that still fits, again and
    again. At most R reads share a forward, so that their last positions fit one lm_head call. Reads
    longer than T, and every read in ``alone`` mode, go by themselves.

    shape: T and R. alone: one read a forward, at its own exact length. window: how many tokens wait
    before a batch is handed out; more fills batches better and delays the first result. share:
    reads of one record share their common prefix; not in ``alone`` mode.
    """

    def __init__(self, shape: BatchShape, *, alone: bool, window: int, share: bool) -> None:
        self.shape = shape
        self.alone = alone
        self.window = window
        self.share = share and not alone
        self.waiting_tokens = 0
        self._waiting_reads = 0
        self._waiting: dict[int, Group] = {}  # by the first key of each
        self._names: dict[int, deque[int]] = {}  # by tokens, each from the oldest to the youngest
        self._sizes: list[int] = []  # those that wait, ascending
        self._order: deque[int] = deque()  # names from the oldest on, some of them gone already

    def __len__(self) -> int:
        return self._waiting_reads

    @property
    def full(self) -> bool:
        """Whether enough reads wait for a well filled batch."""
        return self.waiting_tokens >= self.window or self._waiting_reads >= 8 * self.shape.rows

    def holds(self, forwards: int) -> bool:
        """Whether enough reads wait for so many batches."""
        tokens, reads = forwards * self.shape.tokens, forwards * self.shape.rows
        return self.waiting_tokens >= tokens or self._waiting_reads >= reads

    def add(self, keys: Sequence[int], reads: Sequence[Read]) -> None:
        """Put the reads of one record in the window. Keys must be distinct."""
        if self.share and len(reads) > 1:
            for group in share_prefixes(keys, reads, self.shape):
                self._add(group)
        else:
            for key, read in zip(keys, reads, strict=True):
                self._add(Group((read,), (key,)))

    def _add(self, group: Group) -> None:
        name, size = group.keys[0], group.tokens
        self._waiting[name] = group
        self._order.append(name)
        names = self._names.get(size)
        if names is None:
            names = self._names[size] = deque()
            insort(self._sizes, size)
        names.append(name)
        self.waiting_tokens += size
        self._waiting_reads += len(group.reads)

    def pop(self) -> Batch:
        """Take the next batch out of the window. Raises IndexError when the window is empty."""
        if not self._waiting:
            raise IndexError("no reads are waiting")
        group = self._take(self._oldest().tokens)
        size = group.tokens
        if self.alone:
            return Batch((group,), size)
        groups = [group]
        room, slots = self.shape.tokens - size, self.shape.rows - len(group.reads)
        while room > 0 and slots > 0 and self._waiting:
            oldest = self._oldest()
            half = 2 * room > self.shape.tokens and 2 * slots > self.shape.rows
            if half and oldest.tokens <= room and len(oldest.reads) <= slots:
                fitting: int | None = oldest.tokens
            else:
                fitting = self._largest(room, slots)
            if fitting is None:
                break
            groups.append(self._take(fitting))
            room -= fitting
            slots -= len(groups[-1].reads)
        return Batch(tuple(groups), self.shape.rung(size))

    def _oldest(self) -> Group:
        """What has waited longest."""
        while self._order[0] not in self._waiting:
            self._order.popleft()
        return self._waiting[self._order[0]]

    def _largest(self, room: int, slots: int) -> int | None:
        """The tokens of the largest that fits by tokens and by reads, None where nothing does."""
        for index in range(bisect_right(self._sizes, room) - 1, -1, -1):
            size = self._sizes[index]
            if len(self._waiting[self._names[size][0]].reads) <= slots:
                return size
        return None

    def _take(self, size: int) -> Group:
        """Take out what has waited longest of those of a size."""
        names = self._names[size]
        group = self._waiting.pop(names.popleft())
        if not names:
            del self._names[size]
            self._sizes.remove(size)
        self.waiting_tokens -= size
        self._waiting_reads -= len(group.reads)
        return group


def share_prefixes(keys: Sequence[int], reads: Sequence[Read], shape: BatchShape) -> list[Group]:
    """Return the reads of one record in groups that share their common prefix.

    In the reads' order: one joins the group before it when that saves more tokens than the group
    alone does, the group still fits one forward by T and by R, and takes no more of forwards than
    the two apart: a group can't be divided, and what is large packs badly (see ``_claim``). Reads
    longer than T run on other rungs, each by itself. A function of the reads and the shape alone.
    """
    groups: list[Group] = []
    members: list[int] = []  # of the group that is open, by place
    total = common = 0  # their tokens, and how many the first of them are the same

    def close() -> None:
        if members:
            chosen = tuple(reads[place] for place in members)
            prefix = common if len(members) > 1 else 0
            groups.append(Group(chosen, tuple(keys[place] for place in members), prefix))

    for place, read in enumerate(reads):
        size = len(read.tokens)
        if size > shape.tokens:
            groups.append(Group((read,), (keys[place],)))
            continue
        others = len(members)
        if 0 < others < shape.rows:
            shorter = min(common, _common_prefix(reads[members[0]].tokens, read.tokens))
            saved, before = others * shorter, (others - 1) * common
            apart = _claim(total - before, shape.tokens) + _claim(size, shape.tokens)
            if saved > before and _claim(total + size - saved, shape.tokens) <= apart:
                members.append(place)
                total, common = total + size, shorter
                continue
        close()
        members, total, common = [place], size, size
    close()
    return groups


def _claim(size: int, tokens: int) -> float:
    """Return what something of ``size`` tokens takes of a forward that is filled with its like.

    What is small leaves no room that others couldn't fill.
    """
    if size <= tokens // 8:
        return size
    return tokens / (tokens // size) if size <= tokens else math.inf


def _common_prefix(a: IntArray, b: IntArray) -> int:
    """Return how many of the first tokens are the same."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n
