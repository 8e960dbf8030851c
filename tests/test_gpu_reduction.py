"""The kernels give the host's bits, whatever the launch geometry, and keep to their budget."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from scorer.bench.instruments import traced
from scorer.cuda import device as device_module
from scorer.cuda.device import DeviceReducer
from scorer.cuda.reduction_plan import MAX_DEVICE_K
from scorer.errors import DeviceError
from scorer.reduction import RawReduction, RowRequests, reduce_host
from tests.make_reduction_fixtures import device_results, to_torch
from tests.reduction_cases import (
    KINDS,
    QWEN3_IDS,
    QWEN3_VOCABULARY,
    Case,
    ask,
    bell,
    fixture_cases,
    narrow,
    rows_of,
)

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EVERY = list(KINDS)


def assert_same_bits(got: RawReduction, expected: RawReduction) -> None:
    for field in fields(expected):
        a, b = getattr(got, field.name), getattr(expected, field.name)
        assert a.dtype == b.dtype, field.name
        assert a.shape == b.shape, field.name
        # Bytes, so that NaN payloads and the sign of zero count.
        width = a.dtype.itemsize
        same = (a.view(np.uint8) == b.view(np.uint8)).reshape(-1, width).all(axis=1)
        assert same.all(), (
            f"{field.name}: {np.count_nonzero(~same)} of {same.size} differ, first at "
            f"{np.argmin(same)}: {a[np.argmin(same)]!r}, expected {b[np.argmin(same)]!r}"
        )


def on_host(case: Case) -> RawReduction:
    return reduce_host(case.widened(), case.requests, case.n_ids)


def make_case(
    kinds: list[str], dtype: str, size: int, seed: int, *, targets: int, top: int, n_ids: int
) -> Case:
    logits = narrow(rows_of(kinds, seed, size), dtype)
    return Case("", dtype, logits, ask(seed, len(kinds), n_ids, targets, top), n_ids)


def reducer_for(case: Case, *, chunks: int | None = None) -> DeviceReducer:
    rows, size = case.logits.shape
    return DeviceReducer(CUDA, max_rows=rows, vocab_size=size, n_ids=case.n_ids, chunks=chunks)


@pytest.mark.parametrize("case", fixture_cases(), ids=lambda case: case.name)
def test_fixtures(case: Case) -> None:
    assert_same_bits(device_results(case, CUDA), on_host(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 31, 32, 33, 127, 1031, 4096, 4099, 10007])
def test_every_kind_of_row_at_many_sizes(size: int, dtype: str) -> None:
    for seed in range(4):
        n_ids = max(1, size - seed * size // 7)
        case = make_case(
            EVERY, dtype, size, 31 * seed, targets=(8, 4, 40, 1500)[seed], top=500, n_ids=n_ids
        )
        assert_same_bits(
            reducer_for(case).reduce(to_torch(case, CUDA), case.requests).raw, on_host(case)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [QWEN3_IDS, QWEN3_VOCABULARY, 151_937])
def test_every_kind_of_row_at_the_size_of_a_vocabulary(size: int, dtype: str) -> None:
    case = make_case(EVERY, dtype, size, size, targets=8, top=40, n_ids=QWEN3_IDS)

    assert_same_bits(
        reducer_for(case).reduce(to_torch(case, CUDA), case.requests).raw, on_host(case)
    )


def test_a_thousand_rows_of_one_batch() -> None:
    kinds = [EVERY[i % len(EVERY)] for i in range(1024)]
    case = make_case(kinds, "bfloat16", 3001, 77, targets=12, top=64, n_ids=2999)

    assert_same_bits(
        reducer_for(case).reduce(to_torch(case, CUDA), case.requests).raw, on_host(case)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_launch_geometry_moves_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(EVERY, dtype, 20_011, 5, targets=1100, top=2048, n_ids=20_000)
    logits = to_torch(case, CUDA)
    expected = on_host(case)
    for chunks in (1, 2, 4, 8, 16, 32, 64):
        assert_same_bits(
            reducer_for(case, chunks=chunks).reduce(logits, case.requests).raw, expected
        )
    for multiprocessors in (1, 3, 1000):
        reducer = reducer_for(case)
        monkeypatch.setattr(reducer, "_multiprocessors", multiprocessors)
        assert_same_bits(reducer.reduce(logits, case.requests).raw, expected)


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_may_begin_at_any_address(dtype: str, offset: int) -> None:
    case = make_case(EVERY, dtype, 1003, 9, targets=8, top=50, n_ids=1003)
    aligned = to_torch(case, CUDA)
    memory = torch.full((aligned.numel() + 16,), float("nan"), dtype=aligned.dtype, device=CUDA)
    logits = memory[offset : offset + aligned.numel()].view(aligned.shape)
    logits.copy_(aligned)

    assert_same_bits(reducer_for(case).reduce(logits, case.requests).raw, on_host(case))


def test_more_elements_than_32_bits_address() -> None:
    rows = 14_400  # times V is above 2^31
    requests = ask(3, rows, QWEN3_IDS, 8, 20)
    logits = torch.empty(rows, QWEN3_VOCABULARY, dtype=torch.bfloat16, device=CUDA)
    generator = torch.Generator(CUDA).manual_seed(0)
    for start in range(0, rows, 1600):
        logits[start : start + 1600].normal_(0, 4, generator=generator)
    reducer = DeviceReducer(CUDA, max_rows=rows, vocab_size=QWEN3_VOCABULARY, n_ids=QWEN3_IDS)
    got = reducer.reduce(logits, requests).raw
    some = [0, 1, 7067, 7068, 14_133, 14_134, 14_135, 14_399]
    offsets = requests.target_offsets
    expected = reduce_host(
        logits[some].float().cpu().numpy(),
        RowRequests.of(
            [requests.target_ids[offsets[i] : offsets[i + 1]].tolist() for i in some],
            requests.top_k[some].tolist(),
        ),
        QWEN3_IDS,
    )
    targets = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in some])
    tops = np.concatenate([np.arange(got.top_offsets[i], got.top_offsets[i + 1]) for i in some])
    chosen = RawReduction(
        nonfinite=got.nonfinite[some],
        max=got.max[some],
        sum_hi=got.sum_hi[some],
        sum_lo=got.sum_lo[some],
        chosen_id=got.chosen_id[some],
        chosen_logit=got.chosen_logit[some],
        target_logit=got.target_logit[targets],
        target_rank=got.target_rank[targets],
        top_id=got.top_id[tops],
        top_logit=got.top_logit[tops],
        top_offsets=expected.top_offsets,
    )
    assert_same_bits(chosen, expected)


def test_k_beyond_the_device_goes_to_the_host_and_says_so() -> None:
    kinds = ["scale 1", "steps", "scale 5", "holding NaN"]
    logits = narrow(rows_of(kinds, 1, 5003), "bfloat16")
    k = [MAX_DEVICE_K + 1, 20, 5003, 4000]
    requests = RowRequests.of([[1, 2], [], [3], [4]], k)
    case = Case("", "bfloat16", logits, requests, 5000)
    result = reducer_for(case).reduce(to_torch(case, CUDA), requests)

    assert result.host_rows == (0, 2, 3)
    assert_same_bits(result.raw, on_host(case))


def test_k_beyond_the_device_but_not_beyond_the_ids_stays() -> None:
    case = Case("", "float32", rows_of(["scale 1"], 1, 999), RowRequests.of([[]], [5000]), 900)
    result = reducer_for(case).reduce(to_torch(case, CUDA), case.requests)

    assert result.host_rows == ()
    assert_same_bits(result.raw, on_host(case))


def test_what_is_asked_for_moves_no_value() -> None:
    logits = rows_of(["scale 5"] * 3, 2, QWEN3_VOCABULARY)
    alone = Case("", "float32", logits, RowRequests.of([[11], [12], [13]], [0, 0, 0]), QWEN3_IDS)
    much = RowRequests.of([[11, *range(2000)], [12, 1, 2], [13]], [2048, 0, 100])
    reducer = reducer_for(alone)
    device_logits = to_torch(alone, CUDA)
    first = reducer.reduce(device_logits, alone.requests).raw
    second = reducer.reduce(device_logits, much).raw

    for name in ("max", "sum_hi", "sum_lo", "chosen_id", "chosen_logit"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    places = much.target_offsets[:-1]
    np.testing.assert_array_equal(first.target_logit, second.target_logit[places])
    np.testing.assert_array_equal(first.target_rank, second.target_rank[places])


def test_a_graph_serves_other_requests_and_other_logits() -> None:
    first = make_case(EVERY, "float32", 9001, 1, targets=20, top=60, n_ids=9000)
    second = make_case(EVERY[::-1], "float32", 9001, 2, targets=8, top=30, n_ids=9000)
    fewer = RowRequests.of([[5, 6]], [7])
    reducer = reducer_for(first)
    logits = to_torch(first, CUDA)
    eager = reducer.reduce(logits, first.requests).raw
    generation = reducer.generation
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        reducer.enqueue(logits)

    def replay(requests: RowRequests) -> RawReduction:
        reducer.stage(requests)
        graph.replay()
        reducer.download()
        return reducer.collect(logits).raw

    assert_same_bits(replay(first.requests), eager)
    logits.copy_(to_torch(second, CUDA))
    assert_same_bits(replay(second.requests), on_host(second))
    short = Case("", "float32", second.logits[:1], fewer, 9000)
    assert_same_bits(replay(fewer), on_host(short))
    assert reducer.generation == generation


def test_requests_that_outgrow_a_buffer_replace_it() -> None:
    case = make_case(["scale 1"] * 2, "float32", 9001, 1, targets=4, top=4, n_ids=9001)
    reducer = reducer_for(case)
    logits = to_torch(case, CUDA)
    reducer.reduce(logits, case.requests)
    assert reducer.generation == 0
    large = RowRequests.of([list(range(9001)), [3]], [2048, 2048])

    got = reducer.reduce(logits, large).raw

    assert reducer.generation == 1
    assert_same_bits(got, reduce_host(case.logits, large, 9001))


def test_another_stream() -> None:
    case = make_case(EVERY, "float32", 5003, 4, targets=8, top=20, n_ids=5003)
    logits = to_torch(case, CUDA)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = reducer_for(case).reduce(logits, case.requests).raw

    assert_same_bits(got, on_host(case))


def test_one_copy_back_and_one_synchronisation() -> None:
    rows, targets, k = 128, 8, 20
    logits = torch.randn(rows, QWEN3_VOCABULARY, device=CUDA)
    requests = RowRequests.of([list(range(targets))] * rows, [k] * rows)
    reducer = DeviceReducer(CUDA, max_rows=rows, vocab_size=QWEN3_VOCABULARY, n_ids=QWEN3_IDS)
    reducer.reduce(logits, requests)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own
        trace = traced(lambda: reducer.reduce(logits, requests), host=True)
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]

    copies = [e for e in events if e.get("cat") == "gpu_memcpy"]
    back = [e for e in copies if "DtoH" in e["name"]]
    assert [e["args"]["bytes"] for e in back] == [rows * (32 + 8 * (targets + k))]
    assert back[0]["args"]["bytes"] <= rows * 16 * (k + targets + 4)
    assert len(copies) == 2  # the other one uploads the plan
    waits = [
        e["name"]
        for e in events
        if e.get("cat") in {"cuda_runtime", "cuda_driver"} and "Synchronize" in e["name"]
    ]
    # The profiler itself waits for the device at its end.
    # The one wait is for the download's own event, so that later launches aren't waited for.
    assert [name for name in waits if name != "cudaDeviceSynchronize"] == ["cudaEventSynchronize"]


def test_bad_logits_are_refused() -> None:
    reducer = DeviceReducer(CUDA, max_rows=4, vocab_size=100, n_ids=90)
    requests = RowRequests.of([[1], [2]], [3, 4])
    good = torch.zeros(2, 100, device=CUDA)
    for bad, message in (
        (good.double(), "one of torch.float32, torch.bfloat16, torch.float16, got torch.float64"),
        (good[:, :99], r"\[rows, 100\], got shape \(2, 99\)"),
        (good[0], r"\[rows, 100\], got shape \(100,\)"),
        (torch.zeros(5, 100, device=CUDA), "at most max_rows = 4 rows, got 5"),
        (good.cpu(), "on cuda:0, got cpu"),
        (torch.zeros(100, 2, device=CUDA).t(), r"contiguous, got .* strides \(1, 2\)"),
        (torch.zeros(3, 100, device=CUDA), "3 rows, the requests 2"),
    ):
        with pytest.raises(ValueError, match=message):
            reducer.reduce(bad, requests)
    with pytest.raises(ValueError, match=r"target ids must be from 0 to n_ids - 1 = 89, got 90"):
        reducer.reduce(good, RowRequests.of([[90], []], [0, 0]))
    reducer.reduce(good, requests)


def test_capturing_before_the_first_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device_module._compile.cache_clear()
    reducer = DeviceReducer(CUDA, max_rows=1, vocab_size=100, n_ids=90)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    with pytest.raises(RuntimeError, match="must run once before they are captured"):
        reducer.enqueue(torch.zeros(1, 100, device=CUDA))


def test_a_device_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "MINIMUM_CAPABILITY", (99, 0))

    with pytest.raises(DeviceError, match=r"capability 99\.0, .*; use --reduction host"):
        DeviceReducer(CUDA, max_rows=1, vocab_size=10, n_ids=10)


def test_kernels_that_do_not_compile_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device_module._compile.cache_clear()
    monkeypatch.setattr(device_module, "full_source", lambda *_: "no kernel at all")
    reducer = DeviceReducer(CUDA, max_rows=1, vocab_size=10, n_ids=10)

    with pytest.raises(DeviceError, match="use --reduction host"):
        reducer.reduce(torch.zeros(1, 10, device=CUDA), RowRequests.of([[]], [1]))
    device_module._compile.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_small_batch_that_takes_every_path(dtype: str) -> None:
    """Run under compute-sanitizer: few kernels, every branch of each."""
    kinds = ["scale 1", "scale 5", "steps", "all equal", "holding NaN", "few values", "all -inf"]
    logits = narrow(rows_of(kinds, 1, 5003), dtype)
    counts = (3, 8, 1100, 9, 20, 0, 2)
    targets = [[7 * i % 5000 for i in range(count)] for count in counts]
    requests = RowRequests.of(targets, [0, 20, 2048, 1, 5, 9, 0])
    case = Case("", dtype, logits, requests, 5000)
    for chunks in (4, 8, 64):
        got = reducer_for(case, chunks=chunks).reduce(to_torch(case, CUDA), requests).raw
        assert_same_bits(got, on_host(case))


def test_random_rows_by_the_thousand() -> None:
    """Normal logits as a model gives them, host reference on each row."""
    for seed in range(8):
        rows = np.stack([bell(seed * 100 + i, 32_003) * np.float32(3) for i in range(128)])
        for dtype in DTYPES:
            requests = ask(seed, 128, 32_000, 10, 30)
            case = Case("", dtype, narrow(rows, dtype), requests, 32_000)
            got = reducer_for(case).reduce(to_torch(case, CUDA), requests).raw
            assert_same_bits(got, on_host(case))
