"""The reference that attention kernels are held to, held to causal attention of each read alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scorer.shapes import Batch, Group, last_read
from tests.attention_reference import attend_reference

SCALE = 0.2


def tensors(tokens: int, *, heads: int, kv_heads: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)

    def draw(count: int) -> torch.Tensor:
        return torch.randn(tokens, count, 16, generator=generator, dtype=torch.float64)

    return draw(heads), draw(kv_heads), draw(kv_heads)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What torch makes of one read: ``[n, heads, d]``."""
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=SCALE, enable_gqa=True
    )
    return out[0].transpose(0, 1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (8, 1)])
@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("owns", [(7, 1, 66), (0, 5), (64, 64)])
def test_it_is_causal_attention_of_each_read_alone(
    heads: int, kv_heads: int, prefix: int, owns: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    common = rng.integers(0, 9, size=prefix, dtype=np.int32)
    reads = [
        last_read(np.concatenate([common, rng.integers(0, 9, size=own, dtype=np.int32)]))
        for own in owns
        if prefix + own
    ]
    stranger = last_read(rng.integers(0, 9, size=11, dtype=np.int32))
    groups = [Group((read,), (0,)) for read in reads]
    if prefix:
        groups = [Group(tuple(reads), tuple(range(len(reads))), prefix)]
    batch = Batch((Group((stranger,), (9,)), *groups), tokens=600)
    layout = batch.layout()
    assert layout.shared == (prefix > 0)
    q, k, v = tensors(600, heads=heads, kv_heads=kv_heads)

    out = attend_reference(q, k, v, layout.segments, SCALE)

    seen = set()
    for start, length, prefix_start, prefix_length in layout.segments.tolist():
        walk = [
            *range(prefix_start, prefix_start + prefix_length),
            *range(start, start + length),
        ]
        alone = causal(q[walk], k[walk], v[walk])
        torch.testing.assert_close(
            out[start : start + length], alone[prefix_length:], rtol=1e-12, atol=1e-12
        )
        seen |= set(range(start, start + length))
    assert len(seen) == 600


def test_rows_of_no_segment_are_zero() -> None:
    q, k, v = tensors(6, heads=2, kv_heads=1)
    out = attend_reference(q, k, v, np.array([[0, 4, 0, 0]], dtype=np.int32), SCALE)
    assert out[4:].abs().max() == 0
    torch.testing.assert_close(out[:4], causal(q[:4], k[:4], v[:4]), rtol=1e-12, atol=1e-12)
