"""Train the demonstration model in ``examples/demo-model`` from nothing but this folder.

A Qwen3 of about 3.8 million parameters learns to answer lettered sentiment questions over short
English texts, options in any order, by one letter after the chat template's empty think block.
Two commands make the files (the first is exact, the second up to floating-point order):

    python examples/train_demo_model.py tokenizer
    python examples/train_demo_model.py train

and a third measures them:

    python examples/train_demo_model.py evaluate

Everything is seeded. ``train`` takes minutes on one GPU; on a CPU use ``--steps`` to shorten it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import torch
from demo_data import (
    CLASSES,
    LETTERS,
    Example,
    Split,
    Writer,
    neutral_words,
    polarity_words,
    render_question,
    split_words,
)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

HERE: Final = Path(__file__).parent
MODEL_DIR: Final = HERE / "demo-model"

BPE_SIZE: Final = 4000
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN: Final = ("<think>", "</think>")  # added, but not special
VOCAB_ROWS: Final = 4032  # the next multiple of 64: rows above the tokenizer's ids stay unused

# Qwen3's rule: contractions, words with the character before them, single digits, the rest.
PRE_TOKEN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same rule for the ASCII text that this file generates.
PRE_TOKEN_ASCII: Final = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS: Final = re.compile("(" + "|".join(map(re.escape, SPECIAL + PLAIN)) + ")")

CHAT_TEMPLATE: Final = """\
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('role must be system, user or assistant, got ' + message.role) }}
    {%- endif %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


# -------------------------------------------------------------------------------- the tokenizer


def _corpus() -> Iterable[str]:
    """What the merges are learnt from: training sentences and the training words, nothing else."""
    writer = Writer(seed=1, split="train")
    for _ in range(30_000):
        example = writer.example()
        yield "\n".join(text for _, text in example.messages) + example.prompt + example.answer
    where = split_words(polarity_words())
    for word in polarity_words():
        if where[word.text] == "train":
            yield f" {word.text}" * 20
            yield f" {word.text.capitalize()}" * 2
    for text in neutral_words():
        yield f" {text}" * 12
    for letter in LETTERS:  # every letter, bare (an initial piece) and after a space, is one token
        yield f" {letter}." * 20_000


def train_tokenizer(out: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; the same bytes on every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=BPE_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    """The chat template with the generation prompt and thinking off, without Jinja (for speed)."""
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return f"{turns}<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Encoder:
    """Text to ids, a word at a time through a cache; now and then a word in smaller pieces.

    Smaller pieces (BPE dropout, arXiv 1910.13267) let the model meet the pieces that a word it
    never saw is made of. They come from a seeded generator, so the data is the same on every run.
    """

    def __init__(self, directory: Path, seed: int, dropout: float) -> None:
        spec = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._vocab: dict[str, int] = spec["model"]["vocab"]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(spec["model"]["merges"])}
        self._cache: dict[str, list[int]] = {}
        self._rng = Random(seed)
        self._dropout = dropout

    def _in_pieces(self, word: str) -> list[int]:
        parts = list(word.replace(" ", "\u0120"))
        while True:
            pairs = [
                (self._ranks[pair], i)
                for i, pair in enumerate(zip(parts, parts[1:], strict=False))
                if pair in self._ranks and self._rng.random() >= 0.25
            ]
            if not pairs:
                return [self._vocab[part] for part in parts]
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        for stretch in MARKERS.split(text):
            pieces = [stretch] if MARKERS.fullmatch(stretch) else PRE_TOKEN_ASCII.findall(stretch)
            for piece in pieces:
                if len(piece) > 4 and piece[1:].isalpha() and self._rng.random() < self._dropout:
                    ids += self._in_pieces(piece)
                    continue
                cached = self._cache.get(piece)
                if cached is None:
                    cached = self._cache[piece] = self._tokenizer.encode(piece).ids
                ids += cached
        return ids


# -------------------------------------------------------------------------------- training data


@dataclass(frozen=True, slots=True)
class Corpus:
    """Examples end to end: ids [total], the end of each, and where each one's answer begins."""

    ids: np.ndarray[Any, np.dtype[np.uint16]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    answers: np.ndarray[Any, np.dtype[np.int64]]


def _make_shard(job: tuple[Path, int, int]) -> Corpus:
    directory, seed, count = job
    writer = Writer(seed, "train")
    plain = Encoder(directory, seed, dropout=0.0)
    broken = Encoder(directory, seed, dropout=0.2)
    ids: list[int] = []
    ends, answers = [], []
    for index in range(count):
        example = writer.example()
        encode = broken if index % 2 else plain
        if example.messages:
            ids += encode(render_chat(example.messages))
            answers.append(len(ids))
            ids += plain(example.answer + "<|im_end|>")
        else:
            ids += encode(example.prompt)
            answers.append(len(ids))
            ids += plain(example.answer + "<|endoftext|>")
        ends.append(len(ids))
    return Corpus(np.array(ids, np.uint16), np.array(ends), np.array(answers))


def make_corpus(directory: Path, seed: int, count: int, workers: int) -> Corpus:
    """``count`` training examples; the same ones for any number of workers."""
    size = 20_000
    counts = [min(size, count - first) for first in range(0, count, size)]
    jobs = [(directory, seed * 1000 + k, n) for k, n in enumerate(counts)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        shards = pool.map(_make_shard, jobs, chunksize=1)
    starts = np.cumsum([0] + [len(shard.ids) for shard in shards])
    placed = list(zip(shards, starts[:-1], strict=True))
    return Corpus(
        np.concatenate([shard.ids for shard in shards]),
        np.concatenate([shard.ends + start for shard, start in placed]),
        np.concatenate([shard.answers + start for shard, start in placed]),
    )


@dataclass(frozen=True, slots=True)
class Minibatch:
    """ids int64 [b, n], zero-padded on the right; lengths and answer starts int64 [b]."""

    ids: torch.Tensor
    lengths: torch.Tensor
    answers: torch.Tensor


def minibatches(corpus: Corpus, size: int, rng: np.random.Generator) -> Iterable[Minibatch]:
    """One pass in random order; batches of examples of like length, in random order themselves."""
    starts = np.concatenate([[0], corpus.ends[:-1]])
    lengths = corpus.ends - starts
    order = rng.permutation(len(lengths))
    chunk = size * 32
    for first in range(0, len(order) - size + 1, chunk):
        part = order[first : first + chunk]
        part = part[np.argsort(lengths[part], kind="stable")]
        for b in rng.permutation(len(part) // size):
            rows = part[b * size : (b + 1) * size]
            width = -(-int(lengths[rows].max()) // 16) * 16
            ids = np.zeros((size, width), np.int64)
            for i, row in enumerate(rows):
                ids[i, : lengths[row]] = corpus.ids[starts[row] : corpus.ends[row]]
            yield Minibatch(
                torch.from_numpy(ids),
                torch.from_numpy(lengths[rows]),
                torch.from_numpy(corpus.answers[rows] - starts[rows]),
            )


# -------------------------------------------------------------------------------- the model


def new_model() -> Qwen3ForCausalLM:
    """The architecture: Qwen3 in small, two query heads to each key head."""
    config = Qwen3Config(
        vocab_size=VOCAB_ROWS,
        hidden_size=256,
        intermediate_size=352,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=BPE_SIZE + 2,
        pad_token_id=BPE_SIZE,
        initializer_range=0.02,
    )
    return Qwen3ForCausalLM(config)


def loss_of(model: Qwen3ForCausalLM, batch: Minibatch, text_share: float) -> torch.Tensor:
    """Cross entropy of the answers, plus a tenth of that of a sample of the text before them."""
    device = batch.ids.device
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[:, :-1]
    targets = batch.ids[:, 1:]
    at = torch.arange(1, batch.ids.shape[1], device=device)
    inside = at < batch.lengths[:, None]
    answer = inside & (at >= batch.answers[:, None])
    text = inside & ~answer & (torch.rand(inside.shape, device=device) < text_share)
    answer_loss = torch.nn.functional.cross_entropy(
        model.lm_head(hidden[answer]).float(), targets[answer]
    )
    text_loss = torch.nn.functional.cross_entropy(
        model.lm_head(hidden[text]).float(), targets[text]
    )
    return answer_loss + 0.1 * text_loss


def train(options: argparse.Namespace) -> None:
    """Train; save and evaluate every ``--save-every`` steps and at the end."""
    began = time.monotonic()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = make_corpus(options.model, options.seed, options.examples, options.workers)
    made = time.monotonic() - began
    print(f"{len(corpus.ends)} examples, {len(corpus.ids)} tokens in {made:.0f} s", flush=True)
    model = new_model().to(device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, on {device}", flush=True)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gains = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}],
        lr=options.lr,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    rng = np.random.default_rng(options.seed)
    step = 0
    while step < options.steps:
        for batch in minibatches(corpus, options.batch, rng):
            minutes = (time.monotonic() - began) / 60
            # Whichever runs out first, steps or minutes, drives the schedule to its end.
            done = max(step / options.steps, minutes / options.minutes)
            if done >= 1:
                step = options.steps
                break
            rate = min(step / 300, 1.0) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            for group in optimizer.param_groups:
                group["lr"] = options.lr * rate
            moved = Minibatch(
                batch.ids.to(device), batch.lengths.to(device), batch.answers.to(device)
            )
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = loss_of(model, moved, options.text_share)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % options.log_every == 0:
                print(f"step {step:6d}  {minutes:5.2f} min  loss {loss.item():.4f}", flush=True)
            if step % options.save_every == 0:
                save(model, options.out)
                evaluate(options.out, options.eval_examples // 4, brief=True)
    save(model, options.out)
    print(f"trained in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    evaluate(options.out, options.eval_examples, brief=False)


def save(model: Qwen3ForCausalLM, out: Path) -> None:
    """Write ``config.json`` and the weights, rounded to bfloat16."""
    rounded = new_model().to(torch.bfloat16)
    rounded.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()})
    rounded.save_pretrained(out)


# -------------------------------------------------------------------------------- evaluation


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


def evaluate(directory: Path, count: int, brief: bool) -> None:
    """Print accuracies: held-out word forms, held-out families, words alone, the example file."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    sets = [held_out_questions("form", count, 11), held_out_questions("family", count, 12)]
    sets += [word_questions("form"), word_questions("family"), word_questions("train")]
    if (HERE / "sentiment.jsonl").exists():
        sets.append(file_questions(HERE / "sentiment.jsonl"))
    for questions in sets:
        chosen, mass = answer(model, tokenizer, questions)
        right = [c == q.gold for c, q in zip(chosen, questions, strict=True)]
        print(
            f"{questions[0].group:12s} n={len(questions):5d}  accuracy {np.mean(right):.3f}"
            f"  (majority position {majority(questions):.3f})  label mass {np.mean(mass):.3f}"
        )
        if brief:
            continue
        for name, key in (
            ("options", lambda q: q.n_options),
            ("gold", lambda q: LETTERS[q.gold]),
        ):
            for value in sorted({key(q) for q in questions}):
                part = [r for r, q in zip(right, questions, strict=True) if key(q) == value]
                print(f"    {name} {value}: {np.mean(part):.3f} of {len(part)}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=("tokenizer", "train", "evaluate"))
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="folder with the tokenizer")
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="folder for the weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after this long")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--text-share", type=float, default=0.15)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=3000)
    parser.add_argument("--eval-examples", type=int, default=4000)
    options = parser.parse_args()
    if options.command == "tokenizer":
        train_tokenizer(options.out)
    elif options.command == "train":
        train(options)
    else:
        evaluate(options.out, options.eval_examples, brief=False)


if __name__ == "__main__":
    main()
