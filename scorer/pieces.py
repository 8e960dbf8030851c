"""Element-wise functions on the CPU whose bits don't depend on where an element stands."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_GRAIN = 32_768
"""The elements that torch's threads take at least (``at::internal::GRAIN_SIZE``)."""
_VECTORS = 64
"""Torch's vector loop takes a divisor of so many elements a step, for every type and CPU."""


class InPieces(torch.nn.Module):
    """Computes an element-wise function piece by piece, so that all of it goes through vectors.

    torch divides a tensor evenly among its threads, and each thread computes what is left of its
    part behind whole vectors one by one. There an exponential is another function, with other last
    bits, so that a token's bits would depend on its place in the forward and on the number of
    threads. Pieces are therefore multiples of what a thread takes at least; what remains is too
    small to be divided, and is filled up to whole vectors.
    """

    def __init__(self, function: torch.nn.Module) -> None:
        super().__init__()
        self._function = function

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the function of every element, in the shape and dtype of ``values``."""
        flat = values.reshape(-1)
        result = torch.empty_like(flat)
        divided = len(flat) - len(flat) % _GRAIN
        whole = len(flat) - len(flat) % _VECTORS
        for start, end in _pieces(divided, whole):
            result[start:end] = self._function(flat[start:end])
        if whole < len(flat):
            last = flat.new_zeros(_VECTORS)
            last[: len(flat) - whole] = flat[whole:]
            result[whole:] = self._function(last)[: len(flat) - whole]
        return result.view(values.shape)


def _pieces(divided: int, whole: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where, up to ``divided`` by the threads, up to ``whole`` by one."""
    step = _GRAIN * torch.get_num_threads()
    for start in range(0, divided, step):
        yield start, min(start + step, divided)
    if divided < whole:
        yield divided, whole
