from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from scorer.job import summary as module
from scorer.job.summary import Counted, Summary
from scorer.records.record import Record
from scorer.rows import Failure, OptionScore, Score


def option(text: str) -> OptionScore:
    return OptionScore(
        text=text, token_ids=(1,), logprob=-1.0, probability=0.5, rank=1, is_greedy=False
    )


def scored(
    gold: int | None = None,
    answer: int | None = 0,
    *,
    texts: tuple[str, ...] = ("yes", "no", "maybe"),
    mass: float | None = None,
    tokens: int = 10,
) -> Score:
    """A row whose answer is the option at ``answer``, None for a tie of the first two."""
    return Score(
        id="x",
        line=1,
        prompt_tokens=tokens,
        answer=None if answer is None else texts[answer],
        answer_index=answer,
        tied=(0, 1) if answer is None else UNSET,
        label_mass=mass,
        gold_index=UNSET if gold is None else gold,
        correct=UNSET if gold is None else answer == gold,
        options=tuple(map(option, texts)),
    )


def summed(*rows: Score) -> Summary:
    summary = Summary()
    for row in rows:
        summary.add(row)
    return summary


def test_nothing_has_no_means() -> None:
    assert Summary().fields() == {
        "records": 0,
        "scored": 0,
        "errors": {},
        "warned": 0,
        "tied": 0,
        "prompt_tokens": 0,
        "longest_prompt": 0,
        "with_gold": 0,
        "accuracy": None,
        "majority_baseline": None,
        "mean_label_mass": None,
        "constant_scores": False,
    }
    assert Summary().table() == [("records", "0 (0 scored)")]


def test_numbers_by_hand() -> None:
    summary = summed(
        scored(gold=0, answer=0, mass=0.75, tokens=7),
        scored(gold=1, answer=0, mass=0.25, tokens=30),
        scored(gold=1, answer=1, mass=None),
        scored(gold=1, answer=None, mass=0.5),  # a tie with the gold option is not correct
        scored(gold=None, answer=2),
        Score(id="e", line=6, prompt_tokens=3, error=Failure(code="empty_option", message="m")),
        Score(id=None, line=7, error=Failure(code="invalid_json", message="m")),
        Score(id=None, line=8, error=Failure(code="invalid_json", message="m")),
    )

    assert summary.fields() == {
        "records": 8,
        "scored": 5,
        "errors": {"empty_option": 1, "invalid_json": 2},
        "warned": 0,
        "tied": 1,
        "prompt_tokens": 7 + 30 + 10 + 10 + 10 + 3,
        "longest_prompt": 30,
        "with_gold": 4,
        "accuracy": 2 / 4,
        "majority_baseline": 3 / 4,
        "mean_label_mass": 0.5,
        "constant_scores": False,
    }
    table = dict(summary.table())
    assert table["errors"] == "3: invalid_json 2, empty_option 1"
    assert table["accuracy"] == (
        "50.0% of 4 with a gold label, the 3 failed rows left out (best constant answer: 75.0%)"
    )
    rehearsed = dict(summary.table(rehearsed=True))
    assert rehearsed["records"] == "8 (5 can be scored)"
    assert table["label mass"] == "0.500 on average"
    assert table["ties"] == "1 rows without one best option"


def test_the_best_constant_answer_is_a_text_or_a_place() -> None:
    # always "yes", which moves about
    by_text = summed(
        scored(gold=0, texts=("yes", "no")),
        scored(gold=1, texts=("no", "yes")),
        scored(gold=1, texts=("yes", "no")),
        scored(gold=1, texts=("no", "yes")),
    )
    assert by_text.majority_baseline == 3 / 4
    # always the second, whatever it says
    by_place = summed(
        scored(gold=1, texts=("a", "b")),
        scored(gold=1, texts=("c", "d")),
        scored(gold=1, texts=("e", "f")),
        scored(gold=0, texts=("b", "g")),
    )
    assert by_place.majority_baseline == 3 / 4


def test_many_gold_texts_leave_only_places_whatever_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_TEXTS", 3)
    same = [scored(gold=place, texts=("yes", "yes!", "yes?")) for place in (0, 0, 0, 0, 1, 2)]
    other = [scored(gold=1, texts=("", f"text {n}", "")) for n in range(6)]

    assert summed(*same).majority_baseline == 4 / 6
    assert summed(*same, *other).majority_baseline == 7 / 12
    assert summed(*other, *same).majority_baseline == 7 / 12


def test_gold_texts_take_bounded_memory() -> None:
    summary = Summary()
    for n in range(5000):
        summary.add(scored(gold=0, texts=(f"text {n}", "no")))

    assert len(summary._gold_texts) <= module._MOST_TEXTS + 1
    assert summary.majority_baseline == 1.0


@settings(max_examples=300)
@given(
    st.lists(
        st.builds(
            scored,
            gold=st.none() | st.integers(0, 2),
            answer=st.none() | st.integers(0, 2),
            mass=st.none() | st.floats(0, 1),
            tokens=st.integers(1, 9),
        )
        | st.builds(
            lambda sha, logprob: Score(
                id="x",
                line=1,
                prompt_sha256=sha,
                options=(msgspec.structs.replace(option("yes"), logprob=logprob),),
                warnings=("w",),
            ),
            st.sampled_from("abc"),
            st.sampled_from([-1.0, -1.0, -1.0, -2.0]),
        )
        | st.just(Score(id="e", line=6, error=Failure(code="empty_option", message="m"))),
        max_size=12,
    ),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_stretches_come_to_what_the_rows_come_to(rows: list[Score], cuts: list[int]) -> None:
    summary = Summary()
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in pairwise(places):
        counted = Counted()
        for row in rows[start:end]:
            counted.add(row)
        sent = msgspec.msgpack.encode(counted)
        summary.take(msgspec.msgpack.decode(sent, type=Counted))
    expected = summed(*rows)
    assert summary.fields() == expected.fields()
    assert summary.constant_scores == expected.constant_scores
    if not expected._differing:
        assert summary == expected


@pytest.mark.parametrize("size", [1, 3, 40])
def test_constant_scores_have_one_of_two_causes(size: int) -> None:
    """Other records with one prompt lose their text; other prompts with one score, the model."""

    def warning(prompts: int, questions: int) -> str | None:
        summary = Summary()
        for start in range(0, 40, size):
            counted = Counted()
            for n in range(start, min(start + size, 40)):
                row = Score(
                    id=n, line=n + 1, prompt_sha256=str(n % prompts), options=(option("yes"),)
                )
                record = Record(line=n + 1, id=n, question=f"{n % questions}?", options=("yes",))
                counted.add(row, record)
            summary.take(counted)
        return summary.warning

    assert warning(prompts=1, questions=40) == module.ONE_PROMPT
    assert warning(prompts=40, questions=40) == module.CONSTANT_SCORES
    assert warning(prompts=2, questions=2) == module.CONSTANT_SCORES
    assert warning(prompts=1, questions=1) is None
