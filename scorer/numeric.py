"""exp, ln and log1p whose bits do not depend on the machine, and the sums built on them.

``np.exp``/``np.log`` pick another algorithm by the CPU's vector features, and ``math.exp``/
``math.log`` by the C library's FMA variant; both change last bits from one machine to the
next. Here every step is one IEEE 754 operation (+, -, x, /, each its own NumPy call, so that
nothing can be contracted into a fused multiply-add), an integer operation, or a literal.
Elementwise, so that a value's bits cannot depend on its neighbours or the array's length.

Methods: argument reduction by powers of two, then ln through s = f / (2 + f) with
ln(1 + f) = f - s (f - R(s^2)) (the arrangement of Sun's fdlibm, e_log.c and s_log1p.c, 1993),
and exp by its Taylor series with the reduction's low part carried along. The series are plain
Taylor series, so that each coefficient has a closed form. Errors stay below 1 ulp (normal
results; see tests/test_numeric.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]

# ln 2 = LN2_HI + LN2_LO. LN2_HI is ln 2 cut to 32 significant bits, so that k * LN2_HI is exact
# for |k| < 2^21; LN2_LO is the rest, rounded to nearest.
LN2_HI = float.fromhex("0x1.62e42feep-1")
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")  # 1 / ln 2, rounded to nearest

# 2 / (2 j + 1), j = 1 ... 10: ln((1 + s) / (1 - s)) = 2 s + s (sum of c_j s^(2 j)). With
# |s| <= 3 - 2 sqrt(2) the first term left out is below 2^-60 of the result.
_ATANH = tuple(
    float.fromhex(text)
    for text in (
        "0x1.5555555555555p-1",
        "0x1.999999999999ap-2",
        "0x1.2492492492492p-2",
        "0x1.c71c71c71c71cp-3",
        "0x1.745d1745d1746p-3",
        "0x1.3b13b13b13b14p-3",
        "0x1.1111111111111p-3",
        "0x1.e1e1e1e1e1e1ep-4",
        "0x1.af286bca1af28p-4",
        "0x1.8618618618618p-4",
    )
)

# 1 / j!, j = 2 ... 14. With |r| <= ln(2) / 2 the first term left out is below 2^-60.
_INVERSE_FACTORIALS = tuple(
    float.fromhex(text)
    for text in (
        "0x1.0000000000000p-1",
        "0x1.5555555555555p-3",
        "0x1.5555555555555p-5",
        "0x1.1111111111111p-7",
        "0x1.6c16c16c16c17p-10",
        "0x1.a01a01a01a01ap-13",
        "0x1.a01a01a01a01ap-16",
        "0x1.71de3a556c734p-19",
        "0x1.27e4fb7789f5cp-22",
        "0x1.ae64567f544e4p-26",
        "0x1.1eed8eff8d898p-29",
        "0x1.6124613a86d09p-33",
        "0x1.93974a8c07c9dp-37",
    )
)

_ONE_BITS = 0x3FF0_0000_0000_0000
_SQRT_HALF_BITS = 0x3FE6_A09E_0000_0000  # sqrt(1/2), cut to its high word
_EXPONENT_SHIFT = 52
_MANTISSA = (1 << _EXPONENT_SHIFT) - 1
_FEW = 32  # values; from about here on one NumPy call is quicker
_EXP_OVERFLOW = float.fromhex("0x1.62e42fefa39efp+9")  # largest x with a finite e^x
_EXP_UNDERFLOW = float.fromhex("-0x1.74910d52d3051p+9")  # smallest x with e^x > 0


@overload
def exp(x: float) -> float: ...
@overload
def exp(x: Float64s) -> Float64s: ...
def exp(x: float | Float64s) -> float | Float64s:
    """e^x, elementwise on float64 of any shape; a scalar gives a float.

    exp(-inf) = 0, exp(inf) = inf, NaN stays NaN; never warns.
    """
    return _elementwise(_exp, x)


@overload
def ln(x: float) -> float: ...
@overload
def ln(x: Float64s) -> Float64s: ...
def ln(x: float | Float64s) -> float | Float64s:
    """Natural logarithm, elementwise on float64 of any shape; a scalar gives a float.

    ln(+-0) = -inf, ln(inf) = inf, NaN for x < 0 and for NaN; never warns.
    """
    return _elementwise(_ln, x)


@overload
def log1p(x: float) -> float: ...
@overload
def log1p(x: Float64s) -> Float64s: ...
def log1p(x: float | Float64s) -> float | Float64s:
    """ln(1 + x) without the rounding of 1 + x, elementwise on float64; a scalar gives a float.

    log1p(-1) = -inf, log1p(inf) = inf, NaN for x < -1 and for NaN; log1p(x) = x for tiny x,
    -0.0 included; never warns.
    """
    return _elementwise(_log1p, x)


def prob_mass(logprobs: Sequence[float]) -> float:
    """sum_i exp(l_i), the exact sum rounded once (``math.fsum``); 0.0 for an empty sequence.

    Raises ValueError for NaN or +inf.
    """
    if any(math.isnan(value) or value == math.inf for value in logprobs):
        raise ValueError(f"prob_mass needs log-probabilities without NaN or +inf, got {logprobs}")
    return math.fsum(exps(logprobs))


def _elementwise(function: Callable[[Float64s], Float64s], x: float | Float64s) -> float | Float64s:
    values = np.asarray(x, dtype=np.float64)
    # Infinities and NaN run through the arithmetic and are set right at the end.
    with np.errstate(all="ignore"):
        result = function(values.reshape(-1)).reshape(values.shape)
    return float(result) if values.ndim == 0 else result


def _exp(x: Float64s) -> Float64s:
    inside = (x >= _EXP_UNDERFLOW) & (x <= _EXP_OVERFLOW)
    x_inside = np.where(inside, x, 0.0)
    k = np.rint(x_inside * LOG2_E)
    # r + r_low = x - k ln 2; the first difference is exact.
    high = x_inside - k * LN2_HI
    low = k * LN2_LO
    r = high - low
    r_low = (high - r) - low
    series = np.full_like(r, _INVERSE_FACTORIALS[-1])
    for coefficient in reversed(_INVERSE_FACTORIALS[:-1]):
        series = series * r + coefficient
    mantissa = 1.0 + (r + (r * r * series + (r_low + r_low * r)))
    # Two steps, because 2^k itself may be out of range; only the last can round (subnormals).
    exponent = k.astype(np.int64)
    half = exponent >> 1
    result = mantissa * _power_of_two(half) * _power_of_two(exponent - half)
    outside = np.where(x > _EXP_OVERFLOW, np.inf, np.where(x < _EXP_UNDERFLOW, 0.0, x))
    return np.where(inside, result, outside)


def _exp_one(x: float) -> float:
    """``_exp`` of one value, the same operations on Python's floats: no NumPy call to pay for."""
    if not _EXP_UNDERFLOW <= x <= _EXP_OVERFLOW:
        return math.inf if x > _EXP_OVERFLOW else 0.0 if x < _EXP_UNDERFLOW else x
    k = round(x * LOG2_E)  # to nearest, ties to even, as np.rint
    high = x - k * LN2_HI
    low = k * LN2_LO
    r = high - low
    r_low = (high - r) - low
    series = _INVERSE_FACTORIALS[-1]
    for coefficient in _INVERSE_FACTORIALS[-2::-1]:
        series = series * r + coefficient
    mantissa = 1.0 + (r + (r * r * series + (r_low + r_low * r)))
    half = k >> 1
    return mantissa * math.ldexp(1.0, half) * math.ldexp(1.0, k - half)


