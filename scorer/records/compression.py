"""Input that is compressed, by the end of its name: ``.gz`` and ``.zst``, decompressed as read.

zstd is in Python's own library from 3.14 on; before that ``backports.zstd`` is the same module.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from typing import TYPE_CHECKING, Final

from scorer.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType

_BUFFER: Final = 1 << 20


def decompressed(raw: io.RawIOBase, suffix: str, name: str) -> io.BufferedReader:
    """The bytes of ``raw`` as they were before the compression that ``suffix`` names, if any.

    Bounded memory whatever the ratio. Raises InputError for ``.zst`` where zstd is missing; reading
    raises one of ``damage()`` where the data are damaged or end early.
    """
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=io.BufferedReader(raw, _BUFFER), mode="rb")
        return io.BufferedReader(stream, _BUFFER)
    if suffix == ".zst":
        zstd = _zstd()
        if zstd is None:
            raise InputError(
                f"{name}: reading .zst needs zstd, which this Python lacks: pip install "
                "'scorer[zstd]', or decompress the file"
            )
        return io.BufferedReader(zstd.ZstdFile(io.BufferedReader(raw, _BUFFER)), _BUFFER)
    return io.BufferedReader(raw, _BUFFER)


def damage() -> tuple[type[Exception], ...]:
    """What decompressors raise for data that are none of theirs, damaged, or cut short."""
    zstd = _zstd()
    own: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    return own if zstd is None else (*own, zstd.ZstdError)


def _zstd() -> ModuleType | None:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return None
    module: ModuleType = zstd
    return module
