from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import ErrorCode
from scorer.records import record_line
from scorer.records.record import KNOWN_KEYS, MAX_TOP_K, PROMPT_KEYS, BadLine, Message, Record
from scorer.records.record_keys import record_by_key
from scorer.records.record_line import line_id, parse_line
from scorer.rows import Failure, Score, encode_score
from tests.record_cases import bad, good, line


def test_prompt_and_defaults() -> None:
    assert good(line(prompt="Hi")) == Record(line=7, id=7, prompt="Hi")


def test_messages() -> None:
    turns = [{"role": role, "content": role.upper()} for role in ("system", "user", "assistant")]
    assert good(line(messages=turns)).messages == (
        Message("system", "SYSTEM"),
        Message("user", "USER"),
        Message("assistant", "ASSISTANT"),
    )


def test_prompt_token_ids() -> None:
    assert good(line(prompt_token_ids=[0, 151643, 2**31 - 1])).prompt_token_ids == (
        0,
        151643,
        2**31 - 1,
    )


def test_question_with_everything() -> None:
    record = good(
        line(
            id="q1",
            question="Which?",
            state="calm",
            options=["a", "b", "c"],
            label="b",
            targets=[5, " yes", "5"],
            logprobs=0,
            prompt_logprobs=MAX_TOP_K,
        )
    )
    assert record == Record(
        line=7,
        id="q1",
        question="Which?",
        state="calm",
        options=("a", "b", "c"),
        label="b",
        gold_index=1,
        targets=(5, " yes", "5"),
        logprobs=0,
        prompt_logprobs=MAX_TOP_K,
    )


@pytest.mark.parametrize("key", PROMPT_KEYS)
def test_options_go_with_every_kind_of_prompt(key: str) -> None:
    value: object = {"messages": [{"role": "user", "content": "x"}], "prompt_token_ids": [1]}.get(
        key, "x"
    )
    assert good(line(**{key: value}, options=["a", "b"])).options == ("a", "b")


def test_one_continuation_is_enough() -> None:
    assert good(line(prompt="x", options=["a"], label=0)).gold_index == 0


def test_a_question_takes_2_to_26_options() -> None:
    for count in (2, 26):
        options = [f"option {i}" for i in range(count)]
        assert len(good(line(question="q", options=options)).options or ()) == count
    assert bad(line(question="q", options=["a"])).error.code is ErrorCode.INVALID_VALUE
    error = bad(line(question="q", options=[str(i) for i in range(27)])).error
    assert error.code is ErrorCode.TOO_MANY_OPTIONS
    assert "at most 26 options (A to Z), got 27" in str(error)


def test_more_than_26_continuations() -> None:
    assert good(line(prompt="q", options=[str(i) for i in range(100)], label=99)).gold_index == 99


@pytest.mark.parametrize(
    "raw", ['{"x":  [1,\t2.50]}', "[]", "3", "-0.0", "true", "1e999", "123456789012345678901234567"]
)
def test_state_that_is_no_string_keeps_its_bytes(raw: str) -> None:
    record = good(f'{{"question":"q","options":["a","b"],"state": {raw} }}'.encode())
    assert isinstance(record.state, msgspec.Raw)
    assert bytes(record.state).decode() == raw


def test_state_as_text() -> None:
    data = rb'{"question":"q","options":["a","b"],"state":"A\n\u00e9"}'
    assert good(data).state == "A\né"


@pytest.mark.parametrize("key", [key for key in KNOWN_KEYS if key != "prompt"])
def test_null_is_the_same_as_absent(key: str) -> None:
    assert good(line(prompt="x", **{key: None})) == good(line(prompt="x"))


def test_null_does_not_hide_what_is_missing() -> None:
    assert bad(line(prompt=None)).error.code is ErrorCode.NO_PROMPT
    assert "needs 2 to 26 options, got none" in str(bad(line(question="q", options=None)).error)


@pytest.mark.parametrize(
    ("given", "options", "index"),
    [
        ("b", ["a", "b"], 1),
        (1, ["a", "b"], 1),
        (0, ["1", "0"], 0),  # an int is an index, whatever the options say
        ("0", ["1", "0"], 1),  # a string is a text
        ("é", ["e\u0301", "é"], 1),  # exactly, without normalisation
        ("", ["x", ""], 1),
    ],
)
def test_gold(given: str | int, options: list[str], index: int) -> None:
    record = good(line(prompt="x", options=options, label=given))
    assert (record.label, record.gold_index) == (given, index)


def test_the_last_of_a_key_given_twice_counts() -> None:
    data = b'{"prompt":"first","n":1,"id":1,"prompt":"last","\\u0069d":2,"n":{"a":1,"a":2}}'
    record = good(data)
    assert (record.prompt, record.id) == ("last", 2)
    assert bytes(record.extra["n"]) == b'{"a":1,"a":2}'
    assert good(b'{"prompt":"x","question":"y","question":null}').question is None
    turn = b'{"messages":[{"role":"user","role":"system","content":"x"}]}'
    assert good(turn).messages == (Message("system", "x"),)


def test_a_record_does_not_hold_on_to_its_line() -> None:
    question = b'{"question":"q","options":["a","b"],"state":{},"note":1%s}' % (b" " * 10**6)
    wrong = b'{"prompt":1,"note":1%s}' % (b" " * 10**6)
    broken = b'{"prompt":NaN%s}' % (b" " * 10**6)
    tracemalloc.start()
    try:
        kept = [parse_line(bytes(bytearray(data)), 7) for data in (question, wrong, broken) * 8]
        assert tracemalloc.get_traced_memory()[0] < 10**6, len(kept)
    finally:
        tracemalloc.stop()


