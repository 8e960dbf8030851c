"""Texts put together from words have the ids of the tokenizer itself, in bounded memory."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.prompts import words
from scorer.prompts.tokenizer import Tokenizer
from scorer.prompts.words import WordIds
from tests.tiny_tokenizer import write_tokenizer

WORDS = [
    "a",
    "b.",
    "good",
    "bad",
    "It's",
    "e\u0301",
    "漢字",
    "x\ny",
    "\n",
    "12",
    "",
    "\u3002",
    "é",
    "(b)",
]
texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join), max_size=8)


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def packed(tokenizer: Tokenizer, given: list[str]) -> list[bytes]:
    return [array("i", ids).tobytes() for ids in tokenizer.encode(given)]


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=4))
def test_the_ids_are_those_of_the_whole_text(demo: Tokenizer, batches: list[list[str]]) -> None:
    word_ids = WordIds(demo)
    for batch in [*batches, *batches]:
        assert word_ids(batch) == packed(demo, batch)


def test_words_that_come_again_are_looked_up(
    demo: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    word_ids = WordIds(demo)
    asked: list[str] = []
    encode = demo.encode

    def watched(given: list[str]) -> list[list[int]]:
        asked.extend(given)
        return encode(given)

    monkeypatch.setattr(demo, "encode", watched)
    first = ["the food was good", "the room was good"]  # the, was, good: twice at once
    second = ["the food was bad"]  # food: a second time
    expected = packed(demo, first + second)  # asks for all three
    asked.clear()
    assert word_ids(first) == expected[:2]
    assert sorted(asked) == [" food", " good", " room", " was", "the"]
    asked.clear()
    assert word_ids(second) == expected[2:]
    assert sorted(asked) == [" bad", " food"]
    asked.clear()
    word_ids(["the food was good"])
    assert asked == []
    # Nothing is known of most of the words: the text goes as it is.
    word_ids(["the quick brown fox jumps good"])
    assert asked == ["the quick brown fox jumps good"]


def test_memory_is_bounded(demo: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST_WORDS", 20)
    word_ids = WordIds(demo)
    for n in range(0, 400, 4):
        batch = [f"{n} {k} {n + k} x{n + k}" for k in (n, n, n + 1, n + 1)]
        assert word_ids(batch) == packed(demo, batch)
    for known in word_ids._known:
        assert len(known) <= 20


def test_words_that_come_once_are_not_kept(demo: Tokenizer) -> None:
    word_ids = WordIds(demo)
    for n in range(0, 3000, 3):
        word_ids([f"the food was good x{k}" for k in range(n, n + 3)])
    assert sum(map(len, word_ids._known)) < 20


@pytest.mark.parametrize("place", ["alone", "first", "inner", "last"])
def test_numbers_are_spelt(demo: Tokenizer, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    word_ids = WordIds(demo)
    text = {"alone": "{}", "first": "{} a", "inner": "a {} a", "last": "a {}"}[place]
    batch = [text.format(number) for number in ("0", "12", "99999999999999999999")]
    expected = packed(demo, batch)
    word_ids(["a a a", "a a a"])
    monkeypatch.setattr(demo, "encode", None)
    assert word_ids(batch) == expected


def test_gpt2_joins_digits(tmp_path: Path) -> None:
    pre_tokenizer = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    folder = write_tokenizer(
        tmp_path / "gpt2", pre_tokenizer=pre_tokenizer, merges=[("1", "2"), ("Ġ", "12")]
    )
    tokenizer = Tokenizer(folder)
    batch = ["a 12", "12", "12 a"]
    assert WordIds(tokenizer)(batch) == packed(tokenizer, batch)
    assert [len(ids) for ids in tokenizer.encode(batch)] == [2, 1, 3]


def test_a_pattern_that_may_reach_across_spaces_is_not_cut(tmp_path: Path) -> None:
    pattern = {"Regex": "[a-z ]+|."}
    pre_tokenizer = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
        ],
    }
    merges = [("b", "Ġ"), ("bĠ", "c")]
    tokenizer = Tokenizer(
        write_tokenizer(tmp_path / "odd", pre_tokenizer=pre_tokenizer, merges=merges)
    )
    batch = ["ab cd", "ab cd"]
    assert WordIds(tokenizer)(batch) == packed(tokenizer, batch)
    assert len(tokenizer.encode(["ab cd"])[0]) == 3  # across the space
