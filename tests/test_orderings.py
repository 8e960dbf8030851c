from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.compare.blocks import Block, Reading
from scorer.compare.orderings import (
    MAX_ALL,
    Order,
    Orders,
    balanced,
    by_content,
    check_order,
    content_means,
    content_sha256,
    cyclic,
    reordered,
    softmaxes,
)
from scorer.errors import ErrorCode, RowError, UsageError
from scorer.records.record import BadLine, Record
from scorer.records.record_line import parse_line


def record(**fields: object) -> Record:
    values = {"question": "Which?", "options": ["a", "b", "c"], **fields}
    parsed = parse_line(json.dumps(values).encode(), 1)
    assert not isinstance(parsed, BadLine), parsed
    return parsed


def refused(orders: Orders, source: Record) -> RowError:
    with pytest.raises(RowError) as caught:
        orders.of(source)
    return caught.value


def test_cyclic_orders_shift_the_list() -> None:
    assert cyclic(2) == ((0, 1), (1, 0))  # a pair is asked as it is and swapped
    assert cyclic(3) == ((0, 1, 2), (1, 2, 0), (2, 0, 1))


@pytest.mark.parametrize("k", range(2, 27))
def test_cyclic_orders_show_each_option_once_at_each_position(k: int) -> None:
    orders = cyclic(k)

    assert len(orders) == k
    assert all(check_order(order, k) for order in orders)
    assert all(len({order[p] for order in orders}) == k for p in range(k))


