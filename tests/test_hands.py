"""One thread ahead: the order of what it makes, its faults, and an end that waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Event, Thread, get_ident

import pytest

from scorer.workers.hands import one_ahead


def test_items_come_in_order() -> None:
    assert list(one_ahead([1, 2, 3], str)) == ["1", "2", "3"]
    assert list(one_ahead([], str)) == []


def test_items_are_taken_here_one_ahead_and_made_elsewhere() -> None:
    taken: list[int] = []
    takers: set[int] = set()

    def some() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            takers.add(get_ident())
            yield number

    makers: set[int] = set()

    def make(number: int) -> int:
        makers.add(get_ident())
        return number

    ahead = [(number, len(taken)) for number in one_ahead(some(), make)]
    assert ahead == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    assert takers == {get_ident()}
    assert len(makers) == 1
    assert makers != takers


def test_what_fails_ahead_is_raised_in_its_turn() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise ValueError("rotten")
        return number

    items = one_ahead(count(), make)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="rotten"):
        next(items)


def test_items_that_fail_come_behind_what_was_made_before() -> None:
    def some() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("unreadable")

    items = one_ahead(some(), str)
    assert [next(items), next(items)] == ["0", "1"]
    with pytest.raises(OSError, match="unreadable"):
        next(items)


def test_the_end_waits_for_nothing() -> None:
    """It may come from the garbage collection, where waiting for a thread can last for ever."""

    def make(number: int) -> int:
        if number:
            assert release.wait(30)
        return number

    release = Event()
    items = one_ahead(count(), make)
    assert next(items) == 0
    closing = Thread(target=items.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join(10)
    stuck = closing.is_alive()
    release.set()
    assert not stuck
