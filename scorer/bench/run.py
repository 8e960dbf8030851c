"""`scorer bench`: isolated reads beside plain transformers, in one run, on the same prompts.

All ways of scoring have the same weights, dtype and prompts and take turns, each round in another
order. docs/bench.md says how every figure is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scorer import __version__
from scorer.bench import workloads
from scorer.bench.figures import (
    Ceiling,
    Comparison,
    Figure,
    Report,
    Way,
    rate_ratio,
    share_of_ceiling,
)
from scorer.bench.sizes import SIZES, layer_parameters
from scorer.bench.start import SEED, Started, start
from scorer.bench.workloads import NAMES, ORDERINGS, Orderings, Workload
from scorer.errors import UsageError
from scorer.manifest import spelled
from scorer.shapes import BatchShape, Read

if TYPE_CHECKING:
    import torch

    from scorer.bench.baselines import Run
    from scorer.model import DeviceName, DtypeName
    from scorer.progress import Reporter

Prompts = Literal["60", "170", "mix", "orderings", "all"]
Runner = Callable[[Sequence[int]], "Run"]
"""Scores the reads of a workload that have these indices."""

_ALONE = 100
"""How many reads a round runs one at a time."""
_WARM_FORWARDS = 2
_WARM_ALONE = 5
_PROFILED_FORWARDS = 10
_PROFILED_ALONE = 20


@dataclass(slots=True)
class _Turns:
    """One way of scoring one workload: which of its reads, and what became of each round.

    failure: why there are no more rounds. busy_per_token: seconds in which the GPU ran something,
    over the tokens computed, padding and filler included, while it was profiled.
    """

    way: Way
    indices: Sequence[int]
    tokens: int
    run: Runner
    seconds: list[float] = field(default_factory=list)
    last: Run | None = None
    peak: int | None = None
    failure: str | None = None
    busy_per_token: float | None = None


def run(
    *,
    shape: str | None = None,
    model: str | None = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    prompts: Prompts = "all",
    forwards: int = 50,
    rounds: int = 3,
    orderings: Orderings = ORDERINGS,
    tokens_per_forward: int | None = None,
    rows_per_forward: int | None = None,
    reporter: Reporter,
) -> Report:
    """Time every way of scoring on every kind of prompts asked for.

    shape: a key of SIZES, weights drawn at random; model: a folder or hub id; neither: a shape that
    suits the device. forwards: every timed round has at least this many forwards' worth of real
    tokens, but for the reads that are run one at a time. orderings: what the prompts of that name
    are like; ``all`` leaves them out where nothing can be shared. A baseline that runs out of
    memory is reported as that. Raises UsageError, ModelError, IsolationError, DeviceError.
    """
    if shape is not None and model is not None:
        raise UsageError("--shape draws weights and --model loads them: give one of them")
    if shape is not None and shape not in SIZES:
        raise UsageError(f"--shape must be one of {', '.join(SIZES)}, got {shape!r}")
    started = start(shape, model, device, dtype, tokens_per_forward, rows_per_forward)
    from scorer.bench import instruments

    reader = started.reader
    qwen3 = reader.model
    reporter.say(f"{qwen3.checkpoint.name} on {_name(qwen3.device)}: ready to time")
    ceilings: list[float] = []
    timed: list[tuple[Workload, list[_Turns]]] = []
    every = [name for name in NAMES if name != "orderings" or reader.share]
    if prompts == "orderings" and not reader.share:
        reporter.say("nothing can be shared on this device: orderings are timed apart only")
    for name in every if prompts == "all" else (prompts,):
        workload = workloads.make(
            name,
            reader.shape,
            forwards=forwards,
            n_ids=reader.n_ids,
            max_tokens=qwen3.checkpoint.max_tokens,
            seed=SEED,
            orderings=orderings,
        )
        turns = _turns(started, workload)
        for one in turns:
            _attempt(one, _warm_up(one, workload, reader.shape))
        for place in range(rounds):
            reporter.say(f"{name}: round {place + 1} of {rounds}")
            ceilings.append(instruments.product_rate(qwen3.device, qwen3.dtype))
            first = place % len(turns)
            for one in turns[first:] + turns[:first]:
                _time(one, qwen3.device)
        timed.append((workload, turns))
    if qwen3.device.type == "cuda":
        # Behind everything that is timed: the profiler leaves launches slower than it found them.
        reporter.say("profiling")
        for workload, turns in timed:
            for one in turns:
                _profile(one, workload, reader.shape.tokens)
    ceiling = Ceiling(
        flops_per_second=median(ceilings),
        n=instruments.product_size(qwen3.device),
        samples=tuple(ceilings),
    )
    parameters = layer_parameters(qwen3.checkpoint.config)
    return Report(
        scorer_version=__version__,
        model=spelled(qwen3.checkpoint.name),
        device=_name(qwen3.device),
        dtype=str(qwen3.dtype).removeprefix("torch."),
        layer_parameters=parameters,
        weights_bytes=_bytes(started.plain),
        tokens_per_forward=reader.shape.tokens,
        rows_per_forward=reader.shape.rows,
        forwards=forwards,
        rounds=rounds,
        seed=SEED,
        ceiling=ceiling,
        start_up=started.start_up,
        comparisons=tuple(
            _compared(workload, turns, parameters, ceiling.flops_per_second)
            for workload, turns in timed
        ),
        process_peak_bytes=instruments.process_peak_bytes(),
        numerics_key=reader.numerics_key,
        environment=reader.numerics,
    )


def _turns(started: Started, workload: Workload) -> list[_Turns]:
    from scorer.bench import baselines

    reads, plain, reader = workload.reads, started.plain, started.reader

    def some(indices: Sequence[int]) -> list[Read]:
        return [reads[index] for index in indices]

    runners: dict[Way, Runner] = {
        "one_at_a_time": lambda indices: baselines.one_at_a_time(plain, some(indices)),
        "padded": lambda indices: baselines.padded(plain, some(indices), reader.shape.tokens),
        "packed": lambda indices: baselines.packed(reader, some(indices)),
    }

    def records(indices: Sequence[int]) -> list[int]:
        return [index // workload.together for index in indices]

    if workload.together > 1 and reader.share:
        runners["shared"] = lambda indices: baselines.packed(
            reader, some(indices), records(indices)
        )
    if (scorer := started.scorer) is not None:
        lines = baselines.as_lines(reads)
        runners["scored"] = lambda indices: baselines.scored(
            scorer, [lines[index] for index in indices], records(indices)
        )
    turns = []
    for way, runner in runners.items():
        every = range(len(reads))
        indices = workloads.spread(reads, _ALONE) if way == "one_at_a_time" else every
        turns.append(_Turns(way, indices, sum(len(reads[index]) for index in indices), runner))
    return turns


def _warm_up(one: _Turns, workload: Workload, shape: BatchShape) -> list[int]:
    """Return reads of all lengths and one for each rung: what is done once is done then."""
    if one.way == "one_at_a_time":
        return list(one.indices[:: max(len(one.indices) // _WARM_ALONE, 1)])
    mean = workload.tokens / len(workload.reads)
    some = workloads.spread(workload.reads, round(_WARM_FORWARDS * shape.tokens / mean))
    rungs = {shape.rung(len(read)): index for index, read in enumerate(workload.reads)}
    return sorted({*some, *rungs.values()})


def _attempt(one: _Turns, indices: Sequence[int]) -> Run | None:
    """Run once. A baseline that runs out of memory gets a failure; ours raises DeviceError."""
    import torch

    if one.failure is not None:
        return None
    try:
        return one.run(indices)
    except torch.OutOfMemoryError as error:
        one.failure = f"out of memory: {str(error).splitlines()[0]}"
        one.seconds.clear()
    torch.cuda.empty_cache()  # once the error, and with it the forward's frames, is gone
    return None


def _time(one: _Turns, device: torch.device) -> None:
    from scorer.bench.instruments import PeakMemory, wait

    wait(device)
    memory = PeakMemory(device)
    started = time.perf_counter()
    one.last = _attempt(one, one.indices)
    seconds = time.perf_counter() - started
    if one.last is not None:
        one.seconds.append(seconds)
        one.peak = max(filter(None, (one.peak, memory.bytes())), default=None)


def _profile(one: _Turns, workload: Workload, tokens: int) -> None:
    """Measure how long the GPU is busy with a computed token, on some forwards' worth of reads."""
    from scorer.bench.instruments import kernel_seconds

    if one.failure is not None:
        return
    if one.way == "one_at_a_time":
        some = one.indices[:: max(len(one.indices) // _PROFILED_ALONE, 1)]
    else:
        mean = workload.tokens / len(workload.reads)
        some = one.indices[: round(_PROFILED_FORWARDS * tokens / mean)]
    profiled: list[Run | None] = []
    busy = kernel_seconds(lambda: profiled.append(_attempt(one, some)))
    if profiled[0] is not None:
        one.busy_per_token = busy / profiled[0].forward_tokens


def _compared(
    workload: Workload, turns: Sequence[_Turns], parameters: int, ceiling: float
) -> Comparison:
    by_way = {one.way: one for one in turns}
    packed, shared = by_way["packed"], by_way.get("shared")
    return Comparison(
        prompts=workload.name,
        about=workload.about,
        reads=len(workload.reads),
        tokens=workload.tokens,
        figures=tuple(_figure(one, packed, parameters, ceiling) for one in turns),
        packed_over=_over(packed, [one for one in turns if one.way not in ("packed", "shared")]),
        shared_over={} if shared is None else _over(shared, [o for o in turns if o is not shared]),
    )


def _over(mine: _Turns, others: Sequence[_Turns]) -> dict[Way, float | None]:
    return {
        one.way: rate_ratio(len(mine.indices), mine.seconds, len(one.indices), one.seconds)
        for one in others
    }


def _figure(one: _Turns, packed: _Turns, parameters: int, ceiling: float) -> Figure:
    if one.failure is not None or one.last is None or packed.last is None:
        return Figure(
            way=one.way,
            status="out_of_memory",
            reason=one.failure,
            reads=len(one.indices),
            tokens=one.tokens,
        )
    rate = one.tokens / median(one.seconds)
    computed = one.tokens - one.last.shared_tokens
    expected = packed.last.logprobs[np.asarray(one.indices)]
    busy = one.busy_per_token
    return Figure(
        way=one.way,
        reads=len(one.indices),
        tokens=one.tokens,
        shared_tokens=one.last.shared_tokens,
        forwards=one.last.forwards,
        seconds=tuple(one.seconds),
        reads_per_second=len(one.indices) / median(one.seconds),
        tokens_per_second=rate,
        share_of_ceiling=share_of_ceiling(parameters, rate * computed / one.tokens, ceiling),
        fill=computed / one.last.forward_tokens,
        gpu_busy=busy * one.last.forward_tokens / median(one.seconds) if busy else None,
        gpu_busy_reason=None if busy else _why_no_busy(busy),
        peak_memory_bytes=one.peak,
        largest_difference=float(np.abs(one.last.logprobs - expected).max()),
    )


def _why_no_busy(busy: float | None) -> str:
    return "the model ran on the CPU" if busy is None else "torch's profiler saw no kernels"


def _bytes(plain: Any) -> int:
    """Return the size of a model's weights, a head that is the embedding once."""
    return sum({weight.data_ptr(): weight.nbytes for weight in plain.parameters()}.values())


def _name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
