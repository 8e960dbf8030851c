"""A reader without a model: rows at once, whose bits are a function of their read alone.

For what is about the pipeline and not about the model: long files, interruptions, shards. Nothing
here imports torch, so that a process of its own starts in a fraction of a second.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scorer.reduction import RawReduction, RowRequests, finish
from scorer.scoring import Scorer
from scorer.shapes import Batch, BatchShape, Read
from scorer.tables import ReadResult, join_requests, split_results

NONFINITE_TOKEN = 7
"""A read that holds this id answers NaN."""


@dataclass(slots=True)
class Counts:
    """The counts of a reader, as scorer.reader.ReadCounts has them."""

    forwards: int = 0
    reads: int = 0
    real_tokens: int = 0
    shared_tokens: int = 0
    forward_tokens: int = 0

    @property
    def fill(self) -> float | None:
        return self.real_tokens / self.forward_tokens if self.forward_tokens else None

    def describe_sharing(self) -> str:
        return "nothing is shared"


@dataclass(slots=True)
class SelfTests:
    """Nothing was tested, as nothing is computed."""

    remembered: bool = True
    comparisons: int = 0

    def describe(self) -> str:
        return "no model"


@dataclass(slots=True)
class Flight:
    """A launched batch."""

    batch: Batch


@dataclass(slots=True, eq=False)
class ModelFreeReader:
    """Stands where a Reader stands. before_launch: called with the number of each forward, from 0.

    numerics, numerics_key: what a job records and compares when it resumes.
    """

    shape: BatchShape = field(default_factory=lambda: BatchShape(512, 32))
    alone: bool = False
    share: bool = False
    depth: int = 1
    max_device_k: int | None = None
    n_ids: int = 256
    numerics: dict[str, Any] = field(
        default_factory=lambda: {"weights_sha256": "none", "driver": "1.0", "gpu": "none"}
    )
    numerics_key: str = "key 1"
    counts: Counts = field(default_factory=Counts)
    selftests: SelfTests = field(default_factory=SelfTests)
    before_launch: Callable[[int], None] | None = None
    bits: int = 0

    def prove(self) -> None:
        """There is nothing to prove."""

    def launch(self, batch: Batch) -> Flight:
        if self.before_launch is not None:
            self.before_launch(self.counts.forwards)
        self.counts.forwards += 1
        self.counts.reads += len(batch.reads)
        self.counts.real_tokens += batch.real_tokens
        self.counts.forward_tokens += batch.tokens
        return Flight(batch)

    def wait(self, flight: Flight) -> None:
        """The answer is there at once."""

    def results(self, flight: Flight) -> list[ReadResult]:
        reads = flight.batch.reads
        requests = join_requests([read.requests for read in reads])
        raw = invented(reads, requests, self.n_ids, self.bits)
        counts = [len(read.positions) for read in reads]
        return split_results(finish(raw, requests), requests, counts)


def invented(
    reads: tuple[Read, ...], requests: RowRequests, n_ids: int, bits: int = 0
) -> RawReduction:
    """Numbers that follow from each read's tokens, and from nothing else but ``bits``."""
    tokens = np.concatenate([read.tokens for read in reads])
    starts = np.cumsum([0, *(len(read.tokens) for read in reads[:-1])])
    counts = [len(read.positions) for read in reads]
    nonfinite = np.repeat(np.logical_or.reduceat(tokens == NONFINITE_TOKEN, starts), counts)
    own = np.array([zlib.crc32(read.tokens.data, bits) for read in reads], dtype=np.uint64)
    positions = np.concatenate([read.positions for read in reads])
    seed_of = np.repeat(own, counts) + positions.astype(np.uint64)
    target_seed = seed_of[requests.target_rows()] * np.uint64(2654435761)
    target_seed += requests.target_ids.astype(np.uint64) * np.uint64(40503)
    rows = requests.rows
    top_offsets = requests.top_offsets(n_ids)
    first = np.arange(top_offsets[-1]) - np.repeat(top_offsets[:-1], np.diff(top_offsets))
    return RawReduction(
        nonfinite=nonfinite,
        max=np.zeros(rows, dtype=np.float32),
        sum_hi=(seed_of & np.uint64(0xFFFFF)) + np.uint64(1 << 31),
        sum_lo=seed_of,
        chosen_id=np.zeros(rows, dtype=np.int32),
        chosen_logit=np.zeros(rows, dtype=np.float32),
        target_logit=-((target_seed % np.uint64(1 << 20)).astype(np.float32)) / np.float32(1 << 17),
        target_rank=(target_seed % np.uint64(5)).astype(np.int32) + 1,
        top_id=first.astype(np.int32),
        top_logit=-first.astype(np.float32),
        top_offsets=top_offsets,
    )


def write_tokenizer_only(folder: Path, tokenizer: Path) -> Path:
    """Write a folder that passes for a checkpoint as long as nobody loads its weights."""
    folder.mkdir()
    for file in tokenizer.iterdir():
        if file.name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(file, folder / file.name)
    n_ids = max(
        entry["id"]
        for entry in json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    )
    config = {
        "model_type": "qwen3",
        "vocab_size": n_ids + 64,
        "max_position_embeddings": 2048,
        "hidden_size": 64,
        "num_hidden_layers": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").touch()
    return folder


def model_free(folder: Path, reader: ModelFreeReader | None = None, **options: Any) -> Scorer:
    """A scorer for ``write_tokenizer_only``'s folder."""
    scorer = Scorer(folder, **options)
    reader = ModelFreeReader() if reader is None else reader
    reader.n_ids = scorer.prompter.n_ids
    scorer.__dict__["reader"] = reader
    return scorer
