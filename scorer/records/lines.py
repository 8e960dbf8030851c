"""An input in pieces of whole lines, each with the hash of all that stands before it.

A piece is what is read, sent and parsed at once: some tens of kilobytes, so that nothing is paid
for line by line that can be paid for by the hundred.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

BOM: Final = b"\xef\xbb\xbf"
JSON_SPACE: Final = b" \t\r\n"
# A line that is longer, with its ending, is never held: a few bytes of a compressed file can stand
# for terabytes.
LONGEST_LINE: Final = 1 << 28
PIECE: Final = 1 << 16
"""Bytes that are read at once: a piece is about as long, or one line."""


class Digest:
    """How many bytes were read, and their hash."""

    __slots__ = ("bytes", "sha256")

    def __init__(self) -> None:
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self.bytes += len(data)
        self.sha256.update(data)

    def copy(self) -> Digest:
        """The same bytes; what is added to one is not added to the other."""
        copied = Digest.__new__(Digest)
        copied.bytes = self.bytes
        copied.sha256 = self.sha256.copy()
        return copied

    def plus(self, data: bytes | memoryview) -> Digest:
        """These bytes and then ``data``."""
        longer = self.copy()
        longer.add(data)
        return longer


@dataclass(frozen=True, slots=True)
class End:
    """The end of a line: its number, and all bytes up to there with their hex SHA-256."""

    line: int
    bytes: int
    sha256: str


class Piece(msgspec.Struct, frozen=True):
    """Whole lines of an input, in order.

    first: the number of the first, from 1. data: the lines with their endings, only the input's
    last may have none. too_long: it is one line of more than ``LONGEST_LINE`` bytes, and ``data``
    is empty.
    """

    first: int
    data: bytes
    too_long: bool = False

    def contents(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each line that is not blank, and its bytes without the ending."""
        for number, line in enumerate(self._text().split(b"\n"), self.first):
            content = line.strip(JSON_SPACE)
            if content:
                yield number, content

    def _text(self) -> bytes:
        return self.data.removeprefix(BOM) if self.first == 1 else self.data


class Lines(Piece, frozen=True, kw_only=True):
    """Lines that know all bytes before them and up to their end."""

    before: Digest
    after: Digest

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 1 if self.too_long else self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    @property
    def records(self) -> int:
        """How many of them are not blank: hold more than JSON's white space."""
        if self.too_long:
            return 1
        return sum(1 for line in self._text().split(b"\n") if line.strip(JSON_SPACE))

    def cut(self, start: int, end: int) -> Lines:
        """The records ``start`` to ``end`` (excluded), counted from 0, and the blank lines between.

        Raises IndexError when there is no record in that range.
        """
        if self.too_long:
            return self
        numbers = [number for number, _ in self.contents()][start:end]
        first, last = numbers[0], numbers[-1]
        begin, stop = self._end_of(first - 1), self._end_of(last)
        data = self.data[begin:stop]
        before = self.before.plus(self.data[:begin])
        return Lines(first, data, before=before, after=before.plus(data))

    def end_of(self, line: int) -> End:
        """Where one of these lines ends."""
        read = self.after
        if not self.too_long:
            read = self.before.plus(memoryview(self.data)[: self._end_of(line)])
        return End(line, read.bytes, read.sha256.hexdigest())

    def prefix_sha256(self, size: int) -> str | None:
        """The hash of the first ``size`` bytes of the input, more than are before these lines and
        no more than their end; None where no line ends there. A line ends before its newline too.
        """
        if size == self.after.bytes:
            return self.after.sha256.hexdigest()
        place = size - self.before.bytes
        last, rest = self.data[place - 1 : place], self.data[place:].partition(b"\n")[0]
        if self.too_long or (last != b"\n" and (last == b"\r" or rest.strip(b"\r"))):
            return None
        return self.before.plus(memoryview(self.data)[:place]).sha256.hexdigest()

    def _end_of(self, line: int) -> int:
        """The place in ``data`` behind the end of a line."""
        place = 0
        for _ in range(line + 1 - self.first):
            place = self.data.find(b"\n", place) + 1 or len(self.data)
        return place


def pieces(stream: io.BufferedReader, size: int | None = None) -> Iterator[Lines]:
    """Yield the lines of the first ``size`` bytes of a stream (None: all), hashed as they are read.

    What the stream raises comes through, behind all whole lines before it.
    """
    left = sys.maxsize if size is None else size
    read = Digest()
    number = 1

    def piece(data: bytes) -> Lines:
        nonlocal number
        before, first = read.copy(), number
        read.add(data)
        number += data.count(b"\n")
        return Lines(first, data, before=before, after=read.copy())

    while left and (block := stream.read1(min(PIECE, left))):
        left -= len(block)
        whole = block.rfind(b"\n") + 1
        line = block[whole:]
        try:
            rest = stream.readline(min(LONGEST_LINE + 1 - len(line), left)) if line else b""
        except Exception:
            if whole:
                yield piece(block[:whole])
            raise
        left -= len(rest)
        if len(line) + len(rest) <= LONGEST_LINE:
            yield piece(block + rest)
            continue
        if whole:
            yield piece(block[:whole])
        before = read.copy()
        read.add(line)
        while rest:
            read.add(rest)
            if rest.endswith(b"\n"):
                break
            rest = stream.readline(min(PIECE, left))
            left -= len(rest)
        yield Lines(number, b"", True, before=before, after=read.copy())
        number += 1
