"""Tiles of attention on CUDA: their fixed sizes, and which query rows each computes.

Pure: nothing here needs a device or Triton. The kernel is in ``attention``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.errors import ModelError
from scorer.shapes import IntArray

# Measured best of ten on an H200 for reads of up to some 500 tokens, and within the shared memory
# of smaller GPUs, see docs/measurements.md.
ROWS: Final = 64
"""Rows of a tile: query tokens times the query heads of one key head."""
KEYS: Final = 64
"""Keys a row visits at a time."""
WARPS: Final = 4
STAGES: Final = 1
"""Loads ahead of use: none, so that more tiles fit a multiprocessor. No bit depends on it."""
NAME: Final = f"triton tiles of {ROWS} rows, {KEYS} keys, {WARPS} warps, {STAGES} stage"
"""What computes attention, as the numerics key has it."""
TILE_FIELDS: Final = 6
"""int32 fields of a tile's descriptor, see ``tiles``."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of an attention: query heads, key heads, and the size of each.

    Raises ModelError for shapes that the kernel doesn't serve.
    """

    query: int
    key: int
    size: int

    def __post_init__(self) -> None:
        if self.query % self.key or self.query // self.key > ROWS:
            raise ModelError(
                f"num_attention_heads must be a multiple of num_key_value_heads, up to {ROWS} "
                f"times as many, got {self.query} and {self.key}; use --device cpu"
            )
        if self.size not in (32, 64, 128):
            raise ModelError(
                f"head_dim must be 32, 64 or 128 on CUDA, got {self.size}; use --device cpu"
            )

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.query // self.key

    @property
    def tile_tokens(self) -> int:
        """Query tokens of one tile."""
        return ROWS // self.group

    @property
    def columns(self) -> int:
        """Columns of the joint matrix of queries, keys and values."""
        return (self.query + 2 * self.key) * self.size


def tile_slots(tokens: int, segments: int, heads: Heads) -> int:
    """Return the most tiles that ``segments`` segments of ``tokens`` tokens in all can need."""
    return tokens // heads.tile_tokens + segments


def tiles(segments: IntArray, slots: int, heads: Heads) -> IntArray:
    """Return the descriptors of a forward's tiles, int32 ``[slots, 6]``.

    segments: int32 ``[n, 4]``, as in ``shapes.Layout``. Columns: where the tile's first query token
    lies, how many it has (0: an empty slot), the logical position of the first, where the shared
    prefix lies, its length, and what is added to a logical position behind the prefix to find its
    key. Those with the most keys come first, so that none of them is started last.
    """
    start, length, prefix_start, prefix_length = segments.astype(np.int64).T
    per_segment = -(-length // heads.tile_tokens)
    of = np.repeat(np.arange(len(segments)), per_segment)
    before = np.cumsum(per_segment) - per_segment
    first = (np.arange(len(of)) - before[of]) * heads.tile_tokens
    found = np.zeros((slots, TILE_FIELDS), dtype=np.int32)
    position = prefix_length[of] + first
    order = np.argsort(-position, kind="stable")
    columns = (
        start[of] + first,
        np.minimum(length[of] - first, heads.tile_tokens),
        position,
        prefix_start[of],
        prefix_length[of],
        start[of] - prefix_length[of],
    )
    for place, column in enumerate(columns):
        found[: len(of), place] = column[order]
    return found
