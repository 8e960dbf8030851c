"""The reduction on the GPU: find, hash, compile and launch ``kernels/reduction.cu``.

Bit for bit the host's (``scorer/reduction.py``). CuPy compiles and launches; memory and streams are
torch's. A batch is one upload of what each row is asked for (``stage``), one launch sequence
(``enqueue``, which can be captured in a CUDA graph), one download of compact results (``download``)
and one wait for it (``collect``), which waits for nothing that was launched later.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from scorer.cuda.reduction_plan import (
    DIRECT,
    HEADER_WORDS,
    MAX_CANDIDATES,
    ROW_RESULT,
    TILE,
    Plan,
    insert_host_rows,
    make_plan,
    read_results,
)
from scorer.errors import DeviceError
from scorer.reduction import RawReduction, RowRequests, kernel_constants, reduce_host

KERNELS: Final = ("row_maxima", "row_thresholds", "row_terms", "many_ranks", "row_outputs")
COMPILE_OPTIONS: Final = ("--std=c++17", "-fmad=false")
MINIMUM_CAPABILITY: Final = (8, 0)

_THREADS: Final = 256
_WIDE: Final = 512
_CELLS: Final = 4096
_MAX_CHUNKS: Final = 64

_DTYPES: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float32: "SCORER_FLOAT32",
        torch.bfloat16: "SCORER_BFLOAT16",
        torch.float16: "SCORER_FLOAT16",
    }
)
_REMEDY: Final = "use --reduction host"


SOURCES: Final = ("reduction",)
"""The names of all files ``kernels/<name>.cu``."""


def source(name: str) -> str:
    """The text of ``kernels/<name>.cu``: of the installed package, else of the checkout.

    Raises DeviceError when neither holds it.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = [folder / "kernels" / f"{name}.cu" for folder in (package, package.parent)]
    for path in candidates:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise DeviceError(
        f"kernel source {name}.cu is in none of {', '.join(map(str, candidates))}; "
        f"reinstall scorer, or {_REMEDY}"
    )


def full_source(name: str, dtype: torch.dtype) -> str:
    """What is compiled for logits of ``dtype``: constants shared with the host, then the text."""
    shared = {
        _DTYPES[dtype]: 1,
        "SCORER_THREADS": _THREADS,
        "SCORER_WIDE": _WIDE,
        "SCORER_CELLS": _CELLS,
        "SCORER_DIRECT": DIRECT,
        "SCORER_TILE": TILE,
        "SCORER_MAX_CANDIDATES": MAX_CANDIDATES,
    }
    defines = "".join(f"#define {key} {value}\n" for key, value in shared.items())
    return defines + kernel_constants() + source(name)


def source_sha256(name: str) -> str:
    """Hex SHA-256 over all that is compiled from ``kernels/<name>.cu``, options included."""
    parts = [full_source(name, dtype) for dtype in _DTYPES]
    return hashlib.sha256("\0".join([*parts, *COMPILE_OPTIONS]).encode()).hexdigest()


def sources_sha256() -> dict[str, str]:
    """``source_sha256`` of every source, by its name."""
    return {name: source_sha256(name) for name in SOURCES}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceReduction:
    """A batch's results, and which of its rows the host listed because their k is too large."""

    raw: RawReduction
    host_rows: tuple[int, ...]


