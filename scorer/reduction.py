"""Logits rows to log-probabilities: the definition every backend must equal bit for bit.

The sum over the vocabulary is taken in integers, so that no order of adding, no chunk size and
no number of threads can move a bit. Of a row x[0 ... V-1] with maximum M, in float64 (rn: the
correctly rounded IEEE operation, never fused), then in unsigned integers::

    d = min(rn(M - x), 44)                    x and M widened exactly
    y = bits(rn(rn(d * LOG2E) + 2^20))        low 52 bits: d log2(e) in units of 2^-32
    n = (y >> 32) & 63,  f = y & (2^32 - 1)   e^-d = 2^-n 2^(-f / 2^32)
    t = C7;  t = C_i - mulhi(f, t)  for i = 6, 5, 4, 3, 2          mulhi(a, b) = (a b) >> 32
    t = C1 - (mulhi(f, t) >> 2)
    term = (2^63 - ((f * t) >> 1)) >> n       f * t in full 64 bits; e^-d in units of 2^-63
    S = sum of the terms                      below 2^83 + 1; 2^63 from the maximum alone

``LOG2E`` is log2(e) rounded to float64. All C_i, f and t fit 32 bits, a term fits 64. d = 44 gives
the term 0, as does every d > 43.67. Then, once a row, on the host (``finish``):
ln(sum) = log1p((S - 2^63) / 2^63).

Polynomial: 2^-f = 1 - f (C1 - f (C2 - ... )), of degree 7, minimax in the relative error
(Remez), with p(0) = 1 exactly. C1 is in units of 2^-32, C2 ... C7 of 2^-34. Each was rounded in
turn, C1 first, with the mean of the floor that follows it taken off, and the rest fitted again.
Relative error of a term before its shift, measured over all 2^32 values of f: -5.5e-10 to
4.9e-10, mean -1.2e-12. The rounding of y adds at most 0.9e-10, the final shift at most 2^-63 a
term: |error of ln(sum)| < 6.4e-10 nats + V 2^-63 (the latter 1.7e-14 at V = 151936, 1.2e-13 at
2^20).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scorer.numeric import LOG2_E, Float64s, log1p

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
UInt64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]

MAX_VOCABULARY: Final = 1 << 20
CLAMP: Final = 44.0  # d; 44 log2(e) < 64 keeps the shift below a register's width
FIXED_POINT: Final = float(1 << 20)  # added to v < 2^20, leaves v in units of 2^-32 in the mantissa
POLYNOMIAL: Final[tuple[int, ...]] = (  # C1 ... C7
    2977044457,
    4127058586,
    953541917,
    165192785,
    22808873,
    2527955,
    185299,
)

# Elements per step: the working arrays of one step stay in the processor's second-level cache.
_CHUNK = 8192
_INT32_MAX = 2**31 - 1


def kernel_constants() -> str:
    """The literals of the definition above as ``#define`` lines for a CUDA source."""
    values = {
        "SCORER_MAX_VOCABULARY": str(MAX_VOCABULARY),
        "SCORER_CLAMP": CLAMP.hex(),
        "SCORER_LOG2E": LOG2_E.hex(),
        "SCORER_FIXED_POINT": FIXED_POINT.hex(),
    }
    values |= {f"SCORER_C{i}": f"{value}u" for i, value in enumerate(POLYNOMIAL, start=1)}
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


