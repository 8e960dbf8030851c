"""Records from a program: what JSON can't hold is an error row, nothing is replaced or raised."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

from scorer.errors import ErrorCode
from scorer.records.mapping import as_records
from scorer.records.record import BadLine, Record

GOOD = {"prompt": "one", "options": ["a", "b"]}
NAN = float("nan")


def test_places_are_lines_and_records_pass() -> None:
    record = Record(line=9, id="x", prompt="one")
    first, second, third = as_records([GOOD, record, GOOD])
    assert (first.line, first.id, third.line) == (1, 1, 3)
    assert second is record


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        ({"prompt": "one", "label": NAN}, ErrorCode.INVALID_VALUE, "a number is finite, got nan"),
        ({"question": "?", "state": {"r": [1, -np.inf]}}, ErrorCode.INVALID_VALUE, "got -inf"),
        ({"prompt": "one", "mine": (NAN,)}, ErrorCode.INVALID_VALUE, "leave the key out"),
        ({"prompt": "one", "mine": np.float32("nan")}, ErrorCode.INVALID_VALUE, "got nan"),
        ({"prompt": "\ud800"}, ErrorCode.LONE_SURROGATE, "half of a surrogate pair"),
        ({"prompt": "one", "mine": SimpleNamespace()}, ErrorCode.WRONG_TYPE, "SimpleNamespace"),
        ({"prompt": "one", "mine": np.zeros(3)}, ErrorCode.WRONG_TYPE, "got ndarray"),
    ],
    ids=["label", "state", "extra", "float32", "surrogate", "object", "array"],
)
def test_what_json_cant_hold_is_an_error_row(
    bad: dict[str, object], code: ErrorCode, said: str
) -> None:
    before, wrong, after = as_records([GOOD, {"id": "mine", **bad}, GOOD])
    assert isinstance(before, Record)
    assert isinstance(after, Record)
    assert isinstance(wrong, BadLine)
    assert (wrong.error.code, wrong.line) == (code, 2)
    assert said in str(wrong.error)
    assert wrong.id == (2 if code == ErrorCode.LONE_SURROGATE else "mine")


def test_null_is_a_value() -> None:
    (record,) = as_records([{**GOOD, "label": None, "mine": [None, "null"], "logprobs": 3}])
    assert isinstance(record, Record)
    assert (record.label, record.logprobs, bytes(record.extra["mine"])) == (
        None,
        3,
        b'[null,"null"]',
    )


def test_scalars_and_mappings_of_libraries_are_what_they_hold() -> None:
    given = {**GOOD, "label": np.int64(1), "logprobs": torch.tensor(2), "state": None}
    (record,) = as_records([MappingProxyType(given)])
    assert isinstance(record, Record)
    assert (record.label, record.gold_index, record.logprobs) == (1, 1, 2)
