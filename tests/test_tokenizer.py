from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import ModelError
from scorer.prompts.tokenizer import Tokenizer, is_closed
from tests.conftest import DEMO_MODEL
from tests.tiny_tokenizer import ADDED, BYTES, write_tokenizer


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer(DEMO_MODEL)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """GPT-2's pattern, and merges across a space that no cut may part."""
    merges = [("a", "Ġ"), ("Ġ", "a"), ("a", "Z"), ("Ġ", "1")]
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("gpt2"), merges=merges))


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer: Path) -> Tokenizer:
    return Tokenizer(qwen3_tokenizer)


def test_qwen3_has_151669_ids_of_which_26_are_added(qwen3: Tokenizer) -> None:
    assert qwen3.n_ids == 151669
    assert sorted(qwen3.added.values()) == list(range(151643, 151669))


@pytest.mark.parametrize(("text", "ids"), [("A", [32]), ("yes", [9693]), ("no", [2152])])
def test_known_ids(qwen3: Tokenizer, text: str, ids: list[int]) -> None:
    assert qwen3.encode([text]) == [ids]


def test_every_added_token_is_ordinary_text_when_encoded(qwen3: Tokenizer) -> None:
    for string, ids in zip(qwen3.added, qwen3.encode(list(qwen3.added)), strict=True):
        assert len(ids) > 1
        assert max(ids) < 151643
        assert qwen3.decode(ids) == string


@given(st.text())
def test_decoding_gives_the_normalised_text_back(qwen3: Tokenizer, text: str) -> None:
    ((*ids,),) = qwen3.encode([text])
    assert qwen3.decode(ids) == normalize("NFC", text) == qwen3.normalise(text)


def test_token_text_keeps_the_bytes_of_a_part_of_a_character(qwen3: Tokenizer) -> None:
    ((*ids,),) = qwen3.encode(["🫠"])
    parts = qwen3.token_text(ids)
    assert len(parts) > 1
    assert b"".join(part.raw for part in parts) == "🫠".encode()
    assert "\N{REPLACEMENT CHARACTER}" in parts[0].text
    (end,) = qwen3.token_text([151645])
    assert (end.text, end.raw) == ("<|im_end|>", b"<|im_end|>")


def test_token_text_equals_the_library_for_every_id(
    qwen3: Tokenizer, qwen3_tokenizer: Path
) -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(qwen3_tokenizer / "tokenizer.json"))
    alone = library.decode_batch([[i] for i in range(qwen3.n_ids)], skip_special_tokens=False)
    assert [part.text for part in qwen3.token_text(range(qwen3.n_ids))] == alone


def test_token_starts_are_places_in_the_text_as_given(qwen3: Tokenizer) -> None:
    assert qwen3.token_starts("one two") == [0, 3]
    assert qwen3.token_starts("e\u0301 x") == [0, 2]


def byte_level(**changes: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True} | changes


def added(**changes: Any) -> list[dict[str, Any]]:
    return [{"id": 256, "content": "<|x|>", "special": True} | changes]


def bpe(**changes: Any) -> dict[str, Any]:
    vocab = {char: place for place, char in enumerate(BYTES)}
    return {"type": "BPE", "vocab": vocab, "merges": []} | changes


WITHOUT_A = {char: place for place, char in enumerate(c for c in BYTES if c != "A")}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": bpe(type="Unigram")}, "Unigram"),
        ({"model": bpe(dropout=0.1)}, "dropout is 0.1"),
        ({"model": bpe(vocab=bpe()["vocab"] | {"▁": 256})}, "'▁', which stands for no byte"),
        ({"model": bpe(vocab=WITHOUT_A)}, "no token stands for the byte 0x41"),
        ({"model": None}, "not a BPE tokenizer.json"),
        ({"normalizer": {"type": "NFKC"}}, "NFKC"),
        ({"pre_tokenizer": None}, "pre-tokeniser"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "Metaspace"),
        ({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, "no ByteLevel step"),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"},
                        byte_level(),
                    ],
                }
            },
            "Removed",
        ),
        ({"pre_tokenizer": byte_level(add_prefix_space=True)}, "add_prefix_space is on"),
        ({"added_tokens": added(lstrip=True)}, "'<|x|>' is lstrip"),
        ({"added_tokens": added(rstrip=True)}, "rstrip"),
        ({"added_tokens": added(single_word=True)}, "single_word"),
        ({"added_tokens": added(normalized=True)}, "normalized"),
        ({"added_tokens": added(content="~")}, "fewer than two"),
        ({"added_tokens": added(id=0)}, "id 0 is both"),
        ({"added_tokens": added(id=258)}, "no token has id 256"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "<|start|>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"Sequence": {"id": "B", "type_id": 1}},
                    ],
                    "special_tokens": {
                        "<|start|>": {"id": "<|start|>", "ids": [256], "tokens": ["<|start|>"]}
                    },
                }
            },
            "adds tokens to every text",
        ),
    ],
)
def test_what_would_not_keep_text_literal_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer(write_tokenizer(tmp_path, **changes))
    assert reason in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_a_normalized_added_token_is_fine_without_a_normaliser(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, added_tokens=added(normalized=True), normalizer=None)
    tokenizer = Tokenizer(folder)
    assert tokenizer.added == {"<|x|>": 256}
    assert tokenizer.normalise("e\u0301") == "e\u0301"


