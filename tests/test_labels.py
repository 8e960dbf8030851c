from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scorer.errors import ErrorCode, RowError
from scorer.prompts.labels import (
    PreparedOption,
    Tail,
    check_distinct,
    continuation,
    label_variant,
    letter_labels,
    prefix_clash,
)
from scorer.prompts.tokenizer import Tokenizer
from tests.tiny_tokenizer import write_tokenizer

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def tokenizer(qwen3_tokenizer: Path) -> Tokenizer:
    return Tokenizer(qwen3_tokenizer)


@pytest.fixture(scope="module")
def encode(tokenizer: Tokenizer) -> Encode:
    return lambda text: tokenizer.encode([text])[0]


@pytest.mark.parametrize(
    ("tail", "variant"),
    [("", ""), ("\n\n", ""), ("Answer: ", ""), ("\t", ""), ("Answer:", " "), ("x", " ")],
)
def test_the_variant_depends_on_what_the_prompt_ends_with(tail: str, variant: str) -> None:
    assert label_variant(tail) == variant


def test_all_26_letters_are_single_tokens_in_both_variants(encode: Encode) -> None:
    bare = letter_labels("\n\n", 26, encode)
    assert bare[0] == ("A", 32)
    assert [token_id for _, token_id in bare] == list(range(32, 58))
    spaced = letter_labels("Answer:", 26, encode)
    assert spaced[:2] == [(" A", 362), (" B", 425)]
    assert len({token_id for _, token_id in spaced}) == 26


def test_a_label_that_would_merge_with_the_prompt_is_an_error(encode: Encode) -> None:
    with pytest.raises(RowError, match=r"'A' merges with the end of the prompt, 'Answer: '") as e:
        letter_labels("Answer: ", 2, encode)
    assert e.value.code is ErrorCode.LABEL_MERGES


def test_a_label_of_several_tokens_is_an_error(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path, merges=[("Ġ", "A")]))
    encode = lambda text: tokenizer.encode([text])[0]  # noqa: E731
    assert len(letter_labels("", 26, encode)) == 26
    assert letter_labels("x", 1, encode) == [(" A", 256)]
    with pytest.raises(RowError, match=r"' B' is 2 tokens") as caught:
        letter_labels("x", 2, encode)
    assert caught.value.code is ErrorCode.LABEL_NOT_ONE_TOKEN


def test_a_continuation_takes_what_follows_the_prompts_ids(encode: Encode) -> None:
    tail = Tail("The answer is", encode("The answer is"))
    option = continuation("yes indeed", " ", tail, encode)
    assert option == PreparedOption("yes indeed", None, (9834, 12824), False)
    assert encode("The answer is yes indeed") == [*tail.ids, *option.token_ids]


def test_a_continuation_that_would_change_the_prompt_is_encoded_alone(encode: Encode) -> None:
    tail = Tail("The ans", encode("The ans"))
    option = continuation("wer", "", tail, encode)
    assert encode("The answer")[: len(tail.ids)] != tail.ids
    assert option == PreparedOption("wer", None, tuple(encode("wer")), True)


def test_a_combining_character_does_not_reach_back_into_the_prompt(encode: Encode) -> None:
    for text in ("\u0301", "\u0301 and more"):
        option = continuation(text, "", Tail("e", encode("e")), encode)
        assert option == PreparedOption(text, None, tuple(encode(text)), True)


def test_ids_that_spell_no_text_have_a_changed_seam(encode: Encode) -> None:
    assert continuation("x", "", Tail(None, [1, 2]), encode).seam_changed


@pytest.mark.parametrize(
    ("texts", "code", "named"),
    [
        (["a", "", "b"], ErrorCode.EMPTY_OPTION, "''"),
        (["a", "b", "a"], ErrorCode.EQUAL_OPTIONS, "options 0 and 2"),
        (["x", "é", "e\u0301"], ErrorCode.EQUAL_OPTIONS, r"'\xe9' and 'e\u0301'"),
    ],
)
def test_options_must_differ(
    tokenizer: Tokenizer, texts: list[str], code: ErrorCode, named: str
) -> None:
    with pytest.raises(RowError) as caught:
        check_distinct(texts, tokenizer.normalise)
    assert caught.value.code is code
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "clash"),
    [
        ([(1,), (2,)], False),
        ([(1, 2), (1, 3)], False),
        ([(1, 2, 3), (2,), (1, 2)], True),
        ([(1, 9), (1,), (1, 2, 3)], True),
        ([], False),
    ],
)
def test_prefix_clash(ids: list[tuple[int, ...]], clash: bool) -> None:
    assert prefix_clash([PreparedOption("", None, own, False) for own in ids]) is clash