@pytest.mark.parametrize("k", range(2, 27))
def test_balanced_orders_are_a_williams_design(k: int) -> None:
    orders = balanced(k)
    rows = len(orders)

    assert orders[0] == tuple(range(k))
    assert rows == (k if k % 2 == 0 else 2 * k)
    assert len(set(orders)) == rows
    stands = Counter((place, index) for order in orders for place, index in enumerate(order))
    assert len(stands) == k * k
    assert set(stands.values()) == {rows // k}
    # Each of the k (k - 1) ordered pairs of neighbours equally often: k - 1 neighbours a row.
    followers = Counter(pair for order in orders for pair in pairwise(order))
    assert len(followers) == k * (k - 1)
    assert set(followers.values()) == {rows // k}


@pytest.mark.parametrize(
    ("orders", "balanced"),
    [
        (list(permutations(range(3))), True),
        ([(0, 1, 2), (1, 2, 0)], False),
        # Every option at every position, but 0 twice at the first.
        ([(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)], False),
    ],
)
def test_balance_is_seen_where_it_is_and_where_it_is_not(
    orders: list[Order], balanced: bool
) -> None:
    rows = ((-1.0,) * 3,) * len(orders)
    none = (None,) * len(orders)
    block = Block.of([Reading("key", None, tuple(orders), rows, none, none)])
    assert block.is_balanced.tolist() == [balanced]


def test_all_orders_are_all() -> None:
    assert Orders("all").of(record()) == tuple(permutations(range(3)))


def test_all_orders_of_many_options_need_a_limit() -> None:
    options = [f"option {i}" for i in range(7)]
    error = refused(Orders("all"), record(options=options))

    assert error.code == ErrorCode.TOO_MANY_OPTIONS
    assert "5,040 orders" in str(error)
    assert "--max-orders" in str(error)
    assert math.factorial(6) == MAX_ALL
    assert len(Orders("all").of(record(options=options[:6]))) == MAX_ALL


@pytest.mark.parametrize("k", [3, 4, 7, 26])
def test_a_sample_of_all_orders_has_no_order_twice(k: int) -> None:
    options = [f"option {i}" for i in range(k)]
    limit = min(24, math.factorial(k))
    orders = Orders("all", limit).of(record(options=options))

    assert len(set(orders)) == len(orders) == limit
    assert all(check_order(order, k) for order in orders)


def test_a_sample_of_all_orders_is_drawn_by_content_and_seed_alone() -> None:
    def asked(options: list[str], seed: int = 0, **fields: object) -> set[tuple[str, ...]]:
        source = record(options=options, **fields)
        orders = Orders("all", 5, seed).of(source)
        return {tuple(options[index] for index in order) for order in orders}

    listed = ["red", "green", "blue", "black"]
    turned = ["black", "blue", "red", "green"]
    first = asked(listed)

    assert asked(turned) == first  # the same texts in the same orders
    assert asked(listed, id="elsewhere") == first
    assert asked(listed, seed=1) != first
    assert asked(listed, state="another text") != first


def test_a_sample_covers_the_orders_evenly() -> None:
    counts: Counter[Order] = Counter()
    for number in range(2000):
        counts.update(Orders("all", 1).of(record(question=f"Number {number}?")))

    # 6 orders, 2000 draws: expected 333 each, standard deviation 17.
    assert len(counts) == 6
    assert all(250 < count < 420 for count in counts.values())


@pytest.mark.parametrize(("kind", "k"), [("cyclic", 5), ("balanced", 5)])
def test_a_sample_of_other_orders_keeps_the_listed_one(kind: str, k: int) -> None:
    source = record(options=[f"option {i}" for i in range(k)])
    every = cyclic(k) if kind == "cyclic" else balanced(k)
    orders = Orders("cyclic" if kind == "cyclic" else "balanced", 3).of(source)

    assert len(orders) == 3
    assert orders[0] == tuple(range(k))
    assert set(orders) <= set(every)
    assert Orders("cyclic", 99).of(source) == cyclic(k)


def test_a_limit_of_none_asks_nothing() -> None:
    with pytest.raises(UsageError, match="at least 1, got 0"):
        Orders("cyclic", 0)


def test_given_orders_are_the_records_own() -> None:
    source = record(orders=[[2, 1, 0], [0, 1, 2]])

    assert Orders("given").of(source) == ((2, 1, 0), (0, 1, 2))
    assert Orders("given", 1).of(source) == ((2, 1, 0),)


@pytest.mark.parametrize(
    ("orders", "code", "message"),
    [
        ([], ErrorCode.WRONG_TYPE, "at least one permutation, got list"),
        ("cyclic", ErrorCode.WRONG_TYPE, 'got string "cyclic"'),
        ([[0, 1]], ErrorCode.INVALID_VALUE, "$.orders[0]: expected a permutation of 0 to 2"),
        ([[0, 1, 2], [0, 1, 1]], ErrorCode.INVALID_VALUE, "$.orders[1]"),
        ([[0, 1, 3]], ErrorCode.INVALID_VALUE, "[0, 1, 3]"),
        ([[0, 1, 2.0]], ErrorCode.INVALID_VALUE, "[0, 1, 2.0]"),
        ([[0, 1, True]], ErrorCode.INVALID_VALUE, "[0, 1, true]"),
        ([0, 1, 2], ErrorCode.INVALID_VALUE, "$.orders[0]"),
        ([[0, 1, 2], [2, 1, 0], [0, 1, 2]], ErrorCode.INVALID_VALUE, "first at $.orders[0]"),
    ],
)
def test_given_orders_that_are_none_are_refused(
    orders: object, code: ErrorCode, message: str
) -> None:
    error = refused(Orders("given"), record(orders=orders))

    assert error.code == code
    assert message in str(error)


def test_given_orders_that_are_missing_are_refused() -> None:
    error = refused(Orders("given"), record())

    assert '"orders" in every record' in str(error)


def test_only_lettered_questions_have_orders() -> None:
    prompt = parse_line(b'{"prompt": "x", "options": [" a", " b"]}', 1)
    assert isinstance(prompt, Record)

    assert "lettered questions" in str(refused(Orders(), prompt))


def test_content_is_hashed_without_place_and_listing() -> None:
    first = content_sha256(record(id="a", label=1))

    assert content_sha256(record(options=["c", "a", "b"], id="b")) == first
    assert content_sha256(record(options=["c", "a", "B"])) != first
    assert content_sha256(record(question="What?")) != first
    assert content_sha256(record(state="x")) != content_sha256(record(state={"x": 1}))
    # A state's text is not its JSON: the string "1" and the number 1 are two contents.
    assert content_sha256(record(state="1")) != content_sha256(record(state=1))


def test_a_reordered_record_asks_nothing_else() -> None:
    source = record(
        id="q", state={"a": 1}, label="b", targets=[1], logprobs=3, prompt_logprobs=2, topic="x"
    )
    turned = reordered(source, (2, 0, 1))

    assert turned.options == ("c", "a", "b")
    assert (turned.question, turned.state) == (source.question, source.state)
    assert (turned.gold_index, turned.targets, turned.logprobs, turned.prompt_logprobs) == (
        None,
        (),
        None,
        None,
    )
    assert turned.extra == {}


def test_values_by_position_come_back_by_content() -> None:
    # Order (2, 0, 1): option 2 stands first, option 0 second, option 1 third.
    assert by_content((2, 0, 1), ["first", "second", "third"]) == ["second", "third", "first"]


@given(st.permutations(range(6)), st.lists(st.integers(), min_size=6, max_size=6))
def test_by_content_undoes_the_order(order: list[int], values: list[int]) -> None:
    shown = [values[index] for index in order]

    assert by_content(tuple(order), shown) == values


_LOGPROBS = st.floats(-60, 0, allow_nan=False)


@settings(max_examples=50)
@given(st.lists(st.lists(_LOGPROBS, min_size=4, max_size=4), min_size=1, max_size=24), st.data())
def test_means_do_not_depend_on_any_order(rows: list[list[float]], data: st.DataObject) -> None:
    """The same reads, taken in another order and of options listed in another order: same bits."""
    every = list(permutations(range(4)))
    orders = every[: len(rows)]
    relisted = data.draw(st.permutations(range(4)))  # new index of each option
    again = data.draw(st.permutations(range(len(rows))))

    means = content_means(orders, softmaxes(rows))
    turned = content_means(
        [tuple(relisted[index] for index in orders[place]) for place in again],
        softmaxes([rows[place] for place in again]),
    )

    assert [turned[relisted[index]] for index in range(4)] == means


@settings(max_examples=50)
@given(st.lists(_LOGPROBS, min_size=2, max_size=26), st.data())
def test_a_softmax_does_not_depend_on_the_position(row: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(row))))
    plain, turned, twice = softmaxes([row, [row[index] for index in order], row])

    assert turned == [plain[index] for index in order]
    assert twice == plain
    assert abs(math.fsum(plain) - 1) < 1e-15 * len(row)


def test_softmaxes_of_known_rows() -> None:
    # e^0 : e^-ln 3 = 3 : 1.
    (row,) = softmaxes([[0.0, -math.log(3)]])

    assert row == pytest.approx([0.75, 0.25], abs=1e-15)
    assert softmaxes([[-3.0], [-1e6, -1e6], [-1e6, -800.0]]) == [[1.0], [0.5, 0.5], [0.0, 1.0]]
