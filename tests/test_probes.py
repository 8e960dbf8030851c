"""What the self-test computes fits the tables whose sizes the batch shape decides."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scorer.cuda.tiles import Heads, tile_slots, tiles
from scorer.packing import Packer
from scorer.probes import _probe_lengths, _sharing_records
from scorer.shapes import Batch, BatchShape, last_read, max_segments


@given(st.integers(1, 20_000), st.integers(1, 2000), st.integers(1, 300), st.integers(0, 9))
def test_probes_have_room_in_any_shape(tokens: int, longest: int, rows: int, seed: int) -> None:
    """As many as there are, strangers in place of every second one included."""
    rng = np.random.default_rng(seed)
    lengths = _probe_lengths(rng, tokens, longest)
    assert 1 <= max(lengths) <= longest
    room = tokens - sum(lengths[::2])
    mixed = [*(_probe_lengths(rng, room, longest) if room else []), *lengths[::2]]
    heads = Heads(32, 8, 128)
    for some in (lengths, mixed):
        assert sum(some) <= tokens
        reads = [last_read(np.zeros(length, dtype=np.int32)) for length in some]
        segments = Batch.apart(reads, tokens).layout().segments
        assert len(segments) <= max_segments(tokens, rows)
        tiles(segments, tile_slots(tokens, max_segments(tokens, rows), heads), heads)


@given(st.integers(2, 9000), st.integers(2, 300), st.integers(0, 9))
def test_what_is_to_be_compared_shared_does_share(tokens: int, rows: int, seed: int) -> None:
    records = _sharing_records(np.random.default_rng(seed), tokens, 100)
    packer = Packer(BatchShape(tokens, rows), alone=False, window=1, share=True)
    saved = 0
    for record in records:
        packer.add(range(len(record)), record)
        while len(packer):
            batch = packer.pop()
            saved += batch.read_tokens - batch.real_tokens
    assert saved > 0
