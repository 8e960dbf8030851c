"""The device's turns: what records ask is packed, launched and collected until records are whole.

One thread does all of it and waits for nothing but the device. Records come in chunks and leave in
stretches, in order; a row's bits depend on neither.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from scorer.asks import Ask
from scorer.errors import DeviceError, IsolationError
from scorer.packing import Packer

if TYPE_CHECKING:
    from scorer.reader import InFlight, Reader
    from scorer.shapes import Batch, Read
    from scorer.tables import ReadResult

_WINDOW_FORWARDS: Final = 8
"""The packing window in forwards of T tokens: more fills better, less answers sooner."""

LAUNCH_ERRORS: Final = (DeviceError, IsolationError)
"""What a launch may raise, at any batch: a rung's self-test runs where the rung is first used."""

PYTHONS_OWN: Final = 1000
"""More objects than Python itself may have frozen when it starts; 3.12 has some hundred."""

_Origin = TypeVar("_Origin")


class Chunk(Generic[_Origin]):
    """Records in a row, and the results of their reads so far.

    origin: whatever the caller knows them by. asks: of each record. lines: of each record its line
    of the input, where records of one line belong together.
    """

    __slots__ = ("asks", "ends", "first", "lines", "origin", "results", "whole")

    def __init__(
        self, origin: _Origin, asks: Sequence[Sequence[Ask]], lines: Sequence[int] | None = None
    ) -> None:
        self.origin = origin
        self.asks = asks
        self.lines = lines
        self.ends = list(accumulate(map(len, asks)))  # of each record, the reads up to its end
        self.first = 0  # the key of its first read
        self.whole = 0  # records that have been handed on
        self.results: list[ReadResult | None] = [None] * (self.ends[-1] if self.ends else 0)


class Stretch(NamedTuple, Generic[_Origin]):
    """Records of one chunk that are whole: which, and the results of all their reads, in order.

    last: whether the chunk ends with them.
    """

    origin: _Origin
    start: int
    end: int
    results: list[ReadResult]
    last: bool


class Turns(Generic[_Origin]):
    """Computes chunks with one reader.

    stop: asked at every record; when true, what is in flight is collected and the records that are
    whole in order come, but no others.
    """

    def __init__(self, reader: Reader, stop: Callable[[], bool]) -> None:
        self._reader = reader
        self._stop = stop
        self._packer = Packer(
            reader.shape,
            alone=reader.alone,
            window=_WINDOW_FORWARDS * reader.shape.tokens,
            share=reader.share,
        )
        self._chunks: deque[Chunk[_Origin]] = deque()  # those that are not whole, in order
        self._owners: dict[int, Chunk[_Origin]] = {}  # of each read that waits
        self._flights: deque[InFlight] = deque()  # launched, the oldest first
        self._reads = 0  # of all chunks so far
        self._launched = 0  # batches

    def run(self, chunks: Iterable[Chunk[_Origin]]) -> Iterator[Stretch[_Origin]]:
        """Yield the chunks' records in order, as they become whole.

        When a launch fails, records that were whole before still come, then the DeviceError or
        IsolationError. Nothing is left in flight, also where the caller takes no more.
        """
        # What there is by now, stays. To look through all that the libraries hold takes Python 0.2
        # s, again and again, and longer than a device has work waiting. Where something is frozen
        # already, it is another's to unfreeze.
        freezes = gc.get_freeze_count() < PYTHONS_OWN
        if freezes:
            gc.freeze()
        try:
            for _ in self._turns(chunks):
                yield from self._stretches()
        except LAUNCH_ERRORS:
            yield from self._stretches()
            raise
        finally:
            if freezes:
                gc.unfreeze()
            with suppress(DeviceError):  # what comes back now, nobody asks for
                while self._flights:
                    self._reader.wait(self._flights.popleft())

    def _turns(self, chunks: Iterable[Chunk[_Origin]]) -> Iterator[None]:
        """Yields whenever the first records may be whole."""
        packer, stop = self._packer, self._stop
        key = 0
        for reads in self._records(chunks):
            if stop():
                break
            if not reads:
                yield
                continue
            packer.add(range(key, key + len(reads)), reads)
            key += len(reads)
            while self._due and not stop():
                self._turn(packer.pop())
                yield
        while self._flights or (len(packer) and not stop()):
            self._turn(packer.pop() if len(packer) and not stop() else None)
            yield

    @property
    def _due(self) -> bool:
        """Whether enough reads wait for the next batch.

        Where the device computes beside the host it begins with the first batch there is; the
        window grows batch by batch, and so does how well they are filled.
        """
        packer = self._packer
        return packer.full or (self._reader.depth > 1 and packer.holds(self._launched + 1))

    def _records(self, chunks: Iterable[Chunk[_Origin]]) -> Iterator[list[Read]]:
        """Yield the reads of each record, or of all records in a row that have the same line; none
        at the end of a chunk.
        """
        joined: list[Read] = []
        before: int | None = None
        for chunk in chunks:
            chunk.first = self._reads
            self._reads += len(chunk.results)
            self._chunks.append(chunk)
            self._owners.update(dict.fromkeys(range(chunk.first, self._reads), chunk))
            if chunk.lines is None:
                for asks in chunk.asks:
                    yield [ask.read() for ask in asks]
            else:
                for line, asks in zip(chunk.lines, chunk.asks, strict=True):
                    if line != before:
                        yield joined
                        joined, before = [], line
                    joined += [ask.read() for ask in asks]
            yield []
        yield joined

    def _turn(self, batch: Batch | None) -> None:
        """Launch a batch, and take in the oldest one in flight meanwhile.

        The oldest is waited for when as many are in flight as the reader takes, or when there is
        nothing to launch. When a launch fails, what was in flight is still collected.
        """
        reader, flights = self._reader, self._flights
        oldest = None
        if flights and (batch is None or len(flights) >= reader.depth):
            oldest = flights.popleft()
            reader.wait(oldest)
        try:
            if batch is not None:
                flights.append(reader.launch(batch))
                self._launched += 1
        except LAUNCH_ERRORS:
            if oldest is not None:
                self._take(oldest)
            with suppress(DeviceError):  # of the fault that is raised already
                while flights:
                    self._take(flights.popleft())
            raise
        if oldest is not None:
            self._take(oldest)

    def _take(self, flight: InFlight) -> None:
        """Take in a batch's results."""
        owners = self._owners
        for key, result in zip(flight.batch.keys, self._reader.results(flight), strict=True):
            chunk = owners.pop(key)
            chunk.results[key - chunk.first] = result

    def _stretches(self) -> Iterator[Stretch[_Origin]]:
        """Yield what is whole at the front."""
        while self._chunks:
            chunk = self._chunks[0]
            ends, start = chunk.ends, chunk.whole
            first = ends[start - 1] if start else 0
            try:
                missing = chunk.results.index(None, first)
            except ValueError:
                missing = len(chunk.results)
            end = bisect_right(ends, missing)
            if end > start:
                results = chunk.results[first : ends[end - 1]]
                chunk.whole = end
                last = end == len(ends)
                yield Stretch(chunk.origin, start, end, results, last)  # type: ignore[arg-type]
            if end < len(ends):
                return
            self._chunks.popleft()