class DeviceReducer:
    """Reduces batches of logits on one GPU, with buffers that stay.

    device: a CUDA device. max_rows: the most rows of a batch. vocab_size: V, the columns of the
    logits. n_ids: ids from here on take part in the maximum and the sum only. chunks: how many
    blocks share a row, a power of two up to 64; by default from the rows and the device. No result
    depends on it.

    One batch at a time: ``stage``, ``enqueue``, ``download``, ``collect``; ``reduce`` is the four.
    ``enqueue`` only launches kernels on buffers that stay where they are, so it can be captured in
    a CUDA graph, once it has run outside one (the first time compiles); the graph then serves any
    staged requests of at most as many rows. Requests that outgrow a buffer replace it in ``stage``,
    and ``generation`` goes up: graphs captured before must be captured again.

    Raises DeviceError when the device can't run the kernels.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        max_rows: int,
        vocab_size: int,
        n_ids: int,
        chunks: int | None = None,
    ) -> None:
        if device.type != "cuda":
            raise ValueError(f"DeviceReducer needs a CUDA device, got {device}")
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        if chunks is not None and (chunks < 1 or chunks > _MAX_CHUNKS or chunks & (chunks - 1)):
            raise ValueError(f"chunks must be a power of two up to {_MAX_CHUNKS}, got {chunks}")
        nothing = RowRequests.of([[]], [0])
        nothing.check((1, vocab_size), n_ids)
        self.device = torch.empty(0, device=device).device  # with its index
        properties = torch.cuda.get_device_properties(self.device)
        if (properties.major, properties.minor) < MINIMUM_CAPABILITY:
            raise DeviceError(
                f"the reduction kernels need compute capability {_dotted(MINIMUM_CAPABILITY)}, "
                f"{properties.name} has {properties.major}.{properties.minor}; {_REMEDY}"
            )
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self.n_ids = n_ids
        self.generation = 0
        self._chunks = chunks
        self._multiprocessors = properties.multi_processor_count
        most_chunks = max_rows * (chunks or _MAX_CHUNKS)
        self._cells = self._buffer(max_rows * _CELLS, torch.int32)
        self._padding = self._buffer(most_chunks, torch.int32)
        self._before = self._buffer(most_chunks * DIRECT, torch.int32)
        self._states = self._buffer(max_rows * 4, torch.int32)
        self._candidates = self._buffer(max_rows * 320, torch.int64)
        words = HEADER_WORDS + 4 * (max_rows + 1) + 16 * max_rows
        self._plan_words = self._buffer(words, torch.int32)
        self._plan_pinned = torch.empty(words, dtype=torch.int32, pin_memory=True)
        size = max_rows * (ROW_RESULT.itemsize + 8 * 16 + 8 * 32)
        self._results = self._buffer(size, torch.uint8)
        self._results_pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._plan: Plan | None = None
        self._uploading = False
        self._downloaded = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def reduce(self, logits: torch.Tensor, requests: RowRequests) -> DeviceReduction:
        """Reduce logits [rows, V] (float32, bfloat16 or float16, contiguous, on this device).

        On torch's current stream; one synchronisation. Rows with min(k, n_ids) > MAX_DEVICE_K are
        copied to the host in a second step and their top entries found there.

        Raises ValueError for other logits or requests that don't fit them, DeviceError when the
        device fails.
        """
        self._check(logits)
        requests.check(tuple(logits.shape), self.n_ids)
        self.stage(requests)
        self.enqueue(logits)
        self.download()
        return self.collect(logits)

    def stage(self, requests: RowRequests) -> None:
        """Upload what the next batch is asked for, on torch's current stream.

        Not to be captured in a graph. Raises ValueError for requests that don't fit.
        """
        rows = requests.top_k.size
        if rows > self.max_rows:
            raise ValueError(f"requests have {rows} rows, the most is max_rows = {self.max_rows}")
        requests.check((rows, self.vocab_size), self.n_ids)
        plan = make_plan(requests, self.n_ids, self._multiprocessors)
        if self._uploading:  # staged before, never collected
            torch.cuda.current_stream(self.device).synchronize()
        self._reserve(plan)
        size = plan.words.size
        self._plan_pinned.numpy()[:size] = plan.words
        self._plan_words[:size].copy_(self._plan_pinned[:size], non_blocking=True)
        self._uploading = True
        self._plan = plan

    def enqueue(self, logits: torch.Tensor) -> None:
        """Launch the kernels on torch's current stream; results stay in device buffers.

        logits: [rows, V] with at least the staged rows; those behind them are not looked at.
        """
        self._check(logits)
        rows = logits.shape[0]
        if self._plan is not None and self._plan.rows > rows:
            raise ValueError(f"logits have {rows} rows, the staged requests {self._plan.rows}")
        if rows == 0:
            return
        kernels = _compile(self.device.index, logits.dtype)
        chunks = self._chunks or default_chunks(rows, self._multiprocessors)
        matrix, plan, cells, padding, before, states, candidates, results = (
            np.uint64(tensor.data_ptr())
            for tensor in (
                logits,
                self._plan_words,
                self._cells,
                self._padding,
                self._before,
                self._states,
                self._candidates,
                self._results,
            )
        )
        shape = (np.int32(self.vocab_size), np.int32(self.n_ids))
        parts = np.int32(chunks)
        launches = (
            (rows * chunks, _THREADS, (matrix, plan, cells, padding, before, *shape, parts)),
            (
                rows,
                _THREADS,
                (matrix, plan, cells, padding, before, states, results, *shape, parts),
            ),
            (rows * chunks, _THREADS, (matrix, plan, states, candidates, results, *shape, parts)),
            (2 * self._multiprocessors, _WIDE, (matrix, plan, results, *shape)),
            (rows, _WIDE, (matrix, plan, states, candidates, results, *shape)),
        )
        try:
            with _launching(self.device):
                for name, (blocks, threads, arguments) in zip(KERNELS, launches, strict=True):
                    kernels[name]((blocks,), (threads,), arguments)
        except RuntimeError as error:  # CuPy's driver errors
            raise DeviceError(
                f"the reduction kernels don't run on {self.device}: {error}; {_REMEDY}"
            ) from error

    def download(self) -> None:
        """Copy the staged batch's results to the host, behind the kernels; does not wait."""
        if self._plan is None:
            raise RuntimeError("download needs a staged batch")
        size = self._plan.result_bytes
        self._results_pinned[:size].copy_(self._results[:size], non_blocking=True)
        self._downloaded.record(torch.cuda.current_stream(self.device))

    def collect(self, logits: torch.Tensor) -> DeviceReduction:
        """Wait for the downloaded batch and return its results.

        logits: what ``enqueue`` was given; read only for rows whose k the kernels don't serve.
        Raises DeviceError when the device failed.
        """
        plan = self._plan
        if plan is None:
            raise RuntimeError("collect needs a staged batch")
        try:
            self._downloaded.synchronize()
            self._uploading = False
            raw = read_results(plan, self._results_pinned.numpy()[: plan.result_bytes])
            if plan.host_rows:
                raw = insert_host_rows(raw, self._on_host(logits, plan), plan.host_rows)
        except torch.AcceleratorError as error:
            raise DeviceError(f"the reduction failed on {self.device}: {error}") from error
        return DeviceReduction(raw, plan.host_rows)

    def _on_host(self, logits: torch.Tensor, plan: Plan) -> RawReduction:
        rows = logits[list(plan.host_rows)].to(torch.float32).cpu().numpy()
        nothing: list[list[int]] = [[] for _ in plan.host_rows]
        return reduce_host(rows, RowRequests.of(nothing, plan.host_k), self.n_ids)

    def _check(self, logits: torch.Tensor) -> None:
        if logits.dtype not in _DTYPES:
            names = ", ".join(str(dtype) for dtype in _DTYPES)
            raise ValueError(f"logits must be one of {names}, got {logits.dtype}")
        if logits.ndim != 2 or logits.shape[1] != self.vocab_size:
            raise ValueError(
                f"logits must be [rows, {self.vocab_size}], got shape {tuple(logits.shape)}"
            )
        if logits.shape[0] > self.max_rows:
            raise ValueError(
                f"logits must have at most max_rows = {self.max_rows} rows, got {logits.shape[0]}"
            )
        if logits.device != self.device:
            raise ValueError(f"logits must be on {self.device}, got {logits.device}")
        if not logits.is_contiguous():
            raise ValueError(
                f"logits must be contiguous, got shape {tuple(logits.shape)} "
                f"with strides {logits.stride()}"
            )

    def _reserve(self, plan: Plan) -> None:
        """Replace the buffers that the plan outgrows, by ones twice as large as it needs."""
        replaced = False
        if plan.words.size > self._plan_words.numel():
            size = 2 * plan.words.size
            self._plan_words = self._buffer(size, torch.int32)
            self._plan_pinned = torch.empty(size, dtype=torch.int32, pin_memory=True)
            replaced = True
        if plan.candidates > self._candidates.numel():
            self._candidates = self._buffer(2 * plan.candidates, torch.int64)
            replaced = True
        if plan.result_bytes > self._results.numel():
            size = 2 * plan.result_bytes
            self._results = self._buffer(size, torch.uint8)
            self._results_pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            replaced = True
        self.generation += replaced

    def _buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)


