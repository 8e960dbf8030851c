from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer import records
from scorer.errors import ErrorCode
from scorer.records import (
    KNOWN_KEYS,
    MAX_TOP_K,
    PROMPT_KEYS,
    BadLine,
    Message,
    Record,
    line_id,
    parse_line,
)
from scorer.rows import Failure, Score, encode_score
from scorer.source import Source, at_line

BAD_LINES = Path(__file__).parent / "data" / "bad-lines.jsonl"


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


# -- what is refused


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({}, "no_prompt", "one of prompt, messages, prompt_token_ids, question, got no keys"),
        ({"id": 1, "text": "x"}, "no_prompt", 'got "id", "text"; add one'),
        ({"options": ["a", "b"]}, "no_prompt", 'got "options"'),
        # types, with their place
        ({"prompt": 3}, "wrong_type", "$.prompt: expected string, got int 3; write one string"),
        ({"prompt": ["x"]}, "wrong_type", "$.prompt: expected string, got list"),
        ({"question": {}, "options": ["a", "b"]}, "wrong_type", "$.question: expected string"),
        ({"prompt": "x", "options": "ab"}, "wrong_type", '$.options: expected list, got string "a'),
        ({"prompt": "x", "options": {"A": "a"}}, "wrong_type", "expected list, got object"),
        ({"prompt": "x", "options": ["a", "b", 3]}, "wrong_type", "$.options[2]: expected string"),
        ({"prompt": "x", "options": [None]}, "wrong_type", "expected string, got null"),
        ({"prompt": "x", "options": [False]}, "wrong_type", "expected string, got bool false"),
        # numbers of options
        ({"prompt": "x", "options": []}, "invalid_value", "a prompt needs at least 1 option, got"),
        ({"question": "x", "options": []}, "invalid_value", "question needs at least 2 options, g"),
        ({"question": "x"}, "invalid_value", "$.options: a question needs 2 to 26 options, got n"),
        # state
        ({"prompt": "x", "state": "s"}, "invalid_value", "$.state: state belongs to a question"),
        ({"prompt": "x", "state": {}}, "invalid_value", "add question and options"),
        # messages
        ({"messages": []}, "empty_prompt", "$.messages: at least one message is needed, got []"),
        ({"messages": "x"}, "wrong_type", '$.messages: expected list, got string "x"'),
        ({"messages": ["x"]}, "wrong_type", "$.messages[0]: expected object"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "invalid_value",
            '$.messages[0].role: expected system, user or assistant, got "tool"',
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": 1, "content": "x"}]},
            "wrong_type",
            "$.messages[1].role: expected string, got int 1",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
            "wrong_type",
            "$.messages[0].content: expected string, got list",
        ),
        (
            {"messages": [{"content": "x"}]},
            "invalid_value",
            'and nothing else, got "content"; write',
        ),
        ({"messages": [{"role": "user"}]}, "invalid_value", 'got "role"; write'),
        (
            {"messages": [{"role": "user", "content": None}]},
            "wrong_type",
            "$.messages[0].content: expected string, got null",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "name": "y"}]},
            "unknown_key",
            '$.messages[0]: a message has role and content and nothing else, got "role", ',
        ),
        # token ids
        ({"prompt_token_ids": []}, "empty_prompt", "$.prompt_token_ids: at least one token id"),
        ({"prompt_token_ids": [1, -1]}, "token_out_of_range", "$.prompt_token_ids[1]: a token id"),
        ({"prompt_token_ids": [2**31]}, "token_out_of_range", "got int 2147483648"),
        ({"prompt_token_ids": [2**63]}, "token_out_of_range", "got int 9223372036854775808"),
        ({"prompt_token_ids": [10**400]}, "token_out_of_range", "got int 100000"),
        ({"prompt_token_ids": [1, True]}, "wrong_type", "[1]: expected int, got bool true"),
        ({"prompt_token_ids": [1.0]}, "wrong_type", "[0]: expected int, got float 1.0"),
        ({"prompt_token_ids": ["1"]}, "wrong_type", '[0]: expected int, got string "1"'),
        ({"prompt_token_ids": 5}, "wrong_type", "expected list, got int 5"),
        # targets
        ({"prompt": "x", "targets": 5}, "wrong_type", "$.targets: expected list, got int 5"),
        ({"prompt": "x", "targets": ["a", True]}, "wrong_type", "$.targets[1]: expected string o"),
        ({"prompt": "x", "targets": [[5]]}, "wrong_type", "$.targets[0]: expected string or int"),
        ({"prompt": "x", "targets": [-1]}, "token_out_of_range", "$.targets[0]: a token id is 0"),
        ({"prompt": "x", "targets": [2**63]}, "token_out_of_range", "got int 9223372036854775808"),
        # gold
        ({"prompt": "x", "label": "a"}, "unknown_label", 'got string "a" without options'),
        ({"prompt": "x", "label": 0}, "unknown_label", "got int 0 without options"),
        (
            {"prompt": "x", "options": ["a", "b"], "label": "A"},
            "unknown_label",
            'got "A", options are "a", "b"; correct it, or give the index from 0',
        ),
        ({"prompt": "x", "options": ["a", "b"], "label": 2}, "unknown_label", "0 to 1, got int 2"),
        ({"prompt": "x", "options": ["a", "b"], "label": -1}, "unknown_label", "got int -1"),
        ({"prompt": "x", "options": ["a"], "label": 2**64}, "unknown_label", "got int 184467440"),
        ({"prompt": "x", "options": ["a", "b"], "label": True}, "wrong_type", "got bool true"),
        ({"prompt": "x", "options": ["a", "b"], "label": 1.0}, "wrong_type", "got float 1.0"),
        ({"prompt": "x", "options": ["a", "b"], "label": ["a"]}, "wrong_type", "$.label: expected"),
        (
            {"prompt": "x", "options": ["a", "b", "a"], "label": "a"},
            "equal_options",
            '"a" is the text of options 0 and 2',
        ),
        # how many log-probabilities
        (
            {"prompt": "x", "logprobs": -1},
            "logprobs_limit",
            "to 20000, got int -1 (the whole vocab",
        ),
        ({"prompt": "x", "logprobs": -2}, "logprobs_limit", "$.logprobs: expected 0"),
        ({"prompt": "x", "logprobs": 20001}, "logprobs_limit", "to 20000, got int 20001"),
        ({"prompt": "x", "logprobs": 2**70}, "logprobs_limit", "got int 1180591620717411303424"),
        ({"prompt": "x", "logprobs": True}, "wrong_type", "$.logprobs: expected int, got bool tr"),
        ({"prompt": "x", "logprobs": 5.0}, "wrong_type", "$.logprobs: expected int, got float 5.0"),
        ({"prompt": "x", "logprobs": "5"}, "wrong_type", "without quotes"),
        ({"prompt": "x", "prompt_logprobs": -1}, "logprobs_limit", "$.prompt_logprobs: expected 0"),
        ({"prompt": "x", "prompt_logprobs": 20001}, "logprobs_limit", "got int 20001"),
        ({"prompt": "x", "prompt_logprobs": False}, "wrong_type", "$.prompt_logprobs: expected i"),
    ],
)
def test_refused(fields: dict[str, object], code: str, text: str) -> None:
    error = bad(line(**fields)).error
    assert error.code == code
    assert text in str(error)
    assert ";" in str(error), "a message ends with what to do"


