"""Attention over segments with prefixes, as plainly as it can be said; what kernels are held to."""

from __future__ import annotations

import torch

from scorer.shapes import IntArray


def attend_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: IntArray, scale: float
) -> torch.Tensor:
    """Causal attention in the tensors' own type: ``[T, Hq, D]``.

    q: ``[T, Hq, D]``. k, v: ``[T, Hkv, D]``, Hq a multiple of Hkv; head h of q belongs to head
    ``h // (Hq / Hkv)``. segments: int32 ``[n, 4]``, as in ``Layout``; rows that no segment covers
    are left zero. scale: of the products.
    """
    out = torch.zeros_like(q)
    together = q.shape[1] // k.shape[1]
    for start, length, prefix_start, prefix_length in segments.tolist():
        own = torch.arange(start, start + length, device=q.device)
        prefix = torch.arange(prefix_start, prefix_start + prefix_length, device=q.device)
        places = torch.cat([prefix, own])  # of the keys, by logical position
        keys = k[places].repeat_interleave(together, dim=1)
        values = v[places].repeat_interleave(together, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[own], keys) * scale
        logical = torch.arange(prefix_length + length, device=q.device)
        hidden = logical[None, :] > logical[prefix_length:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[own] = torch.einsum("hqk,khd->qhd", weights, values)
    return out
