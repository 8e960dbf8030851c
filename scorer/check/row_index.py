"""A file of rows, found by id: 21 bytes of memory a row, whatever the rows hold."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from scorer.errors import InputError, RowError
from scorer.records.source import at_line, reading
from scorer.rows import REMEDY, Score, decode_score, whole_rows


class _Place(msgspec.Struct):
    """The part of a row that says which record it is of."""

    id: str | int | None
    line: int


_DECODER: Final = msgspec.json.Decoder(_Place)


def key_of(id_: str | int | None, line: int) -> str:
    """Return what two rows of one record have in common; ``3`` and ``"3"`` are one id.

    A line that could not be parsed has no id: it is known by its number.
    """
    return f"\0{line}" if id_ is None else str(id_)


class RowIndex:
    """The rows of a file, each of which is taken at most once; a context manager.

    Rows asked for in the file's own order are found without a search. wanted: which rows count,
    by their key; None for all. Raises InputError where the file can't be read or a line is no row.
    """

    def __init__(self, path: Path, *, wanted: Callable[[str], bool] | None = None) -> None:
        self.name = str(path)
        hashes, offsets = array("Q"), array("q")
        for key, offset in keys_of(path):
            if wanted is None or wanted(key):
                hashes.append(_hash(key))
                offsets.append(offset)
        with reading(self.name, REMEDY):
            self._file = path.open("rb")
        values = np.frombuffer(hashes, np.uint64)
        self._offsets: npt.NDArray[np.int64] = np.frombuffer(offsets, np.int64)
        self._order = np.argsort(values, kind="stable").astype(np.uint32)
        self._hashes: npt.NDArray[np.uint64] = values[self._order]
        self._taken = np.zeros(len(values), dtype=np.bool_)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def may_have(self, key: str) -> bool:
        """Whether a row of that key may be there: whether one has the key's 64-bit hash."""
        value = np.uint64(_hash(key))
        at = int(np.searchsorted(self._hashes, value))
        return at < len(self) and bool(self._hashes[at] == value)

    def take(self, key: str) -> Score | None:
        """Return the row of that key, None where there is none or it has been taken."""
        candidates = [self._next] if self._next < len(self) else []
        value = np.uint64(_hash(key))
        first = int(np.searchsorted(self._hashes, value, side="left"))
        last = int(np.searchsorted(self._hashes, value, side="right"))
        candidates += self._order[first:last].tolist()
        for ordinal in candidates:
            if self._taken[ordinal]:
                continue
            row = self._row(ordinal)
            if key_of(row.id, row.line) == key:
                self._taken[ordinal] = True
                self._next = ordinal + 1
                return row
        return None

    def rest(self) -> Iterator[Score]:
        """Yield the rows that nobody took, in order."""
        for ordinal in np.flatnonzero(~self._taken).tolist():
            yield self._row(ordinal)

    def _row(self, ordinal: int) -> Score:
        with reading(self.name, REMEDY):
            self._file.seek(int(self._offsets[ordinal]))
            line = self._file.readline()
        try:
            return decode_score(line)
        except (msgspec.DecodeError, RowError) as error:
            raise InputError(
                f"{self.name}: byte {self._offsets[ordinal]}: not a row of scores: {error}; "
                f"{REMEDY}"
            ) from None


def keys_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the key of each row and the byte where it starts. Raises InputError."""
    name = str(path)
    at = 0
    with reading(name, REMEDY), path.open("rb") as file:
        for number, line in whole_rows(file, name):
            try:
                place = _DECODER.decode(line)
            except msgspec.DecodeError as error:
                what = f"not a row of scores: {error}; {REMEDY}"
                raise InputError(at_line(name, number, what)) from None
            yield key_of(place.id, place.line), at
            at += len(line)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