def default_chunks(rows: int, multiprocessors: int) -> int:
    """How many blocks share a row: enough to fill the device, not so many that each idles."""
    chunks = 4
    while chunks < _MAX_CHUNKS and rows * chunks < 3 * multiprocessors:
        chunks *= 2
    return chunks


@functools.cache
def _compile(device_index: int, dtype: torch.dtype) -> Mapping[str, Any]:
    """The kernels for logits of ``dtype``, loaded on a device. Raises DeviceError."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"the reduction on the GPU needs CuPy ({error}): install scorer[cuda13] or "
            f"scorer[cuda12], or {_REMEDY}"
        ) from error
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the kernels must run once before they are captured in a graph")
    device = torch.device("cuda", device_index)
    code = full_source("reduction", dtype)
    try:
        with _launching(device):
            module = cupy.RawModule(code=code, options=COMPILE_OPTIONS, backend="nvrtc")
            return {name: module.get_function(name) for name in KERNELS}
    except (cupy.cuda.compiler.CompileException, RuntimeError, OSError) as error:
        raise DeviceError(
            f"the reduction kernels don't run on {device}: {error}; {_REMEDY}"
        ) from error


class _Stream:
    """torch's current stream of a device, as CuPy wants to be told of it."""

    def __init__(self, device: torch.device) -> None:
        self._pointer = torch.cuda.current_stream(device).cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._pointer)  # the protocol's version first


@contextmanager
def _launching(device: torch.device) -> Iterator[None]:
    """Make CuPy work on the device and on torch's current stream of it."""
    import cupy

    with cupy.cuda.Device(device.index), cupy.cuda.Stream.from_external(_Stream(device)):
        yield


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