@pytest.mark.parametrize("first", PROMPT_KEYS)
@pytest.mark.parametrize("second", PROMPT_KEYS)
def test_any_two_prompts_conflict(first: str, second: str) -> None:
    if first == second:
        return
    error = bad(line(**{first: "x", second: []}, options=["a", "b"])).error
    assert error.code is ErrorCode.CONFLICTING_PROMPTS
    assert first in str(error).split("got")[1]
    assert second in str(error).split("got")[1]


def test_all_four_prompts_conflict() -> None:
    error = bad(line(**dict.fromkeys(PROMPT_KEYS, "x"))).error
    assert "got prompt and messages and prompt_token_ids and question" in str(error)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("[1e999]", "$.targets[0]: number out of range"),
        (f"[{'9' * 5000}]", "integer value out of range"),
        (f"[{'9' * 4300}]", "got int 99999"),
    ],
)
def test_numbers_that_no_type_holds(raw: str, text: str) -> None:
    assert text in str(bad(f'{{"prompt":"x","targets":{raw}}}'.encode()).error)


def test_messages_stay_short_and_on_one_line() -> None:
    text = "a\n\x1b[31m\u202e\x9b" * 1000
    for fields in (
        {"prompt": "x", "logprobs": text},
        {"prompt": "x", "options": ["b"], "label": text},
        {"prompt": "x", "options": [text] * 50, "label": "b"},
        {"messages": [{"role": text, "content": ""}]},
        {text: text},
        {f"key {i}": i for i in range(1000)},
    ):
        message = str(bad(line(**fields)).error)
        assert len(message) < 400
        assert message.isprintable()


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
    by_key = records._parsed_by_key(data, 7)
    at_once = records._parsed_at_once(data, 7)
    if isinstance(by_key, BadLine):
        assert at_once is None
    else:
        assert at_once == by_key
        assert type(at_once.state) is type(by_key.state)


@settings(max_examples=250, deadline=None)
@given(st.binary(max_size=40) | st.text('{}[]",:\\ud8eprmt01-.', max_size=30).map(str.encode))
def test_any_bytes_give_a_record_or_an_error_row(data: bytes) -> None:
    assert line_id(data, 7) == parse_line(data, 7).id


def test_corpus_of_bad_lines() -> None:
    """Every message that people can meet, as they see it. All of the file's lines are bad."""
    with Source(BAD_LINES) as source:
        seen = [
            f"{at_line(BAD_LINES.name, row.line, str(row.error))} [{row.error.code}]"
            for row in source.records()
            if isinstance(row, BadLine)
        ]
        assert len(seen) == source.check_ids().records
    assert seen == BAD_LINES.with_suffix(".errors.txt").read_text("utf-8").splitlines()


def test_a_carriage_return_between_tokens_does_not_break_the_row() -> None:
    record = parse_line(b'{"prompt": "a", "x": [1,\r2, "\\r"]}', 1)
    assert isinstance(record, Record)
    assert bytes(record.extra["x"]) == b'[1, 2, "\\r"]'
