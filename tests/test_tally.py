from __future__ import annotations

import math

import numpy as np
import pytest

from scorer.check.tally import EXAMPLES_KEPT, Tally


def floats(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def here() -> str:
    return "here"


def test_nothing_compared_is_not_equal() -> None:
    assert not Tally().equal


def test_equal_bits() -> None:
    tally = Tally()
    tally.nats(floats(-1.5, -0.0, -math.inf), floats(-1.5, -0.0, -math.inf), "here")
    tally.integers(np.array([3], np.int32), np.array([3], np.int32), "here")
    tally.value("a", "a", here, nats=False)
    assert (tally.comparisons, tally.mismatches, tally.examples) == (5, 0, [])
    assert tally.equal


def test_what_neither_has_is_no_comparison() -> None:
    tally = Tally()
    tally.nats(floats(math.nan, math.nan), floats(math.nan, -1.0), "here")
    tally.integers(np.array([-1, 0], np.int32), np.array([-1, 0], np.int32), "here")
    assert (tally.comparisons, tally.mismatches, tally.largest) == (2, 1, math.inf)


def test_one_ulp_is_a_difference() -> None:
    tally = Tally()
    tally.nats(floats(-1.0, -2.0), floats(-1.0, math.nextafter(-2.0, 0)), "here")
    assert (tally.comparisons, tally.mismatches) == (2, 1)
    assert tally.largest == 2**-52
    assert tally.examples == ["here: -2.0 → -1.9999999999999998"]
    assert not tally.equal


@pytest.mark.parametrize(
    ("expected", "got", "largest"),
    [(0.0, -0.0, 0.0), (-1.0, math.nan, math.inf), (-1.0, -math.inf, math.inf), (-1.0, -3.0, 2.0)],
)
def test_the_largest_difference(expected: float, got: float, largest: float) -> None:
    arrays, values = Tally(), Tally()
    arrays.nats(floats(expected), floats(got), "here")
    values.value(expected, got, here, nats=True)
    assert arrays.mismatches == values.mismatches == 1
    assert arrays.largest == values.largest == largest


def test_what_is_not_in_nats_has_no_distance() -> None:
    tally = Tally()
    tally.value(0.5, 0.75, lambda: "probability", nats=False)
    tally.value("yes", "no", lambda: "answer", nats=False)
    tally.integers(np.array([1, 2], np.int32), np.array([1, 3], np.int32), "ids")
    tally.differs("only one has it")
    assert (tally.comparisons, tally.mismatches, tally.largest) == (5, 4, 0.0)
    assert tally.examples == [
        "probability: 0.5 → 0.75",
        "answer: 'yes' → 'no'",
        "ids: 2 → 3",
        "only one has it",
    ]


def test_long_values_are_told_in_short() -> None:
    tally = Tally()
    tally.value(tuple(range(100)), (1,), here, nats=False)
    tally.value("x" * 1000, None, here, nats=False)
    assert tally.examples[0] == "here: (0, 1, 2, 3, 4, 5, 6, 7, ...) → (1,)"
    assert len(tally.examples[1]) < 100


def test_a_failure_is_not_equal() -> None:
    tally = Tally()
    tally.value(1, 1, here, nats=False)
    tally.failure = "the process was gone"
    assert not tally.equal


def test_examples_are_few() -> None:
    tally = Tally()
    for number in range(100):
        tally.value(number, -1.5, here, nats=False)
    assert tally.mismatches == 100
    assert len(tally.examples) == EXAMPLES_KEPT
