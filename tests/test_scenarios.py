"""At which places each scenario compares, and which values: one that goes missing fails a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scorer.check import plain, scenarios
from scorer.check.row_values import compare_shared, compare_values
from scorer.check.run import Status
from scorer.check.subject import FULL, NORMAL, QUICK, Level, Subject, make_subject, victim
from scorer.check.tally import Tally
from scorer.errors import InputError
from scorer.records.record_line import parse_line
from scorer.reduction import Reduced
from scorer.rows import Failure, Score
from scorer.scoring import Scorer
from scorer.selftest import SelfTests
from scorer.shapes import Read
from tests.checks import in_this_process, outcome_of, scenario, subject_of
from tests.faults import one_ulp_of_the_chosen, where
from tests.models import edit_weights, write_model
from tests.sharing import share_on_cpu

WITHIN = ", within it"  # a token's several values in one read


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of_both(*ends: str) -> list[str]:
    """The victims of the quick level have 3 and 64 tokens."""
    return [f"read of {tokens} tokens{end}" for tokens in (3, 64) for end in ends]


def requests_of(tokens: int, targets: int) -> list[str]:
    asked = ((targets, 0), (targets, 1), (6 + targets, 50), (0, 200))
    return [
        *(
            f"read of {tokens} tokens: {count} targets, {entries} entries, {tail} positions"
            for count, entries in asked
            for tail in (1, tokens)
        ),
        *(f"read of {tokens} tokens, other options {number}" for number in (1, 2, 3)),
    ]


PLACES: dict[str, list[str]] = {
    "repeat": of_both(", run 2"),
    "company": [
        *("read of 3 tokens with 2 others", "read of 3 tokens with 7 others"),
        *("read of 3 tokens with 6 others", "read of 64 tokens with 2 others"),
        *("read of 64 tokens with 7 others", "read of 64 tokens with 5 others"),
    ],
    "position": of_both(" in place 4 of 8", " in place 8 of 8"),
    "contents": of_both(" among random tokens", " among zero tokens", " among its own tokens"),
    "partner-lengths": of_both(
        ", a partner of 10 tokens before it", ", a partner of 10 tokens after it"
    ),
    "lengths": [
        *("read of 1 tokens, again", "read of 1 tokens after 7 others"),
        *("read of 1 tokens between 7 others", "read of 127 tokens, again"),
        *("read of 127 tokens after 1 others", "read of 127 tokens between 1 others"),
        *("read of 128 tokens, again", "read of 129 tokens, again"),
    ],
    "shuffled": [
        *(f"record {number} backwards" for number in (5, 4, 3, 2, 1)),
        *(f"record {number} in random order" for number in (1, 3, 2, 4, 5)),
        *("record 1 by itself", "record 2 by itself"),
    ],
    "requests": [*requests_of(3, 1), *requests_of(64, 2)],
    "chat-turn": of_both(
        " after a turn of 16, its cache held", " after a turn of 16, its cache gone"
    ),
    "fresh-process": [f"record {number}" for number in (1, 2, 3, 4, 5)],
    "shared-prefix": [
        *("prompt 1", "prompt 2", "prompt 3"),
        *("prompt 3, backwards", "prompt 2, backwards", "prompt 1, backwards"),
        *("ordering 1", "ordering 2", "ordering 2, backwards", "ordering 1, backwards"),
    ],
    "alone": of_both(""),
    "control": ["prompt of 3 tokens in 2", "prompt of 64 tokens in 2"],
}


def places_of(subject: Any, run: Callable[[Any, Tally], None]) -> list[str]:
    """Run a scenario; return at which places it compared one computation with another."""
    places: list[str] = []

    def told(honest: Any) -> Any:
        def compare(tally: Tally, expected: object, got: object, where: str) -> None:
            places.append(where)
            honest(tally, expected, got, where)

        return compare

    with (
        patch.object(Tally, "reads", told(Tally.reads)),
        patch("scorer.check.scenarios.compare_shared", told(compare_shared)),
        patch("scorer.check.scenarios.compare_values", told(compare_values)),
        patch("scorer.check.fresh_process.compare_values", told(compare_values)),
        patch("scorer.check.sharing.compare_values", told(compare_values)),
        patch.object(plain, "_compare", told(plain._compare)),
        patch("scorer.check.fresh_process.subprocess.run", in_this_process),
    ):
        run(subject, Tally())
    return [place for place in places if not place.endswith(WITHIN)]


@pytest.mark.parametrize("name", PLACES)
def test_where_a_scenario_compares(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "shared-prefix":
        share_on_cpu(monkeypatch)
    assert places_of(subject_of(tiny_model), scenario(name).run) == PLACES[name]


def test_what_more_is_compared_at_the_normal_level(tiny_model: Path) -> None:
    subject = subject_of(tiny_model, level=replace(NORMAL, victims=1))
    assert places_of(subject, scenarios.repeat) == [f"read of 3 tokens, run {n}" for n in (2, 3, 4)]
    assert places_of(subject, scenarios.partner_lengths) == [
        f"read of 3 tokens, a partner of {size} tokens {side} it"
        for side in ("before", "after")
        for size in (10, 1, 62, 125)
    ]


@pytest.mark.parametrize("name", ["reduction", "graph"])
def test_where_what_needs_a_gpu_compares(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With readers that stand for the two whose bits are compared."""
    honest = subject_of(tiny_model)
    monkeypatch.setattr(scenarios, "_another", lambda *_, **__: honest.reader)
    reader = SimpleNamespace(
        max_device_k=5,
        alone=False,
        shape=honest.reader.shape,
        model=SimpleNamespace(device=torch.device("cuda")),
    )
    stand_in = SimpleNamespace(
        reader=reader, victims=honest.victims, read_in=honest.read_in, read_all=honest.read_all
    )
    expected = of_both("")
    if name == "reduction":
        expected += ["two reads of one forward"] * 2
    assert places_of(stand_in, scenario(name).run) == expected


