"""Rows of logits that are the same on every machine, each with what to ask of it.

Made of integer operations and single IEEE operations only, so that the fixtures need not hold them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.reduction import Float32s, RowRequests, widen_bfloat16

Logits = npt.NDArray[Any]
QWEN3_IDS = 151_669
QWEN3_VOCABULARY = 151_936


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """dtype: float32, float16 or bfloat16 (then logits are uint16 bit patterns)."""

    name: str
    dtype: str
    logits: Logits
    requests: RowRequests
    n_ids: int

    def widened(self) -> Float32s:
        if self.dtype == "bfloat16":
            return widen_bfloat16(self.logits)
        return self.logits.astype(np.float32)

    def sha256(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.logits).tobytes()).hexdigest()


def words(seed: int, *shape: int) -> npt.NDArray[np.uint64]:
    """Random 64-bit words (SplitMix64: Steele, Lea and Flood 2014)."""
    z = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) + np.uint64(seed << 32)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def bell(seed: int, *shape: int) -> Float32s:
    """Nearly normal: twelve 16-bit numbers added, an exact multiple of 2^-17 within +-6."""
    total = np.zeros(shape, dtype=np.int64)
    for part in range(3):
        bits = words(3 * seed + part, *shape)
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return (2 * total - 12 * 65535).astype(np.float32) / np.float32(131072)


def to_bfloat16(values: Float32s) -> npt.NDArray[np.uint16]:
    """Bit patterns, rounded to nearest even; NaN keeps its sign."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    kept = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), kept, rounded).astype(np.uint16)


def narrow(values: Float32s, dtype: str) -> Logits:
    if dtype == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def ask(seed: int, rows: int, n_ids: int, targets: int, top: int) -> RowRequests:
    """Ragged: up to about ``targets`` targets and ``top`` top entries a row, repetitions too."""
    draw = words(seed, rows, 2)
    counts = [int(a % np.uint64(targets + 1)) for a in draw[:, 0]]
    ids = [
        [int(word % np.uint64(n_ids)) for word in words(seed + 1 + row, count)]
        for row, count in enumerate(counts)
    ]
    top_k = [int(b % np.uint64(top + 1)) for b in draw[:, 1]]
    return RowRequests.of([[*some, *some[:2]] for some in ids], top_k)


# Kinds of rows: (seed, V) -> float32 [V].


def _scaled(scale: float) -> Callable[[int, int], Float32s]:
    return lambda seed, size: bell(seed, size) * np.float32(scale)


def _steps(seed: int, size: int) -> Float32s:
    steps: Float32s = np.floor(bell(seed, size) * np.float32(2)) * np.float32(0.5)
    return steps


def _constant(value: float) -> Callable[[int, int], Float32s]:
    return lambda _, size: np.full(size, value, dtype=np.float32)


def _ascending(seed: int, size: int) -> Float32s:
    return np.sort(bell(seed, size))


def _descending(seed: int, size: int) -> Float32s:
    return np.ascontiguousarray(np.sort(bell(seed, size))[::-1])


def _of(*values: float) -> Callable[[int, int], Float32s]:
    several = np.array(values, dtype=np.float32)

    def draw(seed: int, size: int) -> Float32s:
        chosen: Float32s = several[(words(seed, size) % np.uint64(len(values))).astype(np.intp)]
        return chosen

    return draw


def _holding(*values: float) -> Callable[[int, int], Float32s]:
    """A random row that holds each of ``values`` somewhere."""

    def draw(seed: int, size: int) -> Float32s:
        row = bell(seed, size)
        places = (words(seed + 1, len(values)) % np.uint64(size)).astype(np.intp)
        row[places] = np.array(values, dtype=np.float32)
        return row

    return draw


def _sharp(top: float, rest: float) -> Callable[[int, int], Float32s]:
    def draw(seed: int, size: int) -> Float32s:
        row = np.full(size, rest, dtype=np.float32)
        row[int(words(seed, 1)[0] % np.uint64(size))] = top
        return row

    return draw


