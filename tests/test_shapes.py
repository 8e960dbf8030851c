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
    Group,
    Read,
    max_segments,
)


def a_read(length: int, first: int = 1) -> Read:
    return Read(
        tokens=np.arange(first, first + length, dtype=np.int32),
        positions=np.array([length - 1], dtype=np.int32),
        requests=RowRequests.of([[0]], [0]),
    )


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


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Groups of all kinds: single reads, prefixes and rests of any length, empty rests too."""
    groups = []
    place = 0
    for sizes in draw(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), max_size=6)):
        prefix = draw(st.integers(1, 300)) if len(sizes) > 1 else 0
        common = 1_000 * place + np.arange(prefix, dtype=np.int32)
        reads = []
        for size in sizes:
            own = np.arange(max(size, 1 - prefix), dtype=np.int32)
            tokens = np.concatenate([common, 100_000 + 1_000 * place + own]).astype(np.int32)
            asked = draw(st.sets(st.integers(0, len(tokens) - 1), max_size=4))
            positions = np.array(sorted(asked), dtype=np.int32)
            rows = len(positions)
            reads.append(Read(tokens, positions, RowRequests.of([[]] * rows, [0] * rows)))
            place += 1
        groups.append(Group(tuple(reads), tuple(range(place - len(reads), place)), prefix))
    if not groups:
        groups = [Group((a_read(3),), (0,))]
    used = sum(group.tokens for group in groups)
    return Batch(tuple(groups), used + draw(st.integers(0, 600)))


@given(batch=batches())
def test_each_read_is_found_again_by_its_logical_positions(batch: Batch) -> None:
    """Walked as the attention walks it: through the prefix, then through the segment itself."""
    layout = batch.layout()
    end = 0
    for start, length, prefix_start, prefix_length in layout.segments.tolist():
        assert start == end
        assert length > 0
        assert prefix_length > 0 or prefix_start == 0
        assert prefix_start + prefix_length <= start
        end = start + length
        first = prefix_length
        assert layout.position_ids[start:end].tolist() == list(range(first, first + length))
    assert end == batch.tokens == len(layout.input_ids) == len(layout.position_ids)
    assert len(layout.segments) <= max_segments(batch.tokens, len(batch.reads))

    walks = [
        [*range(prefix_start, prefix_start + prefix_length), *range(start, start + length)]
        for start, length, prefix_start, prefix_length in layout.segments.tolist()
    ]
    rows = iter(layout.rows.tolist())
    segments = iter(range(len(walks)))
    for group in batch.groups:
        common = next(segments) if group.prefix else None
        for read in group.reads:
            if len(read) == group.prefix:
                assert common is not None
                walk = walks[common]
            else:
                walk = walks[next(segments)]
            assert layout.input_ids[walk].tolist() == read.tokens.tolist()
            assert layout.position_ids[walk].tolist() == list(range(len(read)))
            assert [next(rows) for _ in read.positions] == [walk[at] for at in read.positions]
    assert next(rows, None) is None
    for filler in segments:
        start, length, _, prefix_length = layout.segments[filler].tolist()
        assert prefix_length == 0
        assert length <= FILLER_SEGMENT
        assert (layout.input_ids[start : start + length] == FILLER_TOKEN).all()
    assert layout.shared == any(
        len(read) > group.prefix > 0 for group in batch.groups for read in group.reads
    )


def test_a_shared_prefix_is_counted_once() -> None:
    reads = (a_read(10), a_read(12), a_read(8))
    batch = Batch((Group(reads, (0, 1, 2), prefix=8), Group((a_read(5, 50),), (3,))), tokens=30)
    assert batch.real_tokens == 8 + 2 + 4 + 0 + 5
    assert batch.read_tokens == 10 + 12 + 8 + 5
    assert batch.keys == (0, 1, 2, 3)
    layout = batch.layout()
    assert layout.segments.tolist() == [
        [0, 8, 0, 0],
        [8, 2, 0, 8],
        [10, 4, 0, 8],
        [14, 5, 0, 0],
        [19, 11, 0, 0],
    ]
    assert layout.rows.tolist() == [9, 13, 7, 18]
    assert all(
        array.dtype == np.int32
        for array in (layout.input_ids, layout.position_ids, layout.segments, layout.rows)
    )


def test_offsets_are_refused_where_they_would_lie() -> None:
    batch = Batch((Group((a_read(4), a_read(6)), (0, 1), prefix=3),), tokens=8)
    with pytest.raises(AssertionError, match="more than offsets"):
        _ = batch.layout().offsets


@given(rows=st.integers(1, 200), tokens=st.integers(1, 2000))
def test_a_forward_of_pairs_has_the_most_segments(rows: int, tokens: int) -> None:
    pairs = [Group((a_read(2), a_read(3)), (0, 1), prefix=1) for _ in range(rows // 2)]
    groups = [*pairs, *(Group((a_read(1),), (0,)) for _ in range(rows % 2))]
    used = sum(group.tokens for group in groups)
    batch = Batch(tuple(groups), max(tokens, used))
    segments = len(batch.layout().segments)
    assert rows + rows // 2 <= segments <= max_segments(batch.tokens, rows)


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
