from __future__ import annotations

from pathlib import Path

import pytest

from scorer.errors import ErrorCode
from scorer.records.record import PROMPT_KEYS, BadLine
from scorer.records.source import Source, at_line
from tests.record_cases import bad, line

BAD_LINES = Path(__file__).parent / "data" / "bad-lines.jsonl"


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
        (
            {"prompt": "x", "options": ["no", "caf\u00e9"], "label": "cafe\u0301"},
            "unknown_label",
            "got 'cafe\\u0301', which only looks like option 1, 'caf\\xe9'; write both with",
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