@dataclass(frozen=True, slots=True, eq=False)
class RowRequests:
    """What is asked of each row of a batch of logits.

    target_ids: int32 [t], the ids whose log-probability is asked for, all rows end to end, any
    order, repetitions allowed; row i owns ``target_ids[target_offsets[i]:target_offsets[i + 1]]``
    (target_offsets: int32 [rows + 1]). top_k: int32 [rows], how many of the best ids.

    Raises ValueError for arrays that do not fit together.
    """

    target_ids: Int32s
    target_offsets: Int32s
    top_k: Int32s

    def __post_init__(self) -> None:
        for name in ("target_ids", "target_offsets", "top_k"):
            array = getattr(self, name)
            if array.dtype != np.int32 or array.ndim != 1:
                raise ValueError(
                    f"{name} must be a 1-d int32 array, got {array.ndim}-d {array.dtype}"
                )
        offsets = self.target_offsets
        if offsets.size != self.rows + 1:
            raise ValueError(
                f"target_offsets must have rows + 1 = {self.rows + 1} entries "
                f"(top_k has {self.rows}), got {offsets.size}"
            )
        if offsets[0] != 0 or offsets[-1] != self.target_ids.size or (np.diff(offsets) < 0).any():
            raise ValueError(
                f"target_offsets must rise from 0 to the number of target_ids "
                f"({self.target_ids.size}), got {offsets.tolist()}"
            )
        if (self.top_k < 0).any():
            row = int(np.argmax(self.top_k < 0))
            raise ValueError(f"top_k must be 0 or more, got {self.top_k[row]} in row {row}")

    @classmethod
    def of(cls, targets: Sequence[Sequence[int]], top_k: Sequence[int]) -> RowRequests:
        """One sequence of target ids and one k per row."""
        offsets = np.cumsum([0, *(len(ids) for ids in targets)])
        return cls(
            target_ids=np.array([i for ids in targets for i in ids], dtype=np.int32),
            target_offsets=offsets.astype(np.int32),
            top_k=np.array(top_k, dtype=np.int32),
        )

    @property
    def rows(self) -> int:
        """How many rows the requests are for."""
        return self.top_k.size

    def target_rows(self) -> NDArray[np.intp]:
        """The row of each target, intp [t]."""
        return np.repeat(np.arange(self.rows), np.diff(self.target_offsets))

    def top_offsets(self, n_ids: int) -> Int32s:
        """Where each row's min(k, n_ids) top entries start and end, int32 [rows + 1].

        Raises ValueError when all rows together ask for more than 2^31 - 1 entries.
        """
        counts = np.minimum(self.top_k.astype(np.int64), n_ids)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        if offsets[-1] > _INT32_MAX:
            raise ValueError(f"top_k asks for {offsets[-1]} entries, the most is {_INT32_MAX}")
        return offsets.astype(np.int32)

    def check(self, shape: tuple[int, ...], n_ids: int) -> None:
        """Raise ValueError unless these requests can be put to logits of this shape."""
        if len(shape) != 2 or not 1 <= shape[1] <= MAX_VOCABULARY:
            raise ValueError(
                f"logits must be [rows, V] with 1 <= V <= {MAX_VOCABULARY}, got shape {shape}"
            )
        if shape[0] != self.rows:
            raise ValueError(f"logits have {shape[0]} rows, the requests {self.rows}")
        if not 1 <= n_ids <= shape[1]:
            raise ValueError(f"n_ids must be from 1 to V = {shape[1]}, got {n_ids}")
        outside = (self.target_ids < 0) | (self.target_ids >= n_ids)
        if outside.any():
            place = int(np.argmax(outside))
            raise ValueError(
                f"target ids must be from 0 to n_ids - 1 = {n_ids - 1}, "
                f"got {self.target_ids[place]} in row {self.target_rows()[place]}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class RawReduction:
    """What a backend computes: integers and float32 logits, before any logarithm.

    Every bit is defined, so that backends are compared here. A row is nonfinite with NaN (either
    sign) or +inf anywhere in its V columns, or -inf in all of them. It then holds 0 for the sums,
    -1 for ids and ranks, and the NaN 0x7fc00000 for every logit. Logits are canonical: -0.0 is
    given as 0.0.

    nonfinite: bool [rows]
    max: float32 [rows], over all V columns
    sum_hi, sum_lo: uint64 [rows], S = sum_hi 2^32 + sum_lo with sum_lo < 2^32
    chosen_id: int32 [rows], chosen_logit: float32 [rows]: the largest of ids < n_ids, ties to
        the smallest id (-inf and id 0 when all of those are -inf)
    target_logit: float32 [t]
    target_rank: int32 [t], from 1, among ids < n_ids by (logit descending, id ascending)
    top_id: int32 [e], top_logit: float32 [e]: the first min(k, n_ids) ids in that order, -inf
        included; row i owns [top_offsets[i], top_offsets[i + 1])
    top_offsets: int32 [rows + 1]
    """

    nonfinite: Bools
    max: Float32s
    sum_hi: UInt64s
    sum_lo: UInt64s
    chosen_id: Int32s
    chosen_logit: Float32s
    target_logit: Float32s
    target_rank: Int32s
    top_id: Int32s
    top_logit: Float32s
    top_offsets: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """Log-probabilities (nats, natural logarithm) of a batch of rows.

    Nonfinite rows hold NaN and, for ids and ranks, -1. A token at -inf has logprob -inf.

    nonfinite: bool [rows]
    log_sum: float64 [rows], ln of sum_v exp(x_v - max)
    chosen_id: int32 [rows], chosen_logprob: float64 [rows]
    target_logprob: float64 [t], target_rank: int32 [t]
    top_id: int32 [e], top_logprob: float64 [e], top_offsets: int32 [rows + 1]
    """

    nonfinite: Bools
    log_sum: Float64s
    chosen_id: Int32s
    chosen_logprob: Float64s
    target_logprob: Float64s
    target_rank: Int32s
    top_id: Int32s
    top_logprob: Float64s
    top_offsets: Int32s


def widen_bfloat16(bits: NDArray[np.uint16]) -> Float32s:
    """float32 values of bfloat16 bit patterns (exact; any shape)."""
    if bits.dtype != np.uint16:
        raise ValueError(f"bfloat16 bit patterns must be uint16, got {bits.dtype}")
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reduce_host(
    logits: NDArray[np.float32] | NDArray[np.float16], requests: RowRequests, n_ids: int
) -> RawReduction:
    """The reduction in NumPy: a peer of the kernels, and their reference.

    logits: float32 or float16 [rows, V], 1 <= V <= 2^20; bfloat16 goes through
    ``widen_bfloat16``. n_ids: ids from here on take part in the maximum and the sum, but are
    never chosen, ranked, listed or targets.

    Raises ValueError for other shapes and dtypes, and for targets outside [0, n_ids).
    """
    if logits.dtype not in (np.float32, np.float16):
        raise ValueError(
            f"logits must be float32 or float16 (bfloat16: widen_bfloat16), got {logits.dtype}"
        )
    requests.check(logits.shape, n_ids)
    raw = _undefined(requests, n_ids)
    workspace = _Workspace(min(_CHUNK, logits.shape[1]))
    # A signalling NaN may raise the invalid flag when compared or widened; it is reported below.
    with np.errstate(invalid="ignore"):
        for i in range(requests.rows):
            row = np.ascontiguousarray(logits[i], dtype=np.float32)
            largest = row.max() + np.float32(0)  # -0.0 becomes 0.0
            if np.isfinite(largest):
                _reduce_row(i, row, largest, requests, n_ids, raw, workspace)
    return raw


def finish(raw: RawReduction, requests: RowRequests) -> Reduced:
    """Take the logarithm, once a row; the only place where it is taken, for every backend.

    ln(sum) = log1p(t 2^-63) with t = S - 2^63, an integer below 2^83, rounded once to the
    nearest float64: the two addends below are integers under 2^53 and a power of two apart, so
    that only their sum rounds. Then logprob = rn(rn(x - max) - ln(sum)), x and max widened.
    """
    rest = (raw.sum_hi - np.uint64(1 << 31)).astype(np.float64) * 2.0**32
    rest += raw.sum_lo.astype(np.float64)
    log_sum = np.where(raw.nonfinite, np.nan, log1p(rest * 2.0**-63))
    largest = raw.max.astype(np.float64)

    def logprob(logit: Float32s, rows: NDArray[np.intp]) -> Float64s:
        return (logit.astype(np.float64) - largest[rows]) - log_sum[rows]

    every = np.arange(requests.rows)
    return Reduced(
        nonfinite=raw.nonfinite,
        log_sum=log_sum,
        chosen_id=raw.chosen_id,
        chosen_logprob=logprob(raw.chosen_logit, every),
        target_logprob=logprob(raw.target_logit, requests.target_rows()),
        target_rank=raw.target_rank,
        top_id=raw.top_id,
        top_logprob=logprob(raw.top_logit, np.repeat(every, np.diff(raw.top_offsets))),
        top_offsets=raw.top_offsets,
    )


def _undefined(requests: RowRequests, n_ids: int) -> RawReduction:
    """A result in which every row is nonfinite."""
    rows, targets = requests.rows, requests.target_ids.size
    top_offsets = requests.top_offsets(n_ids)
    entries = int(top_offsets[-1])
    nan = np.float32(np.nan)
    return RawReduction(
        nonfinite=np.ones(rows, dtype=np.bool_),
        max=np.full(rows, nan),
        sum_hi=np.zeros(rows, dtype=np.uint64),
        sum_lo=np.zeros(rows, dtype=np.uint64),
        chosen_id=np.full(rows, -1, dtype=np.int32),
        chosen_logit=np.full(rows, nan),
        target_logit=np.full(targets, nan),
        target_rank=np.full(targets, -1, dtype=np.int32),
        top_id=np.full(entries, -1, dtype=np.int32),
        top_logit=np.full(entries, nan),
        top_offsets=top_offsets,
    )


class _Workspace:
    """Arrays of one chunk, kept from chunk to chunk."""

    def __init__(self, size: int) -> None:
        self.d = np.empty(size, dtype=np.float64)
        self.f = np.empty(size, dtype=np.uint64)
        self.t = np.empty(size, dtype=np.uint64)


def _reduce_row(
    i: int,
    row: Float32s,
    largest: np.float32,
    requests: RowRequests,
    n_ids: int,
    raw: RawReduction,
    workspace: _Workspace,
) -> None:
    raw.nonfinite[i] = False
    raw.max[i] = largest
    total = _sum_terms(row, largest, workspace)
    raw.sum_hi[i] = total >> 32
    raw.sum_lo[i] = total & 0xFFFF_FFFF
    real = row[:n_ids]
    raw.chosen_id[i] = chosen = real.argmax()
    raw.chosen_logit[i] = real[chosen] + np.float32(0)
    for j in range(requests.target_offsets[i], requests.target_offsets[i + 1]):
        token = requests.target_ids[j]
        value = real[token]
        raw.target_logit[j] = value + np.float32(0)
        before = np.count_nonzero(real > value) + np.count_nonzero(real[:token] == value)
        raw.target_rank[j] = 1 + before
    start, end = raw.top_offsets[i], raw.top_offsets[i + 1]
    if start < end:
        ids = _top_ids(real, int(end - start))
        raw.top_id[start:end] = ids
        raw.top_logit[start:end] = real[ids] + np.float32(0)


def _sum_terms(row: Float32s, largest: np.float32, workspace: _Workspace) -> int:
    """S of the module's definition."""
    chunk = workspace.d.size
    total = 0
    for start in range(0, row.size, chunk):
        x = row[start : start + chunk]
        d, f, t = workspace.d[: x.size], workspace.f[: x.size], workspace.t[: x.size]
        np.subtract(np.float64(largest), x, out=d, dtype=np.float64)
        np.minimum(d, CLAMP, out=d)
        np.multiply(d, LOG2_E, out=d)
        np.add(d, FIXED_POINT, out=d)
        n: Any = d.view(np.uint64)
        np.bitwise_and(n, 0xFFFF_FFFF, out=f)
        np.right_shift(n, 32, out=n)
        np.bitwise_and(n, 63, out=n)
        t.fill(POLYNOMIAL[6])
        for coefficient in reversed(POLYNOMIAL[1:6]):
            np.multiply(f, t, out=t)
            np.right_shift(t, 32, out=t)
            np.subtract(coefficient, t, out=t)
        np.multiply(f, t, out=t)
        np.right_shift(t, 34, out=t)
        np.subtract(POLYNOMIAL[0], t, out=t)
        np.multiply(f, t, out=t)
        np.right_shift(t, 1, out=t)
        np.subtract(np.uint64(1 << 63), t, out=t)
        np.right_shift(t, n, out=t)
        np.right_shift(t, 32, out=f)
        np.bitwise_and(t, 0xFFFF_FFFF, out=t)
        total += (int(f.sum()) << 32) + int(t.sum())
    return total


def _top_ids(real: Float32s, k: int) -> NDArray[np.intp]:
    """The first k ids by (value descending, id ascending), 1 <= k <= real.size."""
    # The k-th largest of any k or more of the values is at most the k-th largest of all, so the
    # maxima of strided blocks leave few candidates without a partition of the whole row.
    blocks = real.size // 64
    if k <= blocks:
        maxima = real[: 64 * blocks].reshape(64, blocks).max(axis=0)
        candidates = np.flatnonzero(real >= np.partition(maxima, blocks - k)[blocks - k])
    else:
        candidates = np.arange(real.size)
    values = real[candidates]
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = candidates[values > threshold]
    level = candidates[values == threshold][: k - above.size]
    ordered = above[np.argsort(-real[above], kind="stable")]
    return np.concatenate((ordered, level))
