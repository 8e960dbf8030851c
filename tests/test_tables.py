from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scorer.reduction import RowRequests, finish, reduce_host
from scorer.tables import cut_requests, join_raw, join_requests, split_reduced

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