def test_an_added_token_that_ordinary_text_can_give_is_refused(tmp_path: Path) -> None:
    folder = write_tokenizer(
        tmp_path,
        merges=[("<", "|")],
        added_tokens=[{"id": 256, "content": "<|", "special": True}],
    )
    with pytest.raises(ModelError, match="even as ordinary text"):
        Tokenizer(folder)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"add_bos_token": True}, "add_bos_token"),
        ({"eos_token": "<eos>"}, "'<eos>' is a special token here"),
        ({"pad_token": {"content": "<pad>"}}, "'<pad>'"),
        ({"added_tokens_decoder": {"260": {"content": "<new>"}}}, "'<new>'"),
        ({"added_tokens_decoder": {"257": {"content": "<|start|>"}}}, "with id 257"),
    ],
)
def test_a_config_that_adds_tokens_of_its_own_is_refused(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer(write_tokenizer(tmp_path, config=config))
    assert reason in str(caught.value)


def test_a_config_that_agrees_is_fine(tmp_path: Path) -> None:
    config = {"eos_token": "<|end|>", "added_tokens_decoder": {"256": {"content": "<|start|>"}}}
    assert list(Tokenizer(write_tokenizer(tmp_path, config=config)).added) == list(ADDED)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: no such file"):
        Tokenizer(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    (folder / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: can't be read"):
        Tokenizer(folder)
    (folder / "tokenizer.json").write_text(json.dumps([]), encoding="utf-8")
    with pytest.raises(ModelError, match=r"not a BPE tokenizer\.json"):
        Tokenizer(folder)


def test_a_file_that_the_library_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: can't be loaded: missing field"):
        Tokenizer(write_tokenizer(tmp_path, pre_tokenizer=byte_level()))


def test_truncation_and_padding_in_the_file_have_no_effect(tmp_path: Path) -> None:
    truncation = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = Tokenizer(write_tokenizer(tmp_path, truncation=truncation))
    assert [len(ids) for ids in tokenizer.encode(["abcd", "a"])] == [4, 1]


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("aZé漢 '.\n\t\u0301\u00a01s"), max_size=20),
    behind=st.text(st.sampled_from("aZé 's.1\u0301"), max_size=5),
)
def test_ids_do_not_reach_across_the_place_they_are_independent_from(
    demo: Tokenizer, gpt2: Tokenizer, kind: str, text: str, behind: str
) -> None:
    tokenizer = demo if kind == "qwen" else gpt2
    place = tokenizer.independent_from(text)
    whole = text + behind
    assert 0 <= place < max(1, len(text))
    left, right, both = tokenizer.encode([whole[:place], whole[place:], whole])
    assert left + right == both


def test_places_to_be_independent_from(demo: Tokenizer) -> None:
    assert demo.independent_from("one two three") == len("one two")
    assert demo.independent_from("one two 3") == len("one two")
    assert demo.independent_from("it's. ") == len("it's.")
    for text in ("1 one", "one  two", "é one", "one é", "x' s", "漢 字", "one "):
        assert demo.independent_from(text) == text.index(" "), text
    for text in ("", "one", " one", "one\n two", "\u0301 one", "one\u00a0 two", "\u3002 one"):
        assert demo.independent_from(text) == 0, text


CHARACTERS = "aZé漢١²ß'’-.,!~<|>_\"\\ \n\r\t\u0301\u0308\u00a0\u2009\u3000\u1160가1sſK\u037e。्कि"


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
@settings(max_examples=1000, deadline=None)
@given(
    left=st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=12),
    right=st.text(st.sampled_from(CHARACTERS), max_size=12),
)
def test_a_space_is_cut_off_from_what_is_closed(
    demo: Tokenizer, gpt2: Tokenizer, kind: str, left: str, right: str
) -> None:
    tokenizer = demo if kind == "qwen" else gpt2
    if is_closed(left):
        ids = tokenizer.encode([left, " " + right, left + " " + right])
        assert ids[0] + ids[1] == ids[2]


def test_most_of_what_people_write_is_closed() -> None:
    for text in ("a", "Z", "é", "漢", "한", "1", "²", ".", "!", "~", ")", "ß"):
        assert is_closed(text), text
    for text in ("", " ", "\n", "\t", "\u00a0", "\u2028", "e\u0301", "\u3002", "\x7f", "\x00"):
        assert not is_closed(text), ascii(text)


def test_an_unknown_pattern_is_never_cut(tmp_path: Path) -> None:
    pre_tokenizer = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": ".+"}, "behavior": "Isolated", "invert": False},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
        ],
    }
    folder = write_tokenizer(tmp_path / "odd", pre_tokenizer=pre_tokenizer)
    assert Tokenizer(folder).independent_from("one two three") == 0
