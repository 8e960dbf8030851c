"""What is asked of a read, said small and said in arrays."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from scorer.asks import Ask

PROMPT = array("i", [5, 6, 7]).tobytes()


def test_a_prompt_and_what_is_asked_behind_it() -> None:
    ask = Ask(PROMPT, targets=(3, 3, 1), entries=4)
    read = ask.read()
    assert len(ask) == 3
    assert read.tokens.tolist() == [5, 6, 7]
    assert read.positions.tolist() == [2]
    assert read.requests.target_ids.tolist() == [3, 3, 1]
    assert read.requests.target_offsets.tolist() == [0, 3]
    assert read.requests.top_k.tolist() == [4]


@pytest.mark.parametrize("option", [[8], [8, 9], [6, 7, 8, 9]])
def test_an_option_is_asked_for_where_it_is_predicted(option: list[int]) -> None:
    m = len(option)
    read = Ask(PROMPT + array("i", option).tobytes(), option=m).read()
    assert read.tokens.tolist() == [5, 6, 7, *option[:-1]]  # nothing is asked behind the last
    assert read.positions.tolist() == list(range(2, 2 + m))
    assert read.requests.target_ids.tolist() == option
    assert read.requests.target_offsets.tolist() == list(range(m + 1))
    assert read.requests.top_k.tolist() == [0] * m


def test_every_place_of_a_prompt() -> None:
    read = Ask(PROMPT, targets=(9,), entries=1, before=2).read()
    assert read.positions.tolist() == [0, 1, 2]
    assert read.requests.target_ids.tolist() == [6, 7, 9]
    assert read.requests.target_offsets.tolist() == [0, 1, 2, 3]
    assert read.requests.top_k.tolist() == [2, 2, 1]
    alone = Ask(PROMPT[:4], before=2).read()
    assert alone.requests.target_offsets.tolist() == [0, 0]


def test_what_is_asked_is_counted_without_arrays() -> None:
    for ask in (
        Ask(PROMPT, targets=(3, 3)),
        Ask(PROMPT, entries=2),
        Ask(PROMPT, option=2),
        Ask(PROMPT, targets=(9,), before=0),
        Ask(PROMPT[:4], before=2),
    ):
        read = ask.read()
        assert ask.counts == (len(read.positions), len(read.requests.target_ids))
        assert len(ask) == len(read)
        assert read.positions[-1] == len(read) - 1  # so that every token has a part in the answer


def test_what_is_sent_comes_back() -> None:
    asks = [Ask(PROMPT, 2), Ask(PROMPT, 0, (1, 2), 3, 0), Ask(PROMPT)]
    sent = msgspec.msgpack.encode(asks)
    assert msgspec.msgpack.decode(sent, type=list[Ask]) == asks
