"""How well the demonstration model answers: held-out words and templates, words alone, files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3ForCausalLM

from demo_training.data import CLASSES, LETTERS, Example, Split, Writer, render_question
from demo_training.tokens import render_chat

SENTIMENT_FILE = Path(__file__).parent.parent / "sentiment.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A lettered question, rendered, with its gold position; ``group`` names its set."""

    text: str
    n_options: int
    gold: int
    group: str


def held_out_questions(split: Split, count: int, seed: int) -> list[Question]:
    """Lettered sentiment questions of held-out templates and words, most of them with polarity."""
    writer = Writer(seed, split)
    makers = (writer.letter, writer.letter, writer.letter, writer.yes_no)
    return [_question(makers[k % 4](), split) for k in range(count)]


def _question(example: Example, group: str) -> Question:
    return Question(render_chat(example.messages), example.n_options, example.gold, group)


def word_questions(split: Split) -> list[Question]:
    """Every word of a split, asked for alone: positive or negative?"""
    writer = Writer(7, split)
    questions = []
    for sign, label in ((1, 0), (-1, 1)):
        for word in writer.vocabulary[sign]:
            options = writer.rng.sample(CLASSES[:2], 2)
            text = render_question(f'Is the word "{word}" positive or negative?', None, options)
            gold = options.index(CLASSES[label])
            questions.append(Question(render_chat((("user", text),)), 2, gold, f"word:{split}"))
    return questions


def file_questions(path: Path) -> list[Question]:
    """The lettered questions of a JSON Lines file in ``scorer``'s record format."""
    questions = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        options = record["options"]
        text = render_question(record["question"], record.get("state"), options)
        gold = options.index(record["label"])
        questions.append(Question(render_chat((("user", text),)), len(options), gold, path.stem))
    return questions


def answer(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]
) -> tuple[list[int], list[float]]:
    """Chosen position and label mass of each question; batches padded on the right."""
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS]
    chosen = [0] * len(questions)
    mass = [0.0] * len(questions)
    ids = [tokenizer(q.text, add_special_tokens=False)["input_ids"] for q in questions]
    order = sorted(range(len(ids)), key=lambda k: len(ids[k]))
    for first in range(0, len(order), 64):
        rows = order[first : first + 64]
        width = max(len(ids[k]) for k in rows)
        padded = torch.tensor([ids[k] + [0] * (width - len(ids[k])) for k in rows])
        last = torch.tensor([len(ids[k]) - 1 for k in rows], device=model.device)
        with torch.inference_mode():
            hidden = model.model(input_ids=padded.to(model.device), use_cache=False)[0]
            logits = model.lm_head(hidden[torch.arange(len(rows), device=model.device), last])
        probabilities = logits.float().softmax(-1)[:, letters].cpu()
        for row, k in enumerate(rows):
            own = probabilities[row, : questions[k].n_options]
            chosen[k], mass[k] = int(own.argmax()), float(own.sum())
    return chosen, mass


def majority(questions: Sequence[Question]) -> float:
    """Accuracy of always giving the position that is right most often."""
    return Counter(q.gold for q in questions).most_common(1)[0][1] / len(questions)


def evaluate(directory: Path, count: int) -> None:
    """Print accuracies: held-out word forms, held-out families, words alone, the example file.

    The weights are bfloat16 as stored, the arithmetic is float32.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    sets = [held_out_questions("form", count, 11), held_out_questions("family", count, 12)]
    sets += [word_questions("form"), word_questions("family"), word_questions("train")]
    sets.append(file_questions(SENTIMENT_FILE))
    for questions in sets:
        chosen, mass = answer(model, tokenizer, questions)
        right = [c == q.gold for c, q in zip(chosen, questions, strict=True)]
        print(
            f"{questions[0].group:12s} n={len(questions):5d}  accuracy {np.mean(right):.3f}"
            f"  (majority position {majority(questions):.3f})  label mass {np.mean(mass):.3f}"
        )
        by: tuple[tuple[str, Callable[[Question], str]], ...] = (
            ("options", lambda q: str(q.n_options)),
            ("gold", lambda q: LETTERS[q.gold]),
        )
        for name, key in by:
            for value in sorted({key(q) for q in questions}):
                part = [r for r, q in zip(right, questions, strict=True) if key(q) == value]
                print(f"    {name} {value}: {np.mean(part):.3f} of {len(part)}")
