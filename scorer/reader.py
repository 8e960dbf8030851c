"""Batches in, reduced next-token distributions out: the one object with state.

The life of a read: its batch's tokens go through one forward of T tokens; the hidden states at the
positions it asks about are gathered into pieces of exactly R rows; each piece goes through the
lm_head and the reduction; what comes back is cut up read by read. No KV cache exists anywhere, so
nothing that ran before can be matched and nothing of this batch is kept. A batch is launched and
collected apart, so that the host makes the last batch's rows while the device computes the next; on
CUDA one more is queued meanwhile, so that the device has no pause between two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from scorer.cuda.reduction_plan import MAX_DEVICE_K
from scorer.errors import DeviceError, UsageError
from scorer.manifest import Json, numerics_fields, settings_fields, sha256_of
from scorer.model import Qwen3
from scorer.reduction import RawReduction, Reduced, RowRequests, finish, reduce_host
from scorer.selftest import SelfTests
from scorer.shapes import Batch, BatchShape, IntArray
from scorer.tables import (
    ReadResult,
    cut_requests,
    join_raw,
    join_requests,
    split_reduced,
    split_results,
)

if TYPE_CHECKING:
    from scorer.cuda.head import Head

ReductionPlace = Literal["host", "device"]
ReductionName = Literal["auto", "host", "device"]

_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_DEPTH = 2  # one that is computed, one that is queued behind it
# cuBLAS and Triton raise a plain RuntimeError
_FAILED = ("CUDA error", "Triton Error", "Failed to find C compiler")
_CPU_ALLOCATOR = "DefaultCPUAllocator"  # on the CPU torch raises a plain RuntimeError


@dataclass(slots=True)
class ReadCounts:
    """What a reader has done so far.

    real_tokens: computed for reads, a shared prefix once. shared_tokens: those that sharing saved.
    forward_tokens: all that were computed, filler too.
    """

    forwards: int = 0
    reads: int = 0
    real_tokens: int = 0
    shared_tokens: int = 0
    forward_tokens: int = 0

    @property
    def fill(self) -> float | None:
        """Real tokens over the tokens of all forwards; None before the first."""
        return self.real_tokens / self.forward_tokens if self.forward_tokens else None

    def describe_sharing(self) -> str:
        """Say in one line what sharing saved."""
        whole = self.real_tokens + self.shared_tokens
        return f"{self.shared_tokens:,} of {whole:,} tokens were shared instead of recomputed"


@dataclass(slots=True, eq=False)
class InFlight:
    """A launched batch: what has come back of its pieces, and who has the last one.

    head: computes the batch's pieces on the device, one after the other; None on the host, and when
    all have come back.
    """

    batch: Batch
    requests: RowRequests
    head: Head | None
    pieces: list[RawReduction] = field(default_factory=list)


class Reader:
    """Computes batches of reads with one model and one batch shape.

    alone: each read has a forward to itself. n_ids: how many token ids the tokenizer has; logits
    from there on are padding of the model. numerics: everything that may change a bit, hashed
    into ``numerics_key``. cache: the folder where passed self-tests are remembered, or None.
    reduction: where distributions are reduced; the bits are the same, ``device`` needs CUDA.
    share: whether reads of one record may share their common prefix; the model must serve it.
    graphs: whether forwards on CUDA are replayed graphs; the bits are the same.

    On CUDA everything runs on the stream that was torch's current one here, whichever is later.
    Raises DeviceError when the device can't run the reduction's kernels.
    """

    depth: int
    """How many batches may be launched and not yet collected."""

    def __init__(
        self,
        model: Qwen3,
        shape: BatchShape,
        *,
        alone: bool,
        n_ids: int,
        numerics: dict[str, Json],
        cache: Path | None,
        reduction: ReductionPlace = "host",
        share: bool = False,
        graphs: bool = True,
    ) -> None:
        self.model = model
        self._settings = settings_fields(model.device)
        self._stream: torch.cuda.Stream | None = None
        if model.device.type == "cuda":
            self._stream = torch.cuda.current_stream(model.device)
        self.shape = shape
        self.alone = alone
        self.share = share
        self.n_ids = n_ids
        self.numerics = numerics
        self.numerics_key = sha256_of(numerics)
        self.counts = ReadCounts()
        self.selftests = SelfTests(
            self.numerics_key,
            n_ids,
            alone=alone,
            max_tokens=model.checkpoint.max_tokens,
            cache=cache,
            share=share,
        )
        self.graphs = graphs and not alone  # alone, every length would need a graph of its own
        self._free: list[Head] | None = None  # heads that no launched batch has
        self.depth = 1
        if reduction == "device":
            self.depth = _DEPTH
            with self._computing(shape.tokens):
                self._free = [self._new_head() for _ in range(self.depth)]

    @classmethod
    def of(
        cls,
        model: Qwen3,
        shape: BatchShape,
        *,
        n_ids: int,
        weights_sha256: str,
        alone: bool = False,
        reduction: ReductionName = "auto",
        cache: Path | None = None,
        share: bool = True,
    ) -> Reader:
        """Make a reader and its numerics.

        share: as far as the model and ``alone`` let reads. Raises UsageError, DeviceError.
        """
        place = choose_reduction(reduction, model.device)
        numerics = numerics_fields(
            model,
            shape,
            isolation="alone" if alone else "packed",
            reduction=place,
            n_ids=n_ids,
            weights_sha256=weights_sha256,
        )
        return cls(
            model,
            shape,
            alone=alone,
            n_ids=n_ids,
            numerics=numerics,
            cache=cache,
            reduction=place,
            share=share and model.shares and not alone,
        )

    @property
    def max_device_k(self) -> int | None:
        """The most entries of a distribution that are listed on the device; None: none are."""
        return None if self._free is None else MAX_DEVICE_K

    def launch(self, batch: Batch) -> InFlight:
        """Start a batch. On CUDA this returns before the device has finished.

        Where more than ``depth`` are launched and not collected, each takes memory of its own.
        Raises IsolationError when the self-test of the batch's rung fails, DeviceError when the
        device does, UsageError when torch's settings are no longer those of the numerics key.
        """
        self._check_settings()
        requests = join_requests([read.requests for read in batch.reads])
        with self._computing(batch.tokens):
            self.selftests.require(self.model, self.shape, batch.tokens)
            layout = batch.layout()
            hidden = self.model.hidden_states(layout, rows=self.shape.rows, graph=self.graphs)
            rows = layout.rows
            flight = InFlight(batch, requests, self._take_head())
            for start in range(0, len(rows), self.shape.rows):
                end = min(start + self.shape.rows, len(rows))
                self._collect_piece(flight)
                self._launch_piece(
                    flight, hidden, rows[start:end], cut_requests(requests, start, end)
                )
        self.counts.forwards += 1
        self.counts.reads += len(batch.reads)
        self.counts.real_tokens += batch.real_tokens
        self.counts.shared_tokens += batch.read_tokens - batch.real_tokens
        self.counts.forward_tokens += batch.tokens
        return flight

    def prove(self) -> None:
        """Run the self-test of forwards of T tokens, unless it passed before.

        Raises IsolationError when it fails, DeviceError when the device does.
        """
        with self._computing(self.shape.tokens):
            self.selftests.require(self.model, self.shape, self.shape.tokens)

    def wait(self, flight: InFlight) -> None:
        """Wait for the device and take in what it computed; the next batch can be launched then.

        Raises DeviceError when the device failed.
        """
        with self._computing(flight.batch.tokens):
            self._collect_piece(flight)
        if flight.head is not None and self._free is not None:
            self._free.append(flight.head)
            flight.head = None

    def results(self, flight: InFlight) -> list[ReadResult]:
        """Return the results of each read of a launched batch, in its order.

        Waits for the device. Raises DeviceError when it failed.
        """
        counts = [len(read.positions) for read in flight.batch.reads]
        return list(split_results(self._finished(flight), flight.requests, counts))

    def collect(self, flight: InFlight) -> list[Reduced]:
        """Return what ``results`` does as arrays, for callers that compare bits."""
        counts = [len(read.positions) for read in flight.batch.reads]
        return list(split_reduced(self._finished(flight), flight.requests, counts))

    def _finished(self, flight: InFlight) -> Reduced:
        """Wait for the device and take the logarithms."""
        self.wait(flight)
        return finish(join_raw(flight.pieces), flight.requests)

    def _take_head(self) -> Head | None:
        """Return a head that no other batch has: the results of two can't meet in one."""
        if self._free is None:
            return None
        return self._free.pop() if self._free else self._new_head()

    def _new_head(self) -> Head:
        from scorer.cuda.head import Head

        return Head(self.model, rows=self.shape.rows, n_ids=self.n_ids)

    def _launch_piece(
        self, flight: InFlight, hidden: torch.Tensor, rows: IntArray, requests: RowRequests
    ) -> None:
        """Start up to R rows; the lm_head sees exactly R, the missing ones repeat row 0."""
        if flight.head is not None:
            flight.head.launch(hidden, rows, requests, graph=self.graphs)
            return
        index = np.zeros(self.shape.rows, dtype=np.int64)
        index[: len(rows)] = rows
        gathered = hidden[torch.from_numpy(index).to(hidden.device)]
        logits = self.model.logits(gathered)[: len(rows)]
        flight.pieces.append(reduce_host(logits.cpu().numpy(), requests, self.n_ids))

    def _collect_piece(self, flight: InFlight) -> None:
        """Take in the piece that is still on the device, if there is one."""
        if flight.head is not None and (piece := flight.head.collect()) is not None:
            flight.pieces.append(piece)

    def _check_settings(self) -> None:
        """Compare torch's settings with those under which the model was loaded."""
        now = settings_fields(self.model.device)
        if now == self._settings:
            return
        changes = ", ".join(
            f"{name} was {self._settings[name]} and is {now[name]}"
            for name in now
            if now[name] != self._settings[name]
        )
        raise UsageError(
            f"settings of torch that may change bits are not what they were when the model was "
            f"loaded ({changes}); set them back, or load the model anew"
        )

    @contextmanager
    def _computing(self, tokens: int) -> Iterator[None]:
        """Compute on the model's device and the reader's stream, in the model's dtype.

        Whatever device, stream and autocast the caller has. Turns what torch and Triton raise when
        the device fails into DeviceError. tokens: of the forward.
        """
        device = self.model.device
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        try:
            with stream, torch.autocast(device.type, enabled=False):
                yield
        except Exception as error:
            fault = self._fault(error, tokens)
            if fault is None:
                raise
            raise fault from error

    def _fault(self, error: Exception, tokens: int) -> DeviceError | None:
        """Return what to say of a device that failed; None for an error of another kind."""
        text = str(error)
        if isinstance(error, _OUT_OF_MEMORY) or _CPU_ALLOCATOR in text:
            needed = self.model.forward_bytes(tokens, self.shape.rows) / 2**30
            return DeviceError(
                f"out of memory in a forward of {tokens} tokens and {self.shape.rows} "
                f"lm_head rows, which needs about {needed:.1f} GiB beside the weights; lower "
                f"--tokens-per-forward (now {self.shape.tokens}) or "
                f"--rows-per-forward (now {self.shape.rows})"
            )
        of_triton = type(error).__module__.partition(".")[0] == "triton"
        if isinstance(error, torch.AcceleratorError) or of_triton or text.startswith(_FAILED):
            return DeviceError(f"{self.model.device} failed in a forward: {error}")
        return None


def choose_reduction(name: ReductionName, device: torch.device) -> ReductionPlace:
    """Resolve ``auto`` to where the model runs. Raises UsageError."""
    if name == "device" and device.type != "cuda":
        raise UsageError("--reduction device needs --device cuda; use --reduction host")
    if name == "auto":
        return "device" if device.type == "cuda" else "host"
    return name