def test_a_bad_line_keeps_what_could_be_read() -> None:
    record = bad(b'{"id":"a","prompt":3,"note":[1, 2]}')
    assert record.id == "a"
    assert {key: bytes(raw) for key, raw in record.extra.items()} == {"note": b"[1, 2]"}


# -- ids


@pytest.mark.parametrize("id_", ["a", "", "3", 3, -3, 0, 2**64 - 1, -(2**63), "\U0001f600"])
def test_id_is_kept_as_given(id_: str | int) -> None:
    record = good(line(id=id_, prompt="x"))
    assert record.id == id_
    assert type(record.id) is type(id_)


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        ("true", ErrorCode.WRONG_TYPE, "$.id: expected string or int, got bool true"),
        ("3.0", ErrorCode.WRONG_TYPE, "$.id: expected string or int, got float 3.0"),
        ("[1]", ErrorCode.WRONG_TYPE, "$.id: expected string or int, got list"),
        ("18446744073709551616", ErrorCode.INVALID_VALUE, "at most 64 bits, got int 184467440737"),
        ("-9223372036854775809", ErrorCode.INVALID_VALUE, "write it as a string"),
        ("9" * 5000, ErrorCode.INVALID_VALUE, "$.id: integer value out of range"),
    ],
)
def test_bad_id(raw: str, code: ErrorCode, text: str) -> None:
    record = bad(f'{{"id":{raw},"prompt":"x"}}'.encode())
    assert record.id is None
    assert record.error.code is code
    assert text in str(record.error)
    assert line_id(f'{{"id":{raw},"prompt":"x"}}'.encode(), 7) is None


def test_a_broken_record_has_its_id_and_a_broken_line_none() -> None:
    assert bad(b'{"id":"a","promptt":"x"}').id == "a"
    assert bad(b'{"promptt":"x"}').id == 7
    for data in (b"[1,2]", b"null", b'{"id":"a"', b'{"id":"a","x":"\\ud800"}', b'{"id":"\xff"}'):
        assert bad(data).id is None
        assert line_id(data, 7) is None


# -- whatever comes


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
likely: dict[str, st.SearchStrategy[Any]] = {
    "id": texts | st.integers(),
    "prompt": texts,
    "question": texts,
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts}
        ),
        max_size=3,
    ),
    "prompt_token_ids": st.lists(st.integers(-1, 2**33), max_size=3),
    "state": json_values,
    "options": st.lists(texts, max_size=4),
    "label": texts | st.integers(-1, 4),
    "targets": st.lists(texts | st.integers(-1, 2**33), max_size=3),
    "logprobs": st.integers(-2, MAX_TOP_K + 1),
    "prompt_logprobs": st.integers(-2, MAX_TOP_K + 1),
    "note": json_values,
}
record_like = st.lists(
    st.sampled_from(sorted(likely)).flatmap(
        lambda key: st.tuples(st.just(key), likely[key] | json_values)
    ),
    max_size=6,
).map(dict)


@settings(max_examples=250, deadline=None)
@given(record_like, st.booleans())
def test_any_object_gives_a_record_or_an_error_row(fields: dict[str, Any], ascii_: bool) -> None:
    data = json.dumps(fields, ensure_ascii=ascii_).encode()
    parsed = parse_line(data, 7)
    assert line_id(data, 7) == parsed.id
    if isinstance(parsed, BadLine):
        error = Failure(code=parsed.error.code, message=str(parsed.error))
        row = encode_score(Score(id=parsed.id, line=7, extra=dict(parsed.extra), error=error))
        assert json.loads(row)["error"]["code"] in set(ErrorCode)
        return
    given_ = {key: value for key, value in fields.items() if value is not None}
    for key in KNOWN_KEYS:
        if key == "messages" and parsed.messages is not None:
            assert [msgspec.to_builtins(message) for message in parsed.messages] == given_[key]
        elif key == "state" and isinstance(parsed.state, msgspec.Raw):
            assert json.loads(bytes(parsed.state)) == given_[key]
        elif key in ("options", "targets", "prompt_token_ids"):
            assert list(getattr(parsed, key) or ()) == given_.get(key, [])
        else:
            assert getattr(parsed, key) == given_.get(key, 7 if key == "id" else None)
    if "label" in given_:
        assert parsed.gold_index is not None
        assert given_["label"] in (parsed.gold_index, given_["options"][parsed.gold_index])


@settings(max_examples=500, deadline=None)
@given(record_like, st.booleans())
def test_decoded_in_one_go_is_decoded_key_by_key(fields: dict[str, Any], ascii_: bool) -> None:
    data = json.dumps(fields, ensure_ascii=ascii_).encode()
    by_key = record_by_key(data, 7)
    at_once = record_line._parsed_at_once(data, 7)
    if isinstance(by_key, BadLine):
        assert at_once is None
    else:
        assert at_once == by_key
        assert type(at_once.state) is type(by_key.state)


@settings(max_examples=250, deadline=None)
@given(st.binary(max_size=40) | st.text('{}[]",:\\ud8eprmt01-.', max_size=30).map(str.encode))
def test_any_bytes_give_a_record_or_an_error_row(data: bytes) -> None:
    assert line_id(data, 7) == parse_line(data, 7).id