@pytest.mark.parametrize(
    ("level", "rungs"), [(QUICK, [128]), (NORMAL, [128, 256]), (FULL, [128, 256, 512])]
)
def test_the_rungs_of_hidden_states(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, level: Level, rungs: list[int]
) -> None:
    honest = SelfTests.require
    tested: list[int] = []

    def require(self: SelfTests, model: Any, shape: Any, rung: int) -> None:
        tested.append(rung)
        honest(self, model, shape, rung)

    subject = subject_of(tiny_model, level=level)
    monkeypatch.setattr(SelfTests, "require", require)
    tally = Tally()
    scenarios.hidden_states(subject, tally)
    assert tested == rungs
    assert tally.equal
    assert [part.split()[2] for part in tally.left_out] == [
        str(rung) for rung in (128, 256, 512) if rung not in rungs
    ]


# -- which values of a read


@pytest.fixture(scope="module")
def read_and_reduced(tiny_model: Path) -> tuple[Read, Reduced]:
    subject = subject_of(tiny_model)
    read = victim(subject.victims[-1].tokens, [3, 7], 4)
    return read, subject.read_in([read])


def moved(reduced: Reduced, field: str, place: int) -> Reduced:
    """Return a read's result with one value moved by the least."""
    values = getattr(reduced, field).copy()
    is_float = values.dtype == np.float64
    values[place] = np.nextafter(values[place], -np.inf) if is_float else values[place] + 1
    return replace(reduced, **{field: values})


FIELDS = (
    *("log_sum", "chosen_id", "chosen_logprob", "target_logprob", "target_rank"),
    *("top_id", "top_logprob"),
)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("field", FIELDS)
def test_every_value_of_a_read_is_compared(
    read_and_reduced: tuple[Read, Reduced], field: str, place: int
) -> None:
    _, reduced = read_and_reduced
    tally = Tally()
    tally.reads(reduced, moved(reduced, field, place), "here")
    assert tally.mismatches == 1
    assert tally.examples[0].startswith(f"here, {field}: ")


@pytest.mark.parametrize("field", FIELDS)
def test_every_value_of_a_last_distribution_is_compared(
    read_and_reduced: tuple[Read, Reduced], field: str
) -> None:
    read, reduced = read_and_reduced
    tally = Tally()
    base = scenarios._last_values(tally, read, reduced, "here")
    assert tally.equal
    got = scenarios._last_values(tally, read, moved(reduced, field, -1), "here")
    compare_shared(tally, base, got, "here")
    if field != "top_id":
        assert tally.mismatches > 0
    else:  # another token in the last place: which is listed is what was asked
        assert set(base) != set(got)


def test_a_token_has_one_value_however_it_is_asked_for(
    read_and_reduced: tuple[Read, Reduced],
) -> None:
    read, reduced = read_and_reduced
    tally = Tally()
    scenarios._last_values(tally, read, moved(reduced, "chosen_logprob", -1), "here")
    assert tally.mismatches == 1
    assert tally.examples[0].startswith("here, within it, token ")


# -- the chosen token's value alone


