"""A record that a program gives as a mapping, as if it were a line of input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec

from scorer.errors import ErrorCode, RowError
from scorer.records.record import BadLine, Record
from scorer.records.record_line import parse_line


def as_records(
    records: Iterable[Record | BadLine | Mapping[str, object]],
) -> Iterator[Record | BadLine]:
    """Yield records as they are, and mappings parsed as lines; ``line`` is the place, from 1.

    What JSON can't hold (NaN, half of a surrogate pair, an object of some class) makes a BadLine.
    Scalars of NumPy and other mappings than dicts are taken for what they hold.
    """
    for line, record in enumerate(records, start=1):
        if isinstance(record, Record | BadLine):
            yield record
        else:
            yield _parsed(record, line)


def _parsed(record: Mapping[str, object], line: int) -> Record | BadLine:
    try:
        data = msgspec.json.encode(record, enc_hook=_plain)
        if b"null" in data:  # what it makes of NaN
            _check_finite(record)
    except UnicodeEncodeError as error:
        message = f"text is Unicode, got half of a surrogate pair ({error.reason}); leave it out"
        return _bad(record, line, ErrorCode.LONE_SURROGATE, message)
    except ValueError as error:
        return _bad(record, line, ErrorCode.INVALID_VALUE, str(error))
    except (TypeError, RecursionError) as error:
        message = f"a record holds what JSON can hold: {error}; convert it before"
        return _bad(record, line, ErrorCode.WRONG_TYPE, message)
    return parse_line(data, line)


def _bad(record: object, line: int, code: ErrorCode, message: str) -> BadLine:
    id_ = record.get("id") if isinstance(record, Mapping) else None
    known = isinstance(id_, int | str) and not isinstance(id_, bool)
    if not known or code == ErrorCode.LONE_SURROGATE:  # which the id may hold
        id_ = line
    return BadLine(line, id_, RowError(code, message))


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value that the encoder doesn't know. Raises TypeError."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)  # a scalar of NumPy or torch
    if callable(item) and getattr(value, "ndim", None) == 0:
        plain = item()
        _check_finite(plain)
        return plain
    raise TypeError(f"got {type(value).__name__}")


def _check_finite(value: object) -> None:
    """Look through a record for floats that JSON has no word for. Raises ValueError."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(
                f"a number is finite, got {value}; leave the key out where there is no value"
            )
    elif isinstance(value, Mapping):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _check_finite(item)