def exps(values: Sequence[float]) -> list[float]:
    """e^x of each value, as ``exp`` gives it; a handful is quicker without NumPy."""
    if len(values) <= _FEW:
        return [_exp_one(value) for value in values]
    many: list[float] = exp(np.array(values, dtype=np.float64)).tolist()
    return many


def _power_of_two(exponent: NDArray[np.int64]) -> Float64s:
    """2^exponent for -1022 <= exponent <= 1023."""
    return ((exponent + 1023) << _EXPONENT_SHIFT).view(np.float64)


def _ln(x: Float64s) -> Float64s:
    subnormal = x < float.fromhex("0x1p-1022")
    k, mantissa = _split(np.where(subnormal, x * float.fromhex("0x1p54"), x))
    k = np.where(subnormal, k - 54.0, k)
    result = _ln_reduced(mantissa - 1.0, k, np.zeros_like(x))
    result = np.where(x == 0.0, -np.inf, result)
    result = np.where(np.isposinf(x), np.inf, result)
    return np.where((x < 0.0) | np.isnan(x), np.nan, result)


def _log1p(x: Float64s) -> Float64s:
    u = 1.0 + x
    k, mantissa = _split(u)
    # What the rounding of 1 + x lost, relative to u. Where no power of two is taken out, f = x
    # needs no correction and keeps tiny x exact.
    lost = np.where(x >= 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    direct = k == 0.0
    result = _ln_reduced(np.where(direct, x, mantissa - 1.0), k, np.where(direct, 0.0, lost))
    result = np.where(x == 0.0, x, result)
    result = np.where(x == -1.0, -np.inf, result)
    result = np.where(np.isposinf(x), np.inf, result)
    return np.where((x < -1.0) | np.isnan(x), np.nan, result)


def _split(x: Float64s) -> tuple[Float64s, Float64s]:
    """k and m with x = 2^k m, m in [sqrt(1/2), sqrt(2)), for positive normal x."""
    bits = np.ascontiguousarray(x).view(np.int64) + (_ONE_BITS - _SQRT_HALF_BITS)
    k = ((bits >> _EXPONENT_SHIFT) - 1023).astype(np.float64)
    mantissa = ((bits & _MANTISSA) + _SQRT_HALF_BITS).view(np.float64)
    return k, mantissa


def _ln_reduced(f: Float64s, k: Float64s, correction: Float64s) -> Float64s:
    """k ln 2 + ln(1 + f) + correction for 1 + f in [sqrt(1/2), sqrt(2)), |correction| < 2^-52."""
    s = f / (2.0 + f)
    z = s * s
    series = np.full_like(z, _ATANH[-1])
    for coefficient in reversed(_ATANH[:-1]):
        series = series * z + coefficient
    half_square = 0.5 * f * f
    tail = s * (half_square + z * series) + (k * LN2_LO + correction)
    return k * LN2_HI - ((half_square - tail) - f)
