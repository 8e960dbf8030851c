"""`scorer bench`: what it times is what it says, and its figures follow from the times."""

from __future__ import annotations

import json
import os
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from scorer.bench import baselines, instruments, workloads
from scorer.bench import run as bench
from scorer.bench import start as bench_start
from scorer.bench.figures import rate_ratio, share_of_ceiling
from scorer.bench.sizes import SIZES, layer_parameters, weightless
from scorer.bench.workloads import Orderings
from scorer.errors import DeviceError
from scorer.progress import Reporter
from scorer.shapes import BatchShape, Read
from tests.commands import refused, run
from tests.sharing import share_on_cpu

SMALL = ("--forwards", "2", "--rounds", "2", "--tokens-per-forward", "256")
WAYS = ("one_at_a_time", "padded", "packed")


@pytest.fixture(scope="module")
def started() -> bench_start.Started:
    """The tiny size on the CPU, ready to time."""
    return bench_start.start("tiny", None, "cpu", "float32", 256, 8)


def mixed(started: bench_start.Started, forwards: int = 4) -> list[Read]:
    reader = started.reader
    workload = workloads.make(
        "mix", reader.shape, forwards=forwards, n_ids=reader.n_ids, max_tokens=600, seed=3
    )
    return list(workload.reads)


# sizes


@pytest.mark.parametrize(
    ("name", "billions"),
    # non-embedding parameters as on the model cards of Qwen/Qwen3-<size>
    [("0.6B", 0.44), ("1.7B", 1.4), ("4B", 3.6), ("8B", 6.95), ("14B", 13.2), ("32B", 31.2)],
)
def test_the_layers_have_as_many_parameters_as_published(name: str, billions: float) -> None:
    size = SIZES[name]

    assert layer_parameters(size.config()) / 1e9 == pytest.approx(billions, rel=0.015)
    assert (size.vocabulary, size.head_dim) == (151_936, 128)
    assert size.tied is (name in {"0.6B", "1.7B", "4B"})


def test_layer_parameters_are_those_of_the_model(started: bench_start.Started) -> None:
    matrices = [
        parameter.numel()
        for name, parameter in started.plain.named_parameters()
        if ".layers." in name and parameter.ndim == 2
    ]

    assert sum(matrices) == layer_parameters(started.reader.model.checkpoint.config)


def test_a_size_passes_for_a_checkpoint() -> None:
    checkpoint = weightless("32B")

    assert checkpoint.vocab_size == 151_936
    assert checkpoint.max_tokens == 40_960
    assert checkpoint.weights == ()


# workloads


def test_a_mix_holds_the_tokens_asked_for_and_not_a_read_more() -> None:
    shape = BatchShape(8192, 128)

    workload = workloads.make("mix", shape, forwards=50, n_ids=151_669, max_tokens=40_960, seed=1)

    lengths = np.array([len(read) for read in workload.reads])
    assert workload.tokens >= 50 * 8192 > workload.tokens - lengths[-1]
    assert lengths.min() >= 20
    assert 1000 < lengths.max() <= 1500
    assert 150 < np.median(lengths) < 190
    assert max(int(read.tokens.max()) for read in workload.reads) > 150_000


def test_the_models_limit_bounds_a_mix() -> None:
    workload = workloads.make(
        "mix", BatchShape(256, 8), forwards=20, n_ids=50, max_tokens=100, seed=1
    )

    assert max(len(read) for read in workload.reads) <= 100
    assert max(int(read.tokens.max()) for read in workload.reads) < 50


@pytest.mark.parametrize(
    ("name", "shape", "reads"),
    [
        ("60", BatchShape(8192, 128), 54 * 128),  # R = 128 of the 136 that would fit
        ("170", BatchShape(8192, 128), 51 * 48),
        ("170", BatchShape(100, 4), 30),  # longer than T: one a forward
    ],
)
def test_reads_of_one_length_leave_no_forward_part_empty(
    name: str, shape: BatchShape, reads: int
) -> None:
    workload = workloads.make(name, shape, forwards=50, n_ids=100, max_tokens=4096, seed=1)

    assert len(workload.reads) == reads
    assert {len(read) for read in workload.reads} == {int(name)}
    assert workload.tokens >= 50 * shape.tokens


def test_prompts_are_those_of_the_seed(started: bench_start.Started) -> None:
    first, again = mixed(started), mixed(started)

    assert [read.tokens.tolist() for read in first] == [read.tokens.tolist() for read in again]


