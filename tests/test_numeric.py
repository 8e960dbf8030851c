from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scorer import numeric
from scorer.numeric import Float64s, exp, ln, log1p, prob_mass

mpmath.mp.prec = 160

TINY = 5e-324
LARGEST = sys.float_info.max
RNG = np.random.default_rng(20)

SAMPLES: dict[str, Float64s] = {
    "exp": np.concatenate(
        [
            RNG.uniform(-708.0, 709.7, 2000),
            RNG.uniform(-745.1, -708.0, 500),
            RNG.uniform(-1.0, 1.0, 2000),
            RNG.uniform(-45.0, 0.0, 2000),
            -(10.0 ** RNG.uniform(-300, 0, 500)),
            np.arange(-1074, 1024) * math.log(2.0),
        ]
    ),
    "ln": np.concatenate(
        [
            np.ldexp(RNG.uniform(1.0, 2.0, 2000), RNG.integers(-1074, 1023, 2000)),
            RNG.uniform(0.5, 2.0, 4000),
            1.0 + RNG.normal(size=1000) * 1e-6,
            np.nextafter(1.0, [0.0, 2.0]),
            np.nextafter(math.sqrt(0.5), [0.0, 2.0]),
        ]
    ),
    "log1p": np.concatenate(
        [
            np.ldexp(RNG.uniform(1.0, 2.0, 1000), RNG.integers(-1074, 1023, 1000)),
            10.0 ** RNG.uniform(-30, 6, 3000),
            RNG.uniform(-0.99, 3.0, 4000),
            -(10.0 ** RNG.uniform(-30, -0.01, 1000)),
            # what a row's sum gives: integers in units of 2^-63
            RNG.integers(1, 1 << 62, 500) * 2.0**-63,
            math.sqrt(2.0) - 1.0 + RNG.normal(size=300) * 1e-3,
            math.sqrt(0.5) - 1.0 + RNG.normal(size=300) * 1e-3,
            np.nextafter(-1.0, [0.0]),
        ]
    ),
}
CASES: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("exp", exp, mpmath.exp),
    ("ln", ln, mpmath.log),
    ("log1p", log1p, mpmath.log1p),
]


def ulps(got: float, exact: Any) -> float:
    """|got - exact| in units in the last place of the exact value (2^-1074 when subnormal)."""
    ulp = mpmath.mpf(np.spacing(abs(float(exact))))
    return float(abs(mpmath.mpf(got) - exact) / ulp)


@pytest.mark.parametrize(("name", "ours", "exact"), CASES, ids=[c[0] for c in CASES])
def test_accuracy_is_below_one_ulp(
    name: str, ours: Callable[[Any], Any], exact: Callable[[Any], Any]
) -> None:
    x = SAMPLES[name]
    errors = [
        ulps(y, exact(mpmath.mpf(v))) for v, y in zip(x.tolist(), ours(x).tolist(), strict=True)
    ]
    assert max(errors) < 1.0, f"{max(errors)} ulp at {x[int(np.argmax(errors))].hex()}"


@given(st.floats(min_value=-745.0, max_value=709.0))
@example(TINY)
@example(-TINY)
def test_exp_of_any_float_is_within_one_ulp(x: float) -> None:
    assert ulps(exp(x), mpmath.exp(mpmath.mpf(x))) <= 1.0


@given(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False))
@example(TINY)
@example(sys.float_info.min)
@example(LARGEST)
def test_ln_of_any_positive_float_is_within_one_ulp(x: float) -> None:
    assert ulps(ln(x), mpmath.log(mpmath.mpf(x))) <= 1.0


@given(st.floats(min_value=-1.0, exclude_min=True, allow_infinity=False))
@example(TINY)
@example(-TINY)
@example(LARGEST)
@example(2.0**53)
@example(2.0**54 - 1.0)
def test_log1p_of_any_float_above_minus_one_is_within_one_ulp(x: float) -> None:
    # at high precision: 1 + x must not round
    with mpmath.workprec(1300):
        exact = mpmath.log1p(mpmath.mpf(x))
    assert ulps(log1p(x), exact) <= 1.0


@pytest.mark.parametrize("x", [1e-9, 1e-16, 1e-17, 1e-100, 2.0**-1022, TINY, -1e-17, -TINY])
def test_log1p_of_tiny_arguments_keeps_every_digit(x: float) -> None:
    assert log1p(x) == float(mpmath.log1p(mpmath.mpf(x)))


