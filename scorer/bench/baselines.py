"""What a benchmark times: plain transformers, in two ways of using it, and our own reads.

Each takes reads and gives the log-probabilities of their targets, so that the answers can be
compared as well as the times. The baselines are given the best of their kind: only the last
position's logits, no cache, no mask where nothing is padded, nothing waited for between forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec import UNSET

from scorer.asks import Ask
from scorer.reader import ReadCounts, Reader
from scorer.records.record_line import parse_line
from scorer.rows import encode_score
from scorer.scoring import Scorer
from scorer.shapes import Read
from scorer.turns import Chunk, Turns


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What one run over some reads gave.

    logprobs: float64 ``[reads, targets]``, in the order of the reads. forwards: how many were run.
    forward_tokens: the tokens they computed, padding and filler included. shared_tokens: those of
    the reads that were shared instead of recomputed.
    """

    logprobs: npt.NDArray[np.float64]
    forwards: int
    forward_tokens: int
    shared_tokens: int = 0


def one_at_a_time(plain: Any, reads: Sequence[Read]) -> Run:
    """Run a plain transformers model on each read by itself."""
    return _run(plain, reads, [[index] for index in range(len(reads))])


def padded(plain: Any, reads: Sequence[Read], budget: int) -> Run:
    """Run a plain transformers model on batches of similar length, padded on the left."""
    return _run(plain, reads, padded_batches([len(read) for read in reads], budget))


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Sort reads by length, longest first, and cut them into batches of at most ``budget`` tokens.

    Tokens are counted with the padding to the batch's own longest read. A longer read than the
    budget is a batch by itself. Returns the reads' indices.
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if room == 0:
            batches.append([])
            room = max(budget // lengths[index], 1)
        batches[-1].append(index)
        room -= 1
    return batches


@torch.inference_mode()
def _run(plain: Any, reads: Sequence[Read], batches: Sequence[Sequence[int]]) -> Run:
    parts = []
    computed = 0
    for batch in batches:
        members = [reads[index] for index in batch]
        computed += len(members) * max(len(read) for read in members)
        parts.append(_last_logprobs(plain, members))
    values = torch.cat(parts).cpu().numpy()  # waits for the device
    logprobs = np.empty(values.shape, dtype=np.float64)
    logprobs[np.concatenate([np.asarray(batch) for batch in batches])] = values
    return Run(logprobs, len(batches), computed)


def _last_logprobs(plain: Any, reads: Sequence[Read]) -> torch.Tensor:
    """Return float32 ``[reads, targets]`` of one batch, still on the device."""
    lengths = np.array([len(read) for read in reads])
    longest = int(lengths.max())
    ids = np.zeros((len(reads), longest), dtype=np.int64)
    for row, read in zip(ids, reads, strict=True):
        row[longest - len(read) :] = read.tokens
    places: dict[str, torch.Tensor] = {}
    if (lengths < longest).any():
        mask = np.arange(longest) >= longest - lengths[:, None]
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
        places = {
            "attention_mask": _to(plain, mask.astype(np.int64)),
            "position_ids": _to(plain, positions),
        }
    output = plain(input_ids=_to(plain, ids), **places, use_cache=False, logits_to_keep=1)
    targets = np.stack([read.requests.target_ids for read in reads]).astype(np.int64)
    logprobs: torch.Tensor = output.logits[:, -1].float().log_softmax(dim=-1)
    return logprobs.gather(1, _to(plain, targets))


def _to(plain: Any, array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array).to(plain.device)


def packed(reader: Reader, reads: Sequence[Read], records: Sequence[int] | None = None) -> Run:
    """Compute reads in isolation, as ``Scorer`` does.

    records: which record each read is of; those of one that come in a row share their prefix. None
    where each is of its own.
    """
    before = replace(reader.counts)
    asks = [
        [Ask(read.tokens.tobytes(), targets=tuple(read.requests.target_ids.tolist()))]
        for read in reads
    ]
    turns = Turns[None](reader, stop=lambda: False)
    logprobs = [
        result.target_logprob
        for stretch in turns.run([Chunk(None, asks, records)])
        for result in stretch.results
    ]
    return _since(before, reader, np.array(logprobs, dtype=np.float64))


def _since(before: ReadCounts, reader: Reader, logprobs: npt.NDArray[np.float64]) -> Run:
    """Return what a reader has done since its counts were these."""
    counts = reader.counts
    return Run(
        logprobs,
        counts.forwards - before.forwards,
        counts.forward_tokens - before.forward_tokens,
        counts.shared_tokens - before.shared_tokens,
    )


def as_lines(reads: Sequence[Read]) -> list[bytes]:
    """Return reads as lines of an input file."""
    return [
        msgspec.json.encode(
            {
                "prompt_token_ids": read.tokens.tolist(),
                "targets": read.requests.target_ids.tolist(),
            }
        )
        for read in reads
    ]


def scored(scorer: Scorer, lines: Sequence[bytes], records: Sequence[int] | None = None) -> Run:
    """Score lines of input and spell their rows, as ``scorer score`` does between its files.

    records: which record each line is of, as ``scorer compare`` asks it; None for each of its own.
    """
    before = replace(scorer.reader.counts)
    numbers = range(len(lines)) if records is None else records
    parsed = (parse_line(line, 1 + number) for line, number in zip(lines, numbers, strict=True))
    logprobs = []
    for row in scorer.score(parsed, together=True):
        encode_score(row)
        if row.targets is UNSET:
            raise ValueError(f"line {row.line} can't be scored: {row.error}")
        logprobs.append([target.logprob for target in row.targets])
    return _since(before, scorer.reader, np.array(logprobs, dtype=np.float64))