def test_a_spread_has_the_lengths_of_all() -> None:
    workload = workloads.make(
        "mix", BatchShape(8192, 128), forwards=20, n_ids=9, max_tokens=4096, seed=1
    )
    indices = workloads.spread(workload.reads, 100)
    lengths = np.array([len(workload.reads[index]) for index in indices])

    assert len(set(indices)) == 100
    assert lengths.mean() == pytest.approx(workload.tokens / len(workload.reads), rel=0.02)
    assert workloads.spread(workload.reads[:3], 100) == sorted(
        range(3), key=lambda index: len(workload.reads[index])
    )


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        (Orderings(), 18),  # 448 tokens with the prefix once, R = 128 allows 32
        (Orderings(reads=10, prefix=64, own=48), 12),  # 544 tokens; R allows 12 of the 15
        (Orderings(reads=2, prefix=4096, own=48), 1),
    ],
)
def test_orderings_fill_forwards_when_each_prefix_is_computed_once(
    asked: Orderings, groups: int
) -> None:
    shape = BatchShape(8192, 128)
    workload = workloads.make(
        "orderings", shape, forwards=5, n_ids=999, max_tokens=9999, seed=1, orderings=asked
    )

    records = len(workload.reads) // asked.reads
    once = records * (asked.prefix + asked.reads * asked.own)
    assert workload.together == asked.reads
    assert records % groups == 0
    assert once >= 5 * 8192
    assert workload.tokens == len(workload.reads) * (asked.prefix + asked.own)
    beginnings = [read.tokens[: asked.prefix].tobytes() for read in workload.reads]
    assert len(set(beginnings)) == records
    for start in range(0, len(beginnings), asked.reads):
        assert len(set(beginnings[start : start + asked.reads])) == 1
    assert len({read.tokens.tobytes() for read in workload.reads}) == len(workload.reads)


# what is timed


def test_padded_batches_are_sorted_and_within_the_budget() -> None:
    lengths = [5, 300, 7, 100, 99, 3, 7, 60]

    batches = baselines.padded_batches(lengths, 200)

    assert batches == [[1], [3, 4], [7, 2, 6], [0, 5]]


def test_all_ways_give_the_same_log_probabilities(started: bench_start.Started) -> None:
    reads = mixed(started)
    assert len({len(read) for read in reads}) > 3

    alone = baselines.one_at_a_time(started.plain, reads)
    padded = baselines.padded(started.plain, reads, 256)
    packed = baselines.packed(started.reader, reads)

    assert np.abs(packed.logprobs - alone.logprobs).max() < 1e-5
    assert np.abs(packed.logprobs - padded.logprobs).max() < 1e-5
    assert np.ptp(packed.logprobs) > 0.1  # they differ from read to read, so a mix-up would show
    tokens = sum(len(read) for read in reads)
    assert (alone.forwards, alone.forward_tokens) == (len(reads), tokens)
    assert padded.forward_tokens > tokens
    assert packed.forward_tokens > tokens


def test_sharing_is_timed_beside_reads_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    share_on_cpu(monkeypatch)
    command = ("bench", "--shape", "tiny", "--device", "cpu", "--prompts", "orderings")
    sizes = ("--orderings", "3", "--prefix", "40", "--own", "7")
    picture = tmp_path / "rates.svg"
    small = ("--forwards", "1", "--rounds", "1", "--tokens-per-forward", "128")
    done = run(*command, *sizes, *small, "--json", "--plot", picture)

    assert done.code == 0, done.err
    report = json.loads(done.out)
    check_figures(report)
    (comparison,) = report["comparisons"]
    assert comparison["about"] == "3 orderings of 40 shared and 7 own tokens"
    figures = {figure["way"]: figure for figure in comparison["figures"]}
    assert list(figures) == [*WAYS, "shared"]
    packed, shared = figures["packed"], figures["shared"]
    assert shared["tokens"] == packed["tokens"] == comparison["tokens"]
    assert shared["shared_tokens"] == comparison["reads"] // 3 * 2 * 40
    assert shared["forwards"] < packed["forwards"]
    assert shared["largest_difference"] == 0
    assert comparison["shared_over"]["packed"] == pytest.approx(
        shared["reads_per_second"] / packed["reads_per_second"]
    )
    assert set(comparison["shared_over"]) == set(WAYS)
    assert set(comparison["packed_over"]) == {"one_at_a_time", "padded"}
    assert "× packed)" in picture.read_text(encoding="utf-8")

    table = " ".join(run(*command, *sizes, *small, "-q").out.decode().split())
    assert re.search(
        r"each prefix computed once: .*\d × packed isolated reads; the same bits", table
    )


