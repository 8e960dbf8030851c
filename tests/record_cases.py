"""Lines made of their keys, and what they are parsed to: a record, or a bad line."""

from __future__ import annotations

import json

from scorer.records.record import BadLine, Record
from scorer.records.record_line import parse_line


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def good(data: bytes) -> Record:
    record = parse_line(data, 7)
    assert isinstance(record, Record), record
    return record


def bad(data: bytes) -> BadLine:
    record = parse_line(data, 7)
    assert isinstance(record, BadLine), record
    assert record.line == 7
    return record
