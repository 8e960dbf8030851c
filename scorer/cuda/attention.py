"""Variable-length causal attention on CUDA, in Triton: the bits of a row depend on its read alone.

Online softmax after FlashAttention (arXiv 2205.14135, 2307.08691): a program takes a tile of query
rows of one key head through the keys in logical order, ``KEYS`` at a time. What keeps a row's bits
its own:

- The query heads of one key head are packed into the tile's rows, and every row goes through the
  same tiles of keys, with boundaries at the same logical positions, by the same operations: which
  other rows share its tile, and whether a tile is masked, changes none of them. A key that a row
  does not see gives it exactly 0. Contraction of products and sums is off, so that no compiler
  rounds the masked and the unmasked loop differently.
- The grid is a number of tile slots fixed by the shape of the forward; which rows a slot computes
  comes from a descriptor in memory. No length and no count of reads is a launch parameter.
- Keys are fetched by logical position, so a read whose first tokens lie elsewhere in the forward,
  shared with other reads, meets the same keys in the same order.

One thing only is not a row's own: a value that is not finite (an overflow in float16) reaches the
rows of its read that share a tile of keys with it, earlier ones too, since 0 · inf is no number.
It also reaches every later row, and a read asks behind its last token, so that such a read is an
error row however its tiles lie; no other read can see it.

The tiles' sizes are constants (``tiles``), part of the numerics key, and never tuned at run time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from scorer.cuda.tiles import KEYS, ROWS, STAGES, TILE_FIELDS, WARPS, Heads


def attend(
    qkv: torch.Tensor, tile_table: torch.Tensor, heads: Heads, scale: float, out: torch.Tensor
) -> None:
    """Launch the attention of one forward on torch's current stream.

    qkv: ``[T, (query + 2 key) heads × size]``, bfloat16 or float16, contiguous: queries, keys,
    values. tile_table: int32 ``[slots, 6]`` on the device. out: ``[T, query heads × size]``.
    """
    _attend[(heads.key * tile_table.shape[0],)](
        qkv,
        out,
        tile_table,
        scale * 1.4426950408889634,  # log2(e): the exponentials are powers of two
        QUERY_HEADS=heads.query,
        KEY_HEADS=heads.key,
        GROUP=heads.group,
        SIZE=heads.size,
        ROWS=ROWS,
        KEYS=KEYS,
        FIELDS=TILE_FIELDS,
        num_warps=WARPS,
        num_stages=STAGES,
        enable_fp_fusion=False,
    )


@triton.jit
def _visit(query, key, value, seen, weighted, largest, total, scale, MASKED: tl.constexpr):
    """Take a tile of rows past a tile of keys; all rows do the same operations, masked or not."""
    scores = tl.dot(query, tl.trans(key))
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))
    shares = tl.math.exp2((scores - larger[:, None]) * scale)
    fading = tl.math.exp2((largest - larger) * scale)
    total = total * fading + tl.sum(shares, 1)
    weighted = tl.dot(shares.to(value.dtype), value, weighted * fading[:, None])
    return weighted, larger, total


@triton.jit
def _attend(
    qkv,
    out,
    tile_table,
    scale,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    head = tl.program_id(0) % KEY_HEADS
    tile = tile_table + tl.program_id(0) // KEY_HEADS * FIELDS
    count = tl.load(tile + 1)
    if count == 0:
        return
    first = tl.load(tile)
    position = tl.load(tile + 2)
    prefix_start = tl.load(tile + 3)
    prefix_length = tl.load(tile + 4)
    shift = tl.load(tile + 5)
    COLUMNS: tl.constexpr = (QUERY_HEADS + 2 * KEY_HEADS) * SIZE

    row = tl.arange(0, ROWS)
    token = row // GROUP
    query_head = head * GROUP + row % GROUP
    column = tl.arange(0, SIZE)
    present = token < count
    place = (first + token).to(tl.int64)
    query = tl.load(
        qkv + place[:, None] * COLUMNS + query_head[:, None] * SIZE + column[None, :],
        mask=present[:, None],
        other=0.0,
    )
    keys = qkv + (QUERY_HEADS + head) * SIZE + column[None, :]
    values = keys + KEY_HEADS * SIZE
    offset = tl.arange(0, KEYS)

    weighted = tl.zeros((ROWS, SIZE), dtype=tl.float32)
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)

    whole = (position + 1) // KEYS * KEYS  # keys before here are seen by every row
    for start in tl.range(0, whole, KEYS):
        logical = start + offset
        at = tl.where(logical < prefix_length, prefix_start + logical, shift + logical)
        at = at.to(tl.int64)[:, None] * COLUMNS
        key = tl.load(keys + at)
        value = tl.load(values + at)
        weighted, largest, total = _visit(
            query, key, value, None, weighted, largest, total, scale, MASKED=False
        )
    end = position + count
    for start in tl.range(whole, end, KEYS):
        logical = start + offset
        at = tl.where(logical < prefix_length, prefix_start + logical, shift + logical)
        at = at.to(tl.int64)[:, None] * COLUMNS
        there = (logical < end)[:, None]
        key = tl.load(keys + at, mask=there, other=0.0)
        value = tl.load(values + at, mask=there, other=0.0)
        seen = logical[None, :] <= (position + token)[:, None]
        weighted, largest, total = _visit(
            query, key, value, seen, weighted, largest, total, scale, MASKED=True
        )
    result = weighted / total[:, None]
    tl.store(
        out + place[:, None] * (QUERY_HEADS * SIZE) + query_head[:, None] * SIZE + column[None, :],
        result.to(out.dtype.element_ty),
        mask=present[:, None],
    )