SPECIAL = [
    (exp, 0.0, 1.0),
    (exp, -0.0, 1.0),
    (exp, math.inf, math.inf),
    (exp, -math.inf, 0.0),
    (exp, 709.782712893384, float.fromhex("0x1.fffffffffff2ap+1023")),
    (exp, 709.7827128933841, math.inf),
    (exp, LARGEST, math.inf),
    (exp, -745.1332191019411, TINY),
    (exp, -745.1332191019412, 0.0),
    (exp, -LARGEST, 0.0),
    (exp, math.nan, math.nan),
    (ln, 1.0, 0.0),
    (ln, 0.0, -math.inf),
    (ln, -0.0, -math.inf),
    (ln, math.inf, math.inf),
    (ln, -TINY, math.nan),
    (ln, -math.inf, math.nan),
    (ln, math.nan, math.nan),
    (log1p, 0.0, 0.0),
    (log1p, -0.0, -0.0),
    (log1p, -1.0, -math.inf),
    (log1p, math.nextafter(-1.0, -2.0), math.nan),
    (log1p, math.inf, math.inf),
    (log1p, -math.inf, math.nan),
    (log1p, math.nan, math.nan),
]


@pytest.mark.parametrize(
    ("function", "x", "expected"), SPECIAL, ids=[f"{f.__name__}({x})" for f, x, _ in SPECIAL]
)
def test_special_values(function: Callable[[float], float], x: float, expected: float) -> None:
    got = function(x)
    if math.isnan(expected):
        assert math.isnan(got)
    else:
        assert got == expected
        assert math.copysign(1.0, got) == math.copysign(1.0, expected)


def test_ln_of_powers_of_two_is_correctly_rounded() -> None:
    got = ln(np.ldexp(1.0, np.arange(-1074, 1024)))
    assert got.tolist() == [float(k * mpmath.log(2)) for k in range(-1074, 1024)]


@pytest.mark.parametrize(("name", "ours"), [case[:2] for case in CASES], ids=[*SAMPLES])
def test_a_value_depends_on_nothing_beside_it(name: str, ours: Callable[[Any], Any]) -> None:
    x = SAMPLES[name][:999]
    whole = ours(x)
    assert whole.dtype == np.float64
    assert ours(x.reshape(3, 333)).tobytes() == whole.tobytes()
    assert ours(x[::-1])[::-1].tobytes() == whole.tobytes()
    assert ours(x[1::2]).tobytes() == whole[1::2].tobytes()
    assert [ours(v) for v in x.tolist()] == whole.tolist()
    assert isinstance(ours(float(x[0])), float)
    assert ours(np.empty((2, 0))).shape == (2, 0)


def test_constants_are_what_their_comments_say() -> None:
    ln2 = mpmath.log(2)
    mantissa, exponent = math.frexp(numeric.LN2_HI)
    assert (mantissa * 2**32).is_integer()
    assert exponent == 0
    assert 0 < ln2 - mpmath.mpf(numeric.LN2_HI) < mpmath.mpf(2) ** -32
    assert float(ln2 - mpmath.mpf(numeric.LN2_HI)) == numeric.LN2_LO
    assert float(1 / ln2) == numeric.LOG2_E
    assert numeric._ATANH == tuple(float(mpmath.mpf(2) / (2 * j + 1)) for j in range(1, 11))
    assert numeric._INVERSE_FACTORIALS == tuple(
        float(1 / mpmath.factorial(j)) for j in range(2, 15)
    )


@given(
    st.lists(st.floats(min_value=-60.0, max_value=0.0), min_size=1, max_size=12).flatmap(
        lambda values: st.tuples(st.just(values), st.permutations(values))
    )
)
def test_mass_keeps_its_bits_under_any_order(pair: tuple[list[float], list[float]]) -> None:
    values, shuffled = pair
    assert prob_mass(values) == prob_mass(shuffled)


def test_adding_in_order_would_not_do() -> None:
    """The control of the test above: the plain sum of the same terms does depend on the order."""
    weights = exp(RNG.uniform(-10.0, 0.0, 50)).tolist()
    forward, backward = sum(weights), sum(reversed(weights))
    assert forward != backward
    assert math.fsum(weights) == math.fsum(reversed(weights))


