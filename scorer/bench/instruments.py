"""What a benchmark measures with: the matrix-product ceiling, kernel time, memory, process age."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def product_size(device: torch.device) -> int:
    """Return n of the n × n matrices whose product is the ceiling."""
    return 8192 if device.type == "cuda" else 1024


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second (2 n³ a product) of a large square matrix product, once.

    Random normal elements: with zeros a GPU draws less power and clocks higher than it ever will.
    """
    n = product_size(device)
    repeats = 100 if device.type == "cuda" else 3
    left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    for _ in range(max(repeats // 10, 1)):
        torch.mm(left, right, out=out)
    wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        torch.mm(left, right, out=out)
    wait(device)
    return 2 * n**3 * repeats / (time.perf_counter() - started)


def wait(device: torch.device) -> None:
    """Return when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wake(device: torch.device) -> None:
    """Do the first thing on a device, which is what takes its context so long."""
    torch.zeros(1, device=device)
    wait(device)


class PeakMemory:
    """The most bytes that torch had allocated on the device since this was made.

    ``bytes()`` is None on the CPU, where torch keeps no count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> int | None:
        """Return the peak, weights included."""
        if self._device.type != "cuda":
            return None
        return int(torch.cuda.max_memory_allocated(self._device))


def process_peak_bytes() -> int:
    """Return the most memory that this process had resident, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def process_age() -> float | None:
    """Return the seconds since this process was started; None where the system doesn't say."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22, starttime
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def traced(run: Callable[[], object], *, host: bool = False) -> bytes:
    """Return what the GPU did during ``run``, by torch's profiler, as JSON in Chrome's format.

    host: also what the host called.
    """
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its marks of start and end go to stderr
    activities = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if host else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return trace.read_bytes()


def kernel_seconds(run: Callable[[], object]) -> float:
    """Return how long the GPU was busy during ``run``, by torch's profiler; 0.0 if it saw nothing.

    The profiler slows the host's launches down but not the kernels, so this is a time of kernels,
    to be set against a wall clock taken without it.
    """
    return busy_seconds(traced(run))


class _Event(msgspec.Struct, gc=False):
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's own name


def busy_seconds(trace: bytes) -> float:
    """Return the time in which at least one kernel or copy ran, of a trace in Chrome's format."""
    events = msgspec.json.decode(trace, type=_Trace).traceEvents
    spans = ((one.ts, one.ts + one.dur) for one in events if one.cat in _KERNELS)
    return covered(spans) / 1e6  # microseconds there


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
