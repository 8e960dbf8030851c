from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.errors import UsageError
from scorer.reduction import RowRequests
from scorer.shapes import (
    FILLER_SEGMENT,
    FILLER_TOKEN,
    Batch,
    BatchShape,
    Packer,
    Read,
    max_segments,
)

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)
shapes = st.builds(BatchShape, tokens=st.integers(1, 256), rows=st.integers(1, 40))


def a_read(length: int, first: int = 1) -> Read:
    return Read(
        tokens=np.arange(first, first + length, dtype=np.int32),
        positions=np.array([length - 1], dtype=np.int32),
        requests=RowRequests.of([[0]], [0]),
    )


def drain(packer: Packer) -> list[Batch]:
    batches = []
    while len(packer):
        batches.append(packer.pop())
    return batches


def test_rungs_double_from_t() -> None:
    shape = BatchShape(tokens=100, rows=4)
    assert [shape.rung(n) for n in (1, 100, 101, 200, 201, 400, 401)] == [
        100,
        100,
        200,
        200,
        400,
        400,
        800,
    ]
    assert shape.rungs(1) == [100]
    assert shape.rungs(401) == [100, 200, 400, 800]


@pytest.mark.parametrize(("tokens", "rows", "option"), [(0, 1, "tokens"), (1, 0, "rows")])
def test_shapes_below_one_name_the_option(tokens: int, rows: int, option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option}-per-forward must be at least 1, got 0"):
        BatchShape(tokens, rows)


@given(shape=shapes, sizes=lengths)
def test_every_read_comes_out_once_on_its_own_rung(shape: BatchShape, sizes: list[int]) -> None:
    packer = Packer(shape, alone=False, window=10**9)
    for key, size in enumerate(sizes):
        packer.add(key, a_read(size))
    assert packer.waiting_tokens == sum(sizes)
    batches = drain(packer)
    assert sorted(key for batch in batches for key in batch.keys) == list(range(len(sizes)))
    assert packer.waiting_tokens == 0
    for batch in batches:
        assert batch.real_tokens <= batch.tokens
        assert len(batch.reads) <= shape.rows
        for key, read in zip(batch.keys, batch.reads, strict=True):
            assert len(read) == sizes[key]
            assert batch.tokens == shape.rung(len(read))
        if batch.tokens > shape.tokens:
            assert len(batch.reads) == 1


@given(shape=shapes, sizes=lengths)
def test_alone_gives_each_read_a_forward_of_its_own_length(
    shape: BatchShape, sizes: list[int]
) -> None:
    packer = Packer(shape, alone=True, window=1)
    for key, size in enumerate(sizes):
        packer.add(key, a_read(size))
    for key, batch in enumerate(drain(packer)):
        assert batch.keys == (key,)
        assert batch.tokens == batch.real_tokens == sizes[key]


def test_half_a_batch_is_what_waited_longest_the_rest_what_fits_best() -> None:
    packer = Packer(BatchShape(tokens=20, rows=4), alone=False, window=1)
    for key, size in enumerate([4, 5, 6, 8, 8, 3]):
        packer.add(key, a_read(size))
    # 4 and 5 waited longest; of what fits beside them 8 is the longest, and of the two 8 the older.
    assert packer.pop().keys == (0, 1, 3, 5)
    assert packer.pop().keys == (2, 4)
    with pytest.raises(IndexError):
        packer.pop()


def test_no_read_waits_for_long_behind_better_fitting_ones() -> None:
    """Without a bound the rows behind a read that nothing chooses pile up with the file."""
    packer = Packer(BatchShape(tokens=512, rows=32), alone=False, window=1024)
    waited = 0
    taken: set[int] = set()
    for key in range(5000):
        packer.add(key, a_read(3 if key % 50 == 0 else 15))
        while packer.full:
            taken.update(packer.pop().keys)
            oldest = next(n for n in range(key + 2) if n not in taken)
            waited = max(waited, key - oldest)
    assert waited < 600


def test_the_window_is_full_by_tokens() -> None:
    packer = Packer(BatchShape(tokens=10, rows=1), alone=False, window=20)
    packer.add(0, a_read(19))
    assert not packer.full
    packer.add(1, a_read(1))
    assert packer.full


def test_the_window_is_full_by_reads() -> None:
    packer = Packer(BatchShape(tokens=1000, rows=1), alone=False, window=10**6)
    for key in range(8):
        assert not packer.full
        packer.add(key, a_read(1))
    assert packer.full


def test_forwards_fill_on_a_lognormal_mix() -> None:
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(np.log(170), 1.0, size=4000), 20, 1500).astype(int)
    shape = BatchShape(tokens=8192, rows=128)
    packer = Packer(shape, alone=False, window=8 * shape.tokens)
    real = whole = 0
    for key, size in enumerate(sizes.tolist()):
        packer.add(key, a_read(size))
        while packer.full:
            batch = packer.pop()
            real += batch.real_tokens
            whole += batch.tokens
    assert whole >= 50 * shape.tokens
    assert real / whole >= 0.97


@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=8), spare=st.integers(0, 600))
def test_a_batch_lies_end_to_end_and_is_filled(sizes: list[int], spare: int) -> None:
    reads = [a_read(size, first=1000 * (i + 1)) for i, size in enumerate(sizes)]
    batch = Batch.apart(reads, tokens=sum(sizes) + spare)
    layout = batch.layout()
    ids, positions = layout.input_ids, layout.position_ids
    assert len(ids) == len(positions) == batch.tokens
    assert layout.offsets[0] == 0
    assert layout.offsets[-1] == batch.tokens
    segments = list(pairwise(layout.offsets))
    assert len(segments) <= max_segments(batch.tokens, len(reads))
    for start, end in segments:
        assert positions[start:end].tolist() == list(range(end - start))
    for (start, end), read in zip(segments, reads, strict=False):
        assert ids[start:end].tolist() == read.tokens.tolist()
    for start, end in segments[len(reads) :]:
        assert 0 < end - start <= FILLER_SEGMENT
        assert (ids[start:end] == FILLER_TOKEN).all()
    assert [ids[row] for row in layout.rows] == [read.tokens[-1] for read in reads]


@pytest.mark.parametrize(
    ("tokens", "positions", "rows", "message"),
    [
        ([], [], 0, "at least one token"),
        ([1, 2], [0], 2, "1 positions and 2 request rows"),
        ([1, 2], [2], 1, "within 0 … 1"),
        ([1, 2], [-1], 1, "within 0 … 1"),
        ([1, 2], [1, 1], 2, "increase strictly"),
    ],
)
def test_reads_that_do_not_fit_together(
    tokens: list[int], positions: list[int], rows: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Read(
            np.array(tokens, dtype=np.int32),
            np.array(positions, dtype=np.int32),
            RowRequests.of([[]] * rows, [0] * rows),
        )