def test_prob_mass() -> None:
    assert prob_mass([]) == 0.0
    assert prob_mass([-math.inf, 0.0]) == 1.0
    assert prob_mass([ln(0.25), ln(0.5)]) == pytest.approx(0.75, rel=1e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_prob_mass_refuses_what_is_no_log_probability(bad: float) -> None:
    with pytest.raises(ValueError, match="without NaN or \\+inf"):
        prob_mass([-1.0, bad])


# Run in a process of its own: CPU features are chosen when NumPy and the C library are loaded.
_PROBE = """
import hashlib, json, math, sys
import numpy as np
from numpy._core import _multiarray_umath as core
from scorer.numeric import exp, ln, log1p
from scorer.reduction import RowRequests, finish, reduce_host

sha = lambda *arrays: hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays))
# exactly representable, so that the inputs themselves cannot depend on the machine
i = np.arange(20000, dtype=np.int64)
unit = (i * 2654435761 % 2**32) * 2.0**-32
x, wide = unit * 90.0 - 60.0, unit * 1400.0 - 700.0
positive = np.ldexp(unit + 2.0**-33, i % 41 - 20)
rows = ((np.arange(6 * 20001, dtype=np.int64) * 2654435761 % 2**32) * 2.0**-27).astype(np.float32)
rows = rows.reshape(6, 20001) - np.float32(1.25)
rows[1] *= np.float32(0.125)
rows[2] *= np.float32(8.0)
rows[3] = np.round(rows[3])
rows[4, 7::3] = -np.inf
rows[5, 11] = np.nan
requests = RowRequests.of([[0, 5, 19999], [], [7], [1, 2, 3], [7, 8], [11]], [0, 20, 5, 400, 3, 2])
raw = reduce_host(rows, requests, 20000)
reduced = finish(raw, requests)
print(json.dumps({
    "active": [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]],
    "ours": {
        "exp": sha(exp(x), exp(wide)).hexdigest(),
        "ln": sha(ln(positive)).hexdigest(),
        "log1p": sha(log1p(positive), log1p(-unit)).hexdigest(),
        "raw": sha(*(getattr(raw, f) for f in raw.__slots__)).hexdigest(),
        "reduced": sha(*(getattr(reduced, f) for f in reduced.__slots__)).hexdigest(),
    },
    "theirs": {
        "np.exp": sha(np.exp(wide)).hexdigest(),
        "np.log": sha(np.log(positive)).hexdigest(),
        "np.log1p": sha(np.log1p(positive)).hexdigest(),
        "math.exp": sha(np.array([math.exp(v) for v in wide])).hexdigest(),
        "math.log": sha(np.array([math.log(v) for v in positive])).hexdigest(),
    },
}))
"""


def probe(**environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# The C library's names before and since glibc 2.33; it ignores those it does not know.
_GLIBC = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable"


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return probe()


@pytest.fixture(scope="module")
def reduced(plain: dict[str, Any]) -> dict[str, Any]:
    if not sys.platform.startswith("linux"):
        pytest.skip("GLIBC_TUNABLES are Linux's")
    answer = probe(GLIBC_TUNABLES=_GLIBC, NPY_DISABLE_CPU_FEATURES=" ".join(plain["active"]))
    assert answer["active"] == [], "the features were not disabled, so nothing was compared"
    return answer


def test_bits_do_not_depend_on_cpu_features(plain: dict[str, Any], reduced: dict[str, Any]) -> None:
    assert plain["ours"] == reduced["ours"]


def test_numpy_and_the_c_library_do_depend_on_them(
    plain: dict[str, Any], reduced: dict[str, Any]
) -> None:
    """The control of the test above; not every machine has what it takes to show it."""
    moved = [name for name, digest in plain["theirs"].items() if digest != reduced["theirs"][name]]
    if not moved:
        pytest.skip(f"this machine (features {plain['active']}) did not show the hazard")
    print("bits moved with the CPU's features:", ", ".join(moved))


def test_golden_bits(plain: dict[str, Any]) -> None:
    """A change here changes scores: it belongs under "Scores changed" in the changelog."""
    assert {name: digest[:16] for name, digest in plain["ours"].items()} == {
        "exp": "0c9f1d122bdf6dce",
        "ln": "437a970667fba99a",
        "log1p": "9770ca4bfab54719",
        "raw": "54bb9169a11ed20c",
        "reduced": "bb6f589bccf9e330",
    }


def test_few_values_and_many_have_the_same_bits() -> None:
    """Short lists go through Python's floats, long ones through NumPy."""
    special = [0.0, -0.0, math.inf, -math.inf, LARGEST, -LARGEST, TINY, -745.2, 709.8]
    values = [*SAMPLES["exp"].tolist(), *special]
    one_by_one = [numeric._exp_one(value) for value in values]
    assert np.array(one_by_one).tobytes() == exp(np.array(values)).tobytes()
    assert math.isnan(numeric._exp_one(math.nan))
    logprobs = np.random.default_rng(3).uniform(-40, 0, 100).tolist()
    few, many = logprobs[: numeric._FEW], logprobs
    assert prob_mass(few) == math.fsum(exp(np.array(few)).tolist())
    assert prob_mass(many) == math.fsum(exp(np.array(many)).tolist())
