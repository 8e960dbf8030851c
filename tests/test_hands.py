"""One thread ahead: the order of what it makes, its faults, and an end that waits for nothing."""

from __future__ import annotations

from itertools import count
from threading import Event, Thread

import pytest

from scorer.workers.hands import one_ahead


def test_items_come_in_order_until_none() -> None:
    items = iter([1, 2, 3, None, 4])
    assert list(one_ahead(lambda: next(items))) == [1, 2, 3]


def test_what_fails_ahead_is_raised_in_its_turn() -> None:
    def make() -> int:
        number = next(numbers)
        if number == 2:
            raise ValueError("rotten")
        return number

    numbers = count()
    items = one_ahead(make)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="rotten"):
        next(items)


def test_the_end_waits_for_nothing() -> None:
    """It may come from the garbage collection, where waiting for a thread can last for ever."""

    def make() -> int:
        number = next(numbers)
        if number:
            assert release.wait(30)
        return number

    numbers, release = count(), Event()
    items = one_ahead(make)
    assert next(items) == 0
    closing = Thread(target=items.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join(10)
    stuck = closing.is_alive()
    release.set()
    assert not stuck
