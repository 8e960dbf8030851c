from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scorer import numeric, reduction
from scorer.reduction import (
    RawReduction,
    Reduced,
    RowRequests,
    finish,
    kernel_constants,
    reduce_host,
    widen_bfloat16,
)

INF = math.inf
QUIET_NAN = 0x7FC0_0000
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
QWEN3_V = 151936
QWEN3_IDS = 151669

Float32s = NDArray[np.float32]


def f32(values: Any) -> Float32s:
    return np.asarray(values, dtype=np.float32)


def bfloat16_valued(values: Any) -> Float32s:
    """Float32 values rounded to bfloat16 (nearest, ties to even)."""
    bits = f32(values).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return widen_bfloat16(rounded)


def fields(result: RawReduction | Reduced) -> dict[str, bytes]:
    return {
        name: f"{a.dtype}{a.shape}".encode() + a.tobytes()
        for name in result.__slots__
        for a in [getattr(result, name)]
    }


def reduce_rows(
    rows: Sequence[Any] | NDArray[Any],
    targets: Sequence[Sequence[int]] | None = None,
    top_k: Sequence[int] | None = None,
    n_ids: int | None = None,
) -> tuple[RawReduction, Reduced]:
    logits = f32(rows)
    requests = RowRequests.of(targets or [()] * len(logits), top_k or [0] * len(logits))
    raw = reduce_host(logits, requests, n_ids or logits.shape[1])
    return raw, finish(raw, requests)


def total(raw: RawReduction, row: int = 0) -> int:
    return (int(raw.sum_hi[row]) << 32) + int(raw.sum_lo[row])


# --- an independent implementation: Python integers and fractions, one element at a time ---------


