"""Which query rows a tile of attention computes: every one once, whatever is in the forward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.cuda.tiles import KEYS, ROWS, TILE_FIELDS, Heads, tile_slots, tiles
from scorer.errors import ModelError

HEADS = [Heads(32, 8, 128), Heads(16, 8, 128), Heads(40, 8, 128), Heads(4, 2, 64), Heads(3, 1, 32)]


def segments_of(lengths: list[int], prefixes: list[int]) -> np.ndarray:
    """Segments end to end; each prefix lies at the forward's beginning."""
    starts = np.cumsum([0, *lengths[:-1]])
    columns = (starts, lengths, [0] * len(lengths), prefixes)
    return np.stack(columns, axis=1).astype(np.int32)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 200)), min_size=1, max_size=20),
    st.sampled_from(HEADS),
)
def test_every_query_row_is_computed_once(parts: list[tuple[int, int]], heads: Heads) -> None:
    lengths, prefixes = [part[0] for part in parts], [part[1] for part in parts]
    segments = segments_of(lengths, prefixes)
    slots = tile_slots(sum(lengths), len(parts), heads)
    table = tiles(segments, slots, heads)

    assert table.shape == (slots, TILE_FIELDS)
    assert table.dtype == np.int32
    seen: dict[int, tuple[int, int, int, int]] = {}
    for first, count, position, prefix_start, prefix_length, shift in table.tolist():
        assert 0 <= count <= heads.tile_tokens
        for token in range(count):
            assert first + token not in seen
            seen[first + token] = (position + token, prefix_start, prefix_length, shift)
    for (start, length, prefix_start, prefix_length), _ in zip(
        segments.tolist(), parts, strict=True
    ):
        for token in range(length):
            logical, *rest = seen.pop(start + token)
            assert logical == prefix_length + token
            assert rest == [prefix_start, prefix_length, start - prefix_length]
            assert rest[2] + logical == start + token  # a row finds itself among its keys
    assert not seen


def test_the_tiles_with_the_most_keys_come_first() -> None:
    table = tiles(segments_of([5, 300, 40], [0, 0, 900]), 200, Heads(32, 8, 128))
    used = table[table[:, 1] > 0]
    assert len(used) == 1 + 19 + 3
    assert np.all(np.diff(used[:, 2]) <= 0)
    assert np.all(table[len(used) :] == 0)


def test_a_tile_never_has_more_rows_than_the_kernel() -> None:
    for heads in HEADS:
        assert heads.tile_tokens * heads.group <= ROWS < (heads.tile_tokens + 1) * heads.group
    assert ROWS % 16 == KEYS % 16 == 0  # the matrix units' own tiles


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ((12, 8, 128), "multiple of num_key_value_heads, up to 64 times as many, got 12 and 8"),
        ((130, 2, 128), "up to 64 times as many, got 130 and 2"),
        ((32, 8, 96), "head_dim must be 32, 64 or 128 on CUDA, got 96; use --device cpu"),
    ],
)
def test_shapes_that_are_not_served(heads: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Heads(*heads)