def _confident(seed: int, size: int) -> Float32s:
    """p of the maximum about 1 - 1e-9, the rest spread over a few nats."""
    row = bell(seed, size) - np.float32(20.7 + 0.5) - np.float32(np.log2(size) * 0.693)
    row[int(words(seed, 1)[0] % np.uint64(size))] = 0
    return row


def _subnormal(seed: int, size: int) -> Float32s:
    return bell(seed, size) * np.float32(1e-39)


ONE_AND_3_ULP = float(np.float32(1) + 3 * np.finfo(np.float32).eps)
NAN, INF = float("nan"), float("inf")
NEGATIVE_NAN = float(np.copysign(np.float32(NAN), np.float32(-1)))

KINDS: dict[str, Callable[[int, int], Float32s]] = {
    "scale 0.1": _scaled(0.1),
    "scale 1": _scaled(1),
    "scale 5": _scaled(5),
    "scale 30": _scaled(30),
    "scale 1e30": _scaled(1e30),
    "steps": _steps,
    "all equal": _constant(1.5),
    "all zero": _constant(0.0),
    "all -0.0": _constant(-0.0),
    "both zeros": _of(0.0, -0.0),
    "few values": _of(0.0, -0.0, -INF, 1.0, -1.0),
    "ascending": _ascending,
    "descending": _descending,
    "holding NaN": _holding(NAN),
    "holding -NaN": _holding(NEGATIVE_NAN),
    "holding inf": _holding(INF),
    "holding -inf": _holding(-INF, -INF, -INF),
    "all -inf": _constant(-INF),
    "one finite": _sharp(2.5, -INF),
    "1 + 3 ulp over -7.5": _sharp(ONE_AND_3_ULP, -7.5),
    "rest at 30.52": _sharp(0.0, -30.52),
    "max 1e30": _sharp(1e30, 0.5),
    "confident": _confident,
    "subnormal": _subnormal,
}


def rows_of(kinds: list[str], seed: int, size: int) -> Float32s:
    return np.stack([KINDS[kind](seed + i, size) for i, kind in enumerate(kinds)])


def fixture_cases() -> list[Case]:
    """Some hundred rows: every kind, each dtype, the sizes at which something changes."""
    every = list(KINDS)
    cases: list[Case] = []

    def case(name: str, dtype: str, rows: Float32s, n_ids: int, targets: int, top: int) -> None:
        seed = 1000 * (len(cases) + 1)
        requests = ask(seed, len(rows), n_ids, targets, top)
        cases.append(Case(name, dtype, narrow(rows, dtype), requests, n_ids))

    for i, size in enumerate((1, 2, 3, 31, 32, 33, 257, 1009)):
        for dtype in ("float32", "bfloat16", "float16"):
            rows = rows_of(every, 100 * i, size)
            case(f"every kind, V = {size}, {dtype}", dtype, rows, size, min(12, 2 * size), 40)
    for dtype in ("float32", "bfloat16"):
        rows = rows_of(every, 5000, 5003)
        case(f"every kind, V = 5003, padded, {dtype}", dtype, rows, 4999, 12, 300)
    case("many targets", "float32", rows_of(every[:8], 6000, 9001), 9001, 2100, 64)
    case("large k", "float32", rows_of(every[:8], 6100, 9001), 9001, 4, 2048)
    exact = ["rest at 30.52", "confident", "1 + 3 ulp over -7.5"]
    case("V = 2^18", "float32", rows_of(exact, 7000, 1 << 18), 1 << 18, 8, 20)
    scales = ["scale 0.1", "scale 1", "scale 5", "scale 30", "confident", "max 1e30", "steps"]
    for dtype in ("float32", "bfloat16", "float16"):
        rows = rows_of(scales, 8000, QWEN3_VOCABULARY)
        case(f"Qwen3's vocabulary, {dtype}", dtype, rows, QWEN3_IDS, 12, 20)
    case("largest V", "float32", rows_of(["scale 5"], 9000, 1 << 20), 1 << 20, 12, 20)
    return cases