def test_the_chosen_tokens_value_alone_moves_by_place(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where(lambda _batch, place: place > 0, one_ulp_of_the_chosen)(monkeypatch)
    outcome = outcome_of(subject_of(tiny_model))
    failed = {result.scenario.name for result in outcome.of(Status.failed)}
    assert failed == {"position", "lengths", "shuffled", "requests"}


def test_the_chosen_tokens_value_alone_moves_where_reads_share(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_on_cpu(monkeypatch)
    shares = where(
        lambda batch, _place: any(group.prefix for group in batch.groups), one_ulp_of_the_chosen
    )
    shares(monkeypatch)
    (result,) = outcome_of(subject_of(tiny_model), [scenario("shared-prefix")]).results
    assert result.status is Status.failed
    assert all("chosen logprob" in example for example in result.tally.examples)


# -- what is not finite, and what has no room


def overflowing(folder: Path, token: int) -> Path:
    """Write a model in which one token's logit is +-inf at most places."""
    model = write_model(folder)
    weights = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    weights[token] = weights[token].sign() * 3e38
    return edit_weights(model, model__embed_tokens__weight=weights)


@pytest.mark.parametrize(
    ("token", "reasons"),
    [
        (7, {"nonfinite_logits": 2, "zero_probability": 1}),
        (65, {"nonfinite_logits": 2}),
    ],
)
@pytest.mark.parametrize("level", [QUICK, replace(NORMAL, victims=2)], ids=lambda level: level.name)
def test_logits_that_are_not_finite_are_no_difference(
    tmp_path: Path, token: int, reasons: dict[str, int], level: Level
) -> None:
    subject = subject_of(overflowing(tmp_path / "model", token), level=level)
    assert subject.reasons == reasons
    assert len(subject.records) == 5 - subject.skipped
    outcome = outcome_of(subject)
    assert outcome.passed, [(r.scenario.name, r.tally.examples) for r in outcome.of(Status.failed)]


def test_records_that_all_fail_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none of the 5 records .* \(nonfinite_logits: 5\)"):
        subject_of(overflowing(tmp_path / "model", 100))


def test_a_read_that_is_not_finite_compares_nothing(
    read_and_reduced: tuple[Read, Reduced],
) -> None:
    _, reduced = read_and_reduced
    broken = replace(reduced, nonfinite=np.ones_like(reduced.nonfinite))
    tally = Tally()
    tally.reads(broken, reduced, "here")
    assert tally.comparisons == 0
    assert tally.left_out == ["here: its logits are not finite"]


def ids_subject(model: Path, ids: list[int], level: Level, **options: int) -> Subject:
    record = parse_line(b'{"prompt_token_ids": %s}' % str(ids).encode(), 1)
    scorer = Scorer(model, device="cpu", logprobs=0, **options)  # type: ignore[arg-type]
    return make_subject(scorer, [record], level, None)


@pytest.mark.parametrize("level", [QUICK, NORMAL], ids=lambda level: level.name)
@pytest.mark.parametrize("tokens", [1, 6, 7, 8])
def test_a_partner_has_two_lengths_wherever_there_is_room(
    tiny_model: Path, level: Level, tokens: int
) -> None:
    ids = list(range(5, 5 + tokens))
    subject = ids_subject(tiny_model, ids, level, tokens_per_forward=16, rows_per_forward=4)
    tally = Tally()
    scenarios.partner_lengths(subject, tally)
    assert tally.equal


# -- rows that fail only sometimes


@pytest.mark.parametrize("first", [True, False])
def test_a_row_that_fails_where_another_is_scored(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """With fewer options it is a difference; where all of them fail that is told."""
    subject = subject_of(tiny_model)
    honest = Scorer.score
    failure = Failure(code="nonfinite_logits", message="")

    def score(self: Scorer, records: Any, **more: Any) -> Any:
        records = list(records)
        broken = (len(records) == 1) == first
        for row in honest(self, records, **more):
            yield Score(id=row.id, line=row.line, error=failure) if broken else row

    monkeypatch.setattr(Scorer, "score", score)
    tally = Tally()
    scenarios.requests(subject, tally)
    assert tally.equal == first
    if first:
        assert tally.left_out == of_both(", other options: nonfinite_logits")
    else:
        assert tally.mismatches == 2 * 3
        assert "error code: None → 'nonfinite_logits'" in tally.examples[0]


def test_a_record_that_was_scored_and_then_fails(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tiny_model)

    def score(_: Scorer, records: Any, **__: Any) -> Any:
        for number, _record in enumerate(records, 1):
            yield Score(id=None, line=number, error=Failure(code="nonfinite_logits", message=""))

    monkeypatch.setattr(Scorer, "score", score)
    tally = Tally()
    scenarios.shuffled(subject, tally)
    assert tally.mismatches == len(subject.records)
    assert tally.examples[0] == "record 1: scored before, now nonfinite_logits"
