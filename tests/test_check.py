"""The check's own check: green where nothing is wrong, red where it is, and never on nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scorer import probes, selftest
from scorer.check import plain as check_plain
from scorer.check import scenarios as check_scenarios
from scorer.check.run import SCENARIOS, Kind, Status, choose
from scorer.check.subject import FULL, NORMAL, QUICK, NotRunError, Subject
from scorer.check.tally import Tally
from scorer.errors import DeviceError, InputError, IsolationError, UsageError
from tests.checks import NAMES, NEEDS_CUDA, PROOFS, outcome_of, scenario, subject_of
from tests.conftest import DEMO_MODEL, find_qwen3_tokenizer
from tests.faults import FAULTS, SHARING_FAULT, Fault, drift, float_atomics
from tests.models import write_model
from tests.random_model import write_random_checkpoint
from tests.sharing import share_on_cpu


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)


# -- green


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", [QUICK, replace(NORMAL, victims=2)], ids=lambda level: level.name)
def test_nothing_wrong(tiny_model: Path, dtype: str, level: Any) -> None:
    outcome = outcome_of(subject_of(tiny_model, dtype=dtype, level=level))

    assert outcome.passed
    statuses = {result.scenario.name: result.status for result in outcome.results}
    assert statuses == {
        **dict.fromkeys(set(PROOFS) - NEEDS_CUDA, Status.passed),
        **dict.fromkeys(NEEDS_CUDA, Status.not_run),
        "alone": Status.reported,
        "control": Status.shown,
    }
    for result in outcome.results:
        assert (result.tally.comparisons > 0) == (result.scenario.name not in NEEDS_CUDA)
        assert bool(result.reason) == (result.scenario.name in NEEDS_CUDA)
    assert outcome.proven.comparisons > 20_000
    assert outcome.proven.mismatches == 0


def test_one_read_a_forward(tiny_model: Path) -> None:
    """``alone`` has no partners; what is left of the promise is checked."""
    outcome = outcome_of(subject_of(tiny_model, isolation="alone"))

    assert outcome.passed
    assert {result.scenario.name for result in outcome.of(Status.not_run)} == {
        *("company", "position", "contents", "partner-lengths", "alone"),
        *NEEDS_CUDA,
    }
    assert len(outcome.of(Status.passed)) == 7


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (8, 4), (16, 2), (2048, 1)])
def test_any_shape_of_batch(tiny_model: Path, tokens: int, rows: int) -> None:
    subject = subject_of(tiny_model, tokens_per_forward=tokens, rows_per_forward=rows)
    scenarios = [s for s in SCENARIOS if s.name not in ("fresh-process", "requests")]
    outcome = outcome_of(subject, scenarios)

    assert outcome.passed, outcome.of(Status.failed)
    without = {result.scenario.name for result in outcome.of(Status.not_run)}
    assert ("company" in without) == (tokens < 16 or rows < 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_wrong_with_the_bundled_model(demo_model: Path, dtype: str) -> None:
    outcome = outcome_of(subject_of(demo_model, dtype=dtype))

    assert outcome.passed, [(r.scenario.name, r.reason) for r in outcome.of(Status.failed)]
    assert outcome.control is not None
    assert outcome.control.tally.comparisons > 0
    assert len(outcome.of(Status.passed)) == 11


# -- red


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    fault.plant(monkeypatch)
    outcome = outcome_of(subject_of(tiny_model))

    assert {result.scenario.name for result in outcome.of(Status.failed)} == fault.found_by
    assert fault.named <= fault.found_by
    assert not outcome.passed
    for result in outcome.of(Status.failed):
        assert result.tally.mismatches > 0 or result.tally.failure
        assert result.tally.examples or result.tally.failure
        assert result.reason


def test_every_scenario_is_seen_to_fail() -> None:
    found = set().union(*(fault.found_by for fault in (*FAULTS, SHARING_FAULT)))
    assert found == set(PROOFS) - NEEDS_CUDA | {"shared-prefix"}


# -- reads of one record that share their prefix, on the CPU by an attention of the tests' own


def test_nothing_wrong_with_sharing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_on_cpu(monkeypatch)
    outcome = outcome_of(subject_of(tiny_model))

    assert outcome.passed, [(r.scenario.name, r.reason) for r in outcome.of(Status.failed)]
    (result,) = (r for r in outcome.results if r.scenario.name == "shared-prefix")
    assert result.status is Status.passed
    assert result.tally.comparisons > 500
    (note,) = result.tally.notes
    assert re.fullmatch(r"[\d,]+ tokens were shared instead of recomputed", note)


def test_bits_that_move_where_nothing_can_be_shared(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    drift(monkeypatch)
    subject = subject_of(tiny_model, rows_per_forward=1)
    (result,) = outcome_of(subject, [scenario("shared-prefix")]).results
    assert result.status is Status.failed


def test_sharing_that_is_not_exact(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SHARING_FAULT.plant(monkeypatch)
    outcome = outcome_of(subject_of(tiny_model))

    failed = {result.scenario.name for result in outcome.of(Status.failed)}
    assert failed == SHARING_FAULT.found_by
    (result,) = (r for r in outcome.results if r.scenario.name == "shared-prefix")
    assert 0 < result.tally.mismatches < result.tally.comparisons
    assert any("prompt" in example for example in result.tally.examples)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "on cpu nothing is shared: sdpa by segment computes other bits for a prefix"),
        ({"shared_prefix": False}, "--no-shared-prefix"),
        ({"isolation": "alone"}, "--isolation alone"),
        ({"rows_per_forward": 1}, "nothing could be shared in forwards of 128 tokens and at most"),
    ],
)
def test_why_nothing_is_shared(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], reason: str
) -> None:
    if options:
        share_on_cpu(monkeypatch)
    (result,) = outcome_of(subject_of(tiny_model, **options), [scenario("shared-prefix")]).results
    assert result.status is Status.not_run
    assert reason in result.reason


def test_one_ulp_is_told_in_nats(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[0].plant(monkeypatch)
    (result,) = outcome_of(subject_of(tiny_model), [scenario("position")]).results

    assert 0 < result.tally.largest < 1e-14
    assert result.tally.mismatches < result.tally.comparisons
    assert "in place" in result.tally.examples[0]


# -- never on nothing


@pytest.mark.parametrize("name", sorted(set(NAMES) - NEEDS_CUDA))
def test_a_scenario_that_compares_nothing_fails(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        pass

    for method in ("nats", "integers", "value", "reads", "differs"):
        monkeypatch.setattr(Tally, method, nothing)
    if name == "hidden-states":
        monkeypatch.setattr(probes._Comparison, "equal", nothing)
    outcome = outcome_of(subject_of(tiny_model), [scenario(name)])

    (result,) = outcome.results
    assert (result.status, result.reason) == (
        Status.failed,
        "nothing was compared, so nothing is proven",
    )
    assert not outcome.passed


def test_a_check_of_nothing_but_what_cannot_run_does_not_pass(tiny_model: Path) -> None:
    outcome = outcome_of(subject_of(tiny_model), [scenario("graph")])
    assert outcome.results[0].status is Status.not_run
    assert not outcome.passed


# -- single scenarios


def test_the_lengths_of_the_specification(tiny_model: Path) -> None:
    assert check_scenarios.LENGTHS == (
        *(1, 2, 17, 33, 127, 128, 129, 255, 256, 257, 300, 512, 513, 819, 820, 1024, 4096),
    )
    subject = subject_of(tiny_model, level=replace(NORMAL, victims=1))
    seen: set[tuple[int, int]] = set()
    honest = subject.reader.launch

    def launch(batch: Any) -> Any:
        seen.update((len(read), batch.tokens) for read in batch.reads if len(read.positions) > 1)
        return honest(batch)

    subject.reader.launch = launch  # type: ignore[method-assign]
    tally = Tally()
    check_scenarios.lengths(subject, tally)

    fits = {2, 17, 33, 127, 128}  # of T; a read of one token has one position
    assert seen == {
        *((length, 128) for length in fits),
        *((length, 256) for length in (129, 255, 256)),
        *((length, 512) for length in (257, 300, 512)),
    }
    assert [part.partition(":")[0] for part in tally.left_out] == [
        f"length {length}" for length in (513, 819, 820, 1024, 4096)
    ]
    assert "limit is 512 tokens" in tally.left_out[0]


def test_victims_are_of_different_lengths_and_fit_half_a_forward(tiny_model: Path) -> None:
    subject = subject_of(tiny_model, level=FULL)
    lengths = [len(victim) for victim in subject.victims]
    assert lengths == sorted(lengths)
    assert len(lengths) >= 4
    assert 1 <= lengths[0] < lengths[-1] == 64
    with_targets = [v for v in subject.victims if v.requests.target_offsets[-1] > len(v) - 1]
    assert with_targets  # the options' labels are among what is compared


def test_a_full_forward_is_full(tiny_model: Path) -> None:
    subject = subject_of(tiny_model)
    batches: list[tuple[int, int]] = []
    honest = subject.reader.launch

    def launch(batch: Any) -> Any:
        batches.append((len(batch.reads), batch.real_tokens))
        return honest(batch)

    subject.reader.launch = launch  # type: ignore[method-assign]
    check_scenarios.company(subject, Tally())

    for start in range(0, len(batches), 4):
        alone, three, eight, full = batches[start : start + 4]
        assert (alone[0], three[0], eight[0]) == (1, 3, 8)
        assert full[1] == 128


def test_a_chat_turn_generates_with_a_cache_of_the_prefix(tiny_model: Path) -> None:
    subject = subject_of(tiny_model)
    tokens = subject.victims[0].tokens
    cache, count = check_plain._generate(subject.reader.model.plain(), tokens, 5)
    assert count == 5
    assert cache.get_seq_length() == len(tokens) + 4  # type: ignore[attr-defined]


def test_a_plain_model_shares_weights_and_nothing_else(tiny_model: Path) -> None:
    from transformers import Qwen3ForCausalLM

    model = subject_of(tiny_model, dtype="bfloat16").reader.model
    plain = model.plain()
    ids = torch.arange(1, 40)[None]
    with torch.inference_mode():
        ours = plain(ids).logits
        theirs = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)(ids).logits
    assert torch.equal(ours, theirs)
    assert plain.config._attn_implementation == "sdpa"
    assert model._model.config._attn_implementation == "scorer_packed"
    shared = {tensor.data_ptr() for tensor in model._model.parameters()}
    assert {tensor.data_ptr() for tensor in plain.parameters()} == shared


def test_a_control_that_shows_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where padded batches happen to give the same bits."""
    honest = check_plain._batch

    def one_by_one(subject: Subject, plain: Any, prompts: Any) -> Any:
        return [honest(subject, plain, [prompt])[0] for prompt in prompts]

    monkeypatch.setattr(check_plain, "_batch", one_by_one)
    outcome = outcome_of(subject_of(tiny_model), [scenario("repeat"), scenario("control")])

    assert outcome.control is not None
    assert outcome.control.status is Status.not_shown
    assert outcome.control.tally.comparisons > 0
    assert outcome.passed


