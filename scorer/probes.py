"""What the self-test computes: the same reads in other company, place and shape, bit by bit.

Under several packings the raw bits of the hidden states of all tokens are compared, then the
lm_head's logits for the same hidden states in several slots; where reads of one record share their
prefix, reads that do with the same reads apart. The states are those of ``Qwen3.hidden_states``: on
the CPU the final ones; on CUDA those that the last layer's attention gives, since what follows runs
for R rows only, and its bits are compared with the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise

import numpy as np
import numpy.typing as npt
import torch

from scorer.errors import IsolationError
from scorer.model import Qwen3
from scorer.packing import Packer
from scorer.reduction import RowRequests
from scorer.shapes import FILLER_SEGMENT, Batch, BatchShape, IntArray, Read, last_read

_SEED = 20_260_213

_PREFIXES = (1, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
"""Lengths of shared prefixes: around the boundaries of attention's tiles."""

_READS = 32
"""The most reads of a packing; ``max_segments`` has room for half as many again."""

_OWN = (1, 2, 17, 63, 64, 65, 0, 129, 130)
"""What reads have behind a shared prefix; one has nothing."""

_SHARING = 3
"""Reads that share one prefix."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A passed self-test. comparisons: how many floating-point values were compared bit by bit."""

    comparisons: int
    packings: int

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.comparisons + other.comparisons, self.packings + other.packings)


class _Comparison:
    """Counts bitwise comparisons and raises at the first difference.

    what: is compared. broken: what a difference means, and its remedy.
    """

    def __init__(
        self,
        what: str,
        broken: str = "packed reads are not reproducible on this machine, use --isolation alone",
    ) -> None:
        self.what = what
        self.broken = broken
        self.count = 0

    def equal(
        self, expected: torch.Tensor, got: torch.Tensor, where: str, broken: str | None = None
    ) -> None:
        """Compare, and raise for a difference. broken: in place of the comparison's own."""
        self.count += expected.numel()
        if not torch.equal(_bits(expected), _bits(got)):
            moved = (_bits(expected) != _bits(got)).sum().item()
            largest = (expected.double() - got.double()).abs().max().item()
            raise IsolationError(
                f"self-test failed: {self.what}, {where}: {moved} of {expected.numel()} values "
                f"moved, by up to {largest:.3g}; {broken or self.broken}"
            )

    def outcome(self, packings: int) -> Outcome:
        if self.count == 0:
            raise IsolationError(f"self-test failed: {self.what}: nothing was compared")
        return Outcome(self.count, packings)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def _random_reads(rng: np.random.Generator, lengths: Sequence[int], n_ids: int) -> list[IntArray]:
    return [rng.integers(0, n_ids, size=length, dtype=np.int32) for length in lengths]


