from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.errors import ErrorCode, RowError
from scorer.prompts.literal import AddedTokenText

QWEN = AddedTokenText(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"])
# Tokens that overlap with themselves and each other, and that begin one another.
ODD = ["aba", "ab", "bab", "<a>", "<a><a>", "\n\n"]


def guarded(added: AddedTokenText, *texts: str) -> tuple[list[str], str]:
    result, marker = added.guard(texts)
    return list(result), marker


def test_ordinary_text_is_left_alone() -> None:
    assert guarded(QWEN, "1 < 2 and <b>bold</b>", "") == (["1 < 2 and <b>bold</b>", ""], "")


def test_a_marker_goes_behind_the_first_character() -> None:
    texts, marker = guarded(QWEN, "a<think>b", "c")
    assert marker == "\U0010fffd"
    assert texts == [f"a<{marker}think>b", "c"]


@pytest.mark.parametrize("text", ["<", "x<|im_", "</think", "<|im_start|"])
def test_a_text_that_stops_inside_a_token_is_broken_there(text: str) -> None:
    (broken,), marker = guarded(QWEN, text)
    assert broken == text.replace("<", "<" + marker)
    assert QWEN.count(broken + "end|>") == 0


def test_markers_that_the_user_wrote_are_kept() -> None:
    texts, marker = QWEN.guard(["\U0010fffd<think>", "\U0010fffc"], template="\U0010fffb")
    assert marker == "\U0010fffa"
    assert [text.replace(marker, "") for text in texts] == ["\U0010fffd<think>", "\U0010fffc"]


def test_a_text_with_every_possible_marker_is_refused() -> None:
    every = "".join(map(chr, range(0x100000, 0x10FFFE)))
    with pytest.raises(RowError, match="private-use") as caught:
        QWEN.guard([every + "<think>"])
    assert caught.value.code is ErrorCode.INVALID_VALUE


def test_the_longest_token_at_a_place_is_found_first() -> None:
    assert AddedTokenText(ODD).split("x<a><a>aba") == ["x", "<a><a>", "", "aba", ""]


def test_without_added_tokens_everything_is_text() -> None:
    none = AddedTokenText([])
    assert none.split("<think>") == ["<think>"]
    assert none.count("<think>") == 0
    assert none.guard(["<think>"]) == (["<think>"], "")


@given(st.lists(st.text(alphabet="ab<>\n", max_size=12), min_size=1, max_size=4))
def test_no_token_is_found_in_guarded_texts_however_they_are_joined(texts: list[str]) -> None:
    added = AddedTokenText(ODD)
    broken, marker = guarded(added, *texts)
    joined = "".join(broken)
    assert not any(token in joined for token in ODD)
    assert (joined.replace(marker, "") if marker else joined) == "".join(texts)


@given(st.text(alphabet="ab<>\n", max_size=20))
def test_split_gives_the_text_back_and_tokens_at_odd_places(text: str) -> None:
    parts = AddedTokenText(ODD).split(text)
    assert "".join(parts) == text
    assert set(parts[1::2]) <= set(ODD)
    assert not any(re.search("|".join(map(re.escape, ODD)), part) for part in parts[::2])
    assert AddedTokenText(ODD).count(text) == len(parts) // 2
