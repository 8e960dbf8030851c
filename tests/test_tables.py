from __future__ import annotations

import random
from dataclasses import fields

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scorer.reduction import RowRequests, finish, reduce_host
from scorer.tables import (
    Results,
    cut_requests,
    gather,
    join_raw,
    join_requests,
    parts_of,
    split_reduced,
    split_results,
)

N_IDS, VOCABULARY = 20, 24
a_row = st.tuples(st.lists(st.integers(0, N_IDS - 1), max_size=4), st.integers(0, 5))
rows_of_reads = st.lists(st.lists(a_row, max_size=5), min_size=1, max_size=5)


def requests_of(rows: list[tuple[list[int], int]]) -> RowRequests:
    return RowRequests.of([targets for targets, _ in rows], [k for _, k in rows])


@given(reads=rows_of_reads, piece=st.integers(1, 7), seed=st.integers(0, 99))
def test_reducing_in_pieces_and_cutting_by_read_changes_nothing(
    reads: list[list[tuple[list[int], int]]], piece: int, seed: int
) -> None:
    each = [requests_of(rows) for rows in reads]
    joined = join_requests(each)
    total = joined.rows
    if total == 0:
        return
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(total, VOCABULARY)).astype(np.float32)
    if total > 1:
        logits[rng.integers(total), 3] = np.nan
    pieces = [
        reduce_host(logits[start:end], cut_requests(joined, start, end), N_IDS)
        for start in range(0, total, piece)
        if (end := min(start + piece, total)) > start
    ]
    whole = finish(join_raw(pieces), joined)
    at = 0
    for requests, got in zip(
        each, split_reduced(whole, joined, [one.rows for one in each]), strict=True
    ):
        expected = finish(reduce_host(logits[at : at + requests.rows], requests, N_IDS), requests)
        at += requests.rows
        for field in fields(expected):
            left, right = getattr(expected, field.name), getattr(got, field.name)
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes(), field.name


@given(reads=rows_of_reads, seed=st.integers(0, 99), order=st.randoms(use_true_random=False))
def test_results_by_read_are_those_of_the_reduction(
    reads: list[list[tuple[list[int], int]]], seed: int, order: random.Random
) -> None:
    each = [requests_of(rows) for rows in reads]
    joined = join_requests(each)
    logits = np.random.default_rng(seed).normal(size=(joined.rows, VOCABULARY)).astype(np.float32)
    logits[:: seed + 1, 3] = np.nan
    counts = [one.rows for one in each]
    reduced = finish(reduce_host(logits, joined, N_IDS), joined)
    parts = split_results(reduced, joined, counts)
    expected = list(split_reduced(reduced, joined, counts))
    places = list(range(len(parts)))
    order.shuffle(places)
    gathered = gather([parts[place] for place in places])
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(gathered), type=Results)
    wanted = [(each[place].rows, len(each[place].target_ids)) for place in places]
    again = parts_of(sent, wanted)
    for place, part in [*enumerate(parts), *zip(places, again, strict=True)]:
        one = expected[place]
        assert part.rows == len(one.chosen_id)
        assert part.nonfinite == np.count_nonzero(one.nonfinite)
        assert np.array_equal(part.target_logprob, one.target_logprob, equal_nan=True)
        assert part.target_rank == one.target_rank.tolist()
        for row in range(part.rows):
            chosen, logprob = part.chosen(row)
            assert chosen == one.chosen_id[row]
            assert np.array_equal(logprob, one.chosen_logprob[row], equal_nan=True)
            top = slice(one.top_offsets[row], one.top_offsets[row + 1])
            assert [token for token, _ in part.top(row)] == one.top_id[top].tolist()
            listed = [logprob for _, logprob in part.top(row)]
            assert np.array_equal(listed, one.top_logprob[top], equal_nan=True)