@lru_cache(maxsize=1 << 16)
def oracle_term(d: float) -> int:
    y = round(Fraction(min(d, 44.0) * LOG2_E) * 2**32)  # to nearest, ties to even
    n, f = y >> 32, y % 2**32
    c1, *rest = reduction.POLYNOMIAL
    t = rest.pop()
    while rest:
        t = rest.pop() - f * t // 2**32
    t = c1 - f * t // 2**34
    assert 0 < t < 2**32
    return int((2**63 - f * t // 2) >> n)


def oracle(
    logits: Float32s, targets: Sequence[Sequence[int]], top_k: Sequence[int], n_ids: int
) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {name: [] for name in RawReduction.__slots__}
    out["top_offsets"] = [0]
    for row, ids, k in zip(logits.tolist(), targets, top_k, strict=True):
        kept = min(k, n_ids)
        out["top_offsets"].append(out["top_offsets"][-1] + kept)
        if any(math.isnan(x) or x == INF for x in row) or all(x == -INF for x in row):
            out["nonfinite"].append(True)
            out["max"].append(math.nan)
            out["sum_hi"].append(0)
            out["sum_lo"].append(0)
            out["chosen_id"].append(-1)
            out["chosen_logit"].append(math.nan)
            out["target_logit"] += [math.nan] * len(ids)
            out["target_rank"] += [-1] * len(ids)
            out["top_id"] += [-1] * kept
            out["top_logit"] += [math.nan] * kept
            continue
        largest = max(row)
        s = sum(oracle_term(largest - x) for x in row)
        order = sorted(range(n_ids), key=lambda i: (-row[i], i))
        out["nonfinite"].append(False)
        out["max"].append(largest + 0.0)
        out["sum_hi"].append(s // 2**32)
        out["sum_lo"].append(s % 2**32)
        out["chosen_id"].append(order[0])
        out["chosen_logit"].append(row[order[0]] + 0.0)
        out["target_logit"] += [row[i] + 0.0 for i in ids]
        out["target_rank"] += [order.index(i) + 1 for i in ids]
        out["top_id"] += order[:kept]
        out["top_logit"] += [row[i] + 0.0 for i in order[:kept]]
    return out


def assert_equals_oracle(
    logits: Float32s, targets: Sequence[Sequence[int]], top_k: Sequence[int], n_ids: int
) -> None:
    raw = reduce_host(logits, RowRequests.of(targets, top_k), n_ids)
    for name, values in oracle(logits, targets, top_k, n_ids).items():
        got = getattr(raw, name)
        expected = np.array(values, dtype=got.dtype)
        if got.dtype == np.float32:
            expected[np.isnan(expected)] = np.uint32(QUIET_NAN).view(np.float32)
        assert got.tobytes() == expected.tobytes(), (name, got, expected)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Float32s, list[list[int]], list[int], int]:
    v = draw(st.sampled_from([1, 2, 3, 31, 32, 33, 63, 64, 65, 130, 200]))
    rows = draw(st.integers(1, 4))
    anything = st.floats(width=32, allow_nan=False).filter(lambda x: x != INF)
    near = st.floats(-50.0, 30.0, width=32)
    few = st.sampled_from([0.0, -0.0, 1.0, 1e-40, -1e-40, -INF, -3.5])
    with_nan = st.one_of(near, st.just(-INF), st.sampled_from([math.nan, INF]))
    logits = np.empty((rows, v), dtype=np.float32)
    for i in range(rows):
        kind = draw(st.sampled_from([anything, near, near, few, few, with_nan]))
        pool = draw(st.lists(kind, min_size=1, max_size=8))
        picks = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, len(pool), v)
        logits[i] = f32(pool)[picks]
    n_ids = draw(st.integers(1, v))
    ids = st.integers(0, n_ids - 1)
    targets = [draw(st.lists(ids, max_size=4)) for _ in range(rows)]
    top_k = [draw(st.integers(0, v + 2)) for _ in range(rows)]
    return logits, targets, top_k, n_ids


@given(batches())
def test_equals_the_independent_implementation(
    batch: tuple[Float32s, list[list[int]], list[int], int],
) -> None:
    assert_equals_oracle(*batch)


@pytest.mark.parametrize("v", [1, 2, 31, 32, 33, 8191, 8192, 8193, QWEN3_IDS])
def test_equals_the_independent_implementation_at_size(v: int) -> None:
    rng = np.random.default_rng(v)
    row = rng.normal(size=v) * 4
    logits = f32([row, bfloat16_valued(row)]) if v < QWEN3_IDS else bfloat16_valued([row])
    n_ids = max(1, v - 7)
    targets = rng.integers(0, n_ids, (len(logits), 3)).tolist()
    assert_equals_oracle(logits, targets, [5, 70][: len(logits)], n_ids)


# --- accuracy ------------------------------------------------------------------------------------


def exact_log_sum(row: Float32s) -> Any:
    values, counts = np.unique(row, return_counts=True)
    with mpmath.workprec(110):
        top = mpmath.mpf(float(values[-1]))
        rest = mpmath.fsum(
            count * mpmath.exp(mpmath.mpf(value) - top)
            for value, count in zip(values[:-1].tolist(), counts[:-1].tolist(), strict=True)
            if value > float(top) - 120.0
        )
        return mpmath.log1p(rest + int(counts[-1]) - 1)


def one_in_a_billion(v: int) -> Float32s:
    """A row whose maximum has p = 1 - 1e-9; the rest is spread over a wide tail."""
    tail = np.random.default_rng(9).normal(size=v - 1) * 3.0
    tail -= math.log(math.fsum(numeric.exp(tail))) - math.log(1e-9)
    return f32(np.concatenate([tail[: v // 2], [0.0], tail[v // 2 :]]))


def accuracy_rows() -> dict[str, Float32s]:
    rng = np.random.default_rng(4)
    rows = {
        f"random, scale {scale}": f32(rng.normal(size=10_000) * scale)
        for scale in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    }
    rows["random, scale 2.5, whole vocabulary"] = f32(rng.normal(size=QWEN3_V) * 2.5)
    above = np.float32(1) + 3 * np.spacing(np.float32(1))
    rows["1 + 3 ulp over -7.5"] = f32([*[-7.5] * 70_000, above, *[-7.5] * 70_000])
    for second in (0.0, -1e-7, -0.3, -11.0, -20.72, -30.0, -42.99, -43.6, -50.0, -1e30):
        rows[f"V = 2, {second}"] = f32([0.0, second])
    rows["d = 30.52, V = 2^18"] = f32([30.52, *[0.0] * (2**18 - 1)])
    rows["p = 1 - 1e-9"] = one_in_a_billion(20_000)
    rows["p = 1 - 1e-9, whole vocabulary"] = one_in_a_billion(QWEN3_V)
    rows["maximum 1e30"] = f32([1e30, *rng.normal(size=1000), 1e30, -1e30, 1e30])
    rows["equal, V = 2^20"] = np.zeros(2**20, dtype=np.float32)
    for scale in (1.0, 5.0):
        rows[f"bfloat16, scale {scale}"] = bfloat16_valued(rng.normal(size=QWEN3_V) * scale + 20)
    return rows


ACCURACY = accuracy_rows()


@lru_cache
def accuracy_exact(name: str) -> Any:
    return exact_log_sum(ACCURACY[name])


@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy(name: str) -> None:
    row = ACCURACY[name]
    _, reduced = reduce_rows([row])
    exact = accuracy_exact(name)
    error = abs(float(mpmath.mpf(float(reduced.log_sum[0])) - exact))
    assert error <= 6.5e-10  # the module's bound; the bar is 1e-9
    if exact >= 1e-9:
        assert error <= 1e-4 * float(exact)
    print(f"{name}: {error:.1e} nats of {float(exact):.3g}")


def test_accuracy_rows_are_what_they_say() -> None:
    for name in ("p = 1 - 1e-9", "p = 1 - 1e-9, whole vocabulary"):
        assert float(accuracy_exact(name)) == pytest.approx(1e-9, rel=1e-5)
    assert float(accuracy_exact("d = 30.52, V = 2^18")) == pytest.approx(1.46e-8, rel=0.01)


def test_accuracy_of_one_term_everywhere() -> None:
    """One d for all but the maximum: errors of the polynomial add up instead of averaging out.

    Includes d near the worst arguments of all 2^32 (f = 4292884583 and f = 4205682180).
    """
    v = 1 << 12
    worst = [math.log(2) * (n + f / 2**32) for n in (0, 1, 5) for f in (4292884583, 4205682180)]
    spread = np.linspace(0.0, 43.0, 400).tolist()
    rows = np.zeros((len(worst) + len(spread), v), dtype=np.float32)
    rows[:, 1:] = -f32([*worst, *spread])[:, None]
    _, reduced = reduce_rows(rows)
    errors = [
        abs(float(mpmath.mpf(got) - exact_log_sum(row)))
        for got, row in zip(reduced.log_sum.tolist(), rows, strict=True)
    ]
    assert 3e-10 < max(errors) < 6.4e-10


def test_logprobs_against_mpmath() -> None:
    rng = np.random.default_rng(11)
    row = f32(rng.normal(size=500) * 3 + 17)
    row[100] = -INF
    targets = [0, 100, 250, 499]
    _, reduced = reduce_rows([row], [targets], [5])
    log_sum = exact_log_sum(row)
    exact = [float(mpmath.mpf(float(x)) - float(row.max()) - log_sum) for x in row]
    assert reduced.target_logprob == pytest.approx([exact[t] for t in targets], abs=1e-9)
    assert reduced.target_logprob[1] == -INF
    assert reduced.top_logprob == pytest.approx([exact[t] for t in reduced.top_id], abs=1e-9)
    assert reduced.chosen_logprob[0] == reduced.top_logprob[0]
    assert numeric.prob_mass(exact) == pytest.approx(1.0, abs=1e-12)


# --- nothing but the values may matter -----------------------------------------------------------


def test_permuting_the_vocabulary_permutes_the_answer() -> None:
    rng = np.random.default_rng(1)
    for scale in (0.5, 4.0, 30.0):
        row = f32(rng.permutation(30_000) * (scale / 1000.0))  # no two equal
        order = rng.permutation(row.size)  # row[order][i] = row[order[i]]
        place = np.argsort(order)
        targets = rng.integers(0, row.size, 6)
        raw, reduced = reduce_rows([row], [targets.tolist()], [40])
        raw2, reduced2 = reduce_rows([row[order]], [place[targets].tolist()], [40])
        assert total(raw) == total(raw2)
        assert reduced.log_sum.tobytes() == reduced2.log_sum.tobytes()
        assert reduced.target_logprob.tobytes() == reduced2.target_logprob.tobytes()
        assert reduced.top_logprob.tobytes() == reduced2.top_logprob.tobytes()
        assert raw.target_rank.tolist() == raw2.target_rank.tolist()
        assert raw.top_id.tolist() == order[raw2.top_id].tolist()
        assert raw.chosen_id.tolist() == order[raw2.chosen_id].tolist()


def test_a_float_sum_would_not_survive_a_permutation() -> None:
    """The control of the test above."""
    rng = np.random.default_rng(1)
    weights = numeric.exp(rng.normal(size=30_000))
    assert len({float(rng.permutation(weights).sum()) for _ in range(10)}) > 1


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
def test_chunk_size_does_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    logits = f32(rng.normal(size=(3, 3001)) * 3)
    requests = RowRequests.of([[1, 2], [], [3]], [0, 20, 300])
    expected = fields(reduce_host(logits, requests, 3000))
    monkeypatch.setattr(reduction, "_CHUNK", chunk)
    assert fields(reduce_host(logits, requests, 3000)) == expected


def test_a_row_does_not_depend_on_its_partners_or_on_the_requests() -> None:
    rng = np.random.default_rng(3)
    logits = f32(rng.normal(size=(5, 4000)) * 5)
    logits[3, 17] = np.nan
    raw, reduced = reduce_rows(logits, [[], [5], [5, 6, 7], [1], []], [0, 3, 100, 2, 4000])
    for i in range(5):
        alone, alone_reduced = reduce_rows(logits[i : i + 1], [[9]], [1])
        for name in ("nonfinite", "max", "sum_hi", "sum_lo", "chosen_id", "chosen_logit"):
            assert getattr(alone, name)[0].tobytes() == getattr(raw, name)[i].tobytes()
        assert alone_reduced.log_sum[0].tobytes() == reduced.log_sum[i].tobytes()
        assert alone_reduced.chosen_logprob[0].tobytes() == reduced.chosen_logprob[i].tobytes()


def test_memory_layout_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    logits = f32(rng.normal(size=(3, 2000)))
    logits.flags.writeable = False
    requests = RowRequests.of([[1], [2], [3]], [4, 5, 6])
    expected = fields(reduce_host(logits, requests, 1990))
    wide = np.repeat(logits, 2, axis=1)
    assert fields(reduce_host(wide[:, ::2], requests, 1990)) == expected
    assert fields(reduce_host(np.asfortranarray(logits), requests, 1990)) == expected


# --- special values ------------------------------------------------------------------------------

NANS = {"nan": 0x7FC0_0000, "-nan": 0xFFC0_0000, "snan": 0x7F80_0001, "-snan": 0xFF80_0001}


@pytest.mark.parametrize("bits", [*NANS.values(), 0x7F80_0000], ids=[*NANS, "inf"])
def test_nan_and_plus_inf_anywhere_make_the_row_nonfinite(bits: int) -> None:
    v, n_ids = 133, 120
    logits = np.full((v + 1, v), -1.0, dtype=np.float32)
    for i in range(v):  # every column, those without an id too; the last row has none
        logits.view(np.uint32)[i, i] = bits
    raw, reduced = reduce_rows(logits, [[0, 119]] * (v + 1), [2] * (v + 1), n_ids)
    assert raw.nonfinite.tolist() == [True] * v + [False]
    for name in ("max", "chosen_logit"):
        assert set(getattr(raw, name)[:v].view(np.uint32).tolist()) == {QUIET_NAN}
    for name in ("target_logit", "top_logit"):
        assert set(getattr(raw, name)[: 2 * v].view(np.uint32).tolist()) == {QUIET_NAN}
    assert not raw.sum_hi[:v].any()
    assert not raw.sum_lo[:v].any()
    assert set(raw.chosen_id[:v]) == set(raw.target_rank[: 2 * v]) == set(raw.top_id[:-2]) == {-1}
    assert np.isnan(reduced.log_sum[:v]).all()
    assert np.isnan(reduced.chosen_logprob[:v]).all()
    assert np.isnan(reduced.target_logprob[: 2 * v]).all()
    assert np.isnan(reduced.top_logprob[: 2 * v]).all()
    assert reduced.log_sum[v] == pytest.approx(math.log(v), abs=1e-9)
    assert raw.chosen_id[v] == 0
    assert raw.target_rank[2 * v :].tolist() == [1, 120]


def test_a_row_of_minus_inf_is_nonfinite() -> None:
    raw, _ = reduce_rows([[-INF] * 5, [-INF, -INF, -3.0, -INF, -INF]], [[2], [2]], [1, 1])
    assert raw.nonfinite.tolist() == [True, False]
    assert raw.top_id.tolist() == [-1, 2]


def test_minus_inf_is_probability_zero() -> None:
    raw, reduced = reduce_rows([[-INF, 2.0, -INF, 1.0]], [[0, 2, 1]], [4])
    with_none, _ = reduce_rows([[2.0, 1.0]])
    assert total(raw) == total(with_none)
    assert reduced.target_logprob.tolist()[:2] == [-INF, -INF]
    assert raw.target_rank.tolist() == [3, 4, 1]
    assert raw.top_id.tolist() == [1, 3, 0, 2]
    assert reduced.top_logprob.tolist()[2:] == [-INF, -INF]


def test_all_real_ids_at_minus_inf() -> None:
    """The padding holds all the probability: a defined answer, and a logprob of -inf."""
    raw, reduced = reduce_rows([[-INF, -INF, 1.5]], [[1]], [2], n_ids=2)
    assert raw.nonfinite.tolist() == [False]
    assert raw.max.tolist() == [1.5]
    assert raw.chosen_id.tolist() == [0]
    assert raw.top_id.tolist() == [0, 1]
    assert reduced.log_sum.tolist() == [0.0]
    assert reduced.chosen_logprob.tolist() == reduced.target_logprob.tolist() == [-INF]


def test_ids_without_a_token_count_in_the_sum_alone() -> None:
    raw, reduced = reduce_rows([[1.0, 3.0, 2.0, 9.0, 9.0]], [[0, 1, 2]], [5], n_ids=3)
    assert raw.max.tolist() == [9.0]
    assert raw.chosen_id.tolist() == [1]
    assert raw.target_rank.tolist() == [3, 1, 2]
    assert raw.top_id.tolist() == [1, 2, 0]
    assert reduced.top_offsets.tolist() == [0, 3]
    exact = [x - 9.0 - math.log(2 + sum(math.exp(y - 9) for y in (1, 2, 3))) for x in (3, 2, 1)]
    assert reduced.top_logprob == pytest.approx(exact, abs=1e-9)
    assert reduced.chosen_logprob == pytest.approx(exact[:1], abs=1e-9)


def test_zeros_of_either_sign_are_one_value() -> None:
    raw, _ = reduce_rows([[-0.0, 0.0, -0.0], [-1.0, -0.0, -0.0]], [[2, 1, 0], [2]], [3, 2])
    assert raw.chosen_id.tolist() == [0, 1]
    assert raw.target_rank.tolist() == [3, 2, 1, 2]
    assert raw.top_id.tolist() == [0, 1, 2, 1, 2]
    for name in ("max", "chosen_logit", "target_logit", "top_logit"):
        assert not np.signbit(getattr(raw, name)).any(), name
    assert total(raw) == 3 << 63


def test_extremes_of_the_range() -> None:
    largest = float(np.finfo(np.float32).max)
    tiny = 1e-45
    raw, reduced = reduce_rows([[largest, -largest, largest], [tiny, -tiny, 0.0]], [[1], [1]])
    assert [total(raw, i) for i in range(2)] == [2 << 63, 3 << 63]
    assert reduced.target_logprob[0] == -2 * largest
    assert raw.target_logit[1] == np.float32(-tiny)


def test_terms_at_the_edges() -> None:
    """d = 0 is 1 exactly; from d = 63 ln 2 on a term is 0."""
    for v in (1, 2, 3):
        raw, reduced = reduce_rows([[7.25] * v])
        assert total(raw) == v << 63
        assert reduced.log_sum[0] == pytest.approx(math.log(v), abs=1e-15)
    terms = {d: total(reduce_rows([[0.0, -d]])[0]) - 2**63 for d in (43.6, 43.67, 44.0, 1e38, INF)}
    assert terms == {43.6: 1, 43.67: 0, 44.0: 0, 1e38: 0, INF: 0}


# --- ties, ranks, top ----------------------------------------------------------------------------


def test_all_equal_rows_rank_by_id() -> None:
    v = 5000
    raw, _ = reduce_rows(np.full((2, v), 0.75), [[0, v - 1, 77, 77], [v - 2]], [100, v + 5])
    assert raw.chosen_id.tolist() == [0, 0]
    assert raw.target_rank.tolist() == [1, v, 78, 78, v - 1]
    assert raw.top_id.tolist() == [*range(100), *range(v)]


@pytest.mark.parametrize("k", [1, 2, 20, 77, 78, 79, 1000, 4999, 5000, 6000])
def test_ties_of_bfloat16_rows(k: int) -> None:
    rng = np.random.default_rng(k)
    row = bfloat16_valued(rng.normal(size=5000) * 2 + 20)  # steps of 0.125: hundreds of ties
    assert np.unique(row).size < 200
    everything = np.lexsort((np.arange(5000), -row))
    targets = rng.integers(0, 5000, 20)
    raw, _ = reduce_rows([row], [targets.tolist()], [k])
    assert raw.top_id.tolist() == everything[:k].tolist()
    assert raw.top_logit.tolist() == row[everything[:k]].tolist()
    assert raw.target_rank.tolist() == (np.argsort(everything)[targets] + 1).tolist()


def test_top_begins_with_the_chosen_and_agrees_with_ranks() -> None:
    rng = np.random.default_rng(8)
    logits = f32(rng.normal(size=(4, QWEN3_V)) * 2)
    logits[:, QWEN3_IDS:] += 50.0  # the padding would win everything
    for i, k in enumerate((1, 20, 2048, 2373)):
        first, _ = reduce_rows(logits[i : i + 1], None, [k], QWEN3_IDS)
        second, _ = reduce_rows(logits[i : i + 1], [first.top_id[-20:].tolist()], None, QWEN3_IDS)
        assert first.top_id[0] == first.chosen_id[0]
        assert first.top_id.max() < QWEN3_IDS
        assert second.target_rank.tolist() == list(range(1, k + 1))[-20:]
        assert second.target_logit.tolist() == first.top_logit[-20:].tolist()


def test_more_entries_never_change_the_earlier_ones() -> None:
    rng = np.random.default_rng(6)
    row = bfloat16_valued(rng.normal(size=3000) * 3)
    full, reduced = reduce_rows([row], None, [3000])
    for k in (1, 5, 46, 47, 1500):
        some, reduced_some = reduce_rows([row], None, [k])
        assert some.top_id.tolist() == full.top_id[:k].tolist()
        assert reduced_some.top_logprob.tobytes() == reduced.top_logprob[:k].tobytes()


def test_ragged_requests() -> None:
    logits = f32([[1.0, 2.0, 3.0]] * 5)
    requests = RowRequests.of([[], [2, 0], [], [1], []], [2, 0, 9, 1, 0])
    assert requests.target_ids.tolist() == [2, 0, 1]
    assert requests.target_offsets.tolist() == [0, 0, 2, 2, 3, 3]
    assert requests.target_rows().tolist() == [1, 1, 3]
    raw = reduce_host(logits, requests, 3)
    assert raw.target_rank.tolist() == [1, 3, 2]
    assert raw.top_offsets.tolist() == [0, 2, 2, 5, 6, 6]
    assert raw.top_id.tolist() == [2, 1, 2, 1, 0, 2]
    reduced = finish(raw, requests)
    assert reduced.target_logprob.shape == (3,)
    assert reduced.top_logprob.shape == (6,)


def test_no_rows() -> None:
    requests = RowRequests.of([], [])
    raw = reduce_host(np.empty((0, 7), dtype=np.float32), requests, 7)
    reduced = finish(raw, requests)
    assert raw.top_offsets.tolist() == [0]
    assert reduced.log_sum.shape == reduced.target_logprob.shape == (0,)


# --- other dtypes --------------------------------------------------------------------------------


def test_float16_is_widened_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    requests = RowRequests.of([[5, 40_000]], [30])
    half = reduce_host(finite[None], requests, finite.size)
    single = reduce_host(finite.astype(np.float32)[None], requests, finite.size)
    assert fields(half) == fields(single)
    assert half.max[0] == 65504.0
    bad = reduce_host(every[None], requests, every.size)
    assert bad.nonfinite.tolist() == [True]


def test_bfloat16_is_widened_exactly() -> None:
    bits = np.array([[0x3F80, 0xC2F7, 0x0001, 0x8000, 0xFF80, 0x7F7F]], dtype=np.uint16)
    assert widen_bfloat16(bits).tolist() == [
        [1.0, -123.5, 2.0**-133, -0.0, -INF, float.fromhex("0x1.fep127")]
    ]
    assert np.isnan(widen_bfloat16(np.array([0x7FC0, 0xFF81], dtype=np.uint16))).all()


# --- the logarithm -------------------------------------------------------------------------------


def test_finish_rounds_the_integer_once() -> None:
    rng = np.random.default_rng(12)
    rest = [0, 1, 2**53 + 1, 2**53 + 3, 2**62 + 2**9 + 1, 2**83 - 2**63, (2**54 + 2) << 9]
    rest += [int(a) << int(b) | int(c) for a, b, c in rng.integers(0, (2**31, 51, 2**40), (500, 3))]
    s = [2**63 + r for r in rest]
    n = len(s)
    raw = RawReduction(
        nonfinite=np.zeros(n, dtype=np.bool_),
        max=f32([0.0] * n),
        sum_hi=np.array([v >> 32 for v in s], dtype=np.uint64),
        sum_lo=np.array([v & 0xFFFF_FFFF for v in s], dtype=np.uint64),
        chosen_id=np.zeros(n, dtype=np.int32),
        chosen_logit=f32([0.0] * n),
        target_logit=f32([]),
        target_rank=np.empty(0, dtype=np.int32),
        top_id=np.empty(0, dtype=np.int32),
        top_logit=f32([]),
        top_offsets=np.zeros(n + 1, dtype=np.int32),
    )
    reduced = finish(raw, RowRequests.of([[]] * n, [0] * n))
    # Python rounds an integer to float correctly, once.
    assert reduced.log_sum.tolist() == [numeric.log1p(float(r) * 2.0**-63) for r in rest]
    assert reduced.chosen_logprob.tolist() == [-x for x in reduced.log_sum.tolist()]


# --- constants -----------------------------------------------------------------------------------


def test_kernel_constants_are_the_literals_of_the_host() -> None:
    lines = kernel_constants().splitlines()
    defined = dict(line.removeprefix("#define ").split(" ", 1) for line in lines)
    assert all(line.startswith("#define SCORER_") for line in lines)
    assert [defined.pop(f"SCORER_C{i}") for i in range(1, 8)] == [
        f"{c}u" for c in reduction.POLYNOMIAL
    ]
    assert {name: float.fromhex(text) for name, text in defined.items() if "x" in text} == {
        "SCORER_CLAMP": 44.0,
        "SCORER_LOG2E": float(1 / mpmath.log(2)),
        "SCORER_FIXED_POINT": 2.0**20,
    }
    assert defined["SCORER_MAX_VOCABULARY"] == str(1 << 20)
    assert all(0 < c < 2**32 for c in reduction.POLYNOMIAL)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "n_ids", "message"),
    [
        (np.zeros((1, 4)), 4, "must be float32 or float16 (bfloat16: widen_bfloat16), got float64"),
        (np.zeros((1, 4), np.uint16), 4, "widen_bfloat16), got uint16"),
        (np.zeros(4, np.float32), 4, "must be [rows, V] with 1 <= V <= 1048576, got shape (4,)"),
        (np.zeros((1, 0), np.float32), 1, "got shape (1, 0)"),
        (np.zeros((1, 2**20 + 1), np.float32), 4, "got shape (1, 1048577)"),
        (np.zeros((2, 4), np.float32), 4, "logits have 2 rows, the requests 1"),
        (np.zeros((1, 4), np.float32), 0, "n_ids must be from 1 to V = 4, got 0"),
        (np.zeros((1, 4), np.float32), 5, "n_ids must be from 1 to V = 4, got 5"),
    ],
)
def test_bad_logits(logits: Any, n_ids: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        reduce_host(logits, RowRequests.of([[]], [0]), n_ids)


@pytest.mark.parametrize("target", [-1, 3, 4])
def test_targets_outside_the_ids(target: int) -> None:
    message = f"target ids must be from 0 to n_ids - 1 = 2, got {target} in row 1"
    with pytest.raises(ValueError, match=message):
        reduce_host(f32([[0.0] * 4] * 2), RowRequests.of([[0, 2], [1, target]], [0, 0]), 3)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("target_ids", "target_offsets", "top_k", "message"),
    [
        (np.array([1]), ints(0, 1), ints(0), "target_ids must be a 1-d int32 array, got 1-d int64"),
        (ints(1), ints(0, 1)[None], ints(0), "target_offsets must be a 1-d int32 array, got 2-d"),
        (ints(1), ints(0, 1), np.array([0.0]), "top_k must be a 1-d int32 array, got 1-d float64"),
        (ints(1), ints(0, 1, 1), ints(0), "must have rows + 1 = 2 entries (top_k has 1), got 3"),
        (ints(1), ints(0, 2), ints(0), "must rise from 0 to the number of target_ids (1)"),
        (ints(1), ints(1, 1), ints(0), "must rise from 0 to the number of target_ids (1)"),
        (ints(1), ints(0, 2, 1), ints(0, 0), "got [0, 2, 1]"),
        (ints(), ints(0, 0, 0), ints(3, -1), "top_k must be 0 or more, got -1 in row 1"),
    ],
)
def test_bad_requests(target_ids: Any, target_offsets: Any, top_k: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RowRequests(target_ids=target_ids, target_offsets=target_offsets, top_k=top_k)


def test_more_top_entries_than_offsets_can_count() -> None:
    with pytest.raises(ValueError, match="top_k asks for 2147483648 entries"):
        RowRequests.of([[]] * 2048, [2**31 - 1] * 2048).top_offsets(1 << 20)


def test_bfloat16_bits_of_another_dtype() -> None:
    with pytest.raises(ValueError, match="must be uint16, got int16"):
        widen_bfloat16(np.zeros(3, dtype=np.int16))
