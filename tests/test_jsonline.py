from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scorer.errors import ErrorCode, RowError
from scorer.records.jsonline import MAX_DEPTH, object_fields


def refused(data: bytes) -> RowError:
    with pytest.raises(RowError) as caught:
        object_fields(data)
    assert ";" in str(caught.value), "a message ends with what to do"
    return caught.value


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b'{"a":1', "invalid_json", "ends in the middle of a value; write one whole object"),
        (b'{"a":"x', "invalid_json", "ends in the middle of a value"),
        (b"{'a':1}", "invalid_json", "object keys must be strings at byte 1, near \"{'a':1}\""),
        (b'{"a":1,}', "invalid_json", "trailing comma in object at byte 7"),
        (b'{"a":1}{"a":2}', "invalid_json", "trailing characters at byte 8"),
        (b'{"a":1} // x', "invalid_json", "trailing characters"),
        (b'{"a":01}', "invalid_json", "invalid number at byte 6"),
        (b'{"a":.5}', "invalid_json", "at byte 5"),
        (b'{"a":"\t"}', "invalid_json", "invalid character at byte 6"),
        (b'{"a":"\\x41"}', "invalid_json", "invalid escaped character"),
        (b'{"a":"\\u12g4"}', "invalid_json", "invalid character in unicode escape"),
        (b'{"a":1}\x00', "invalid_json", "trailing characters"),
        (b'{"a":NaN}', "invalid_json", "JSON has no NaN and no Infinity"),
        (b'{"a":Infinity}', "invalid_json", "JSON has no NaN and no Infinity"),
        (b'{"a":[-Infinity]}', "invalid_json", "JSON has no NaN and no Infinity"),
        (b"prompt", "invalid_json", "invalid character at byte 0"),
        (b"[1,2]", "not_an_object", "a record is one JSON object, got list"),
        (b"null", "not_an_object", "got null"),
        (b"true", "not_an_object", "got bool"),
        (b'"text"', "not_an_object", "got string"),
        (b"3", "not_an_object", "got int"),
        (b"3.5", "not_an_object", "got float"),
        (b'{"a":"\xff"}', "invalid_utf8", "got 0xff at byte 6 (invalid start byte)"),
        (b'{"\xc3":1}', "invalid_utf8", "got 0xc3 at byte 2"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_utf8", "got 0xed at byte 6"),
        (b'{"a":"\xc0\xaf"}', "invalid_utf8", "got 0xc0 at byte 6"),
        (b'{"a":"\xe4"}', "invalid_utf8", "save the file as UTF-8"),
        (rb'{"a":"\ud800"}', "lone_surrogate", r"half of a surrogate pair, \ud800, at byte 6"),
        (rb'{"a":"x\uDFFFx"}', "lone_surrogate", r"\uDFFF, at byte 7"),
        (rb'{"\ud83d":1}', "lone_surrogate", r"\ud83d, at byte 2"),
        (rb'{"a":{"b":["\ud83d\u0041"]}}', "lone_surrogate", r"\ud83d, at byte 12"),
        (rb'{"a":"\ude00\ud83d"}', "lone_surrogate", r"\ude00, at byte 6"),
        (rb'{"a":"\ud83d\ud83d\ude00"}', "lone_surrogate", r"\ud83d, at byte 6"),
        (rb'{"a":"\\\ud83d"}', "lone_surrogate", r"\ud83d, at byte 8"),
    ],
)
def test_refused(data: bytes, code: str, text: str) -> None:
    error = refused(data)
    assert error.code == code
    assert text in str(error)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (rb'{"a":"\ud83d\ude00"}', "\U0001f600"),
        (rb'{"a":"\uD83D\uDE00\ud83d\uDE00"}', "\U0001f600\U0001f600"),
        (rb'{"a":"\\ud800"}', r"\ud800"),
        (rb'{"a":"\\\\ud800\\udc00"}', r"\\ud800\udc00"),
        ('{"a":"\u2028\u0085\ufeff"}'.encode(), "\u2028\u0085\ufeff"),
        (b' \t{ "a" : "x" }\r', "x"),
    ],
)
def test_accepted(data: bytes, value: str) -> None:
    assert json.loads(bytes(object_fields(data)["a"])) == value


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth(opening: str, closing: str) -> None:
    def nested(depth: int) -> bytes:
        return f'{{"a":{opening * (depth - 1)}1{closing * (depth - 1)}}}'.encode()

    assert list(object_fields(nested(MAX_DEPTH))) == ["a"]
    error = refused(nested(MAX_DEPTH + 1))
    assert error.code is ErrorCode.INVALID_JSON
    assert "values nest at most 128 deep" in str(error)
    assert refused(nested(10**6)).code is ErrorCode.INVALID_JSON
    assert refused(opening.encode() * 10**6).code is ErrorCode.INVALID_JSON


