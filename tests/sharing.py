"""Sharing on the CPU, for tests: attention row by row, exact whatever the segment's length.

torch's own attention on the CPU computes a row differently in segments of different lengths, so a
prefix by itself has other bits than the same tokens at the beginning of a read. One row at a time,
what is computed depends on the row's logical position alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from scorer.model import Qwen3
from scorer.shapes import Layout

Change = Callable[[torch.Tensor, int], None]
"""Changes a segment's hidden states ``[length, hidden]`` in place, given its prefix_length."""


def share_on_cpu(monkeypatch: pytest.MonkeyPatch, change: Change | None = None) -> None:
    """Make every model serve shared prefixes, so that readers share. change: what breaks it."""
    exact_attention(monkeypatch, change)
    monkeypatch.setattr(Qwen3, "shares", True)


def exact_attention(monkeypatch: pytest.MonkeyPatch, change: Change | None = None) -> None:
    """Compute attention row by row, so that segments may have prefixes; no reader makes any yet."""
    honest = Qwen3.hidden_states
    segments: list[list[int]] = []  # of the forward that runs

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: object, scale: float
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        for start, length, prefix_start, prefix_length in segments:
            prefix = range(prefix_start, prefix_start + prefix_length)
            walk = [*prefix, *range(start, start + length)]
            keys, values = key[:, :, walk], value[:, :, walk]
            for row in range(length):
                seen = prefix_length + row + 1
                out[:, :, start + row : start + row + 1] = (
                    torch.nn.functional.scaled_dot_product_attention(
                        query[:, :, start + row : start + row + 1].contiguous(),
                        keys[:, :, :seen].contiguous(),
                        values[:, :, :seen].contiguous(),
                        scale=scale,
                        enable_gqa=True,
                    )
                )
        return out.transpose(1, 2)

    def hidden_states(
        self: Qwen3, layout: Layout, *, rows: int, graph: bool = True
    ) -> torch.Tensor:
        segments[:] = layout.segments.tolist()
        apart = layout.segments.copy()
        apart[:, 2:] = 0  # for the model, which goes by offsets alone
        hidden = honest(self, replace(layout, segments=apart), rows=rows, graph=graph)
        if change is not None:
            for start, length, _, prefix_length in segments:
                change(hidden[start : start + length], prefix_length)
        return hidden

    monkeypatch.setattr("scorer.model._attend", attend)
    monkeypatch.setattr(Qwen3, "hidden_states", hidden_states)


def one_bit(hidden: torch.Tensor, prefix: int) -> None:
    """Change the last bit of every value of a segment that has a prefix."""
    if prefix:
        bits = hidden.view(torch.int32 if hidden.element_size() == 4 else torch.int16)
        bits ^= 1
