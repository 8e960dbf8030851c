"""Where records come from: a file (compressed or not), a pipe or stdin, read twice.

The first pass, before any model is loaded, finds duplicate ids, counts, and hashes the bytes.
The second yields the records in order. Both stream: memory holds one piece of the input (see
``lines``), and in the first pass 8 bytes a record besides.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import numpy as np
import numpy.typing as npt

from scorer.errors import ErrorCode, InputError, RowError
from scorer.records.compression import damage, decompressed
from scorer.records.lines import LONGEST_LINE, Digest, End, Lines, Piece, pieces
from scorer.records.record import BadLine, Record
from scorer.records.record_line import line_id, parse_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER: Final = 1 << 20
_64_BITS: Final = (1 << 64) - 1
# Ids compared exactly in one look at the file: bounds the memory whatever is repeated.
_COMPARED_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Counts:
    """What the first pass saw.

    ``records`` are all lines that are not blank, ``unparsable`` those of them that have no id;
    ``sha256`` (hex) is over the ``bytes`` of the lines, a BOM included; of a compressed file over
    what it decompresses to.
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
def reading(
    name: str, remedy: str = "give a readable JSONL file, or - for stdin"
) -> Iterator[None]:
    """Turns the system's refusals to read ``name`` into :class:`InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{name}: can't be read: {error.strerror or error}; {remedy}") from error


class Source:
    """Records from ``path``; ``-`` is stdin.

    What can't be read twice (stdin, a FIFO) is copied to an unnamed temporary file first,
    which the system removes however the process ends. A name that ends in ``.gz`` or ``.zst`` is
    of a compressed file, which is decompressed as it is read. Raises :class:`InputError` where
    the input can't be read. Close it, or use it as a context manager.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        self.name = "<stdin>" if given == "-" else given
        self._suffix = Path(self.name).suffix
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
        read = Digest()
        hashes = array("Q")
        unparsable = blank = 0
        for lines in self._pieces():
            read = lines.after
            ids = _ids(lines)
            unparsable += ids.count(None)
            blank += lines.count - len(ids)
            hashes.extend([_id_hash(str(id_)) for id_ in ids if id_ is not None])
        records = len(hashes) + unparsable
        self._report_repeated(_repeated(hashes))
        self._counts = Counts(records, unparsable, blank, read.bytes, read.sha256.hexdigest())
        return self._counts

    def records(
        self, limit: int | None = None, *, start: int = 0, marks: Marks | None = None
    ) -> Iterator[Record | BadLine]:
        """The records ``start`` to ``limit`` (excluded; None: to the last), in order.

        Counted from 0; bad lines count, blank ones don't. ``marks`` are told of each. After
        :meth:`check_ids` exactly the bytes it saw are read: what was appended since is not. Raises
        :class:`InputError` at the end if these bytes changed.
        """
        for lines in self.lines(limit, start=start, marks=marks):
            yield from parsed(lines)

    def lines(
        self, limit: int | None = None, *, start: int = 0, marks: Marks | None = None
    ) -> Iterator[Lines]:
        """The lines of what ``records`` yields, and blank ones among them."""
        counts = self._counts
        total = sys.maxsize if counts is None else counts.records
        end = total if limit is None else limit
        at = 0
        read = Digest()
        for lines in self._pieces(None if counts is None else counts.bytes):
            read = lines.after
            first, at = at, at + lines.records
            if max(first, start) < min(at, end):
                if first < start or end < at:
                    lines = lines.cut(max(start - first, 0), end - first)  # noqa: PLW2901
                if marks is not None:
                    marks.put(lines)
                yield lines
            if end <= at and end < total:
                return
        if counts is not None and read.sha256.hexdigest() != counts.sha256:
            raise InputError(
                f"{self.name}: changed while it was read (sha256 was {counts.sha256}, is "
                f"{read.sha256.hexdigest()}); score a copy that nothing writes to"
            )

    def end_of(self, record: int) -> End | None:
        """Where record number ``record``, from 0, ends; None: there is none."""
        for lines in self._pieces():
            count = lines.records
            if record < count:
                (line,) = (number for number, _ in lines.cut(record, record + 1).contents())
                return lines.end_of(line)
            record -= count
        return None

    def prefix_sha256(self, size: int) -> str | None:
        """The hash of the first ``size`` bytes, None where no line ends there.

        A line ends before its newline too: the last line of a file that has grown since may have
        had none.
        """
        for lines in self._pieces():
            if lines.after.bytes >= size:
                return lines.prefix_sha256(size)
        return None if size else Digest().sha256.hexdigest()

    def _pieces(self, size: int | None = None) -> Iterator[Lines]:
        """All lines of the first ``size`` bytes."""
        number = 0
        with reading(self.name):
            stream = decompressed(_FromStart(self._file.fileno()), self._suffix, self.name)
            try:
                for lines in pieces(stream, size):
                    yield lines
                    number = lines.first + lines.count - 1
            except damage() as error:
                where = at_line(self.name, number + 1, "can't be decompressed")
                raise InputError(
                    f"{where}: {error}; give a complete {self._suffix} file, or drop the suffix if "
                    "it isn't one"
                ) from error

    def _report_repeated(self, repeated: npt.NDArray[np.uint64]) -> None:
        for start in range(0, len(repeated), _COMPARED_AT_ONCE):
            candidates = set(repeated[start : start + _COMPARED_AT_ONCE].tolist())
            first: dict[str, int] = {}
            numbered = (pair for lines in self._pieces() for pair in lines.contents())
            for number, content in numbered:
                id_ = line_id(content, number)
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

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._descriptor, len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class Marks:
    """The lines that were read of late, up to the last one whose row is written."""

    def __init__(self) -> None:
        self._lines: deque[Lines] = deque()
        self._passed: int | None = None

    def put(self, lines: Lines) -> None:
        """Note what has been read."""
        self._lines.append(lines)

    def pass_by(self, line: int) -> None:
        """Let go of what lies before ``line``, whose row is written."""
        self._passed = line
        while len(self._lines) > 1 and self._lines[1].first <= line:
            self._lines.popleft()

    def passed(self) -> End | None:
        """The end that was passed last; None before any."""
        return None if self._passed is None else self._lines[0].end_of(self._passed)


def parsed(lines: Piece) -> Iterator[Record | BadLine]:
    """Yield the record on each line, in order."""
    if lines.too_long:
        yield BadLine(lines.first, None, _too_long())
    for number, content in lines.contents():
        yield parse_line(content, number)


def _ids(lines: Lines) -> list[str | int | None]:
    """The id of each record, None for those that have none."""
    if lines.too_long:
        return [None]
    return [line_id(content, number) for number, content in lines.contents()]


def _too_long() -> RowError:
    return RowError(
        ErrorCode.LINE_TOO_LONG,
        f"a line has at most {LONGEST_LINE} bytes, got more; split the record",
    )


def _id_hash(id_: str) -> int:
    return hash(id_) & _64_BITS


def _repeated(hashes: array[int]) -> npt.NDArray[np.uint64]:
    """The values that occur more than once; sorts ``hashes`` in place."""
    values = np.frombuffer(hashes, np.uint64)
    values.sort()
    again = values[1:] == values[:-1]
    again[1:] &= ~again[:-1]
    repeated: npt.NDArray[np.uint64] = values[1:][again]
    return repeated
