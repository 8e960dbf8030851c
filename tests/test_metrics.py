"""Figures against values worked out by hand; the working stands beside each."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import permutations

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from scorer.compare import metrics
from scorer.compare.blocks import NONE, Block, Collector, Reading
from scorer.compare.measures import ABOUT, Measures, Metric, measure
from scorer.compare.orderings import Order, cyclic
from scorer.compare.pride import check_fraction, debias
from scorer.errors import UsageError


def reading(
    key: str,
    gold: int | None,
    probabilities: Mapping[Order, tuple[float, ...]],
    *,
    masses: tuple[float | None, ...] | None = None,
    repeats: tuple[tuple[float, ...] | None, ...] | None = None,
) -> Reading:
    """A question by the probabilities of its labels, in each order, by position."""
    m = len(probabilities)
    return Reading(
        key=key,
        gold=gold,
        orders=tuple(probabilities),
        logprobs=tuple(tuple(math.log(p) for p in row) for row in probabilities.values()),
        masses=masses or (1.0,) * m,
        repeats=repeats or (None,) * m,
    )


def blocks_of(*readings: Reading) -> list[Block]:
    collector = Collector()
    for own in readings:
        collector.add(own)
    return collector.blocks()


def figures(*readings: Reading, fraction: float = 0.0) -> Measures:
    return measure(blocks_of(*readings), seed=0, pride_fraction=fraction)


AB, BA = (0, 1), (1, 0)

# Two options each. Position 0 is called A, position 1 is called B; "→ i" is the option chosen.
#
#       gold   order (0,1)             order (1,0)
#   q1   0     A .9 → 0  right         B .9 → 0  right     content decides
#   q2   1     A .8 → 0  wrong         A .6 → 1  right     position decides
#   q3   0     B .7 → 1  wrong         A .7 → 1  wrong     content decides
#   q4   –     tie                     A .6 → 1
FOUR = (
    reading("q1", 0, {AB: (0.9, 0.1), BA: (0.1, 0.9)}, masses=(0.5, 0.3)),
    reading("q2", 1, {AB: (0.8, 0.2), BA: (0.6, 0.4)}, masses=(0.9, 0.7)),
    reading("q3", 0, {AB: (0.3, 0.7), BA: (0.7, 0.3)}, masses=(0.8, 0.4)),
    reading("q4", None, {AB: (0.5, 0.5), BA: (0.6, 0.4)}, masses=(None, None)),
)


def test_what_is_derived_of_each_reading() -> None:
    (block,) = blocks_of(*FOUR)

    assert block.keys == ("q1", "q2", "q3", "q4")
    assert block.picks.tolist() == [[0, 1], [0, 0], [1, 0], [NONE, 0]]
    assert block.choices.tolist() == [[0, 0], [0, 1], [1, 1], [NONE, 1]]
    assert block.pairs.tolist() == [1, 1, 1, 0]
    assert block.flipped_pairs.tolist() == [0, 1, 0, 0]
    assert block.answers.tolist() == [0, 0, 1, 1]
    # q2: option 0 has .8 as A and .4 as B, mean .6.
    assert block.mean_probabilities[1] == pytest.approx([0.6, 0.4])
    assert block.mean_logprobs[1] == pytest.approx(
        [(math.log(0.8) + math.log(0.4)) / 2, (math.log(0.2) + math.log(0.6)) / 2]
    )


@pytest.mark.parametrize(
    ("name", "value", "n"),
    [
        ("accuracy", (1 + 0.5 + 0) / 3, 3),
        ("accuracy_listed", 1 / 3, 3),  # q1
        ("accuracy_averaged", 1 / 3, 3),  # q1; q2's means choose 0
        ("chance", 1 / 2, 3),
        ("circular_accuracy", 1 / 3, 3),  # q1
        ("circular_chance", 2**-2, 3),
        ("always_right", 1 / 3, 3),
        ("sensitivity_gap", 1 / 3, 3),  # q2
        # (0,1): q1 right, 1/3. (1,0): q1 and q2 right, 2/3.
        ("order_range", 1 / 3, 3),
        ("flip_rate", 1 / 3, 3),  # q2; q4 chose once only
        ("pairwise_flip_rate", 1 / 3, 3),
        ("tie_rate", 1 / 8, 8),
        # Gold at A: q1 (0,1) right, q2 (1,0) right, q3 (0,1) wrong: 2/3. Gold at B: 1/3.
        ("rstd", 1 / 6, 6),
        # Picks: A 5, B 2; E = 3.5 each; χ² = 2 · 1.5² / 3.5 = 9/7; V = √(9/7 / 7) = 3/7.
        ("pick_chi_squared", 9 / 7, 7),
        ("pick_degrees", 1.0, 7),
        ("pick_v", 3 / 7, 7),
        # Same ranking in q1 and q3, reversed in q2; q4's tie ranks nothing.
        ("kendall_tau", (1 - 1 + 1) / 3, 3),
        ("label_mass", (0.5 + 0.3 + 0.9 + 0.7 + 0.8 + 0.4) / 6, 6),
        ("label_mass_min", 0.3, 6),
        ("label_mass_p05", 0.3, 6),
        # ln of .9/.1 twice, .8/.2, .6/.4, .7/.3 twice, 1, .6/.4
        (
            "margin",
            (2 * math.log(9) + math.log(4) + 2 * math.log(1.5) + 2 * math.log(7 / 3)) / 8,
            8,
        ),
    ],
)
def test_figures_of_four_questions(name: str, value: float, n: int) -> None:
    metric = figures(*FOUR).metrics[name]

    assert metric.value == pytest.approx(value, rel=1e-12)
    assert metric.n == n
    assert metric.reason is UNSET


def test_tables_of_four_questions() -> None:
    found = figures(*FOUR)

    assert [own.rate.value for own in found.pick_rates] == pytest.approx([5 / 7, 2 / 7])
    assert [own.rate.value for own in found.recalls] == pytest.approx([2 / 3, 1 / 3])
    first, second = found.orders
    assert (first.order, second.order) == (AB, BA)
    assert (first.questions, second.questions) == (4, 4)
    assert first.accuracy.value == pytest.approx(1 / 3)
    assert second.accuracy.value == pytest.approx(2 / 3)
    assert first.answers == (2 / 4, 1 / 4)  # q1, q2 | q3 | q4 is a tie
    assert first.ties == 1 / 4
    assert second.answers == (1 / 4, 3 / 4)
    assert found.orders_left_out == 0
    assert found.options == {2: 4}
    assert (found.questions, found.with_gold, found.readings) == (4, 3, 8)
    # Masses .3 .4 .5 .7 .8 .9 in twentieths; 0.3 · 20 and 0.7 · 20 are whole.
    assert {place: n for place, n in enumerate(found.label_masses) if n} == {
        6: 1,
        8: 1,
        10: 1,
        14: 1,
        16: 1,
        18: 1,
    }


def test_flips_by_margin_of_four_questions() -> None:
    """Who disagrees with a reading: q1 and q3 nobody, q2 the other one; q4 has no other choice."""
    buckets = {own.low: own.flip_rate for own in figures(*FOUR).margins}

    assert {low: (rate.value, rate.n) for low, rate in buckets.items()} == {
        0.0: (None, 0),
        0.125: (None, 0),
        0.25: (1.0, 1),  # q2 as (1,0): ln 1.5 = 0.41
        0.5: (0.0, 2),  # q3: ln 7/3 = 0.85
        1.0: (1.0, 1),  # q2 as (0,1): ln 4 = 1.39
        2.0: (0.0, 2),  # q1: ln 9 = 2.20
        4.0: (None, 0),
        8.0: (None, 0),
    }
    assert buckets[0.0].reason == "no read has such a margin"


def test_pick_p_needs_five_expected_in_every_cell() -> None:
    metric = figures(*FOUR).metrics["pick_p"]
    assert metric.value is None
    assert metric.reason == "an expected count is 3.5, chi-squared needs 5 in every cell"

    # Twice the questions: picks 10 and 4, χ² = 18/7 with one degree: P = erfc(√(9/7)).
    twice = figures(*FOUR, *FOUR)
    assert twice.metrics["pick_p"].value == pytest.approx(math.erfc(math.sqrt(9 / 7)), rel=1e-12)


ABC, BCA, CAB = cyclic(3)


def test_figures_of_three_options() -> None:
    """One question, its three shifts.

    gold 2;  (0,1,2): C → 2 right;  (1,2,0): B → 2 right;  (2,0,1): B → 0 wrong.
    """
    own = reading("q", 2, {ABC: (0.2, 0.2, 0.6), BCA: (0.1, 0.8, 0.1), CAB: (0.25, 0.45, 0.3)})
    found = figures(own).metrics

    assert found["accuracy"].value == pytest.approx(2 / 3)
    assert found["circular_accuracy"].value == 0
    assert found["circular_chance"].value == pytest.approx(1 / 27)
    assert found["flip_rate"].value == 1
    # Pairs: {1,2} agree, {1,3} and {2,3} don't.
    assert found["pairwise_flip_rate"].value == pytest.approx(2 / 3)
    # Picks: A 0, B 2, C 1; E = 1: χ² = 1 + 1 + 0 = 2, V = √(2 / (3 · 2)).
    assert found["pick_chi_squared"].value == pytest.approx(2)
    assert found["pick_v"].value == pytest.approx(math.sqrt(1 / 3))
    # By content: (.2, .2, .6), (.1, .1, .8), (.45, .3, .25).
    # Rankings: 2 > 0 = 1;  2 > 0 = 1;  0 > 1 > 2. Untied pairs 2, 2, 3.
    # τ-b(1,2) = 2 / √(2·2) = 1;  (1,3): pairs 02 and 12 reversed: -2 / √(2·3);  (2,3) the same.
    assert found["kendall_tau"].value == pytest.approx((1 - 2 * 2 / math.sqrt(6)) / 3)
    # Recalls: gold at C in (0,1,2) right, at B in (1,2,0) right, at A in (2,0,1) wrong.
    # Mean 2/3, deviations 1/3, 1/3, -2/3: variance (1 + 1 + 4) / 27 = 2/9.
    assert found["rstd"].value == pytest.approx(math.sqrt(2 / 9))
    # Means: option 0 .25, option 1 .2, option 2 .55.
    assert found["accuracy_averaged"].value == 1


def test_kendall_tau_of_all_orders_without_ties_is_the_mean_over_pairs() -> None:
    """The shortcut by one sum against the definition, pair by pair."""
    draw = random.Random(5)
    orders = list(permutations(range(4)))
    rows = {order: tuple(draw.random() for _ in range(4)) for order in orders}
    (block,) = blocks_of(reading("q", None, rows))
    (values,) = block.by_content(block.logprobs).tolist()

    def tau(a: list[float], b: list[float]) -> float:
        pairs = [(i, j) for i in range(4) for j in range(i)]
        return sum(math.copysign(1, (a[i] - a[j]) * (b[i] - b[j])) for i, j in pairs) / len(pairs)

    taus = [tau(values[r], values[s]) for r in range(24) for s in range(r)]
    assert metrics.kendall_tau([block]).value == pytest.approx(sum(taus) / len(taus), abs=1e-12)


def test_questions_of_two_and_three_options_together() -> None:
    two = reading("two", 0, {AB: (0.9, 0.1), BA: (0.8, 0.2)})  # A, A
    three = reading("three", 0, {ABC: (0.6, 0.2, 0.2), BCA: (0.2, 0.2, 0.6), CAB: (0.1, 0.8, 0.1)})
    found = figures(two, three)
    metric = found.metrics

    assert found.options == {2: 1, 3: 1}
    assert metric["chance"].value == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert metric["circular_chance"].value == pytest.approx((1 / 4 + 1 / 27) / 2)
    assert metric["accuracy"].value == pytest.approx((1 / 2 + 1) / 2)
    # Two options: χ² = (1 + 1) / 1 = 2 of 2 · 1. Three: one pick each, 0 of 3 · 2.
    assert metric["pick_chi_squared"].value == pytest.approx(2)
    assert metric["pick_degrees"].value == 1 + 2
    assert metric["pick_v"].value == pytest.approx(math.sqrt(2 / (2 * 1 + 3 * 2)))
    # RStd of two: recalls 1, 0 → 1/2. Of three: 1, 1, 1 → 0. Readings with gold: 2 and 3.
    assert metric["rstd"].value == pytest.approx((2 * 0.5 + 3 * 0) / 5)
    assert [own.rate.value for own in found.pick_rates] == pytest.approx(
        [1, 0, 1 / 3, 1 / 3, 1 / 3]
    )


def test_orders_that_are_not_balanced_have_no_even_spread() -> None:
    own = reading("q", 0, {ABC: (0.6, 0.2, 0.2), BCA: (0.2, 0.2, 0.6)})
    metric = figures(own).metrics

    assert metric["pick_v"].value is None
    assert "equally often at each position" in str(metric["pick_v"].reason)
    assert metric["circular_accuracy"].value is None
    assert "all its cyclic orders" in str(metric["circular_accuracy"].reason)
    assert metric["accuracy"].value == 1


def test_without_gold_answers_nothing_is_made_up() -> None:
    metric = figures(FOUR[3], fraction=0.5).metrics
    undefined = {name for name, own in metric.items() if own.value is None}

    assert undefined == {
        "accuracy", "accuracy_listed", "accuracy_averaged", "chance", "circular_accuracy",
        "circular_chance", "always_right", "sensitivity_gap", "order_range", "flip_rate",
        "pairwise_flip_rate", "rstd", "pick_p", "kendall_tau", "pride_plain_accuracy",
        "pride_accuracy", "pride_gain", "pride_plain_rstd", "pride_rstd", "label_mass",
        "label_mass_p05", "label_mass_min", "noise_flips", "noise_differing", "noise_largest",
    }  # fmt: skip
    assert all(metric[name].reason for name in undefined)
    assert all(metric[name].low is UNSET for name in undefined)


def test_every_figure_has_a_name_and_words() -> None:
    assert list(figures(*FOUR).metrics) == list(ABOUT)
    assert all(own.title and own.text for own in ABOUT.values())
    assert {own.unit for own in ABOUT.values()} == {"rate", "nats", "p", ""}


def test_recall_at_a_position_without_gold_leaves_rstd_undefined() -> None:
    own = reading("q", 0, {AB: (0.9, 0.1)})
    metric = figures(own).metrics["rstd"]

    assert metric.value is None
    assert metric.reason == "no gold answer of 2 options stands at position 2"


def test_second_readings_are_compared_by_their_bits() -> None:
    first: dict[Order, tuple[float, ...]] = {AB: (0.9, 0.1), BA: (0.1, 0.9)}
    exact = tuple(tuple(math.log(p) for p in row) for row in first.values())
    moved = (math.nextafter(exact[0][0], -1), exact[0][1])
    same = reading("a", None, first, repeats=(exact[0], None))
    other = reading("b", None, first, repeats=(moved, (exact[1][1], exact[1][0])))
    metric = figures(same, other).metrics

    # Orderings read twice: 1 + 2; the last one, swapped, flips.
    assert metric["noise_flips"].value == pytest.approx(1 / 3)
    assert metric["noise_flips"].n == 3
    # Values read twice: 2 + 4; one moved by a bit, two are swapped.
    assert metric["noise_differing"].value == pytest.approx(3 / 6)
    assert metric["noise_differing"].n == 6
    assert metric["noise_largest"].value == pytest.approx(math.log(9))
    assert figures(same).metrics["noise_differing"].value == 0
    assert figures(same).metrics["noise_largest"].value == 0


def biased(key: str, gold: int, odds: float, prior: float = 0.8) -> Reading:
    """P(label) ∝ prior(label) × content: odds of gold against the other, prior of A."""
    good, bad = odds / (1 + odds), 1 / (1 + odds)
    rows: dict[Order, tuple[float, ...]] = {}
    for order in (AB, BA):
        weights = [
            (good if index == gold else bad) * (prior if position == 0 else 1 - prior)
            for position, index in enumerate(order)
        ]
        rows[order] = (weights[0] / sum(weights), weights[1] / sum(weights))
    return reading(key, gold, rows)


def test_pride_takes_a_prior_out_exactly() -> None:
    """Contents favour gold 2 : 1, the labels A 4 : 1.

    As listed, gold 0 stands at A and wins 8 : 1; gold 1 stands at B and loses 2 : 4. Without the
    prior every question is right.
    """
    readings = [biased(f"q{i}", gold=i % 2, odds=2.0) for i in range(40)]
    found = figures(*readings, fraction=0.25)

    (prior,) = found.priors
    assert prior.prior == pytest.approx((0.8, 0.2))
    assert (prior.estimated_on, prior.applied_to) == (10, 30)
    metric = found.metrics
    golds = [r.gold for r in readings]
    at_a = round((metric["pride_plain_accuracy"].value or 0) * 30)
    assert 0 < at_a <= golds.count(0)
    assert metric["pride_accuracy"].value == 1
    assert metric["pride_gain"].value == pytest.approx(1 - at_a / 30)
    assert metric["pride_plain_rstd"].value == pytest.approx(0.5)  # recalls 1 and 0
    assert metric["pride_rstd"].value == 0


def test_pride_averages_the_priors_of_questions() -> None:
    """Two questions to estimate on, with priors .8 and .4 of A: the mean is .6.

    Both are drawn whatever the seed: the third has no order with option 0 at B.
    """
    rest = reading("rest", 0, {AB: (0.5, 0.4)})
    found = debias(blocks_of(biased("a", 0, 2.0), biased("b", 1, 3.0, prior=0.4), rest), 0.99, 3)

    assert found.priors[2].values == pytest.approx([0.6, 0.4])
    assert (found.priors[2].estimated, found.priors[2].applied) == (2, 1)
    # As listed .5 : .4 for option 0; over the prior .5/.6 = .83 against .4/.4 = 1: option 1.
    assert found.plain.accuracy.value == 1
    assert found.debiased.accuracy.value == 0


def test_pride_is_not_asked_for_by_a_fraction_of_0() -> None:
    found = figures(*(biased(f"q{i}", 0, 2.0) for i in range(4)))

    assert found.priors == ()
    assert found.metrics["pride_gain"].reason == "not asked for"


def test_pride_needs_a_question_to_apply_to() -> None:
    metric = figures(biased("q", 0, 2.0), fraction=0.1).metrics["pride_accuracy"]

    assert metric.reason == "no question is left to apply a prior to"


@pytest.mark.parametrize("fraction", [-0.1, 1.0, math.nan])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="at least 0 and below 1"):
        check_fraction(fraction)


def noisy(count: int, seed: int) -> list[Reading]:
    draw = random.Random(seed)
    readings = []
    for q in range(count):
        k = draw.choice((2, 3, 4))
        rows = {}
        for order in cyclic(k):
            weights = [draw.random() + 0.01 for _ in range(k)]
            rows[order] = tuple(w / sum(weights) for w in weights)
        readings.append(reading(f"{q:03}", draw.randrange(k), rows))
    return readings


def test_no_figure_depends_on_the_order_of_the_file() -> None:
    readings = noisy(60, 1)
    first = msgspec.json.encode(figures(*readings, fraction=0.2))
    random.Random(2).shuffle(readings)

    assert msgspec.json.encode(figures(*readings, fraction=0.2)) == first


def test_intervals_hold_their_figures() -> None:
    metric = figures(*noisy(80, 3), fraction=0.2).metrics
    with_interval = {
        name: own for name, own in metric.items() if own.low is not UNSET and own.value is not None
    }

    assert len(with_interval) >= 18
    for name, own in with_interval.items():
        assert own.low <= own.value <= own.high, name  # type: ignore[operator]


def test_orders_that_not_all_questions_share_are_counted_only() -> None:
    one = reading("a", 0, {AB: (0.9, 0.1)})
    two = reading("b", 0, {AB: (0.9, 0.1), BA: (0.1, 0.9)})
    found = figures(one, two)

    assert [own.order for own in found.orders] == [AB]
    assert found.orders_left_out == 1
    assert found.metrics["order_range"].value is None
    assert found.metrics["order_range"].reason == (
        "no two orders were asked of every question with 2 options"
    )


def test_a_reading_in_another_order_of_listing_has_the_same_means() -> None:
    """All orders of the same contents, listed otherwise: the same probabilities, bit for bit."""
    draw = random.Random(9)
    rows = {order: tuple(draw.random() for _ in range(3)) for order in permutations(range(3))}
    rename = (2, 0, 1)  # option i is listed at rename[i]
    turned = {tuple(rename[index] for index in order): row for order, row in rows.items()}
    items = sorted(turned.items())
    (block,) = blocks_of(reading("q", None, rows))
    (other,) = blocks_of(reading("q", None, dict(items)))

    for index in range(3):
        assert other.mean_probabilities[0, rename[index]] == block.mean_probabilities[0, index]
        assert other.mean_logprobs[0, rename[index]] == block.mean_logprobs[0, index]


def test_metric_values_are_finite() -> None:
    found = figures(*noisy(30, 4), fraction=0.3)
    values = [own.value for own in found.metrics.values() if own.value is not None]

    assert np.isfinite(values).all()
    assert all(isinstance(own, Metric) for own in found.metrics.values())
