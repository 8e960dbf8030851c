from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import ErrorCode
from scorer.records.record import KNOWN_KEYS, BadLine, Record
from scorer.records.record_line import parse_line
from tests.record_cases import bad, good, line


def test_extra_keeps_order_and_bytes() -> None:
    values = {
        "z": '{"deep" : [1, 2.50, 1E5 , "\\u00e9\\/"]}',
        "a": "null",
        "n": "123456789012345678901234567890.10",
        "": '"\u2028"',
        "IDs": "-0",
    }
    body = ", ".join(f'"{key}":\t{raw} ' for key, raw in values.items())
    record = good(f'{{"prompt":"x", {body}}}'.encode())
    assert {key: bytes(raw).decode() for key, raw in record.extra.items()} == values
    assert list(record.extra) == list(values)


def test_a_carriage_return_between_tokens_does_not_break_the_row() -> None:
    record = parse_line(b'{"prompt": "a", "x": [1,\r2, "\\r"]}', 1)
    assert isinstance(record, Record)
    assert bytes(record.extra["x"]) == b'[1, 2, "\\r"]'


# -- typing errors


def edits(name: str) -> set[str]:
    """Every string one edit away, over an alphabet that holds all letters of the known names."""
    letters = "abcdefghijklmnopqrstuvwxyz_é"
    halves = [(name[:i], name[i:]) for i in range(len(name) + 1)]
    return {
        *(a + b[1:] for a, b in halves if b),
        *(a + b[1] + b[0] + b[2:] for a, b in halves if len(b) > 1),
        *(a + c + b[1:] for a, b in halves if b for c in letters),
        *(a + c + b for a, b in halves for c in letters),
    } - {name}


@pytest.mark.parametrize("name", [key for key in KNOWN_KEYS if len(key) >= 5])
def test_every_single_edit_of_a_known_key_is_refused(name: str) -> None:
    assert name not in edits(name)
    for key in edits(name):
        if key in KNOWN_KEYS:
            continue
        error = bad(line(prompt="x", **{key: 1})).error
        assert error.code is ErrorCode.UNKNOWN_KEY, key
        assert f'"{name}"' in str(error)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abelorst_mpiquny", min_size=1, max_size=18))
def test_keys_further_away_are_carried(key: str) -> None:
    near = any(key in edits(name) for name in KNOWN_KEYS if len(name) >= 5)
    if key in KNOWN_KEYS:
        return
    record = parse_line(line(prompt="x", **{key: 1}), 7)
    assert isinstance(record, BadLine) == near


@pytest.mark.parametrize("key", ["ID", "Id", "ids", "i", "d", "PROMPT", "gold", "lab", "optns"])
def test_no_typing_error(key: str) -> None:
    assert list(good(line(prompt="x", **{key: 1})).extra) == [key]


def test_a_huge_key_is_no_typing_error() -> None:
    assert len(good(line(prompt="x", **{"k" * 10**6: 1})).extra) == 1
