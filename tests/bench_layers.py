"""Where the time of a forward goes: kernels by kind, and the products alone for a bound.

`python -m tests.bench_layers [--shape 4B] [--tokens 8192] [--prompts mix]`: random weights, a
replayed graph, torch's profiler. Shares are of the measured product ceiling, as in `scorer bench`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from scorer.bench import workloads
from scorer.bench.instruments import product_rate, traced
from scorer.bench.sizes import SIZES, layer_parameters
from scorer.packing import Packer
from scorer.shapes import BatchShape
from tests.bench_reads import make_scorer

KINDS = {
    "_attend": "attention",
    "_norm_rotate": "norm and rotation of heads",
    "_norm": "residual and norm",
    "_swiglu": "swiglu",
}


def kind_of(name: str) -> str:
    for part, kind in KINDS.items():
        if part in name:
            return kind
    products = ("gemm", "nvjet", "cutlass", "xmma", "cublas")
    return "products" if any(part in name.lower() for part in products) else "other"


def kernel_times(run: Callable[[], object]) -> Counter[str]:
    """Microseconds by kind of kernel."""
    events: list[dict[str, Any]] = json.loads(traced(run))["traceEvents"]
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "kernel":
            times[kind_of(event["name"])] += event["dur"]
    return times


def clock() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def product_seconds(model: Any, tokens: int, repeats: int) -> float:
    """Seconds of one forward's layer products alone, one after the other in a graph."""
    forward = model._forward
    layer = forward._layers[0]
    weights = (layer.qkv, layer.out, layer.gate, layer.up, layer.down)
    inputs = {
        weight.shape[1]: torch.randn(
            tokens, weight.shape[1], device=model.device, dtype=model.dtype
        )
        for weight in weights
    }

    def products() -> None:
        for each in forward._layers:
            for weight in (each.qkv, each.out, each.gate, each.up, each.down):
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    with torch.inference_mode():
        products()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            products()
        start, end = clock(), clock()
        graph.replay()
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / repeats


def report(shape: str, sizes: Sequence[int], prompts: Any, forwards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scorer = make_scorer(Path(folder), shape)
    model, rows = scorer.reader.model, scorer.reader.shape.rows
    parameters = layer_parameters(SIZES[shape].config())
    for tokens in sizes:
        batch_shape = BatchShape(tokens, rows)
        work = workloads.make(
            prompts, batch_shape, forwards=3, n_ids=4000, max_tokens=40_960, seed=1
        )
        packer = Packer(batch_shape, alone=False, window=2 * tokens, share=False)
        for key, read in enumerate(work.reads):
            packer.add([key], [read])
        batch = packer.pop()
        layout = batch.layout()
        model.hidden_states(layout, rows=rows)
        torch.cuda.synchronize()
        start, end = clock(), clock()
        start.record()
        for _ in range(forwards):
            model.hidden_states(layout, rows=rows)
        end.record()
        torch.cuda.synchronize()
        seconds = float(start.elapsed_time(end)) / 1e3 / forwards
        ceiling = product_rate(model.device, model.dtype)
        bound = product_seconds(model, tokens, 3)
        times = kernel_times(lambda layout=layout: model.hidden_states(layout, rows=rows))  # type: ignore[misc]
        needed = 2 * parameters * tokens / ceiling
        print(
            f"{shape}, {tokens} tokens of {prompts}: {1e3 * seconds:.2f} ms a forward without "
            f"lm_head, {batch.real_tokens / tokens:.3f} full, {tokens / seconds:,.0f} tokens/s, "
            f"{needed / seconds:.3f} of {ceiling / 1e12:.0f} TFLOP/s; the layers' products alone "
            f"{1e3 * bound:.2f} ms, {needed / bound:.3f}"
        )
        total = sum(times.values())
        for kind, time in times.most_common():
            print(f"  {kind:28} {time / 1e3:8.2f} ms  {time / total:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="4B", choices=sorted(SIZES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--prompts", default="60", choices=["60", "170", "mix"])
    parser.add_argument("--forwards", type=int, default=20)
    given = parser.parse_args()
    report(given.shape, given.tokens, given.prompts, given.forwards)


if __name__ == "__main__":
    main()