def _probe_lengths(rng: np.random.Generator, tokens: int, longest: int) -> list[int]:
    """Return lengths that sum to ``tokens``: the awkward ones first, then random ones.

    At most ``_READS``; where these can't be so long, filler lies behind them.
    """
    lengths: list[int] = []
    for length in (1, 2, 17, 33, 9, 10, 127, 128, 129, 256, 257, 1023):
        if length <= longest and sum(lengths) + length <= tokens // 2:
            lengths.append(length)
    while (room := tokens - sum(lengths)) > 0 and len(lengths) < _READS:
        most = min(room, longest, max(1, tokens // 4))
        lengths.append(int(rng.integers(1, most + 1)))
    return lengths


def _forward(
    model: Qwen3, reads: Sequence[IntArray], tokens: int, rows: int, *, graph: bool = True
) -> list[torch.Tensor]:
    """Run reads end to end in one forward of ``tokens``; return each one's hidden states."""
    layout = Batch.apart([last_read(read) for read in reads], tokens).layout()
    offsets = layout.offsets[: len(reads) + 1]
    # The next forward may write where this one did.
    hidden = model.hidden_states(layout, rows=rows, graph=graph).clone()
    return [hidden[start:end] for start, end in pairwise(offsets)]


def isolated_packed(model: Qwen3, shape: BatchShape, n_ids: int, max_tokens: int) -> Outcome:
    """Compare reads under four packings of T tokens, and lm_head rows in three sets of slots."""
    rng = np.random.default_rng(_SEED)
    tokens = shape.tokens
    reads = _random_reads(rng, _probe_lengths(rng, tokens, max_tokens), n_ids)
    compare = _Comparison(f"{len(reads)} reads in a forward of {tokens} tokens")
    base = _forward(model, reads, tokens, shape.rows)

    # Same reads, every place and neighbour changed: all T rows are compared.
    for name, order in (
        ("in reversed order", np.arange(len(reads))[::-1]),
        ("in another order", rng.permutation(len(reads))),
    ):
        got = _forward(model, [reads[i] for i in order], tokens, shape.rows)
        for place, i in enumerate(order):
            compare.equal(base[i], got[place], f"read of {len(reads[i])} tokens {name}")

    # Every second read stays, among strangers of other lengths.
    kept = list(range(0, len(reads), 2))
    room = tokens - sum(len(reads[i]) for i in kept)
    strangers = _random_reads(rng, _probe_lengths(rng, room, max_tokens) if room else [], n_ids)
    got = _forward(model, [*strangers, *(reads[i] for i in kept)], tokens, shape.rows)
    for place, i in enumerate(kept):
        compare.equal(
            base[i], got[len(strangers) + place], f"read of {len(reads[i])} tokens among strangers"
        )
    _compare_head(model, shape, rng, torch.cat(base), compare)
    return compare.outcome(packings=4)


def _compare_head(
    model: Qwen3,
    shape: BatchShape,
    rng: np.random.Generator,
    hidden: torch.Tensor,
    compare: _Comparison,
) -> None:
    """Compare the logits of R hidden states in every slot order and among other rows."""

    def logits(index: npt.NDArray[np.int64]) -> torch.Tensor:
        return model.logits(hidden[torch.from_numpy(index).to(hidden.device)])

    rows = shape.rows
    broken = (
        f"lm_head calls of {rows} rows are not reproducible on this machine: leave "
        "--rows-per-forward at its default or try another number, or use --isolation alone"
    )
    chosen = rng.integers(0, len(hidden), size=rows)
    base = logits(chosen)
    for name, order in (
        ("in reversed slots", np.arange(rows)[::-1].copy()),
        ("in other slots", rng.permutation(rows)),
    ):
        got = logits(chosen[order])
        index = torch.from_numpy(order).to(got.device)
        compare.equal(base[index], got, f"lm_head rows {name}", broken)
    others = rng.integers(0, len(hidden), size=rows)
    others[::2] = chosen[::2]
    compare.equal(base[::2], logits(others)[::2], "lm_head rows among other rows", broken)


def isolated_single(
    model: Qwen3, shape: BatchShape, tokens: int, n_ids: int, max_tokens: int
) -> Outcome:
    """Compare a long read, alone on its rung, before three different fillers.

    On a rung above T a read always lies first, so filler is its only partner.
    """
    rng = np.random.default_rng(_SEED + tokens)
    compare = _Comparison(f"a read alone in a forward of {tokens} tokens")
    longest = min(tokens, max_tokens)
    for length in sorted({tokens // 2 + 1, longest}):
        (read,) = _random_reads(rng, [length], n_ids)
        base: torch.Tensor | None = None
        for name in ("first", "second", "third"):
            room = tokens - length
            sizes = [min(FILLER_SEGMENT, room - at) for at in range(0, room, FILLER_SEGMENT)]
            got = _forward(model, [read, *_random_reads(rng, sizes, n_ids)], tokens, shape.rows)[0]
            if base is None:
                base = got
            else:
                compare.equal(base, got, f"read of {length} tokens, {name} filler")
    return compare.outcome(packings=3)


def shared(model: Qwen3, shape: BatchShape, n_ids: int, max_tokens: int) -> Outcome:
    """Compare reads that share their record's prefix with the same reads apart.

    In two packings, at every position of every read. Where no two reads fit one forward, nothing
    is compared, as nothing will be shared.
    """
    rng = np.random.default_rng(_SEED + 1)
    records = _sharing_records(rng, min(shape.tokens, max_tokens), n_ids)
    if shape.rows < 2 or not records:
        return Outcome(0, 0)
    compare = _Comparison(
        f"reads that share a prefix in a forward of {shape.tokens} tokens",
        "sharing is not exact on this machine, use --no-shared-prefix",
    )
    apart = _states_of(model, shape, records, share=False)
    for name, order in (("", records), (" in reversed order", records[::-1])):
        states = _states_of(model, shape, order, share=True)
        for read in chain.from_iterable(order):
            compare.equal(apart[read], states[read], f"read of {len(read)} tokens{name}")
    return compare.outcome(packings=2)


def _sharing_records(rng: np.random.Generator, longest: int, n_ids: int) -> list[list[Read]]:
    """Return reads that ask about all their positions, record by record with a common prefix.

    Each record's group fits ``longest`` tokens.
    """
    owns = cycle(_OWN)
    records = []
    for length in _PREFIXES:
        room = longest - length
        if room < 1:
            continue
        lengths = []
        for own in islice(owns, _SHARING):
            lengths.append(min(own, room))
            room -= lengths[-1]
        (prefix,) = _random_reads(rng, [length], n_ids)
        rests = _random_reads(rng, lengths, n_ids)
        records.append([_every(np.concatenate([prefix, rest])) for rest in rests])
    return records


def _every(tokens: IntArray) -> Read:
    """Return a read that asks about each of its positions."""
    n = len(tokens)
    return Read(tokens, np.arange(n, dtype=np.int32), RowRequests.of([[]] * n, [0] * n))


def _states_of(
    model: Qwen3, shape: BatchShape, records: Sequence[Sequence[Read]], *, share: bool
) -> dict[Read, torch.Tensor]:
    """Pack records as a run does; return the hidden states at all positions of each read."""
    packer = Packer(shape, alone=False, window=1, share=share)
    reads = list(chain.from_iterable(records))
    keys = iter(range(len(reads)))
    for record in records:
        packer.add(list(islice(keys, len(record))), record)
    states: dict[Read, torch.Tensor] = {}
    while len(packer):
        batch = packer.pop()
        layout = batch.layout()
        hidden = model.hidden_states(layout, rows=shape.rows)
        rows = torch.from_numpy(layout.rows.astype(np.int64)).to(hidden.device)
        parts = torch.split(hidden[rows], [len(read) for read in batch.reads])
        states.update(zip(batch.reads, parts, strict=True))
    return states


def repeatable(model: Qwen3, shape: BatchShape, n_ids: int, max_tokens: int) -> Outcome:
    """Compare two runs of reads alone in forwards of their own length, others in between."""
    rng = np.random.default_rng(_SEED)
    lengths = [length for length in (1, 9, 33, 128) if length <= max_tokens]
    reads = _random_reads(rng, lengths, n_ids)
    compare = _Comparison("reads in forwards of their own")

    def run() -> list[tuple[torch.Tensor, torch.Tensor]]:
        results = []
        for read in reads:
            (hidden,) = _forward(model, [read], len(read), shape.rows, graph=False)
            results.append((hidden, model.logits(hidden[-1:].expand(shape.rows, -1).contiguous())))
        return results

    base = run()
    for name in ("second", "third"):
        for read, expected, got in zip(reads, base, run(), strict=True):
            compare.equal(expected[0], got[0], f"read of {len(read)} tokens, {name} run")
            compare.equal(expected[1], got[1], f"lm_head of {len(read)} tokens, {name} run")
    return compare.outcome(packings=3)