def test_brackets_in_text_and_side_by_side_are_not_deep() -> None:
    data = json.dumps({"a": "[{" * 500 + '\\"', "b": [[]] * 500, "[" * 300: 1}).encode()
    assert len(object_fields(data)) == 3


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"' + b"[" * 200 + b'","b":"' + b'\\"' * 500_000,  # no end of the string
        b'{"a":"' + b"[" * 200 + b'","b":"' + b"\\" * 1_000_001,
        b'"[' * 300_000,
        b'{"a":"' + rb"\ud83d\ude00" * 100_000 + b'"',
    ],
)
def test_checks_take_time_in_proportion(data: bytes) -> None:
    start = time.perf_counter()
    refused(data)
    assert time.perf_counter() - start < 2


def reference(data: bytes) -> dict[str, object] | None:
    """The object that the standard library reads, where it is one by our rules."""

    def no_constant(name: str) -> object:
        raise ValueError(name)

    def text_only(pairs: list[tuple[str, object]]) -> dict[str, object]:
        json.dumps(pairs, ensure_ascii=False).encode()
        return dict(pairs)

    try:
        value = json.loads(data.decode(), parse_constant=no_constant, object_pairs_hook=text_only)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


pieces = st.sampled_from(
    [
        *'{}[]:,"\\ \t0123456789.-+eE',
        '"a":',
        '"b":[',
        "],",
        '"x"',
        '"é\u2028"',
        r'"\ud83d',
        r'\ude00"',
        r'"\n\/"',
        r'"\\u',
        "true",
        "null",
        "NaN",
        "-Infinity",
        "1e999",
        "-0.0",
        "1.5E-3",
    ]
)
values = st.recursive(
    st.sampled_from(
        ["1", "-0", "0.5e+3", "1E400", "true", "null", '"x\\n"', r'"\ud83d\ude00"', '"é"']
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), inner), max_size=3).map(
            lambda items: "{" + ",".join(f'"{key}" :{value}' for key, value in items) + "}"
        )
    ),
    max_leaves=6,
)
whole = st.lists(st.tuples(st.sampled_from(["a", "b", ""]), values), max_size=3).map(
    lambda items: "{" + ",".join(f'"{key}":{value}' for key, value in items) + "}"
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(whole)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(pieces | st.just("")) + text[at + draw(st.integers(0, 2)) :]


@settings(max_examples=500, deadline=None)
@given((whole | damaged() | st.lists(pieces, max_size=8).map("".join)).map(str.encode))
@example(b'{"a":"\x7f"}')
@example(b'{"a":1e5,"a":-0.0}')
def test_the_same_lines_as_the_standard_library(data: bytes) -> None:
    expected = reference(data)
    if expected is None:
        refused(data)
        return
    fields = object_fields(data)
    assert list(fields) == list(expected)
    for key, raw in fields.items():
        assert bytes(raw) in data
        assert json.loads(bytes(raw)) == expected[key]
        assert re.fullmatch(rb"\S(.*\S)?", bytes(raw), re.DOTALL)
