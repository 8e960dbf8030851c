"""Statistics that metrics are made of: tail of chi-squared, bootstrap over questions.

Pure, and the same bits on every machine: exponentials and logarithms are numeric.py's, random
numbers come from NumPy's PCG64 bit stream (stable by NumPy's own policy, NEP 19), sums of resampled
values are sums of integers, which no order of summation can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.numeric import exp, ln

Float64s = npt.NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95

_LN_PI = float.fromhex("0x1.250d048e7a1bdp+0")  # ln π, rounded to nearest
_TERMS = 10_000
_CHUNK_VALUES = 4_000_000
"""Counts held at a time by the bootstrap: 32 MB."""


def chi_squared_tail(statistic: float, degrees: int) -> float:
    """Return P(X ≥ statistic) for X chi-squared with ``degrees`` ≥ 1 degrees of freedom.

    The regularised upper incomplete gamma function Q(degrees / 2, statistic / 2): by the series of
    P = 1 - Q below statistic = degrees + 2, else by the continued fraction in Lentz's form (NIST
    Digital Library of Mathematical Functions 8.11.4 and 8.9.2). Relative error below 1e-12 where
    the result is at least 1e-300. Raises ValueError outside the domain.
    """
    if degrees < 1 or not 0 <= statistic < math.inf:
        raise ValueError(
            f"chi-squared needs a finite statistic ≥ 0 and degrees ≥ 1, got {statistic}, {degrees}"
        )
    if statistic == 0:
        return 1.0
    a, x = degrees / 2, statistic / 2
    scale = exp(a * ln(x) - x - _ln_gamma_half(degrees))  # x^a e^-x / Γ(a)
    return 1.0 - scale * _series(a, x) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Return Σ_n x^n / (a (a + 1) … (a + n))."""
    term = total = 1 / a
    for n in range(1, _TERMS):
        term *= x / (a + n)
        total += term
        if term < total * 2**-56:
            break
    return total


def _fraction(a: float, x: float) -> float:
    """Return 1/(x + 1 - a - 1(1 - a)/(x + 3 - a - 2(2 - a)/(x + 5 - a - …)))."""
    tiny = 2.0**-1000
    b = x + 1 - a
    c = 1 / tiny
    d = 1 / b
    value = d
    for n in range(1, _TERMS):
        step = -n * (n - a)
        b += 2
        d = step * d + b
        d = 1 / (d if abs(d) > tiny else tiny)
        c = b + step / c
        c = c if abs(c) > tiny else tiny
        value *= c * d
        if abs(c * d - 1) < 2**-52:
            break
    return value


def _ln_gamma_half(n: int) -> float:
    """Return ln Γ(n / 2), from Γ(1) = 1 and Γ(1/2) = √π by Γ(x + 1) = x Γ(x)."""
    start = _LN_PI / 2 if n % 2 else 0.0
    factors = np.arange(1 if n % 2 else 2, n, 2, dtype=np.float64) / 2
    return math.fsum([start, *ln(factors).tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """A ratio of sums over questions, ``Σ numerators / Σ denominators``.

    Both float64 ``[n]``, one entry a question, 0 / 0 for a question that has no part in it;
    denominators are whole numbers. A mean over questions has denominators 1.
    """

    numerators: Float64s
    denominators: Float64s

    @property
    def count(self) -> int:
        """What the ratio is over: the sum of the denominators."""
        return int(self.denominators.sum())

    @property
    def value(self) -> float | None:
        """The ratio, summed exactly; None for 0 / 0."""
        return math.fsum(self.numerators) / self.count if self.count else None


def resampled(shares: Sequence[Share], seed: int) -> Float64s:
    """Return the shares in ``RESAMPLES`` bootstrap samples of the questions.

    float64 ``[RESAMPLES, len(shares)]``, NaN where a sample's denominator is 0. Each sample draws n
    questions with replacement (B. Efron, "Bootstrap methods: another look at the jackknife",
    Annals of Statistics 7 (1979) 1-26), the same ones for all shares. A question is drawn whole,
    with all its orderings: they are not independent of each other. The questions' order decides
    which are drawn, so give them in an order that no file decides.
    """
    n = len(shares[0].numerators)
    columns = np.stack(
        [column for share in shares for column in (share.numerators, share.denominators)], axis=1
    )
    scales = np.array([_power_of_two(float(column.max(initial=0)), n) for column in abs(columns).T])
    whole = np.rint(columns * scales)
    bits = np.random.PCG64(seed)
    sums = np.empty((RESAMPLES, columns.shape[1]))
    at_once = max(1, _CHUNK_VALUES // n)
    for start in range(0, RESAMPLES, at_once):
        end = min(start + at_once, RESAMPLES)
        draws = bits.random_raw((end - start) * n).reshape(-1, n)
        # The high half of 64 bits, scaled to 0 … n - 1: biased by less than n / 2³².
        picked = ((draws >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
        counts = np.stack([np.bincount(row, minlength=n) for row in picked.astype(np.int64)])
        sums[start:end] = counts.astype(np.float64) @ whole  # below 2⁵³: exact in any order
    sums /= scales
    with np.errstate(invalid="ignore"):
        ratios: Float64s = sums[:, ::2] / sums[:, 1::2]
    least, most = np.array([_range(share) for share in shares]).T
    return np.clip(ratios, least, most)


def _range(share: Share) -> tuple[float, float]:
    """Return the least and the greatest ratio that a sample can have: those of single questions.

    A ratio of sums is a mean of the questions' ratios. Counts are whole; other values are rounded
    (to below 1e-9 of the largest), which must not carry a rate below 0 or a constant off itself.
    """
    if share.value is None:
        return math.nan, math.nan
    part = share.denominators > 0
    ratios = share.numerators[part] / share.denominators[part]
    least, most = float(ratios.min()), float(ratios.max())
    return (least, most) if least < most else (share.value, share.value)


def _power_of_two(largest: float, n: int) -> float:
    """Return the scale that keeps sums of n values up to ``largest`` below 2⁵²."""
    return 2.0 ** min(52 - math.frexp((largest or 1.0) * n)[1], 1000)


def interval(replicates: Float64s) -> tuple[float, float] | None:
    """Return the percentile interval of level ``LEVEL``, None when a replicate is undefined.

    Order statistics, without interpolation: B. Efron and R. J. Tibshirani, "An Introduction to the
    Bootstrap" (1993), section 13.3.
    """
    if np.isnan(replicates).any():
        return None
    ordered = np.sort(replicates)
    tail = (1 - LEVEL) / 2
    low = math.floor(tail * len(ordered))
    return float(ordered[low]), float(ordered[len(ordered) - 1 - low])
