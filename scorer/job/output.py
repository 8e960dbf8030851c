"""Rows on their way to a file or to stdout: whole lines only, locked, and surely on disk."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from scorer.errors import UsageError

_BUFFER = 1 << 16
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems without locks answer."""


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn the system's refusals to write ``name`` into UsageError; a closed pipe is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"{name}: can't be written: {error.strerror or error}; make room, or write elsewhere"
        ) from error


def same_file(a: Path, b: Path) -> bool:
    """Whether both are there and are one file."""
    return a.exists() and b.exists() and a.samefile(b)


def print_out(text: str, *, end: str = "\n", aside: bool = False) -> None:
    """Print what was asked for, aside on stderr. A closed stdout is a BrokenPipeError."""
    stream = sys.stderr if aside else sys.stdout
    if stream is None:
        raise BrokenPipeError
    print(text, end=end, file=stream)


class RowFile:
    """A file of whole lines that this process alone writes; a context manager.

    Lines are gathered and written in one go. Where the system refuses (a full disk), the file is
    cut back to its last whole line. The lock is advisory (``flock``) and ends with the process,
    however that ends; ``locked`` is False on a file system that has none.

    create: True for a file that must not exist, False for one that may. is_new: whether there was
    none. started: whether it may hold anything else than it did. Raises UsageError, also when
    another process holds the lock.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.is_new = not path.exists()
        self.started = False
        self._lines: list[bytes] = []
        self._waiting = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if create else 0)
        with writing(str(path)):
            self._descriptor = os.open(path, flags, 0o666)  # less the user's umask
        try:
            self.locked = self._lock()
            self.size = os.fstat(self._descriptor).st_size
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            os.close(self._descriptor)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path}: another job is writing it; wait for it, or write elsewhere"
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise UsageError(f"{self.path}: can't be locked: {error.strerror}") from error
        return True

    def write(self, lines: bytes) -> None:
        """Take whole lines. Raises UsageError when lines can't be written."""
        self._lines.append(lines)
        self._waiting += len(lines)
        if self._waiting >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the system, or cut back to the last whole one and raise UsageError."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._waiting = 0
        done = 0
        with writing(str(self.path)), memoryview(data) as left:
            try:
                while done < len(data):
                    done += os.pwrite(self._descriptor, left[done:], self.size + done)
            except OSError:
                self.size += data.rfind(b"\n", 0, done) + 1
                os.ftruncate(self._descriptor, self.size)
                raise
        self.size += done

    def sync(self) -> None:
        """Have all lines on disk.

        Raises UsageError, also when the file is no longer at its path: rows would be lost.
        """
        self.flush()
        with writing(str(self.path)):
            os.fsync(self._descriptor)
        ours = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise UsageError(
                f"{self.path}: was removed or replaced while it was written; the rows so far are "
                "gone with it: start again where nothing else writes"
            )

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that the file has, from the first; the last may lack its newline."""
        descriptor = os.dup(self._descriptor)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb") as file:
            yield from file

    def start(self, size: int = 0) -> None:
        """Write behind the first ``size`` bytes; whatever else the file holds goes."""
        self.started = True
        with writing(str(self.path)):
            os.ftruncate(self._descriptor, size)
        self.size = size

    def remove_if_empty(self) -> None:
        """Remove a file in which there is nothing."""
        if os.fstat(self._descriptor).st_size == 0:
            self.path.unlink(missing_ok=True)


class StdoutRows:
    """Rows to stdout; a context manager like RowFile. A closed pipe stays a BrokenPipeError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, OSError):
            self.sync()

    def start(self, size: int = 0) -> None:
        """There is nothing that could go."""

    def write(self, lines: bytes) -> None:
        """Take whole lines."""
        with writing("<stdout>"):
            sys.stdout.buffer.write(lines)

    def sync(self) -> None:
        """Hand all lines to whoever reads them."""
        with writing("<stdout>"):
            sys.stdout.buffer.flush()


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file: at every moment there is the old one or the new.

    Also after a power failure: the new bytes are on disk before the name is theirs. A process that
    is killed leaves at most one ``.NAME.tmp``, which the next one replaces.
    """
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        with scratch.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems can't; their names are as safe as they get
            os.fsync(folder)
    finally:
        os.close(folder)
