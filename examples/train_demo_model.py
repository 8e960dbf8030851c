"""Train the demonstration model in ``examples/demo-model`` from nothing but this folder.

A Qwen3 of about 3.8 million parameters learns to answer lettered sentiment questions over short
English texts, options in any order, by one letter after the chat template's empty think block.
Three commands make the files (the first is exact, the others up to floating-point order):

    python examples/train_demo_model.py tokenizer
    python examples/train_demo_model.py train --out out/first-stage
    python examples/train_demo_model.py tune --model out/first-stage

and a fourth measures them:

    python examples/train_demo_model.py evaluate

``train`` starts from random weights and reads sentences of fixed templates; ``tune`` goes on from
those weights with sentences composed from parts, most of them unlike any other. Everything is
seeded. ``train`` takes minutes on one GPU, ``tune`` some tens of minutes on one CPU core;
the bundled weights were tuned twice, as ``demo-model/README.md`` tells.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from demo_training.composed import Composer
from demo_training.data import Writer
from demo_training.evaluation import evaluate
from demo_training.tokens import BPE_SIZE, VOCAB_ROWS, Encoder, render_prompt, train_tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

MODEL_DIR: Final = Path(__file__).parent / "demo-model"
ANSWER_TOKENS: Final = 8  # the longest answer has fewer
TEXT_TOKENS: Final = 8  # places of the prompt, drawn at random, whose next token is a target too
HINTS: Final = 10
STAGES: Final[dict[str, dict[str, float]]] = {  # defaults of the command line
    "train": {"examples": 600_000, "steps": 3200, "batch": 512, "lr": 1e-3, "warm": 300},
    "tune": {"examples": 40_000, "steps": 1000, "batch": 32, "lr": 3e-4, "warm": 50},
}


# -------------------------------------------------------------------------------- training data


@dataclass(frozen=True, slots=True)
class Corpus:
    """Examples end to end: ids and hints [total], each one's end, and where its answer begins."""

    ids: np.ndarray[Any, np.dtype[np.uint16]]
    hints: np.ndarray[Any, np.dtype[np.int8]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    answers: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker makes: ``count`` examples of the first stage, or of the second (composed)."""

    directory: Path
    seed: int
    count: int
    composed: bool


def _make_shard(shard: Shard) -> Corpus:
    seed = shard.seed
    writer = Composer(seed) if shard.composed else Writer(seed, "train")
    plain = Encoder(shard.directory, seed, dropout=0.0)
    broken = Encoder(shard.directory, seed, dropout=0.5 if shard.composed else 0.2)
    ids: list[int] = []
    hints: list[int] = []
    ends, answers = [], []
    for index in range(shard.count):
        example = writer.example()
        encoder = broken if index % 2 else plain
        own = encoder.encode_prompt(
            render_prompt(example), example.text_class, example.option_classes
        )
        ids += own[0]
        hints += own[1]
        answers.append(len(ids))
        end = "<|im_end|>" if example.messages else "<|endoftext|>"
        ids += plain.encode(example.answer + end)
        hints += [-100] * (len(ids) - len(hints))
        ends.append(len(ids))
    return Corpus(
        np.array(ids, np.uint16), np.array(hints, np.int8), np.array(ends), np.array(answers)
    )


def make_corpus(directory: Path, seed: int, count: int, workers: int, *, composed: bool) -> Corpus:
    """``count`` training examples; the same ones for any number of workers."""
    size = 20_000
    counts = [min(size, count - first) for first in range(0, count, size)]
    jobs = [Shard(directory, seed * 1000 + k, n, composed) for k, n in enumerate(counts)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        shards = pool.map(_make_shard, jobs, chunksize=1)
    starts = np.cumsum([0] + [len(shard.ids) for shard in shards])
    placed = list(zip(shards, starts[:-1], strict=True))
    return Corpus(
        np.concatenate([shard.ids for shard in shards]),
        np.concatenate([shard.hints for shard in shards]),
        np.concatenate([shard.ends + start for shard, start in placed]),
        np.concatenate([shard.answers + start for shard, start in placed]),
    )


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One step's data, int64.

    ids and hints [b, n], right-padded with 0 and -100; ``at`` [b, m] positions whose next token is
    a target; ``answer`` and ``text`` [b, m] those tokens, -100 where a place is not of the kind.
    """

    ids: torch.Tensor
    hints: torch.Tensor
    at: torch.Tensor
    answer: torch.Tensor
    text: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The fields in order."""
        return (self.ids, self.hints, self.at, self.answer, self.text)


def minibatches(
    corpus: Corpus, size: int, multiple: int, rng: np.random.Generator
) -> Iterable[Minibatch]:
    """One pass in random order; batches of examples of like length, in random order themselves.

    Their width is a multiple of ``multiple``.
    """
    starts = np.concatenate([[0], corpus.ends[:-1]])
    lengths = corpus.ends - starts
    order = rng.permutation(len(lengths))
    chunk = size * 32
    for first in range(0, len(order) - size + 1, chunk):
        part = order[first : first + chunk]
        part = part[np.argsort(lengths[part], kind="stable")]
        for b in rng.permutation(len(part) // size):
            yield _minibatch(corpus, starts, part[b * size : (b + 1) * size], multiple, rng)


def _minibatch(
    corpus: Corpus,
    starts: np.ndarray[Any, np.dtype[np.int64]],
    rows: np.ndarray[Any, np.dtype[np.int64]],
    multiple: int,
    rng: np.random.Generator,
) -> Minibatch:
    lengths = corpus.ends[rows] - starts[rows]
    first_answer = corpus.answers[rows] - starts[rows]
    width = -(-int(lengths.max()) // multiple) * multiple
    inside = np.arange(width) < lengths[:, None]
    source = np.where(inside, starts[rows][:, None] + np.arange(width), 0)
    ids = np.where(inside, corpus.ids[source], 0).astype(np.int64)
    hints = np.where(inside, corpus.hints[source], -100).astype(np.int64)
    answer_at = first_answer[:, None] - 1 + np.arange(ANSWER_TOKENS)
    answer_in = answer_at < lengths[:, None] - 1
    answer_at = np.where(answer_in, answer_at, 0)
    text_at = (rng.random((len(rows), TEXT_TOKENS)) * (first_answer[:, None] - 1)).astype(np.int64)
    at = np.concatenate([answer_at, text_at], axis=1)
    following = np.take_along_axis(ids, at + 1, axis=1)
    is_answer = np.concatenate([answer_in, np.zeros_like(text_at, bool)], axis=1)
    is_text = np.concatenate([np.zeros_like(answer_in), np.ones_like(text_at, bool)], axis=1)
    answer = np.where(is_answer, following, -100)
    text = np.where(is_text, following, -100)
    return Minibatch(*map(torch.from_numpy, (ids, hints, at, answer, text)))


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


def save(model: Qwen3ForCausalLM, tokenizer: Path, out: Path) -> None:
    """Write the configuration, the weights rounded to bfloat16, and the tokenizer."""
    rounded = new_model().to(torch.bfloat16)
    rounded.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()})
    rounded.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if tokenizer != out:
            shutil.copy(tokenizer / name, out / name)


class Trainer:
    """Model, hint head and optimizer; one step is loss, gradient, clip, update.

    A model this small spends its time in launching kernels, so on a GPU a step is captured into a
    CUDA graph, one for each width of batch.
    """

    def __init__(
        self, model: Qwen3ForCausalLM, device: torch.device, lr: float, eager: bool
    ) -> None:
        self.device = device
        self._eager = eager or device.type == "cpu"
        self.model = model.to(device)
        self.head = torch.nn.Linear(self.model.config.hidden_size, HINTS).to(device)
        self._lr = lr
        self.losses = torch.zeros(3, device=device)
        parameters = [*self.model.parameters(), *self.head.parameters()]
        on_gpu = device.type == "cuda"
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=torch.tensor(lr, device=device),  # a tensor: a captured step reads it anew
            betas=(0.9, 0.98),
            fused=on_gpu,
            capturable=on_gpu,
        )
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Minibatch]] = {}

    def _compute(self, batch: Minibatch) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        ):
            # A ready mask keeps the model from building one; None lets attention be causal.
            hidden = self.model.model(
                input_ids=batch.ids,
                attention_mask={"full_attention": None},
                use_cache=False,
            ).last_hidden_state
            read = hidden.gather(1, batch.at[:, :, None].expand(-1, -1, hidden.shape[2]))
            logits = self.model.lm_head(read).flatten(0, 1).float()
            hint_logits = self.head(hidden).flatten(0, 1).float()
        answer = cross_entropy(logits, batch.answer.flatten())
        text = cross_entropy(logits, batch.text.flatten())
        hint = cross_entropy(hint_logits, batch.hints.flatten())
        (answer + 0.1 * text + 0.3 * hint).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.losses.copy_(torch.stack([answer.detach(), text.detach(), hint.detach()]))

    def step(self, batch: Minibatch, rate: float) -> None:
        """One update at ``rate`` times the peak learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"].fill_(self._lr * rate)
        if self._eager:
            self._compute(Minibatch(*(t.to(self.device) for t in batch.tensors())))
            return
        width = batch.ids.shape[1]
        if width not in self._graphs:
            static = Minibatch(*(t.to(self.device) for t in batch.tensors()))
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._compute(static)
            torch.cuda.current_stream().wait_stream(stream)
            self._optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._compute(static)
            self._graphs[width] = (graph, static)
        graph, static = self._graphs[width]
        for mine, given in zip(static.tensors(), batch.tensors(), strict=True):
            mine.copy_(given)
        graph.replay()


def train(options: argparse.Namespace) -> None:
    """Train, save every ``--save-every`` steps and at the end, and evaluate what was saved."""
    began = time.monotonic()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tunes = options.command == "tune"
    corpus = make_corpus(
        options.model, options.seed, options.examples, options.workers, composed=tunes
    )
    made = time.monotonic() - began
    print(f"{len(corpus.ends)} examples, {len(corpus.ids)} tokens in {made:.0f} s", flush=True)
    model = new_model()
    if tunes:
        model = Qwen3ForCausalLM.from_pretrained(options.model, dtype=torch.float32).train()
    trainer = Trainer(model, device, options.lr, options.eager)
    multiple = 1 if device.type == "cpu" else 16  # few widths on a GPU: a graph for each
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"{count} parameters, on {device}", flush=True)
    rng = np.random.default_rng(options.seed)
    step, done = 0, 0.0
    while done < 1:
        for batch in minibatches(corpus, options.batch, multiple, rng):
            # Whichever runs out first, steps or minutes, drives the schedule to its end.
            minutes = (time.monotonic() - began) / 60
            done = max(step / options.steps, minutes / options.minutes)
            if done >= 1:
                break
            warm = min((step + 1) / options.warm, 1.0)
            trainer.step(batch, warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))))
            step += 1
            if step % options.log_every == 0:
                answer, text, hint = trainer.losses.tolist()
                print(
                    f"step {step:6d}  {minutes:5.2f} min"
                    f"  answer {answer:.4f}  text {text:.4f}  hint {hint:.4f}",
                    flush=True,
                )
            if step % options.save_every == 0:
                save(trainer.model, options.model, options.out)
    save(trainer.model, options.model, options.out)
    print(f"{step} steps, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    evaluate(options.out, options.eval_examples)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the demonstration model.")
    parser.add_argument("command", choices=("tokenizer", "train", "tune", "evaluate"))
    parser.add_argument(
        "--model",
        type=Path,
        default=MODEL_DIR,
        help="folder with the tokenizer (tune: and the weights)",
    )
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="folder for the weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after this long")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--lr", type=float, help="at its peak")
    parser.add_argument("--warm", type=int, help="steps until the peak")
    parser.add_argument("--threads", type=int, help="CPU threads of a step")
    parser.add_argument("--eager", action="store_true", help="GPU: launch kernels one by one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--eval-examples", type=int, default=3000)
    options = parser.parse_args()
    for name, value in STAGES.get(options.command, {}).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.command == "tokenizer":
        train_tokenizer(options.out)
    elif options.command in STAGES:
        train(options)
    else:
        evaluate(options.out, options.eval_examples)


if __name__ == "__main__":
    main()
