"""How fast the reduction on the GPU is: ``make bench-reduction``.

Every time is that of one call inside a CUDA graph of several, on several sets of logits, together
larger than the second-level cache; the median of the replays.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorer.bench.instruments import traced
from scorer.cuda.device import DeviceReducer
from scorer.reduction import RowRequests

VOCABULARY, IDS, HIDDEN = 151_936, 151_669, 2560  # Qwen3-4B
TARGETS, TOP = 8, 20
ROWS = (1, 32, 128, 512, 8192)
WORKING_SET = 256 << 20  # bytes; several times the cache
CUDA = torch.device("cuda")
HEADER = (
    "rows  dtype     kind        ours us  targets  GB/s read  of copy  torch us  ratio"
    "  lm_head us  DtoH bytes  copies  waits"
)


def graph_time(calls: Sequence[Callable[[], object]], replays: int = 15) -> float:
    """Microseconds of one call, when all of them are replayed as one graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return elapsed(graph.replay, replays) / len(calls)


def elapsed(work: Callable[[], object], repeats: int = 15) -> float:
    """Microseconds on the device, the median."""
    times: list[float] = []
    for _ in range(repeats + 3):
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[3:])[repeats // 2] * 1000


def copy_bandwidth() -> float:
    """GB/s of a large device-to-device copy, bytes read and bytes written counted."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device=CUDA).fill_(1)
    target = torch.empty_like(source)
    return 2 * source.numel() / elapsed(lambda: target.copy_(source)) / 1000


def make_requests(rows: int, kind: str, top: int) -> RowRequests:
    """TARGETS anywhere and ``top``; labels: the first ids; many: 1000 targets; deep: top 2048."""
    if kind == "labels":
        return RowRequests.of([list(range(TARGETS))] * rows, [top] * rows)
    targets = 1000 if kind == "many" else TARGETS
    ids = torch.randint(IDS, (rows, targets), generator=torch.Generator().manual_seed(0))
    return RowRequests.of(ids.tolist(), [2048 if kind == "deep" and top else top] * rows)


def make_logits(rows: int, dtype: torch.dtype, kind: str, copies: int) -> list[torch.Tensor]:
    """normal: of scale 4; labels: the first ids far above; equal: one value; steps: quarters."""
    sets = []
    for _ in range(copies):
        logits = torch.empty(rows, VOCABULARY, dtype=dtype, device=CUDA)
        if kind == "equal":
            logits.fill_(1.5)
        else:
            for start in range(0, rows, 1024):
                part = logits[start : start + 1024].normal_(0, 4)
                if kind == "steps":
                    part.mul_(4).round_().div_(4)
                if kind == "labels":
                    part[:, :TARGETS] += 20
        sets.append(logits)
    return sets


def counted(work: Callable[[], object]) -> tuple[int, int, int]:
    """Bytes copied to the host, number of copies, number of waits, as the profiler saw them."""
    events: list[dict[str, Any]] = json.loads(traced(work, host=True))["traceEvents"]
    back = [e for e in events if e.get("cat") == "gpu_memcpy" and "DtoH" in e["name"]]
    waits = [
        e
        for e in events
        if e.get("cat") in {"cuda_runtime", "cuda_driver"}
        and "Synchronize" in e["name"]
        and e["name"] != "cudaDeviceSynchronize"  # the profiler's own, at its end
    ]
    return sum(e["args"]["bytes"] for e in back), len(back), len(waits)


def torch_sequence(logits: torch.Tensor, ids: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        logprobs = torch.log_softmax(logits, dim=-1)
        return logprobs.gather(1, ids), logprobs.topk(TOP, dim=-1)

    return run


def lm_head_time(rows: int) -> float:
    hidden = torch.randn(rows, HIDDEN, device=CUDA).bfloat16()
    weight = (torch.randn(VOCABULARY, HIDDEN, device=CUDA) * 0.02).bfloat16().t()
    out = torch.empty(rows, VOCABULARY, device=CUDA)
    return graph_time([lambda: torch.mm(hidden, weight, out_dtype=torch.float32, out=out)] * 2)


def row_of_table(
    rows: int, dtype: torch.dtype, kind: str, copy: float, *, chunks: int | None, lean: bool
) -> str:
    size = rows * VOCABULARY * dtype.itemsize
    sets = make_logits(rows, dtype, kind, min(64, max(1, -(-WORKING_SET // size))))
    reducer = DeviceReducer(CUDA, max_rows=rows, vocab_size=VOCABULARY, n_ids=IDS, chunks=chunks)
    requests = make_requests(rows, kind, 0)
    reducer.reduce(sets[0], requests)
    enqueue = [lambda x=x: reducer.enqueue(x) for x in sets]
    targets_only = graph_time(enqueue)
    requests = make_requests(rows, kind, TOP)
    reducer.reduce(sets[0], requests)
    ours = graph_time(enqueue)
    rate = 2 * size / ours / 1000
    text = (
        f"{rows:5} {str(dtype).removeprefix('torch.'):9} {kind:9} {ours:9.1f} {targets_only:8.1f}"
        f" {rate:9.0f} {rate / copy:8.2f}"
    )
    if lean:
        return text
    sent, copies, waits = counted(lambda: reducer.reduce(sets[0], requests))
    ids = torch.from_numpy(requests.target_ids.reshape(rows, -1)).long().to(CUDA)
    theirs = graph_time([torch_sequence(x, ids) for x in sets[:4]])
    head = lm_head_time(rows)
    return f"{text} {theirs:10.1f} {theirs / ours:6.1f} {head:10.1f} {sent:11} {copies:7} {waits:6}"


def kernel_times(rows: int, dtype: torch.dtype) -> str:
    """Microseconds of each kernel, on its own."""
    [logits] = make_logits(rows, dtype, "normal", 1)
    reducer = DeviceReducer(CUDA, max_rows=rows, vocab_size=VOCABULARY, n_ids=IDS)
    requests = make_requests(rows, "normal", TOP)
    reducer.reduce(logits, requests)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            reducer.enqueue(logits)
        torch.cuda.synchronize()
    parts = [
        f"{event.key} {event.device_time_total / event.count:.1f}"
        for event in profile.key_averages()
        if event.device_time_total > 0
    ]
    return f"{rows} rows {dtype}: " + ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="time each kernel on its own too")
    parser.add_argument("--chunks", action="store_true", help="try other numbers of blocks a row")
    options = parser.parse_args()
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy:.0f} GB/s")
    print(HEADER)
    for rows in ROWS:
        for dtype in (torch.float32, torch.bfloat16):
            print(row_of_table(rows, dtype, "normal", copy, chunks=None, lean=False), flush=True)
    for kind in ("labels", "many", "deep", "steps", "equal"):
        for rows in (128, 8192):
            print(row_of_table(rows, torch.float32, kind, copy, chunks=None, lean=True), flush=True)
    if options.kernels:
        for rows in ROWS:
            for dtype in (torch.float32, torch.bfloat16):
                print(kernel_times(rows, dtype), flush=True)
    if options.chunks:
        for rows in ROWS:
            for chunks in (2, 4, 8, 16, 32, 64):
                if rows * chunks < 1 << 18:
                    line = row_of_table(
                        rows, torch.float32, "normal", copy, chunks=chunks, lean=True
                    )
                    print(f"chunks {chunks:2}: {line}", flush=True)


if __name__ == "__main__":
    main()
