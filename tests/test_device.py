"""What can be held without a GPU: the kernels compile, the layout fits, the GPU's bits are ours."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from scorer.cuda import device as device_module
from scorer.cuda.device import (
    COMPILE_OPTIONS,
    KERNELS,
    SOURCES,
    DeviceReducer,
    default_chunks,
    full_source,
    source,
    source_sha256,
    sources_sha256,
)
from scorer.cuda.reduction_plan import (
    ENTRY_RESULT,
    HEADER_WORDS,
    MAX_DEVICE_K,
    ROW_RESULT,
    TARGET_RESULT,
    insert_host_rows,
    make_plan,
    read_results,
)
from scorer.errors import DeviceError
from scorer.reduction import RawReduction, RowRequests, reduce_host
from tests import nvrtc
from tests.reduction_cases import Case, fixture_cases

FIXTURES = Path(__file__).parent / "data" / "reduction_fixtures.npz"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("dtype", "architecture"),
    [*((dtype, "sm_90") for dtype in DTYPES), *((torch.float32, f"sm_{n}") for n in (80, 120))],
)
def test_the_kernels_compile_without_a_word(dtype: torch.dtype, architecture: str) -> None:
    code = full_source("reduction", dtype)

    # CuPy adds the last one, whatever it is told.
    assert nvrtc.compile(code, [*COMPILE_OPTIONS, f"-arch={architecture}", "-ftz=true"]) == ""
    for name in KERNELS:
        assert f"\n{name}(" in code


def test_every_kernel_file_is_self_contained() -> None:
    files = sorted((Path(device_module.__file__).parents[2] / "kernels").glob("*.cu"))

    assert [file.stem for file in files] == sorted(SOURCES)  # so that the key has all of them
    assert not any("#include" in file.read_text(encoding="utf-8") for file in files)


def test_source_is_looked_up_in_the_package_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "scorer"
    (package / "kernels").mkdir(parents=True)
    (tmp_path / "site" / "kernels").mkdir()
    (tmp_path / "site" / "kernels" / "some.cu").write_text("checkout")
    monkeypatch.setattr(device_module, "__file__", str(package / "cuda" / "device.py"))

    assert source("some") == "checkout"
    (package / "kernels" / "some.cu").write_text("package")
    assert source("some") == "package"


def test_a_missing_source_is_named_with_the_places() -> None:
    with pytest.raises(DeviceError, match=r"nothing\.cu is in none of .*kernels/nothing\.cu.*host"):
        source("nothing")


def test_the_hash_follows_text_constants_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_sha256("reduction")
    assert before == source_sha256("reduction")
    assert sources_sha256() == {"reduction": before}
    with monkeypatch.context() as patch:
        patch.setattr(device_module, "source", lambda name: source(name) + "\n")
        assert source_sha256("reduction") != before
    with monkeypatch.context() as patch:
        patch.setattr(device_module, "TILE", 512)
        assert source_sha256("reduction") != before
    monkeypatch.setattr(device_module, "COMPILE_OPTIONS", ("--std=c++17",))
    assert source_sha256("reduction") != before


@pytest.mark.parametrize(("rows", "chunks"), [(1, 64), (32, 16), (128, 4), (512, 4), (100_000, 4)])
def test_few_rows_are_spread_over_many_blocks(rows: int, chunks: int) -> None:
    assert default_chunks(rows, multiprocessors=132) == chunks


def test_the_plan_says_where_everything_lies() -> None:
    targets = [[7, 7, 3], [], list(range(9)), list(range(2500))]
    requests = RowRequests.of(targets, [20, 0, MAX_DEVICE_K + 1, MAX_DEVICE_K])
    plan = make_plan(requests, 5000, multiprocessors=2)

    header, rows = plan.words[:HEADER_WORDS], plan.words[HEADER_WORDS : HEADER_WORDS + 20]
    assert header.tolist() == [4, 2512, 4, 1, 0, 0, 0, 0]
    assert rows.reshape(5, 4).tolist() == [
        [0, 0, 0, 20],
        [3, 20, 296, 0],
        [3, 20, 552, 0],  # k is for the host
        [12, 20, 808, 2048],
        [2512, 2068, 4904, 0],
    ]
    ids = plan.words[HEADER_WORDS + 20 : HEADER_WORDS + 20 + 2512]
    assert ids.tolist() == [i for some in targets for i in some]
    # Rows of many targets, in tiles: row, first target, count.
    assert plan.words[HEADER_WORDS + 20 + 2512 :].reshape(-1, 3).tolist() == [
        [2, 3, 9],
        [3, 12, 1024],
        [3, 1036, 1024],
        [3, 2060, 452],
    ]
    assert (plan.host_rows, plan.host_k) == ((2,), (2049,))
    assert (plan.entries, plan.candidates) == (2068, 4904)
    assert plan.result_bytes == 4 * 32 + 8 * (2512 + 2068)


def test_k_is_cut_to_the_ids_there_are_before_anything_else() -> None:
    plan = make_plan(RowRequests.of([[]], [5000]), 2000, multiprocessors=1)

    assert plan.device_k.tolist() == [2000]
    assert plan.host_rows == ()


def test_few_tiles_are_cut_into_slices() -> None:
    plan = make_plan(RowRequests.of([list(range(9))], [0]), 100, multiprocessors=10)

    assert plan.words[2:4].tolist() == [1, 20]


def test_too_many_entries_for_one_batch_are_refused() -> None:
    requests = RowRequests.of([[]] * 600_000, [2048] * 600_000)

    with pytest.raises(ValueError, match="a batch of 1228800000 top entries is too large"):
        make_plan(requests, 5000, multiprocessors=1)


def to_bytes(raw: RawReduction) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    rows = np.zeros(raw.max.size, dtype=ROW_RESULT)
    for name in ("sum_hi", "sum_lo", "max", "chosen_id", "chosen_logit", "nonfinite"):
        rows[name] = getattr(raw, name)
    targets = np.zeros(raw.target_rank.size, dtype=TARGET_RESULT)
    targets["logit"], targets["rank"] = raw.target_logit, raw.target_rank
    entries = np.zeros(raw.top_id.size, dtype=ENTRY_RESULT)
    entries["id"], entries["logit"] = raw.top_id, raw.top_logit
    return np.concatenate([part.view(np.uint8) for part in (rows, targets, entries)])


def assert_equal(got: RawReduction, expected: RawReduction) -> None:
    for field in fields(expected):
        a, b = getattr(got, field.name), getattr(expected, field.name)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), field.name
        assert a.tobytes() == b.tobytes(), field.name


def test_result_bytes_are_read_back() -> None:
    rng = np.random.RandomState(0)
    logits = rng.standard_normal((5, 300)).astype(np.float32)
    logits[2, 7] = np.nan
    requests = RowRequests.of([[1], [], [2, 3], [4] * 9, []], [3, 0, 300, 1, 999])
    expected = reduce_host(logits, requests, 290)
    plan = make_plan(requests, 290, multiprocessors=1)

    assert_equal(read_results(plan, to_bytes(expected)), expected)


def test_host_rows_take_their_place() -> None:
    logits = np.random.RandomState(1).standard_normal((4, 3000)).astype(np.float32)
    requests = RowRequests.of([[1], [], [2], []], [2049, 5, 3000, 0])
    expected = reduce_host(logits, requests, 3000)
    on_device = RowRequests.of([[1], [], [2], []], [0, 5, 0, 0])
    plan = make_plan(requests, 3000, multiprocessors=1)
    raw = read_results(plan, to_bytes(reduce_host(logits, on_device, 3000)))
    host = reduce_host(logits[list(plan.host_rows)], RowRequests.of([[], []], plan.host_k), 3000)

    assert_equal(insert_host_rows(raw, host, plan.host_rows), expected)


def test_a_reducer_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        DeviceReducer(torch.device("cpu"), max_rows=1, vocab_size=10, n_ids=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_rows": 0}, "max_rows must be at least 1, got 0"),
        ({"chunks": 3}, "chunks must be a power of two up to 64, got 3"),
        ({"chunks": 128}, "chunks must be a power of two up to 64, got 128"),
        ({"vocab_size": 2**20 + 1}, r"1 <= V <= 1048576, got shape \(1, 1048577\)"),
        ({"n_ids": 11}, "n_ids must be from 1 to V = 10, got 11"),
    ],
)
def test_bad_sizes_are_refused_before_the_device_is_touched(
    change: dict[str, int], message: str
) -> None:
    sizes = {"max_rows": 1, "vocab_size": 10, "n_ids": 10} | change
    with pytest.raises(ValueError, match=message):
        DeviceReducer(torch.device("cuda", 0), **sizes)


def test_without_cupy_the_error_names_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device_module._compile.cache_clear()

    with pytest.raises(DeviceError, match=r"needs CuPy .* scorer\[cuda13\] .* --reduction host"):
        device_module._compile(0, torch.float32)


CASES = fixture_cases()


def test_the_fixtures_hold_every_case_and_come_from_a_gpu() -> None:
    with np.load(FIXTURES) as stored:
        assert {name.split("/")[0] for name in stored.files} == {"made", *(c.name for c in CASES)}
        assert json.loads(str(stored["made"]))["gpu"].startswith("NVIDIA")
    assert sum(len(case.logits) for case in CASES) > 600


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_host_gives_what_the_gpu_gave(case: Case) -> None:
    with np.load(FIXTURES) as stored:
        assert str(stored[f"{case.name}/logits_sha256"]) == case.sha256()
        on_gpu = RawReduction(
            **{field.name: stored[f"{case.name}/{field.name}"] for field in fields(RawReduction)}
        )

    assert_equal(reduce_host(case.widened(), case.requests, case.n_ids), on_gpu)
