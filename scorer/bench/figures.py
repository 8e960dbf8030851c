"""What a benchmark found: the types that are its JSON, and how figures come from times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final, Literal

import msgspec

Way = Literal["one_at_a_time", "padded", "packed", "shared", "scored"]

TITLES: Final[dict[Way, str]] = {
    "one_at_a_time": "transformers, one at a time",
    "padded": "transformers, sorted padded batches",
    "packed": "packed isolated reads",
    "shared": "packed, each prefix computed once",
    "scored": "packed isolated reads, lines to rows",
}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one way of scoring did with one kind of prompts.

    reads, tokens, forwards: of one timed round; tokens are real ones, those of the reads.
    shared_tokens: of them, what was not computed again. seconds: of each round. Rates are those of
    the median round. fill: tokens computed for reads over all computed tokens. share_of_ceiling:
    2 × layer parameters × tokens computed for reads / (seconds × ceiling). gpu_busy: seconds in
    which a kernel or copy ran over seconds of the clock; null with ``gpu_busy_reason``.
    peak_memory_bytes: what torch had allocated on the GPU, weights included; null on the CPU.
    largest_difference: of a target's log-probability from that of the packed read, in nats.
    status ``out_of_memory``: the reason and no figures.
    """

    way: Way
    status: Literal["ok", "out_of_memory"] = "ok"
    reason: str | None = None
    reads: int
    tokens: int
    shared_tokens: int = 0
    forwards: int | None = None
    seconds: tuple[float, ...] = ()
    reads_per_second: float | None = None
    tokens_per_second: float | None = None
    share_of_ceiling: float | None = None
    fill: float | None = None
    gpu_busy: float | None = None
    gpu_busy_reason: str | None = None
    peak_memory_bytes: int | None = None
    largest_difference: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of prompts, scored in every way.

    reads, tokens: of a round. packed_over: reads a second of packed reads over those of the other
    way, the median of the rounds' ratios; null for a way that ran out of memory. shared_over: the
    same of reads that share their record's prefix; empty where there are none.
    """

    prompts: str
    about: str
    reads: int
    tokens: int
    figures: tuple[Figure, ...]
    packed_over: dict[Way, float | None]
    shared_over: dict[Way, float | None] = {}


class Phase(msgspec.Struct, frozen=True):
    """A part of the start. ours: of our own code, not of Python, libraries, device or weights."""

    name: str
    seconds: float
    ours: bool


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """From the start of the process to the first score.

    seconds: null, with the reason, where the system doesn't say when the process was started.
    our_seconds: of the phases that are ours.
    """

    seconds: float | None
    reason: str | None
    our_seconds: float
    phases: tuple[Phase, ...]


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of n × n matrix products in the model's dtype, the median of ``samples``."""

    flops_per_second: float
    n: int
    samples: tuple[float, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a benchmark found, and what produced it.

    model: the checkpoint, or ``random`` and its shape. forwards: the real tokens of every timed
    round are at least this many times T. environment: the fields of the numerics key.
    """

    scorer_version: str
    model: str
    device: str
    dtype: str
    layer_parameters: int
    weights_bytes: int
    tokens_per_forward: int
    rows_per_forward: int
    forwards: int
    rounds: int
    seed: int
    ceiling: Ceiling
    start_up: StartUp
    comparisons: tuple[Comparison, ...]
    process_peak_bytes: int
    numerics_key: str
    environment: dict[str, Any]

    def json(self) -> bytes:
        """Return one JSON object on a line of its own."""
        return msgspec.json.encode(self) + b"\n"


def rate_ratio(
    reads: int, seconds: Sequence[float], other_reads: int, other_seconds: Sequence[float]
) -> float | None:
    """Return the median over the rounds of (reads / seconds) / (other_reads / other_seconds).

    The two of a round were timed one after the other, so a machine that slows down or speeds up
    between rounds moves their ratio least. None without a round that has both.
    """
    pairs = list(zip(seconds, other_seconds, strict=False))
    if not pairs:
        return None
    return median((reads / mine) / (other_reads / other) for mine, other in pairs)


def share_of_ceiling(parameters: int, tokens_per_second: float, ceiling: float) -> float:
    """Return 2 × parameters × tokens a second over the ceiling.

    A token's forward multiplies and adds each parameter of the layers once; attention, lm_head and
    all else are not counted as work, only as time.
    """
    return 2 * parameters * tokens_per_second / ceiling
