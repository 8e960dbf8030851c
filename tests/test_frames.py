"""Pieces from a frame against the filled skeleton cut as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.prompts.frames import Frame
from scorer.prompts.literal import AddedTokenText
from scorer.prompts.skeleton import Question, Skeleton

tokens = st.lists(st.text("<|>ab", min_size=2, max_size=4), max_size=4, unique=True)
literals = st.lists(st.text("<|>ab\n", max_size=6), min_size=1, max_size=4)
texts = st.lists(st.text("<|>abc ", max_size=4), min_size=3, max_size=3)


@settings(max_examples=1000, deadline=None)
@given(tokens, literals, st.permutations([0, 1, 2]), texts)
def test_the_pieces_are_those_of_the_filled_skeleton(
    strings: list[str], around: list[str], order: list[int], given_texts: list[str]
) -> None:
    added = AddedTokenText(strings)
    skeleton = Skeleton(tuple(around), tuple(order[: len(around) - 1]), ())
    frame = Frame.of(skeleton, added)
    if frame is None:
        assert any(
            literal.endswith(string[:length])
            for literal in around[:-1]
            for string in strings
            for length in range(1, len(string))
        )
        return
    if not any(map(added.may_be_in, given_texts)):
        whole = skeleton.fill(given_texts)
        assert whole is not None
        assert frame.fill(given_texts) == added.split(whole)


def test_a_template_that_asks_is_answered() -> None:
    skeleton = Skeleton(("<a>", "<b>"), (0,), (Question(0, "startswith", ("x",), False),))
    frame = Frame.of(skeleton, AddedTokenText(["<a>", "<b>"]))
    assert frame is not None
    assert frame.fill(["y"]) == ["", "<a>", "y", "<b>", ""]
    assert frame.fill(["x"]) is None


@pytest.mark.parametrize("literal", ["<", "x<a", "<a>"])
def test_a_text_that_might_complete_a_token_has_no_frame(literal: str) -> None:
    added = AddedTokenText(["<a>", "<a>b"])
    assert Frame.of(Skeleton((literal, ""), (0,), ()), added) is None
    assert Frame.of(Skeleton(("", literal), (0,), ()), added) is not None
