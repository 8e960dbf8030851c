"""From hand-made distributions to rows: every number here is worked out beside it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from scorer.answers import MAX_ENTRIES, Plan, answer, failed, plan, prompt_sha256
from scorer.errors import ErrorCode, RowError
from scorer.numeric import ln
from scorer.prompts.labels import PreparedOption
from scorer.prompts.prompter import Prepared, PreparedTarget, Prompter
from scorer.prompts.tokenizer import TokenText
from scorer.prompts.words import packed
from scorer.records.record import BadLine, Record
from scorer.reduction import finish, reduce_host
from scorer.rows import Score, encode_score
from scorer.tables import ReadResult, Results, split_results

VOCABULARY = 10


class Names:
    """A prompter that only knows what its ten tokens are called: t0 … t9."""

    def token_text(self, ids: Iterable[int]) -> list[TokenText]:
        return [TokenText(f"t{token_id}", b"t%d" % token_id) for token_id in ids]


PROMPTER = cast(Prompter, Names())


def prepared(
    tokens: list[int],
    options: Sequence[tuple[int, ...]] = (),
    *,
    targets: Sequence[int] = (),
    question: bool = False,
    prefix_clash: bool = False,
    moved_spaces: int = 0,
    **fields: Any,
) -> Prepared:
    kind: dict[str, Any] = {"question": "q"} if question else {"prompt_token_ids": tuple(tokens)}
    return Prepared(
        record=Record(line=3, id="x", **kind, **fields),
        ids=packed(tokens),
        options=tuple(
            PreparedOption(
                text="-".join(map(str, ids)),
                label="ABCDEF"[place] if question else None,
                token_ids=ids,
                seam_changed=False,
            )
            for place, ids in enumerate(options)
        ),
        targets=tuple(PreparedTarget(token, f"t{token}") for token in targets),
        text="",
        warnings=(),
        special_matches=0,
        truncated_tokens=0,
        moved_spaces=moved_spaces,
        prefix_clash=prefix_clash,
    )


def planned(
    item: Prepared, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> Plan:
    return plan(item, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


def probabilities(*values: float) -> np.ndarray:
    """Logits of a distribution over the ten tokens; what is not named shares the rest."""
    rest = (1.0 - sum(values)) / (VOCABULARY - len(values))
    shares = np.array([*values, *[rest] * (VOCABULARY - len(values))])
    logits: np.ndarray = np.log(shares).astype(np.float32)
    return logits


def results_of(item: Plan, rows: list[list[np.ndarray]]) -> list[ReadResult]:
    """Reduce one list of logit rows a read, as the reader would."""
    results: list[ReadResult] = []
    for read, logits in zip(item.reads, rows, strict=True):
        assert len(logits) == len(read.positions)
        raw = reduce_host(np.stack(logits), read.requests, VOCABULARY)
        results += split_results(finish(raw, read.requests), read.requests, [len(logits)])
    return results


def row_of(item: Plan, rows: list[list[np.ndarray]]) -> Score:
    row = answer(item, results_of(item, rows), PROMPTER)
    encode_score(row)
    return row


def test_a_prompt_read_serves_all_short_options_and_targets() -> None:
    item = planned(prepared([4, 5, 6], [(1,), (2,), (1, 2)], targets=[7, 7]))
    short, longer = item.reads
    assert [ask.option for ask in item.asks] == [0, 2]
    assert short.tokens.tolist() == [4, 5, 6]
    assert short.positions.tolist() == [2]
    assert short.requests.target_ids.tolist() == [1, 2, 7, 7]
    assert short.requests.top_k.tolist() == [0]
    assert longer.tokens.tolist() == [4, 5, 6, 1]  # nothing is asked behind the last
    assert longer.positions.tolist() == [2, 3]  # where 1 and where 2 are predicted
    assert longer.requests.target_ids.tolist() == [1, 2]
    assert longer.requests.target_offsets.tolist() == [0, 1, 2]


def test_no_prompt_read_where_nothing_needs_it() -> None:
    item = planned(prepared([4], [(1, 2), (3, 4, 5)]))
    assert [ask.option for ask in item.asks] == [2, 3]
    assert [len(read) for read in item.reads] == [2, 3]  # the last token is not read
    assert planned(prepared([4])).reads == ()


def test_prompt_logprobs_read_every_position() -> None:
    item = planned(prepared([4, 5, 6], targets=[9]), logprobs=2, prompt_logprobs=3)
    (read,) = item.reads
    assert read.positions.tolist() == [0, 1, 2]
    assert read.requests.target_ids.tolist() == [5, 6, 9]
    assert read.requests.target_offsets.tolist() == [0, 1, 2, 3]
    assert read.requests.top_k.tolist() == [3, 3, 2]
    (single,) = planned(prepared([4]), prompt_logprobs=3).reads
    assert single.requests.target_offsets.tolist() == [0, 0]


def test_the_record_overrules_what_is_asked_of_all() -> None:
    item = planned(prepared([4, 5], logprobs=1, prompt_logprobs=0), logprobs=7, prompt_logprobs=7)
    assert (item.logprobs, item.prompt_logprobs) == (1, 0)


def test_a_lettered_question() -> None:
    item = planned(prepared([4], [(0,), (1,), (2,)], question=True, label=1, gold_index=1))
    row = row_of(item, [[probabilities(0.2, 0.5, 0.1)]])
    assert row.options is not UNSET
    assert row.answer == "1"
    assert row.answer_index == 1
    assert row.tied is UNSET
    assert row.correct is True
    assert row.gold_index == 1
    assert row.label_mass == pytest.approx(0.8, abs=1e-6)
    assert row.margin == pytest.approx(ln(0.5 / 0.2), abs=1e-6)
    assert [option.label for option in row.options] == ["A", "B", "C"]
    assert [option.rank for option in row.options] == [2, 1, 3]
    assert [option.is_greedy for option in row.options] == [False, True, False]
    assert [option.probability for option in row.options] == pytest.approx(
        [0.25, 0.625, 0.125], abs=1e-6
    )
    assert [option.logprob for option in row.options] == pytest.approx(
        [ln(0.2), ln(0.5), ln(0.1)], abs=1e-6
    )
    assert row.warnings is UNSET
    assert row.prompt_sha256 == hashlib.sha256(b"\4\0\0\0").hexdigest()


def option_probabilities(values: Sequence[float]) -> list[float]:
    """The probabilities of options of one token each, whose log-probabilities are these."""
    count = len(values)
    ranks = [1 + sum(other > value for other in values) for value in values]
    whole = Results([False], [0], [-1.0], list(values), ranks, [], [], [0, 0])
    item = planned(prepared([4], [(token,) for token in range(count)]))
    row = answer(item, [ReadResult(whole, 0, 1, 0, count)], PROMPTER)
    assert row.options is not UNSET
    return [option.probability for option in row.options]


def test_probabilities_are_the_softmax_of_log_probabilities() -> None:
    values = [-0.25, -3.5, -1.75, -40.0]
    with mpmath.workprec(160):
        exact = [mpmath.exp(value) for value in values]
        expected = [float(weight / mpmath.fsum(exact)) for weight in exact]
    assert option_probabilities(values) == pytest.approx(expected, rel=1e-15)
    assert option_probabilities([-3.0]) == [1.0]
    assert option_probabilities([-1e6, -1e6]) == [0.5, 0.5]
    assert option_probabilities([-1e6, -800.0]) == [0.0, 1.0]


@given(
    st.lists(st.floats(min_value=-60.0, max_value=0.0), min_size=1, max_size=12).flatmap(
        lambda values: st.tuples(st.just(values), st.permutations(values))
    )
)
def test_probabilities_keep_their_bits_in_any_order(
    pair: tuple[list[float], list[float]],
) -> None:
    values, shuffled = pair
    assert dict(zip(values, option_probabilities(values), strict=True)) == dict(
        zip(shuffled, option_probabilities(shuffled), strict=True)
    )


def test_low_label_mass_is_said_for_questions_only() -> None:
    low = [[probabilities(0.2, 0.1)]]
    asked = row_of(planned(prepared([4], [(0,), (1,)], question=True)), low)
    assert asked.warnings == (
        "label mass 0.3: most of the probability is on other tokens than the labels",
    )
    assert row_of(planned(prepared([4], [(0,), (1,)])), low).warnings is UNSET


def test_ties_have_no_answer() -> None:
    item = planned(prepared([4], [(0,), (1,), (2,)], question=True, label=0, gold_index=0))
    row = row_of(item, [[probabilities(0.4, 0.4, 0.1)]])
    assert row.answer is None
    assert row.answer_index is None
    assert row.tied == (0, 1)
    assert row.correct is False
    assert row.margin == 0.0
    assert row.options is not UNSET
    assert [option.rank for option in row.options] == [1, 1, 3]
    # Of equal tokens the smallest id is the greedy one.
    assert [option.is_greedy for option in row.options] == [True, False, False]


def test_longer_options_are_summed_and_normalised() -> None:
    item = planned(prepared([4], [(0,), (1, 2)]))
    after_prompt = probabilities(0.3, 0.5)
    row = row_of(item, [[after_prompt], [after_prompt, probabilities(0.1, 0.1, 0.6)]])
    assert row.options is not UNSET
    short, longer = row.options
    assert longer.logprob == pytest.approx(ln(0.5) + ln(0.6), abs=1e-6)
    assert longer.logprob_per_token == longer.logprob / 2
    assert longer.logprob_per_byte == longer.logprob / 3  # "1-2"
    assert short.logprob_per_token == short.logprob
    assert longer.is_greedy
    assert not short.is_greedy
    # 0.3 in one token against 0.5 * 0.6 in two: the sums tie but for rounding, the means don't.
    assert row.answer_per_token == "1-2"
    assert row.label_mass is None
    one = row_of(planned(prepared([4], [(1, 2)])), [[after_prompt, probabilities(0.1, 0.1, 0.6)]])
    assert one.margin is None
    assert one.options is not UNSET
    assert one.options[0].probability == 1.0
    assert one.options[0].logprob == longer.logprob


def test_bytes_are_those_that_were_scored() -> None:
    item = planned(prepared([4], [(1, 2)], moved_spaces=2))
    row = row_of(item, [[probabilities(0.3, 0.5), probabilities(0.1, 0.1, 0.6)]])
    assert row.options is not UNSET
    assert row.options[0].logprob_per_byte == row.options[0].logprob / 5  # "  1-2"


def test_a_record_that_asks_for_nothing_says_so() -> None:
    row = row_of(planned(prepared([4])), [])
    assert row.warnings == ("nothing is asked: add options, targets, logprobs or prompt_logprobs",)


def test_label_mass_needs_disjoint_single_tokens() -> None:
    item = planned(prepared([4], [(0,), (1,)], prefix_clash=True))
    assert row_of(item, [[probabilities(0.2, 0.5)]]).label_mass is None


def test_targets_and_entries() -> None:
    item = planned(prepared([4, 1], targets=[2, 0, 2]), logprobs=2, prompt_logprobs=1)
    first, last = probabilities(0.1, 0.6), probabilities(0.5, 0.2, 0.05)
    row = row_of(item, [[first, last]])
    assert row.targets is not UNSET
    assert row.logprobs is not UNSET
    assert row.prompt_logprobs is not UNSET
    assert [(target.token_id, target.text) for target in row.targets] == [
        (2, "t2"),
        (0, "t0"),
        (2, "t2"),
    ]
    assert row.targets[0] == row.targets[2]
    assert row.targets[1].logprob == pytest.approx(ln(0.5), abs=1e-6)
    assert [target.rank for target in row.targets] == [3, 1, 3]
    assert row.logprobs.chosen == row.targets[1] == row.logprobs.top[0]
    assert [(entry.token_id, entry.rank) for entry in row.logprobs.top] == [(0, 1), (1, 2)]
    nothing, second = row.prompt_logprobs
    assert nothing is None
    assert second is not None
    assert (second.token.token_id, second.token.rank) == (1, 1)
    assert second.token == second.chosen == second.top[0]
    assert len(second.top) == 1
    none_asked = row_of(planned(prepared([4, 1], targets=[2])), [[last]])
    assert none_asked.logprobs is UNSET
    assert none_asked.prompt_logprobs is UNSET
    assert none_asked.targets == (row.targets[0],)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_fail_the_row(bad: float) -> None:
    item = planned(prepared([4], [(0,), (1, 2)]))
    broken = probabilities(0.3)
    broken[7] = bad
    with pytest.raises(RowError, match="NaN or infinite") as raised:
        row_of(item, [[probabilities(0.3)], [probabilities(0.3), broken]])
    assert raised.value.code == ErrorCode.NONFINITE_LOGITS


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (planned(prepared([4], [(0,), (1,)])), "option '0'"),
        (planned(prepared([4], targets=[0])), "token 0"),
        (planned(prepared([4]), logprobs=VOCABULARY), "of rank 10"),
    ],
)
def test_probability_zero_fails_the_row_that_names_it(item: Plan, what: str) -> None:
    logits = probabilities(0.3)
    logits[0] = -math.inf
    with pytest.raises(RowError, match=what) as raised:
        row_of(item, [[logits]])
    assert raised.value.code == ErrorCode.ZERO_PROBABILITY


def test_a_row_that_could_not_be_held_is_refused() -> None:
    tokens = [0] * 1001
    assert len(planned(prepared(tokens), prompt_logprobs=MAX_ENTRIES // 1001).reads) == 1
    with pytest.raises(RowError, match="1001 prompt tokens") as raised:
        planned(prepared(tokens), prompt_logprobs=MAX_ENTRIES // 1001 + 1)
    assert raised.value.code == ErrorCode.LOGPROBS_LIMIT


def test_failed_rows_say_what_is_known() -> None:
    error = RowError(ErrorCode.ZERO_PROBABILITY, "why")
    known = failed(prepared([4, 5]), error)
    assert (known.id, known.line, known.prompt_tokens) == ("x", 3, 2)
    assert known.prompt_sha256 == prompt_sha256(packed([4, 5]))
    unknown = failed(BadLine(9, None, error), error)
    assert (unknown.id, unknown.line, unknown.prompt_tokens) == (None, 9, UNSET)
    for row in (known, unknown):
        assert row.error is not UNSET
        assert (row.error.code, row.error.message) == ("zero_probability", "why")
        encode_score(row)
