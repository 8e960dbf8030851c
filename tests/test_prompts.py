"""Records to token ids, with the real Qwen3 tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from scorer.errors import RowError
from scorer.prompts import Prepared, Prompter
from scorer.records import Record


@pytest.fixture(scope="module")
def prompter(qwen3_tokenizer: Path) -> Prompter:
    return Prompter(qwen3_tokenizer, max_tokens=4096, vocab_size=151936)


def one(prompter: Prompter, record: Record) -> Prepared:
    (prepared,) = prompter.prepare([record])
    if isinstance(prepared, RowError):
        raise prepared
    return prepared


def test_a_question_is_lettered_and_answered_without_thinking(prompter: Prompter) -> None:
    prepared = one(
        prompter, Record(line=1, id=1, question="Is it?", state="S", options=("x", "y"))
    )
    assert prepared.text == (
        "<|im_start|>user\nIs it?\n\nS\n\nA. x\nB. y\n\n"
        "Answer with the letter of the correct option only.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert [(o.label, o.token_ids) for o in prepared.options] == [("A", (32,)), ("B", (33,))]