def test_a_process_that_fails_is_a_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise IsolationError("self-test failed: bits moved")

    subject = subject_of(tiny_model)
    monkeypatch.setattr(selftest.SelfTests, "require", refuse)
    (result,) = outcome_of(subject, [scenario("fresh-process")]).results
    assert result.status is Status.failed
    assert "bits moved" in result.reason


def test_a_new_process_with_another_key_is_a_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tiny_model)
    assert subject.reader.numerics["threads"] != 77
    monkeypatch.setitem(subject.reader.numerics, "threads", 77)
    (result,) = outcome_of(subject, [scenario("fresh-process")]).results
    assert result.status is Status.failed
    assert "another numerics key: threads" in result.reason


# -- runs that end early


def test_an_interruption_keeps_what_was_done(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Subject, "stranger", interrupted)
    names = ("hidden-states", "company", "alone")
    chosen = [scenario(name) for name in names]
    outcome = outcome_of(subject_of(tiny_model), chosen)

    assert [result.status for result in outcome.results] == [
        Status.passed,
        Status.interrupted,
        Status.not_run,
    ]
    assert isinstance(outcome.stopped, KeyboardInterrupt)
    assert not outcome.passed


@pytest.mark.parametrize(
    "fault", [DeviceError("gone"), torch.OutOfMemoryError("gone"), torch.AcceleratorError("gone")]
)
def test_a_device_that_fails_ends_the_check(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(Subject, "read_all", fail)
    outcome = outcome_of(subject_of(tiny_model), [scenario("repeat"), scenario("alone")])

    assert [result.status for result in outcome.results] == [Status.failed, Status.not_run]
    assert isinstance(outcome.stopped, DeviceError)
    assert "gone" in outcome.results[0].reason


# -- choosing


def test_names_are_stable_and_described() -> None:
    assert NAMES == (
        *("repeat", "company", "position", "contents", "partner-lengths", "lengths", "shuffled"),
        *("requests", "chat-turn", "fresh-process", "shared-prefix", "hidden-states", "reduction"),
        *("graph", "alone", "control"),
    )
    assert all(len(scenario.about) > 20 for scenario in SCENARIOS)
    assert [s.name for s in SCENARIOS if s.kind is not Kind.proof] == ["alone", "control"]


def test_only_and_skip() -> None:
    def names(only: list[str], skip: list[str]) -> list[str]:
        return [scenario.name for scenario in choose(only, skip)]

    assert names([], []) == list(NAMES)
    assert names(["control", "repeat"], []) == ["repeat", "control"]
    assert names([], ["repeat"]) == list(NAMES[1:])
    assert names(["repeat", "graph"], ["graph"]) == ["repeat"]
    with pytest.raises(UsageError, match="no scenario 'repeated'; there are repeat, company"):
        names(["repeated"], [])
    with pytest.raises(UsageError, match="no scenario to run"):
        names(["graph"], ["graph"])


def test_records_of_which_none_can_be_scored(tmp_path: Path) -> None:
    model = write_model(tmp_path / "short", max_position_embeddings=2)
    with pytest.raises(InputError, match="none of the 5 records"):
        subject_of(model)


def test_a_scenario_without_room_says_so(tiny_model: Path) -> None:
    with pytest.raises(NotRunError, match="--rows-per-forward 1"):
        subject_of(tiny_model, rows_per_forward=1).most_partners()


def test_lengths_of_partners(tiny_model: Path) -> None:
    subject = subject_of(tiny_model)
    for room in (1, 2, 7, 64, 1000):
        for most in (1, 2, 7, 31):
            some = subject.some_lengths(room, most)
            assert len(some) == min(room, most)
            assert sum(some) <= room
            full = subject.filling(room, most)
            assert 1 <= len(full) <= most
            assert sum(full) == room
            assert min(*some, *full) >= 1
    spread = np.array(subject.filling(4096, 31))
    assert spread.max() > 20 * spread.min()


# -- on a GPU


@pytest.fixture(scope="module")
def gpu_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a shape with random weights; 0.6B where no other is asked for."""
    shape = getattr(request, "param", "0.6B")
    folder = tmp_path_factory.mktemp("model")
    tokenizer = find_qwen3_tokenizer() or DEMO_MODEL
    write_random_checkpoint(folder, tokenizer, shape=shape, vocab_size=151936)
    return folder


def _on_gpu(model: Path) -> Subject:
    """A forward that holds every length, and few enough rows for the self-test to have more."""
    return subject_of(model, device="cuda", tokens_per_forward=2048)


@pytest.mark.gpu
@pytest.mark.parametrize("gpu_model", ["0.6B", "4B"], indirect=True)
def test_nothing_wrong_on_a_gpu(gpu_model: Path) -> None:
    options: dict[str, Any] = {"tokens_per_forward": None, "rows_per_forward": None}
    outcome = outcome_of(subject_of(gpu_model, level=FULL, device="cuda", **options))

    failed = [(r.scenario.name, r.reason) for r in outcome.of(Status.failed)]
    assert outcome.passed, (failed, outcome.stopped)
    assert outcome.of(Status.not_run) == []
    assert outcome.control is not None
    assert outcome.control.status is Status.shown
    assert outcome.proven.comparisons > 1_000_000


@pytest.mark.gpu
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_on_a_gpu(
    gpu_model: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """The faults that are not in the arithmetic; the same scenarios must find them."""
    if fault.plant is float_atomics:
        pytest.skip("the kernels reduce here; see the next test")
    fault.plant(monkeypatch)
    outcome = outcome_of(_on_gpu(gpu_model))
    assert {result.scenario.name for result in outcome.of(Status.failed)} >= fault.named


@pytest.mark.gpu
def test_kernels_that_differ_from_the_reference(
    gpu_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's sum in float32: what the kernels compute is no longer what it is."""
    float_atomics(monkeypatch)
    outcome = outcome_of(_on_gpu(gpu_model))
    assert [result.scenario.name for result in outcome.of(Status.failed)] == ["reduction"]


@pytest.mark.gpu
def test_no_kernel_where_the_host_reduces(gpu_model: Path) -> None:
    subject = subject_of(gpu_model, device="cuda", reduction="host")
    (result,) = outcome_of(subject, [scenario("reduction")]).results
    assert result.status is Status.not_run
