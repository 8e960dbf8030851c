"""The self-test at load: on this machine, with this model, do a read's bits depend on its partners?

Packed reads rest on one property of the libraries underneath: at a fixed number of rows, each row
of every matrix product is computed from that row alone, and attention from its segment alone. It is
never assumed. Before a rung is first used, the same reads are computed under several packings and
the raw bits of all their final hidden states are compared, then the lm_head's logits for the same
hidden states in several slots. A pass is remembered under the numerics key, which names everything
that could change the answer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from scorer.errors import IsolationError
from scorer.model import Qwen3
from scorer.shapes import FILLER_SEGMENT, Batch, BatchShape, IntArray, last_read

_SEED = 20_260_213


@dataclass(frozen=True, slots=True)
class Outcome:
    """A passed self-test. comparisons: how many floating-point values were compared bit by bit."""

    comparisons: int
    packings: int


class SelfTests:
    """The self-tests of one numerics key: run when a rung is first used, remembered on disk.

    key: the numerics key. n_ids: probe reads use token ids below this. alone: each read has a
    forward to itself, so only the repeatability of a run is needed.
    """

    def __init__(
        self, key: str, n_ids: int, *, alone: bool, max_tokens: int, cache: Path | None
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.remembered = False
        self._n_ids = n_ids
        self._alone = alone
        self._max_tokens = max_tokens
        self._file = None if cache is None else cache / f"selftest-{key}.json"
        self._passed = _load(self._file)

    def require(self, model: Qwen3, shape: BatchShape, tokens: int) -> None:
        """Return once forwards of ``tokens`` tokens are proven. Raises IsolationError."""
        rung = 0 if self._alone else tokens
        if rung in self.outcomes:
            return
        passed = self._passed.get(rung)
        if passed is not None:
            self.outcomes[rung] = passed
            self.remembered = True
            return
        if self._alone:
            outcome = _repeatable(model, shape, self._n_ids, self._max_tokens)
        elif tokens == shape.tokens:
            outcome = _isolated_packed(model, shape, self._n_ids, self._max_tokens)
        else:
            outcome = _isolated_single(model, shape, tokens, self._n_ids, self._max_tokens)
        self.outcomes[rung] = outcome
        self._passed[rung] = outcome
        _store(self._file, self._passed)

    @property
    def comparisons(self) -> int:
        """The values compared bit by bit, over all rungs."""
        return sum(outcome.comparisons for outcome in self.outcomes.values())

    def describe(self) -> str:
        """Say in one line what was proven, and when."""
        when = "remembered" if self.remembered else "just now"
        return f"self-test passed ({self.comparisons:,} values compared bit by bit, {when})"


class _Comparison:
    """Counts bitwise comparisons and raises at the first difference."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.count = 0

    def equal(self, expected: torch.Tensor, got: torch.Tensor, where: str) -> None:
        self.count += expected.numel()
        if not torch.equal(_bits(expected), _bits(got)):
            moved = (_bits(expected) != _bits(got)).sum().item()
            largest = (expected.double() - got.double()).abs().max().item()
            raise IsolationError(
                f"self-test failed: {self.what}, {where}: {moved} of {expected.numel()} values "
                f"moved, by up to {largest:.3g}; packed reads are not reproducible on this "
                "machine, use --isolation alone"
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
    """Return lengths that sum to exactly ``tokens``: the awkward ones first, then random ones."""
    lengths: list[int] = []
    for length in (1, 2, 17, 33, 9, 10, 127, 128, 129, 256, 257, 1023):
        if length <= longest and sum(lengths) + length <= tokens // 2:
            lengths.append(length)
    while (room := tokens - sum(lengths)) > 0:
        most = min(room, longest, max(1, tokens // 4))
        lengths.append(int(rng.integers(1, most + 1)))
    return lengths


def _forward(model: Qwen3, reads: Sequence[IntArray], tokens: int, rows: int) -> list[torch.Tensor]:
    """Run reads end to end in one forward of exactly ``tokens``; return each one's hidden states.

    The last read may serve as filler: reads must sum to ``tokens``.
    """
    layout = Batch.apart([last_read(read) for read in reads], tokens).layout()
    offsets = layout.offsets
    if len(offsets) != len(reads) + 1:
        raise AssertionError(f"probe reads sum to {sum(map(len, reads))}, not {tokens}")
    # The next forward may write where this one did.
    hidden = model.hidden_states(layout, rows=rows).clone()
    return [hidden[start:end] for start, end in pairwise(offsets)]


def _isolated_packed(model: Qwen3, shape: BatchShape, n_ids: int, max_tokens: int) -> Outcome:
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
    chosen = rng.integers(0, len(hidden), size=rows)
    base = logits(chosen)
    for name, order in (
        ("in reversed slots", np.arange(rows)[::-1].copy()),
        ("in other slots", rng.permutation(rows)),
    ):
        got = logits(chosen[order])
        index = torch.from_numpy(order).to(got.device)
        compare.equal(base[index], got, f"lm_head rows {name}")
    others = rng.integers(0, len(hidden), size=rows)
    others[::2] = chosen[::2]
    compare.equal(base[::2], logits(others)[::2], "lm_head rows among other rows")


def _isolated_single(
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


def _repeatable(model: Qwen3, shape: BatchShape, n_ids: int, max_tokens: int) -> Outcome:
    """Compare two runs of reads alone in forwards of their own length, others in between."""
    rng = np.random.default_rng(_SEED)
    lengths = [length for length in (1, 9, 33, 128) if length <= max_tokens]
    reads = _random_reads(rng, lengths, n_ids)
    compare = _Comparison("reads in forwards of their own")

    def run() -> list[tuple[torch.Tensor, torch.Tensor]]:
        results = []
        for read in reads:
            (hidden,) = _forward(model, [read], len(read), shape.rows)
            results.append((hidden, model.logits(hidden[-1:].expand(shape.rows, -1).contiguous())))
        return results

    base = run()
    for name in ("second", "third"):
        for read, expected, got in zip(reads, base, run(), strict=True):
            compare.equal(expected[0], got[0], f"read of {len(read)} tokens, {name} run")
            compare.equal(expected[1], got[1], f"lm_head of {len(read)} tokens, {name} run")
    return compare.outcome(packings=3)


def _load(file: Path | None) -> dict[int, Outcome]:
    if file is None or not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {
            int(rung): Outcome(entry["comparisons"], entry["packings"])
            for rung, entry in stored.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # a damaged cache only means that the test runs again


def _store(file: Path | None, outcomes: dict[int, Outcome]) -> None:
    if file is None:
        return
    entries = {
        str(rung): {"comparisons": outcome.comparisons, "packings": outcome.packings}
        for rung, outcome in outcomes.items()
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as handle:
            json.dump(entries, handle)
        Path(handle.name).replace(file)
    except OSError:
        return  # an unwritable cache folder only means that the test runs again next time