def test_where_nothing_can_be_shared_orderings_are_timed_apart() -> None:
    command = ("bench", "--shape", "tiny", "--device", "cpu", "--prompts", "orderings")
    done = run(*command, "--forwards", "1", "--rounds", "1", "--json")

    assert done.code == 0
    assert "nothing can be shared on this device" in done.err
    (comparison,) = json.loads(done.out)["comparisons"]
    assert [figure["way"] for figure in comparison["figures"]] == list(WAYS)
    assert comparison["shared_over"] == {}


def test_orderings_are_scored_as_compare_asks_them(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    started = bench_start.start(None, str(tiny_model), "cpu", "float32", 128, 8)
    asked = Orderings(reads=3, prefix=20, own=5)
    workload = workloads.make(
        "orderings",
        BatchShape(128, 8),
        forwards=1,
        n_ids=200,
        max_tokens=512,
        seed=1,
        orderings=asked,
    )
    assert started.scorer is not None
    records = [index // 3 for index in range(len(workload.reads))]
    lines = baselines.as_lines(workload.reads)

    scored = baselines.scored(started.scorer, lines, records)
    apart = baselines.packed(started.reader, workload.reads)
    shared = baselines.packed(started.reader, workload.reads, records)

    assert scored.shared_tokens == shared.shared_tokens == max(records, default=0) * 40 + 40
    assert apart.shared_tokens == 0
    assert scored.logprobs.tobytes() == shared.logprobs.tobytes() == apart.logprobs.tobytes()


def test_a_line_of_input_is_the_read(tiny_model: Path) -> None:
    started = bench_start.start(None, str(tiny_model), "cpu", "float32", 128, 8)
    reads = workloads.make(
        "60", started.reader.shape, forwards=3, n_ids=200, max_tokens=512, seed=1
    ).reads
    assert started.scorer is not None

    scored = baselines.scored(started.scorer, baselines.as_lines(reads))
    packed = baselines.packed(started.reader, reads)

    assert scored.logprobs.tobytes() == packed.logprobs.tobytes()
    assert scored.forwards == packed.forwards


def test_a_line_that_cant_be_scored_is_no_figure(tiny_model: Path) -> None:
    started = bench_start.start(None, str(tiny_model), "cpu", "float32", 128, 8)
    assert started.scorer is not None

    with pytest.raises(ValueError, match="line 1 can't be scored"):
        baselines.scored(started.scorer, [b'{"prompt_token_ids": [], "targets": [1]}'])


# instruments


def test_overlapping_spans_count_once() -> None:
    assert instruments.covered([(5, 7), (0, 2), (1, 3), (1, 2)]) == 5
    assert instruments.covered([]) == 0


def test_busy_time_is_of_kernels_and_copies() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "a", "ts": 100, "dur": 50.5, "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "b", "ts": 120, "dur": 40},
        {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 0, "dur": 1000},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]

    assert instruments.busy_seconds(json.dumps({"traceEvents": events}).encode()) == 60e-6


def test_a_forward_part_empty_keeps_the_gpu_as_busy(
    started: bench_start.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that nearly fill a forward: a profiled run's last forward holds hardly any."""
    reader = started.reader
    workload = workloads.make(
        "60", reader.shape, forwards=50, n_ids=reader.n_ids, max_tokens=600, seed=3
    )

    forwards: list[int] = []

    def pretended(indices: Sequence[int]) -> baselines.Run:
        forwards.append(-(-len(indices) // 4))  # 4 reads of 60 tokens in 256
        return baselines.Run(np.zeros((len(indices), 1)), forwards[-1], forwards[-1] * 256)

    def kernels(run: Callable[[], object]) -> float:
        run()
        return 0.5 * forwards[-1]

    one = bench._Turns("packed", range(len(workload.reads)), workload.tokens, pretended)
    one.last = pretended(one.indices)
    one.seconds = [float(one.last.forwards)]  # a second each, half of it busy
    monkeypatch.setattr(instruments, "kernel_seconds", kernels)
    bench._profile(one, workload, 256)

    assert bench._figure(one, one, 1, 1.0).gpu_busy == pytest.approx(0.5, rel=1e-9)


def test_a_trace_of_torch_without_kernels_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.zeros(9).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = (tmp_path / "trace.json").read_bytes()

    assert b"aten::sum" in trace
    assert instruments.busy_seconds(trace) == 0.0


def test_the_process_ages_as_the_clock_goes() -> None:
    before, started = instruments.process_age(), time.perf_counter()
    time.sleep(0.05)
    after, passed = instruments.process_age(), time.perf_counter() - started

    assert before is not None
    assert after is not None
    assert before > 0.5  # torch alone took as long
    assert after - before == pytest.approx(passed, abs=0.02)


def test_a_product_takes_time() -> None:
    rate = instruments.product_rate(torch.device("cpu"), torch.float32)

    assert 1e8 < rate < 1e14


# figures


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    # The machine slowed down fourfold after the first round, for both.
    assert rate_ratio(100, [1.0, 4.0, 4.0], 10, [0.2, 0.8, 0.8]) == pytest.approx(2.0)
    assert rate_ratio(100, [1.0], 10, []) is None


def test_the_share_of_the_ceiling() -> None:
    # 3.6e9 parameters at 77,000 tokens/s are 554 of 770 TFLOP/s.
    assert share_of_ceiling(3_600_000_000, 77_000, 770e12) == pytest.approx(0.72)


def test_ways_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for way in WAYS:
        monkeypatch.setattr(baselines, way, _noting(way, getattr(baselines, way), calls))

    report = bench.run(
        shape="tiny", device="cpu", prompts="60", forwards=1, rounds=3, reporter=Reporter(True)
    )

    start, warm = ["packed"], list(WAYS)
    first, second, third = list(WAYS), ["padded", "packed", WAYS[0]], ["packed", *WAYS[:2]]
    assert calls == [*start, *warm, *first, *second, *third]
    assert len(report.ceiling.samples) == 3


def _noting(way: str, function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        calls.append(way)
        return function(*arguments)

    return noted


def test_a_baseline_out_of_memory_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def hungry(_plain: object, reads: Sequence[Read], _budget: int) -> baselines.Run:
        rounds.append(len(reads))
        if len(rounds) < 3:  # the warm-up and the first round still fit
            return baselines.Run(np.zeros((len(reads), 2)), 1, 1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    monkeypatch.setattr(baselines, "padded", hungry)

    done = run("bench", "--device", "cpu", "--prompts", "60", "--rounds", "4", *SMALL[:2], "--json")

    assert done.code == 0
    (comparison,) = json.loads(done.out)["comparisons"]
    alone, padded, packed = comparison["figures"]
    assert padded["status"] == "out_of_memory"
    assert padded["reason"] == "out of memory: CUDA out of memory. Tried to allocate 9 GiB."
    assert padded["reads_per_second"] is None
    assert padded["seconds"] == []
    assert len(rounds) == 3
    assert alone["status"] == packed["status"] == "ok"
    assert comparison["packed_over"]["padded"] is None
    assert comparison["packed_over"]["one_at_a_time"] > 0


def test_a_baseline_out_of_memory_while_profiled_is_a_row(
    started: bench_start.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = started.reader
    workload = workloads.make(
        "60", reader.shape, forwards=2, n_ids=reader.n_ids, max_tokens=600, seed=3
    )
    fits = baselines.Run(np.zeros((len(workload.reads), 1)), 1, 256)

    def hungry(_: Sequence[int]) -> baselines.Run:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    def kernels(run: Callable[[], object]) -> float:
        run()
        return 0.5

    every = range(len(workload.reads))
    padded = bench._Turns("padded", every, workload.tokens, hungry, [1.0], fits)
    packed = bench._Turns("packed", every, workload.tokens, lambda _: fits, [1.0], fits)
    monkeypatch.setattr(instruments, "kernel_seconds", kernels)
    for one in (padded, packed):
        bench._profile(one, workload, 256)

    row, own = bench._compared(workload, [padded, packed], 1, 1.0).figures
    assert (row.way, row.status) == ("padded", "out_of_memory")
    assert row.reason == "out of memory: CUDA out of memory. Tried to allocate 9 GiB."
    assert (row.seconds, row.gpu_busy) == ((), None)
    assert (own.status, own.gpu_busy) == ("ok", 0.5)


def test_our_own_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> baselines.Run:
        raise DeviceError("out of memory in a forward")

    monkeypatch.setattr(baselines, "packed", faulty)

    refused(run("bench", "--device", "cpu", "--quiet"), "out of memory in a forward", code=4)


# the command


def check_figures(report: dict[str, Any]) -> None:
    """Assert what holds for every report: figures follow from times."""
    for comparison in report["comparisons"]:
        for figure in comparison["figures"]:
            middle = median(figure["seconds"])
            rate = figure["tokens"] / middle
            computed = figure["tokens"] - figure["shared_tokens"]
            work = 2 * report["layer_parameters"] * computed / middle
            assert len(figure["seconds"]) == report["rounds"]
            assert figure["reads_per_second"] == pytest.approx(figure["reads"] / middle)
            assert figure["tokens_per_second"] == pytest.approx(rate)
            assert figure["share_of_ceiling"] == pytest.approx(
                work / report["ceiling"]["flops_per_second"]
            )
            assert 0 < figure["fill"] <= 1
            assert (figure["shared_tokens"] > 0) == (
                figure["way"] in {"shared", "scored"} and bool(comparison["shared_over"])
            )
            if figure["way"] in {"packed", "shared", "scored"}:
                assert figure["forwards"] >= report["forwards"]
                assert computed >= report["forwards"] * report["tokens_per_forward"]
    assert report["environment"]["tokens_per_forward"] == report["tokens_per_forward"]
    assert report["start_up"]["seconds"] > report["start_up"]["our_seconds"] > 0
    assert sum(phase["seconds"] for phase in report["start_up"]["phases"]) == pytest.approx(
        report["start_up"]["seconds"]
    )


def test_one_json_line_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "rates.svg"

    done = run("bench", "--shape", "tiny", "--device", "cpu", *SMALL, "--json", "--plot", picture)

    assert done.code == 0, done.err
    assert done.out.count(b"\n") == 1
    report = json.loads(done.out)
    check_figures(report)
    assert [one["prompts"] for one in report["comparisons"]] == ["60", "170", "mix"]
    for comparison in report["comparisons"]:
        assert [figure["way"] for figure in comparison["figures"]] == list(WAYS)
        for figure in comparison["figures"]:
            assert figure["gpu_busy"] is None
            assert figure["gpu_busy_reason"] == "the model ran on the CPU"
            assert figure["largest_difference"] < 1e-5
    assert report["model"] == "random tiny"
    assert report["weights_bytes"] == pytest.approx(
        4 * (4096 * 128 + report["layer_parameters"]), rel=0.01
    )
    assert "mix: round 2 of 2" in done.err
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert len(root.findall("{*}rect")) == 1 + 9
    assert "packed: " in picture.read_text(encoding="utf-8")


def test_a_table_for_people(tiny_model: Path) -> None:
    command = ("bench", "--model", tiny_model, "--device", "cpu", "--prompts", "mix", "--quiet")
    done = run(*command, "--tokens-per-forward", "256", "--forwards", "1", "--rounds", "1")

    assert done.code == 0, done.err
    assert done.err == ""
    text = done.out.decode()
    for words in (
        "transformers, one at a time",
        "transformers, sorted padded batches",
        "packed isolated reads, lines to rows",
        "lognormal mix of 20 to 512 tokens",
        "1024³ products",
        "the model ran on the CPU",
        "from process to first score",
        "slowest round took at most 1.00 ×",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "4B", "--model", "x"), "give one of them"),
        (("--shape", "7B"), "must be one of tiny, 0.6B, 1.7B, 4B, 8B, 14B, 32B, got '7B'"),
        (("--plot", "rates.png"), "ends in .svg"),
        (("--plot", "no/such/rates.svg"), "no such folder"),
        (("--rounds", "0"), "--rounds"),
        (("--orderings", "1"), "--orderings"),
        (
            ("--device", "cpu", "--prompts", "orderings", "--prefix", "500", "-q"),
            "--prefix 500 and --own 48 are 548 tokens together, more than the 512 that a forward",
        ),
    ],
)
def test_what_cant_be_run_is_one_line(options: tuple[str, ...], message: str) -> None:
    refused(run("bench", *options), message)


@pytest.mark.gpu
@pytest.mark.parametrize("prompts", ["60", "mix", "orderings"])
def test_on_a_gpu_busy_time_and_memory_are_measured(prompts: str) -> None:
    command = ("bench", "--shape", "0.6B", "--device", "cuda", "--prompts", prompts)
    done = run(*command, "--forwards", "3", "--rounds", "1", "--json")

    assert done.code == 0, done.err
    report = json.loads(done.out)
    check_figures(report)
    (comparison,) = report["comparisons"]
    for figure in comparison["figures"]:
        # Kernels are timed apart from the clock, so that noise may take the share past 1; by how
        # much, nobody can say where other tests use the GPU at the same time.
        assert 0.01 < figure["gpu_busy"] < (inf if "PYTEST_XDIST_WORKER" in os.environ else 1.1)
        assert figure["peak_memory_bytes"] > report["weights_bytes"]
        assert figure["largest_difference"] < 0.2
    assert comparison["packed_over"]["one_at_a_time"] > 2
    if prompts == "orderings":
        (shared,) = (one for one in comparison["figures"] if one["way"] == "shared")
        assert shared["largest_difference"] == 0
        assert comparison["shared_over"]["packed"] > 1
