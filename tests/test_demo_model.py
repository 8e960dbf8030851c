"""The demonstration model and what it was trained on."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MODEL = EXAMPLES / "demo-model"
sys.path.insert(0, str(EXAMPLES))

from demo_training import tables  # noqa: E402
from demo_training.composed import Composer  # noqa: E402
from demo_training.data import (  # noqa: E402
    HELD_OUT_CLAUSES,
    LETTERS,
    TRAIN_CLAUSES,
    Split,
    Writer,
    family,
    neutral_words,
    polarity_words,
    render_question,
    split_words,
)
from demo_training.evaluation import answer, held_out_questions  # noqa: E402
from demo_training.parts import PARTS  # noqa: E402
from demo_training.tokens import Encoder, render_chat, render_prompt, train_tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL, local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        MODEL, local_files_only=True, dtype=torch.float32
    ).eval()


# ---------------------------------------------------------------- the files


def test_weights_are_small() -> None:
    assert (MODEL / "model.safetensors").stat().st_size <= 8_000_000


def test_architecture(model: Any) -> None:
    config = model.config
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert config.model_type == "qwen3"
    assert config.head_dim == 64
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    assert config.max_position_embeddings == 4096
    assert config.rope_parameters["rope_type"] == "default"
    assert set(config.layer_types) == {"full_attention"}


def test_embedding_has_rows_above_the_tokenizer(model: Any, tokenizer: Any) -> None:
    assert model.config.vocab_size % 64 == 0
    assert model.config.vocab_size > len(tokenizer)
    assert model.get_input_embeddings().weight.shape[0] == model.config.vocab_size


# ---------------------------------------------------------------- the tokenizer


def test_letters_and_digits_are_one_token(tokenizer: Any) -> None:
    for text in [*LETTERS, *(f" {letter}" for letter in LETTERS), *"0123456789"]:
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 1, text


def test_added_tokens(tokenizer: Any) -> None:
    added = {token.content: token.special for token in tokenizer.added_tokens_decoder.values()}
    assert added == {
        "<|endoftext|>": True,
        "<|im_start|>": True,
        "<|im_end|>": True,
        "<think>": False,
        "</think>": False,
    }
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.mark.parametrize(
    "text",
    ["na\u00efve caf\u00e9 \u4f60\u597d \U0001f600", "a\r\n\tb  c", "e\u0301".encode().decode()],
)
def test_any_text_survives(tokenizer: Any, text: str) -> None:
    import unicodedata

    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nOne."},
        {"role": "user", "content": "Two?"},
    ]

    def render(**options: bool) -> str:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        assert isinstance(text, str)
        return text

    turns = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        "<|im_start|>assistant\nOne.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n"
    )
    assert render() == turns
    opened = turns + "<|im_start|>assistant\n"
    assert render(add_generation_prompt=True) == opened
    assert render(add_generation_prompt=True, enable_thinking=True) == opened
    closed = opened + "<think>\n\n</think>\n\n"
    assert render(add_generation_prompt=True, enable_thinking=False) == closed


def test_the_tokenizer_is_what_the_script_makes(tmp_path: Path) -> None:
    train_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes(), name


# ---------------------------------------------------------------- the training data


def test_encoder_equals_the_tokenizer_and_pieces_spell_the_text(tokenizer: Any) -> None:
    writer = Writer(seed=3, split="train")
    whole = Encoder(MODEL, seed=0, dropout=0.0)
    broken = Encoder(MODEL, seed=0, dropout=0.5)
    lengths = Counter[bool]()
    for _ in range(200):
        text = render_prompt(writer.example())
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert whole.encode(text) == ids
        pieces = broken.encode(text)
        assert tokenizer.decode(pieces) == text
        lengths[len(pieces) > len(ids)] += 1
    assert lengths[True] > 50


def test_hints_name_words_options_and_text(tokenizer: Any) -> None:
    user = render_question("How does the writer feel? What a wonderful day.", None, ["bad", "good"])
    text = render_chat((("user", user),))
    ids, hints = Encoder(MODEL, seed=0, dropout=0.0).encode_prompt(text, 0, (1, 0))
    said = [(tokenizer.decode([i]), h) for i, h in zip(ids, hints, strict=True) if h != -100]
    assert said == [
        (" wonderful", 0),
        (" bad", 1),
        ("\n", 3),
        (" good", 0),
        ("\n\n", 2),
        ("\n\n", 6),
    ]


def test_chat_rendering_equals_the_template(tokenizer: Any) -> None:
    writer = Writer(seed=4, split="train")
    for _ in range(20):
        messages = writer.chat().messages
        assert render_chat(messages) == tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )


def test_writer_is_seeded() -> None:
    first, second = Writer(seed=9, split="train"), Writer(seed=9, split="train")
    assert [first.example() for _ in range(50)] == [second.example() for _ in range(50)]


def test_held_out_words_never_occur_in_training() -> None:
    where = split_words(polarity_words())
    held_out = {word for word, split in where.items() if split != "train"}
    assert len(held_out) > 500
    assert held_out.isdisjoint(neutral_words())
    for writer in (Writer(seed=5, split="train"), Composer(seed=5)):
        seen: set[str] = set()
        for _ in range(4000):
            example = writer.example()
            text = " ".join(content for _, content in example.messages) + example.prompt
            seen.update(re.findall("[a-z]+", text.lower()))
        assert len(seen) > 3000
        assert held_out.isdisjoint(seen)


def test_parts_hold_no_word_of_polarity() -> None:
    said = " ".join(PARTS.values()).lower().replace("won't", "")
    words = set(re.findall("[a-z]+", re.sub(r"\{\w+\}", " ", said)))
    assert words & {word.text for word in polarity_words()} == {"yes"}


def test_held_out_families_share_no_word_with_training() -> None:
    where = split_words(polarity_words())
    of: dict[Split, set[str]] = {"train": set(), "form": set(), "family": set()}
    for word, split in where.items():
        of[split].add(family(word))
    assert of["family"].isdisjoint(of["train"])
    assert of["form"] <= of["train"]


def test_held_out_templates_are_not_trained_on() -> None:
    trained = {template for clauses in TRAIN_CLAUSES for template in clauses[0]}
    held_out = {template for clauses in HELD_OUT_CLAUSES for template in clauses[0]}
    assert held_out.isdisjoint(trained)
    assert set(tables.HELD_OUT_NEUTRAL).isdisjoint(tables.NEUTRAL_CLAUSES)


def test_composed_clauses_fit_no_held_out_template() -> None:
    templates = {t for clauses in HELD_OUT_CLAUSES for t in clauses[0]}
    patterns = [_pattern(t) for t in templates | set(tables.HELD_OUT_NEUTRAL)]
    composer = Composer(seed=8)
    clauses = [composer.clause(k % 3 - 1) for k in range(2000)]
    assert len(set(clauses)) > 1900
    assert [c for c in clauses if any(pattern.search(c) for pattern in patterns)] == []


def test_composer_is_seeded() -> None:
    first, second = Composer(seed=9), Composer(seed=9)
    assert [first.example() for _ in range(50)] == [second.example() for _ in range(50)]


# ---------------------------------------------------------------- accuracy


def test_held_out_accuracy(model: Any, tokenizer: Any) -> None:
    questions = held_out_questions("form", 160, seed=21)
    chosen, mass = answer(model, tokenizer, questions)
    right = [c == q.gold for c, q in zip(chosen, questions, strict=True)]
    assert np.mean(right) >= 0.9
    assert np.mean(mass) >= 0.95


# ---------------------------------------------------------------- the example files


def _records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text("utf-8").splitlines()]


def _sentence(record: dict[str, Any]) -> str:
    """The text that a record of ``sentiment.jsonl`` asks about."""
    if "state" in record:
        return str(record["state"])
    quoted = re.search(r'"(.*)"$|\n(.*)$', record["question"])
    assert quoted, record["question"]
    return quoted[1] or quoted[2]


def _pattern(template: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in re.split(r"\{\w+\}|\(n\)", template)]
    return re.compile(r"\w+(?:[ '-]\w+){0,3}".join(parts) + "[.!]?", re.IGNORECASE)


def test_sentiment_sentences_are_many_and_distinct() -> None:
    sentences = [_sentence(record) for record in _records("sentiment.jsonl")]
    assert len(sentences) >= 200
    assert len({sentence.lower() for sentence in sentences}) == len(sentences)


def test_sentiment_questions_are_well_formed() -> None:
    records = _records("sentiment.jsonl")
    ids = [record["id"] for record in records]
    assert len(set(ids)) == len(ids)
    for record in records:
        assert 2 <= len(record["options"]) <= 4
        assert len(set(record["options"])) == len(record["options"])
        assert record["label"] in record["options"]
    for size in (2, 3, 4):
        golds = Counter(
            r["options"].index(r["label"]) for r in records if len(r["options"]) == size
        )
        assert max(golds.values()) - min(golds[i] for i in range(size)) <= 1


def test_sentiment_sentences_are_not_from_the_templates() -> None:
    # Templates that are hardly more than slots ("{adj} {x}") fit nearly any sentence.
    templates = {t for clauses in (*TRAIN_CLAUSES, *HELD_OUT_CLAUSES) for t in clauses[0]}
    templates |= {*tables.NEUTRAL_CLAUSES, *tables.HELD_OUT_NEUTRAL}
    telling = [t for t in templates if len(re.sub(r"\{\w+\}|[^a-zA-Z]", "", t)) >= 12]
    assert len(telling) > 60
    phrases = f"{tables.PRAISE}{tables.COMPLAINTS}".replace("\n", "")
    sentences = [_sentence(record) for record in _records("sentiment.jsonl")]
    for template in [*telling, *phrases.split("|")]:
        pattern = _pattern(template.strip())
        assert [s for s in sentences if pattern.fullmatch(s)] == [], template


@pytest.mark.parametrize("name", ["continuations.jsonl", "chat.jsonl"])
def test_other_records_name_options_and_one_token_targets(name: str, tokenizer: Any) -> None:
    kind = "prompt" if name == "continuations.jsonl" else "messages"
    for record in _records(name):
        assert record[kind], record["id"]
        assert record.keys() & {"options", "targets", "logprobs"}, record["id"]
        for target in record.get("targets", []):
            assert len(tokenizer.encode(target, add_special_tokens=False)) == 1, target
        if "label" in record and isinstance(record["label"], str):
            assert record["label"] in record["options"], record["id"]
