"""Where records come from: a file, a pipe or stdin, read twice.

The first pass, before any model is loaded, finds duplicate ids, counts, and hashes the bytes.
The second yields the records in order. Both stream: memory holds one line, and in the first
pass 8 bytes a record besides.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import numpy as np
import numpy.typing as npt

from scorer.errors import InputError
from scorer.records import BadLine, Record, line_id, parse_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BOM: Final = b"\xef\xbb\xbf"
_JSON_SPACE: Final = b" \t\r\n"
_BUFFER: Final = 1 << 20
# Ids compared exactly in one look at the file: bounds the memory whatever is repeated.
_COMPARED_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Counts:
    """What the first pass saw.

    ``records`` are all lines that are not blank, ``unparsable`` those of them that have no id;
    ``sha256`` (hex) is over the raw bytes, a BOM included.
    """

    records: int
    unparsable: int
    blank: int
    bytes: int
    sha256: str


def at_line(name: str, line: int, message: str) -> str:
    """``message`` with its place in front, the way compilers write it."""
    return f"{name}:{line}: {message}"


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns the system's refusals to read ``name`` into :class:`InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{name}: can't be read: {error.strerror or error}; "
            "give a readable JSONL file, or - for stdin"
        ) from error


class Source:
    """Records from ``path``; ``-`` is stdin.

    What can't be read twice (stdin, a FIFO) is copied to an unnamed temporary file first,
    which the system removes however the process ends. Raises :class:`InputError` where the
    input can't be read. Close it, or use it as a context manager.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        self.name = "<stdin>" if given == "-" else given
        self._counts: Counts | None = None
        if given == "-":
            if sys.stdin is None:
                raise InputError(f"{self.name}: is closed; give a file, or pipe records in")
            self._file = self._spooled(sys.stdin.buffer)
            return
        with reading(self.name):
            self._file = Path(given).open("rb")  # noqa: SIM115
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            with self._file as pipe:
                self._file = self._spooled(pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the input and of the temporary copy."""
        self._file.close()

    def check_ids(self) -> Counts:
        """The first pass over the whole input.

        Memory: 8 bytes a record for a hash of its id, 16 at the peak. Equal hashes only name
        candidates; what is reported was compared as text, so a collision neither makes a
        duplicate nor hides one.

        Raises :class:`InputError`, naming both lines, where two records have one id.
        """
        digest = hashlib.sha256()
        hashes = array("Q")
        unparsable = blank = size = 0
        for number, data in self._lines():
            digest.update(data)
            size += len(data)
            content = _content(data, number)
            if not content:
                blank += 1
                continue
            id_ = line_id(content, number)
            if id_ is None:
                unparsable += 1
            else:
                hashes.append(_id_hash(str(id_)))
        records = len(hashes) + unparsable
        self._report_repeated(_repeated(hashes))
        self._counts = Counts(records, unparsable, blank, size, digest.hexdigest())
        return self._counts

    def records(self, limit: int | None = None) -> Iterator[Record | BadLine]:
        """The first ``limit`` records (bad lines count, blank ones don't), or all, in order.

        After :meth:`check_ids` exactly the bytes it saw are read: what was appended since is
        not. Raises :class:`InputError` at the end if these bytes changed.
        """
        return islice(self._records(), limit)

    def _records(self) -> Iterator[Record | BadLine]:
        counts = self._counts
        digest = hashlib.sha256()
        for number, data in self._lines(None if counts is None else counts.bytes):
            digest.update(data)
            content = _content(data, number)
            if content:
                yield parse_line(content, number)
        if counts is not None and digest.hexdigest() != counts.sha256:
            raise InputError(
                f"{self.name}: changed while it was read (sha256 was {counts.sha256}, is "
                f"{digest.hexdigest()}); score a copy that nothing writes to"
            )

    def _lines(self, size: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Physical lines from 1, endings kept, of the first ``size`` bytes."""
        stream = io.BufferedReader(_FromStart(self._file.fileno(), size), _BUFFER)
        with reading(self.name):
            yield from enumerate(stream, 1)

    def _report_repeated(self, repeated: npt.NDArray[np.uint64]) -> None:
        for start in range(0, len(repeated), _COMPARED_AT_ONCE):
            candidates = set(repeated[start : start + _COMPARED_AT_ONCE].tolist())
            first: dict[str, int] = {}
            for number, data in self._lines():
                content = _content(data, number)
                id_ = line_id(content, number) if content else None
                if id_ is None or _id_hash(str(id_)) not in candidates:
                    continue
                text = str(id_)
                if text in first:
                    raise InputError(self._repeated_id(text, first[text], number))
                first[text] = number

    def _repeated_id(self, id_: str, first: int, second: int) -> str:
        shown = id_ if len(id_) <= 80 else id_[:79] + "…"
        return at_line(
            self.name,
            second,
            f'ids are unique, got {shown!r} again (first at {self.name}:{first}; 3 and "3" are '
            "one id, and a record without an id has its line number); give each record its own id",
        )

    def _spooled(self, stream: BinaryIO) -> BinaryIO:
        with ExitStack() as undo:
            try:
                copy = undo.enter_context(tempfile.TemporaryFile(prefix="scorer-input-"))
                shutil.copyfileobj(stream, copy, _BUFFER)
                copy.flush()
            except OSError as error:
                raise InputError(
                    f"{self.name}: can't be copied to {tempfile.gettempdir()}: "
                    f"{error.strerror or error}; set TMPDIR to a folder with room for it"
                ) from error
            undo.pop_all()
        return copy


class _FromStart(io.RawIOBase):
    """An open file from its first byte, whatever else reads it."""

    def __init__(self, descriptor: int, size: int | None) -> None:
        self._descriptor = descriptor
        self._left = sys.maxsize if size is None else size
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._descriptor, min(len(view), self._left), self._at)
        view[: len(data)] = data
        self._at += len(data)
        self._left -= len(data)
        return len(data)


def _content(data: bytes, number: int) -> bytes:
    """A line without BOM and ending; empty if there is nothing but JSON's white space."""
    if number == 1:
        data = data.removeprefix(_BOM)
    return data.strip(_JSON_SPACE)


def _id_hash(id_: str) -> int:
    return int.from_bytes(hashlib.blake2b(id_.encode(), digest_size=8).digest(), "little")


def _repeated(hashes: array[int]) -> npt.NDArray[np.uint64]:
    """The values that occur more than once; sorts ``hashes`` in place."""
    values = np.frombuffer(hashes, np.uint64)
    values.sort()
    again = values[1:] == values[:-1]
    again[1:] &= ~again[:-1]
    repeated: npt.NDArray[np.uint64] = values[1:][again]
    return repeated
