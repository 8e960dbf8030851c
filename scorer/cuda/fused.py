"""The element-wise parts of a Qwen3 layer on CUDA, in Triton: each one pass over its data.

Every row (a token; of a token, a head) is computed from itself alone, in float32, and rounded
once. Contraction is off and nothing is tuned at run time, so the bits are those of the text.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    """Write ``x / sqrt(mean(x²) + epsilon) · weight`` (arXiv 1910.07467), row by row.

    x, out: ``[T, n]``, contiguous. weight: ``[n]``.
    """
    _norm[(x.shape[0],)](x, x, weight, out, epsilon, SIZE=x.shape[1], ADD=False, **_row(x.shape[1]))


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor
) -> None:
    """Add ``x`` to ``residual`` in place, and write the norm of the sum as ``rms_norm`` does.

    x, residual, out: ``[T, n]``, contiguous; out may be x.
    """
    _norm[(x.shape[0],)](
        x, residual, weight, out, epsilon, SIZE=x.shape[1], ADD=True, **_row(x.shape[1])
    )


def norm_rotate(
    qkv: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    epsilon: float,
    positions: torch.Tensor,
    turns: torch.Tensor,
    heads: tuple[int, int],
) -> None:
    """Normalise each query and key head (as ``rms_norm``) and rotate it by its position, in place.

    qkv: ``[T, columns]``, contiguous: query heads, key heads, values, which stay. weights: of the
    queries' and the keys' norm, ``[d]`` each. positions: int32 ``[T]``. turns: float32
    ``[positions, d]``, cosines then sines of the d/2 angles of a position (RoPE, arXiv 2104.09864,
    with halves as transformers lays them out). heads: how many query and key heads.
    """
    size = weights[0].numel()
    _norm_rotate[(qkv.shape[0], triton.cdiv(sum(heads), _HEADS))](
        qkv,
        *weights,
        epsilon,
        positions,
        turns,
        COLUMNS=qkv.shape[1],
        QUERY_HEADS=heads[0],
        HEADS=sum(heads),
        SIZE=size,
        AT_ONCE=_HEADS,
        num_warps=2,
        enable_fp_fusion=False,
    )


def swiglu(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``silu(gate) · up`` (arXiv 2002.05202). All ``[T, n]``, contiguous; out may be gate."""
    size = out.numel()
    _swiglu[(triton.cdiv(size, _ELEMENTS),)](
        gate, up, out, size, BLOCK=_ELEMENTS, num_warps=4, enable_fp_fusion=False
    )


_HEADS: Final = 8
_ELEMENTS: Final = 2048


def _row(size: int) -> dict[str, int | bool]:
    block = triton.next_power_of_2(size)
    return {
        "BLOCK": block,
        "num_warps": min(max(block // 512, 1), 16),
        "enable_fp_fusion": False,
    }


@triton.jit
def _norm(
    x, residual, weight, out, epsilon, SIZE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        row += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        rounded = row.to(residual.dtype.element_ty)
        tl.store(residual + at, rounded, mask=inside)
        row = rounded.to(tl.float32)
    mean = tl.sum(row * row, 0) / SIZE
    scaled = row * tl.rsqrt(mean + epsilon) * tl.load(weight + column, mask=inside).to(tl.float32)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_rotate(
    qkv,
    query_weight,
    key_weight,
    epsilon,
    positions,
    turns,
    COLUMNS: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    HALF: tl.constexpr = SIZE // 2
    column = tl.arange(0, HALF)
    inside = (head < HEADS)[:, None]
    at = token.to(tl.int64) * COLUMNS + head[:, None] * SIZE + column[None, :]
    low = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(qkv + at + HALF, mask=inside, other=0.0).to(tl.float32)
    mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / SIZE
    scale = tl.rsqrt(mean + epsilon)[:, None]
    weight = tl.where((head < QUERY_HEADS)[:, None], query_weight, key_weight) + column[None, :]
    low = low * scale * tl.load(weight).to(tl.float32)
    high = high * scale * tl.load(weight + HALF).to(tl.float32)
    turn = turns + tl.load(positions + token) * SIZE + column
    cosine = tl.load(turn)[None, :]
    sine = tl.load(turn + HALF)[None, :]
    kind = qkv.dtype.element_ty
    tl.store(qkv + at, (low * cosine - high * sine).to(kind), mask=inside)
    tl.store(qkv + at + HALF, (high * cosine + low * sine).to(kind), mask=inside)


@triton.jit
def _swiglu(gate, up, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (x / (1.0 + tl.exp(-x)) * y).to(out.dtype.element_ty), mask=inside)
