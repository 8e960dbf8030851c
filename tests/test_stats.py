from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from scorer.compare.stats import RESAMPLES, Share, chi_squared_tail, interval, resampled


def share(*parts: tuple[float, float]) -> Share:
    tops, bottoms = zip(*parts, strict=True)
    return Share(np.array(tops, dtype=np.float64), np.array(bottoms, dtype=np.float64))


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 8, 25, 51, 200, 1000])
@pytest.mark.parametrize(
    "statistic", [0, 1e-9, 0.01, 0.5, 1, 3.84, 10, 26.9, 27.1, 100, 202.1, 500, 1300]
)
def test_the_tail_of_chi_squared_is_the_incomplete_gamma_function(
    degrees: int, statistic: float
) -> None:
    with mpmath.workdps(60):
        exact = mpmath.gammainc(
            mpmath.mpf(degrees) / 2, mpmath.mpf(statistic) / 2, regularized=True
        )
        got = chi_squared_tail(statistic, degrees)

        assert exact > 1e-300
        assert abs(got / exact - 1) < 1e-12


def test_the_tail_of_chi_squared_by_two_degrees_is_an_exponential() -> None:
    assert chi_squared_tail(2 * math.log(20), 2) == pytest.approx(0.05, rel=1e-14)


@pytest.mark.parametrize(
    ("statistic", "degrees"), [(-1.0, 1), (1.0, 0), (math.nan, 1), (math.inf, 1)]
)
def test_a_chi_squared_that_is_none_is_refused(statistic: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="finite statistic"):
        chi_squared_tail(statistic, degrees)


def test_a_share_is_a_ratio_of_sums() -> None:
    # (1 + 0 + 2) / (2 + 1 + 2) = 3 / 5; the question with 0 / 0 has no part in it.
    own = share((1, 2), (0, 1), (0, 0), (2, 2))

    assert own.value == 0.6
    assert own.count == 5


def test_a_share_of_nothing_is_undefined() -> None:
    assert share((0, 0), (0, 0)).value is None


def test_resamples_of_a_constant_are_the_constant() -> None:
    third = 1 / 3
    replicates = resampled(
        [share((third, 1), (third, 1), (third, 1)), share((1, 2), (1, 2), (1, 2))], 0
    )

    assert replicates.shape == (RESAMPLES, 2)
    assert set(replicates[:, 0]) == {third}
    assert set(replicates[:, 1]) == {0.5}
    assert interval(replicates[:, 0]) == (third, third)


def test_resamples_use_the_same_draws_for_all_shares() -> None:
    right = share(*[(float(q % 3 == 0), 1) for q in range(50)])
    wrong = share(*[(float(q % 3 != 0), 1) for q in range(50)])
    replicates = resampled([right, wrong], 7)

    assert (replicates.sum(axis=1) == 1).all()
    assert len(set(replicates[:, 0])) > 10


def test_resamples_are_decided_by_the_seed() -> None:
    own = [share(*[(float(q % 2), 1) for q in range(30)])]

    assert (resampled(own, 1) == resampled(own, 1)).all()
    assert (resampled(own, 1) != resampled(own, 2)).any()


def test_resamples_draw_questions_evenly() -> None:
    """Each of 8 questions is drawn RESAMPLES times in all, give or take chance."""
    n = 8
    for q in range(n):
        own = share(*[(float(other == q), 1) for other in range(n)])
        drawn = resampled([own], 3)[:, 0].sum() * n
        # Binomial(8 · 2000, 1/8): standard deviation √(2000 · 7/8) = 42.
        assert abs(drawn - RESAMPLES) < 5 * 42


def test_the_interval_of_a_rate_is_that_of_the_normal_approximation() -> None:
    own = share(*[(float(q < 300), 1) for q in range(400)])
    bounds = interval(resampled([own], 0)[:, 0])

    # 0.75 ± 1.96 √(0.75 · 0.25 / 400) = 0.75 ± 0.0424
    assert bounds is not None
    assert bounds == pytest.approx((0.7076, 0.7924), abs=0.004)


def test_a_sample_without_denominator_leaves_no_interval() -> None:
    # Of two questions only one counts: every fourth sample draws the other one twice.
    replicates = resampled([share((1, 1), (0, 0))], 0)[:, 0]

    assert 0.2 < np.isnan(replicates).mean() < 0.3
    assert interval(replicates) is None


def test_an_interval_leaves_one_fortieth_out_on_each_side() -> None:
    # Of 0 … 1999: the 51st from either end.
    assert interval(np.arange(2000.0)[::-1]) == (50.0, 1949.0)


def test_sums_of_long_and_large_columns_stay_exact() -> None:
    n = 5000
    own = share(*[(700.25 + q, 1) for q in range(n)])
    replicates = resampled([own], 0)[:, 0]

    assert own.value == 700.25 + (n - 1) / 2
    assert abs(replicates.mean() - own.value) < 100
    assert np.isfinite(replicates).all()
