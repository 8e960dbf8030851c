"""CUDA graphs: recording launches without a trace left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None
) -> Iterator[None]:
    """Record launches in a graph instead of making them; other threads may use the device.

    stream: to record on. pool: where its memory comes from; graphs that share one must be recorded
    on the same stream and never wait for each other's results. Torch's current stream is as before
    afterwards, also where recording fails.
    """
    with (
        torch.cuda.stream(torch.cuda.current_stream(stream.device)),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        yield
