"""Questions to rows to figures: by readers without a model whose answers are known, and by a model.

The readers go through the real prompts, plans and answers; only the logits are made up, from the
rendered prompt that a model would have read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from scorer.answers import Plan, answer, failed
from scorer.compare.measures import Measures
from scorer.compare.orderings import Orders
from scorer.compare.questions import Comparison, ask, second_pass
from scorer.compare.rows import CompareRow, decode_rows, encode_row
from scorer.errors import ErrorCode, InputError, RowError
from scorer.records.record import BadLine, Record
from scorer.records.record_line import parse_line
from scorer.reduction import finish, reduce_host
from scorer.rows import Score
from scorer.scoring import Scorer
from scorer.tables import split_results
from tests.commands import Bench, Done, read_rows, refused, run, write_lines

QUESTIONS: list[dict[str, Any]] = [
    {"id": "two", "question": "Is it?", "options": ["yes", "no"], "label": "no"},
    {"id": "three", "question": "Which?", "options": ["red", "green", "blue"], "label": 0},
    {"id": "four", "question": "Where?", "options": ["n", "e", "s", "w"], "label": "e"},
    {"id": "five", "question": "Who?", "options": ["v", "w", "x", "y", "z"], "label": "z"},
]

Reads = Callable[[str, int, int], float]
"""A label's logit by the text of its option, its position and the number of options."""


def parsed(records: Iterable[Mapping[str, object]]) -> list[Record | BadLine]:
    return [parse_line(json.dumps(own).encode(), line) for line, own in enumerate(records, 1)]


@pytest.fixture(scope="module")
def prompts(tiny_model: Path) -> Scorer:
    """What renders and tokenises; its model is never loaded."""
    return Scorer(tiny_model, device="cpu")


def reader(prompts: Scorer, logit: Reads) -> Callable[[Iterable[Record]], Iterator[Score]]:
    def score(records: Iterable[Record]) -> Iterator[Score]:
        for item in prompts.prepare(records):
            assert isinstance(item, Plan), item
            (read,) = item.reads
            logits = np.full((1, prompts.prompter.n_ids), -5.0, dtype=np.float32)
            shown = re.findall(r"^([A-Z])\. (.*)$", item.prepared.text, re.MULTILINE)
            assert len(shown) == len(item.prepared.options)
            for position, ((letter, text), option) in enumerate(
                zip(shown, item.prepared.options, strict=True)
            ):
                assert (option.label or "").strip() == letter
                logits[0, option.token_ids[0]] = logit(text, position, len(shown))
            reduced = finish(
                reduce_host(logits, read.requests, prompts.prompter.n_ids), read.requests
            )
            (result,) = split_results(reduced, read.requests, [1])
            yield answer(item, [result], prompts.prompter)

    return score


def by_content(text: str, _position: int, _k: int) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:2], "little") / 2**13


def by_position(_text: str, position: int, _k: int) -> float:
    return 3.0 if position == 1 else 1.0


def compared(
    prompts: Scorer,
    logit: Reads,
    records: Iterable[Mapping[str, object]] = QUESTIONS,
    orders: Orders = Orders(),  # noqa: B008
) -> tuple[list[CompareRow], Measures]:
    comparison = Comparison()
    rows = list(ask(reader(prompts, logit), parsed(records), orders, {}))
    for row in rows:
        comparison.add(row)
    return rows, comparison.measures(seed=0, pride_fraction=0.0)


EVERY_KIND = [Orders("cyclic"), Orders("all"), Orders("balanced"), Orders("all", 7)]


@pytest.mark.parametrize("orders", EVERY_KIND, ids=lambda own: f"{own.kind}-{own.limit}")
def test_a_reader_of_content_never_flips(prompts: Scorer, orders: Orders) -> None:
    rows, found = compared(prompts, by_content, orders=orders)
    metric = {name: own.value for name, own in found.metrics.items()}

    for row, question in zip(rows, QUESTIONS, strict=True):
        best = max(question["options"], key=lambda text: by_content(text, 0, 0))
        assert row.answer == best
        assert row.flipped_pairs == 0
        assert row.spread == 0
    assert metric["flip_rate"] == 0
    assert metric["pairwise_flip_rate"] == 0
    assert metric["kendall_tau"] == pytest.approx(1, abs=1e-12)
    assert metric["sensitivity_gap"] == 0
    if orders.limit is None:
        # Every option stands at every position equally often, so every position is picked as often.
        assert metric["pick_v"] == 0
        assert metric["pick_chi_squared"] == 0
        assert all(own.rate.value == 1 / own.options for own in found.pick_rates)
        assert metric["rstd"] == 0
        assert metric["accuracy"] == metric["accuracy_listed"]


@pytest.mark.parametrize("orders", EVERY_KIND[:3], ids=lambda own: own.kind)
def test_a_reader_of_positions_always_flips(prompts: Scorer, orders: Orders) -> None:
    rows, found = compared(prompts, by_position, orders=orders)
    metric = {name: own.value for name, own in found.metrics.items()}

    assert metric["flip_rate"] == 1
    assert metric["pick_v"] == pytest.approx(1)
    assert {(own.options, own.position): own.rate.value for own in found.pick_rates} == {
        (k, p): float(p == 1) for k in (2, 3, 4, 5) for p in range(k)
    }
    # With the gold answer at position 1 it is always right, elsewhere never.
    assert {(own.options, own.position): own.rate.value for own in found.recalls} == {
        (k, p): float(p == 1) for k in (2, 3, 4, 5) for p in range(k)
    }
    assert metric["accuracy"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4)
    assert metric["always_right"] == 0
    assert metric["sensitivity_gap"] == 1
    if orders.kind != "balanced":
        assert metric["circular_accuracy"] == 0
    for row in rows:
        assert row.answer is None  # by means over the orders all options are alike
        assert row.tied == tuple(range(len(row.options or ())))


def test_an_ordering_is_written_as_it_was_asked(prompts: Scorer) -> None:
    """Content and position both decide, so that each value tells where it comes from."""
    value = {"red": 1.0, "green": 2.0, "blue": 3.0}
    question = {"id": 7, "question": "Which?", "options": ["red", "green", "blue"], "label": "red"}
    (row,), _ = compared(prompts, lambda text, p, _: value[text] + 10 * p, [question])

    assert row.orderings is not UNSET
    assert [own.order for own in row.orderings] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    for own in row.orderings:
        assert own.labels == ("A", "B", "C")
        shown = [("red", "green", "blue")[index] for index in own.order]
        logits = [value[text] + 10 * p for p, text in enumerate(shown)]
        gaps = [own.logprobs[p] - own.logprobs[0] for p in range(3)]
        assert gaps == pytest.approx([logit - logits[0] for logit in logits], abs=1e-6)
        assert own.answer_index == own.order[2]
        assert own.margin == pytest.approx(logits[2] - logits[1], abs=1e-6)
    assert (row.pairs, row.flipped_pairs, row.correct) == (3, 3, False)
    assert row.gold_index == 0
    assert row.means is not UNSET
    assert [own.chosen for own in row.means] == [1, 1, 1]
    assert row.answer == "blue"


def test_given_orders_are_asked_and_not_repeated_in_extra(prompts: Scorer) -> None:
    question = {**QUESTIONS[1], "orders": [[2, 1, 0], [0, 2, 1]], "topic": "colour"}
    (row,), _ = compared(prompts, by_content, [question], Orders("given"))

    assert row.orderings is not UNSET
    assert [own.order for own in row.orderings] == [(2, 1, 0), (0, 2, 1)]
    assert row.extra is not UNSET
    assert set(row.extra) == {"topic"}


def test_what_cannot_be_asked_keeps_its_place(prompts: Scorer) -> None:
    records: list[dict[str, Any]] = [
        {"id": "first", "prompt": "x"},
        QUESTIONS[0],
        {"id": "middle", "question": "?", "options": ["a"]},
        {"id": "many", "question": "?", "options": [str(i) for i in range(8)]},
        QUESTIONS[1],
        {"id": "last", "question": "?", "options": ["a", "b"], "labl": 1},
    ]
    rows, found = compared(prompts, by_content, records, Orders("all"))

    assert [row.id for row in rows] == ["first", "two", "middle", "many", "three", "last"]
    assert [row.line for row in rows] == [1, 2, 3, 4, 5, 6]
    codes = [row.error.code if row.error else None for row in rows]
    assert codes == [
        "invalid_value",
        None,
        "invalid_value",
        "too_many_options",
        None,
        "unknown_key",
    ]
    assert found.questions == 2


def test_an_ordering_that_fails_fails_its_question(prompts: Scorer) -> None:
    def score(records: Iterable[Record]) -> Iterator[Score]:
        for record in records:
            if record.options == ("no", "yes"):
                yield failed(record, RowError(ErrorCode.NONFINITE_LOGITS, "NaN"))
            else:
                yield from reader(prompts, by_content)([record])

    first, second = ask(score, parsed(QUESTIONS[:2]), Orders(), {})

    assert first.error is not UNSET
    assert (first.error.code, first.error.message) == (
        "nonfinite_logits",
        "with the options in the order [1, 0]: NaN",
    )
    assert first.orderings is UNSET
    assert second.error is UNSET


def test_no_questions_at_all_is_said() -> None:
    with pytest.raises(InputError, match="no question to compare among 0 rows"):
        Comparison().measures(seed=0, pride_fraction=0.0)


def test_the_second_pass_reads_a_sample_by_content(prompts: Scorer) -> None:
    asked: list[tuple[int, tuple[str, ...] | None]] = []

    def score(records: Iterable[Record]) -> Iterator[Score]:
        kept = list(records)
        asked.extend((own.line, own.options) for own in kept)
        return reader(prompts, by_content)(kept)

    records = parsed({**QUESTIONS[i % 4], "id": i, "question": f"Q{i}?"} for i in range(40))
    turned = records[::-1]
    first = second_pass(score, records, Orders(), 5)
    order = asked.copy()
    asked.clear()
    second = second_pass(score, turned, Orders(), 5)

    assert len({line for line, _ in first}) == 5
    assert second == first
    assert asked == order
    lines = [line for line, _ in order]
    assert lines != sorted(lines)  # neighbours are others than in the file
    # Nor do a question's orderings stay together.
    assert sum(a != b for a, b in pairwise(lines)) > 5
    assert second_pass(score, records, Orders(), 0) == {}
    assert len({line for line, _ in second_pass(score, records, Orders(seed=1), 5)}) == 5


def test_noise_is_seen(prompts: Scorer) -> None:
    """A reader whose second pass differs by one bit in one value."""
    score = reader(prompts, by_content)
    records = parsed(QUESTIONS)
    repeats = second_pass(score, records, Orders(), 2)
    key = next(iter(repeats))
    repeats[key] = (float(np.nextafter(repeats[key][0], -9)), *repeats[key][1:])
    comparison = Comparison()
    for row in ask(score, records, Orders(), repeats):
        comparison.add(row)
    metric = comparison.measures(seed=0, pride_fraction=0.0).metrics

    values = sum(len(own) for own in repeats.values())
    assert metric["noise_differing"].value == pytest.approx(1 / values)
    assert metric["noise_differing"].n == values
    assert metric["noise_flips"].value == 0
    assert 0 < (metric["noise_largest"].value or 0) < 1e-14


def test_the_most_sensitive_questions_come_first(prompts: Scorer) -> None:
    comparison = Comparison()
    for row in ask(reader(prompts, by_position), parsed(QUESTIONS), Orders(), {}):
        comparison.add(row)
    for row in ask(reader(prompts, by_content), parsed([{**QUESTIONS[0], "id": 9}]), Orders(), {}):
        comparison.add(row)

    # All flip in every pair; the fewer options, the more probability moves. The last never flips.
    assert [row.id for row in comparison.sensitive] == ["two", "three", "four", "five"]
    assert comparison.label(3, 1) == "B"
    assert comparison.label(9, 1) == "2."


# Rows in files.


def test_a_row_is_read_back_to_the_same_bits(prompts: Scorer, tmp_path: Path) -> None:
    rows, _ = compared(prompts, by_content)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(map(encode_row, rows)))

    assert list(decode_rows(path)) == rows


MINIMAL: dict[str, Any] = {
    "id": "q",
    "options": ["yes", "no"],
    "orderings": [
        {"order": [0, 1], "logprobs": [-0.1, -3.0]},
        {"order": [1, 0], "logprobs": [-0.5, -1.0]},
    ],
}


def test_rows_of_other_tools_need_three_keys(tmp_path: Path) -> None:
    (row,) = decode_rows(write_lines(tmp_path / "rows.jsonl", [MINIMAL]))

    assert row.orderings is not UNSET
    assert [own.answer_index for own in row.orderings] == [0, 1]
    assert row.orderings[0].margin == pytest.approx(2.9)
    assert row.orderings[0].label_mass == pytest.approx(np.exp(-0.1) + np.exp(-3.0))
    assert (row.pairs, row.flipped_pairs) == (1, 1)
    assert row.correct is UNSET


def test_what_is_derived_is_not_taken_from_the_file(tmp_path: Path) -> None:
    wrong = {
        **MINIMAL,
        "answer": "no",
        "answer_index": 1,
        "pairs": 9,
        "unknown": 1,
        "orderings": [{**own, "answer_index": 1, "margin": 7} for own in MINIMAL["orderings"]],
    }
    first, second = decode_rows(
        write_lines(tmp_path / "rows.jsonl", [wrong, {**MINIMAL, "id": "r"}])
    )

    assert first.means == second.means
    assert first.answer == second.answer == "yes"
    assert first.pairs == 1
    assert first.orderings == second.orderings


def one(**changes: object) -> dict[str, Any]:
    first = {**MINIMAL["orderings"][0], **changes}
    return {**MINIMAL, "orderings": [first]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{", "Input data was truncated"),
        ({"id": 1}, "has options and at least one of orderings, or an error"),
        ({**MINIMAL, "orderings": []}, "at least one of orderings"),
        ({**MINIMAL, "options": ["a"]}, "$.options: at least two texts that differ"),
        ({**MINIMAL, "options": ["a", "a"]}, "$.options: at least two texts that differ"),
        ({**MINIMAL, "gold_index": 2}, "$.gold_index: 0 to 1, got 2"),
        (one(order=[0, 0]), "$.orderings[0].order: a permutation of 0 to 1, got (0, 0)"),
        (one(order=[0, 1, 2]), "$.orderings[0].order"),
        (one(logprobs=[-1.0]), "$.orderings[0].logprobs: 2 values, one a position, got 1"),
        (one(logprobs=[-1.0, 0.5]), "$.orderings[0].logprobs[1]: a log-probability is finite"),
        (one(logprobs=[-1.0, None]), "Expected `float`, got `null`"),
        (one(repeat=[-1.0]), "$.orderings[0].repeat: 2 values"),
        (one(labels=["A"]), "$.orderings[0].labels: 2 labels"),
        (one(label_mass=1.5), "$.orderings[0].label_mass: 0 to 1, got 1.5"),
        (
            {**MINIMAL, "orderings": [MINIMAL["orderings"][0]] * 2},
            "every order once; a second read of one is its repeat",
        ),
        (MINIMAL, "ids are unique, got 'q' again (first in line 1)"),
    ],
)
def test_rows_that_are_none_are_refused(tmp_path: Path, row: object, message: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [MINIMAL, row])

    with pytest.raises(InputError) as caught:
        list(decode_rows(path))
    assert str(caught.value).startswith(f"{path}:2: not a row of scorer compare: ")
    assert message in str(caught.value)


# The command, with a model.


@pytest.fixture
def questions(bench: Bench) -> Path:
    return write_lines(bench.folder / "questions.jsonl", QUESTIONS)


def compare(bench: Bench, *arguments: str | Path) -> Done:
    return run("compare", *arguments, "--model", bench.model, "--device", "cpu")


def test_the_listing_of_the_options_moves_no_bit_of_the_means(bench: Bench) -> None:
    """Under all orders, a real model: same probabilities and log-probabilities, bit for bit."""
    options = ["red", "green", "blue"]
    listed = write_lines(
        bench.folder / "listed.jsonl",
        [
            {"id": i, "question": "Which?", "options": [options[index] for index in order]}
            for i, order in enumerate(permutations(range(3)))
        ],
    )
    done = compare(bench, listed, "--orders", "all", "-o", bench.folder / "rows.jsonl")
    rows = read_rows(bench.folder / "rows.jsonl")
    means = [
        {own["text"]: (own["probability"].hex(), own["logprob"].hex()) for own in row["means"]}
        for row in rows
    ]

    assert done.code == 0, done.err
    assert len(rows) == 6
    assert all(own == means[0] for own in means)
    assert len({row["content_sha256"] for row in rows}) == 1
    # The orders asked differ as index lists, not as texts.
    assert {tuple(own["order"]) for own in rows[0]["orderings"]} == set(permutations(range(3)))


def test_reads_are_those_of_score(bench: Bench, questions: Path) -> None:
    """An ordering's values are the bits that ``score`` gives for options listed that way."""
    compare(bench, questions, "-o", bench.folder / "rows.jsonl")
    row = read_rows(bench.folder / "rows.jsonl")[1]
    turned = [
        {
            "id": i,
            "question": row["question"],
            "options": [row["options"][index] for index in own["order"]],
        }
        for i, own in enumerate(row["orderings"])
    ]
    write_lines(bench.folder / "turned.jsonl", turned)
    done = run("score", bench.folder / "turned.jsonl", "-m", bench.model, "--device", "cpu", "-q")

    assert len(turned) == 3
    for own, scored in zip(row["orderings"], done.rows, strict=True):
        assert own["logprobs"] == [option["logprob"] for option in scored["options"]]
        assert own["prompt_sha256"] == scored["prompt_sha256"]
        assert own["label_mass"] == scored["label_mass"]
        assert own["margin"] == scored["margin"]


def test_two_runs_write_the_same_bytes_and_from_needs_no_model(
    bench: Bench, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bench.folder
    files = ("rows.jsonl", "summary.json", "report.html")
    for name in ("a", "b"):
        (folder / name).mkdir()
        rows, summary, report = (folder / name / file for file in files)
        done = compare(
            bench, questions, "-o", rows, "--summary", summary, "--report", report, "--limit", "3"
        )
        assert done.code == 0, done.err
        assert "noise floor" in done.err
    for file in files:
        assert (folder / "a" / file).read_bytes() == (folder / "b" / file).read_bytes()
    manifest = json.loads((folder / "a" / "rows.jsonl.manifest.json").read_bytes())
    written = (folder / "a/rows.jsonl").read_bytes()
    assert manifest["rows_sha256"] == hashlib.sha256(written).hexdigest()
    assert manifest["settings"]["compare"] == {
        "orders": "cyclic",
        "max_orders": None,
        "seed": 0,
        "repeated_questions": 32,
    }

    monkeypatch.setattr("scorer.scoring.Scorer", None)
    done = run(
        "compare", "--from", folder / "a/rows.jsonl", "--summary", folder / "again.json",
        "--report", folder / "again.html",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (folder / "again.json").read_bytes() == (folder / "a/summary.json").read_bytes()
    again = (folder / "again.html").read_text(encoding="utf-8")
    assert manifest["numerics_key"] in again
    assert again.replace(str(folder / "a/rows.jsonl"), str(questions)) == (
        folder / "a/report.html"
    ).read_text(encoding="utf-8")


def test_the_noise_floor_of_isolated_reads_is_zero(bench: Bench, questions: Path) -> None:
    done = compare(bench, questions, "-o", bench.folder / "rows.jsonl", "--noise-sample", "2")
    rows = read_rows(bench.folder / "rows.jsonl")
    repeated = [own for row in rows for own in row["orderings"] if "repeat" in own]

    assert done.code == 0, done.err
    assert len({row["id"] for row in rows for own in row["orderings"] if "repeat" in own}) == 2
    assert all(own["repeat"] == own["logprobs"] for own in repeated)
    assert f"0 flips and 0 of {sum(len(own['repeat']) for own in repeated)}" in " ".join(
        done.err.split()
    )


def test_rows_go_to_stdout(bench: Bench, questions: Path) -> None:
    done = compare(bench, questions, "--noise-sample", "0", "-q")

    assert [row["id"] for row in done.rows] == ["two", "three", "four", "five"]
    assert done.err == ""
    assert all("repeat" not in own for row in done.rows for own in row["orderings"])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("letters", ["A", "B"]), ("digits", ["1", "2"]), (" yes, no", None), ("x,y", ["x", "y"])],
)
def test_labels_are_a_choice(bench: Bench, labels: str, expected: list[str] | None) -> None:
    source = write_lines(bench.folder / "in.jsonl", QUESTIONS[:1])
    done = compare(bench, source, "--labels", labels, "-q")
    (row,) = done.rows

    if expected is None:
        # "yes" is three tokens of this tokenizer; only " yes" is one.
        assert row["error"]["code"] == "label_not_one_token"
        assert done.code == 2
        assert "no question to compare among 1 rows, 1 of them errors" in done.err
    else:
        assert all(own["labels"] == expected for own in row["orderings"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [("a", "at least two words"), ("a,a", "at least two words"), ("a,,b", "at least two words")],
)
def test_labels_that_are_none_are_refused(
    bench: Bench, questions: Path, labels: str, message: str
) -> None:
    refused(compare(bench, questions, "--labels", labels), message)


def test_more_options_than_labels_are_row_errors(bench: Bench, questions: Path) -> None:
    done = compare(bench, questions, "--labels", "x,y,z", "-q")

    assert done.code == 1
    assert [row.get("error", {}).get("code") for row in done.rows] == [
        None,
        None,
        "too_many_options",
        "too_many_options",
    ]


def test_a_replaced_output_keeps_nothing_of_the_old_one(bench: Bench, questions: Path) -> None:
    rows = bench.folder / "rows.jsonl"
    assert compare(bench, questions, "-o", rows).code == 0
    assert compare(bench, questions, "-o", rows, "--force-new", "--limit", "1").code == 0

    assert [row["id"] for row in read_rows(rows)] == ["two"]


def test_an_interrupted_job_goes_on(bench: Bench, questions: Path) -> None:
    """Stopped behind the second row: the same bytes and figures as without a stop."""
    whole, part = bench.folder / "whole.jsonl", bench.folder / "part.jsonl"
    once = compare(bench, questions, "-o", whole, "--json", "-q")
    assert compare(bench, questions, "-o", part, "--limit", "2", "-q").code == 0
    assert len(read_rows(part)) == 2
    again = compare(bench, questions, "-o", part, "--resume", "--json", "-q")

    assert again.code == 0, again.err
    assert part.read_bytes() == whole.read_bytes()
    assert again.out == once.out
    # Nothing left to do needs no model.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scorer.scoring.Scorer.reader", None)
        third = compare(bench, questions, "-o", part, "--resume", "--json", "-q")
    assert third.out == once.out


@pytest.mark.parametrize(
    "other", [("--orders", "all"), ("--seed", "1"), ("--noise-sample", "1"), ("--labels", "digits")]
)
def test_other_settings_do_not_go_on(bench: Bench, questions: Path, other: tuple[str, str]) -> None:
    rows = bench.folder / "rows.jsonl"
    assert compare(bench, questions, "-o", rows, "--limit", "1", "-q").code == 0
    kept = rows.read_bytes()

    done = compare(bench, questions, "-o", rows, "--resume", "-q", *other)
    refused(done, "--resume goes on with the same input, model, settings and numerics only")
    assert rows.read_bytes() == kept


def test_behind_another_driver_the_last_rows_are_asked_again(bench: Bench, questions: Path) -> None:
    rows = bench.folder / "rows.jsonl"
    beside = Path(f"{rows}.manifest.json")
    assert compare(bench, questions, "-o", rows, "--limit", "2", "-q").code == 0
    manifest = json.loads(beside.read_bytes())
    manifest["numerics"]["driver"] = "another"
    beside.write_text(json.dumps(manifest), encoding="utf-8")

    done = compare(bench, questions, "-o", rows, "--resume")
    assert done.code == 0, done.err
    assert "the last 2 rows came out the same, to the bit" in done.err
    assert len(read_rows(rows)) == 4


def test_scores_do_not_go_on_as_a_comparison(bench: Bench, questions: Path) -> None:
    rows = bench.folder / "rows.jsonl"
    run("score", questions, "-m", bench.model, "--device", "cpu", "-o", rows, "-q")

    refused(compare(bench, questions, "-o", rows, "--resume"), "settings.compare: was null, is")


def test_row_errors_exit_1_and_are_said(bench: Bench) -> None:
    source = write_lines(bench.folder / "in.jsonl", [*QUESTIONS, {"id": "p", "prompt": "x"}, b"{"])
    done = compare(bench, source, "-o", bench.folder / "rows.jsonl")

    assert done.code == 1
    assert f"{source}:5: compare asks lettered questions" in done.err
    assert len(read_rows(bench.folder / "rows.jsonl")) == 6


def test_a_dry_run_needs_no_model(
    bench: Bench, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorer.scoring.Scorer.reader", None)
    done = compare(bench, questions, "--dry-run", "-o", bench.folder / "rows.jsonl")

    assert done.code == 0, done.err
    assert not (bench.folder / "rows.jsonl").exists()
    assert re.search(r"questions +4 ", done.err)
    assert re.search(r"reads +14 of \d[\d,]* tokens in all", done.err)  # 2 + 3 + 4 + 5
    assert re.search(r"errors +none", done.err)


def test_a_dry_run_says_what_would_fail(bench: Bench) -> None:
    long = {**QUESTIONS[0], "id": "long", "question": "x" * 600}
    source = write_lines(bench.folder / "in.jsonl", [QUESTIONS[1], long, {"prompt": "x"}])
    done = compare(bench, source, "--dry-run")

    assert done.code == 1
    assert re.search(r"errors +2: prompt_too_long 1, invalid_value 1", done.err)
    assert f"{source}:2: " in done.err


def test_all_figures_as_one_line(bench: Bench, questions: Path) -> None:
    rows = bench.folder / "rows.jsonl"
    done = compare(bench, questions, "-o", rows, "--json", "-q")
    (line,) = done.rows

    assert line["measures"]["questions"] == 4
    assert line["errors"] == {}
    again = run("compare", "--from", rows, "--json", "-q")
    assert again.out == done.out
    assert "flip_rate" in line["measures"]["metrics"]


def test_labels_decide_the_question_and_its_hash(bench: Bench, questions: Path) -> None:
    """The last sentence asks for what the labels are; the default stays as it was."""
    shown = {
        labels: run(
            "show", questions, "--model", bench.model, "--labels", labels, "--json"
        ).out.decode()
        for labels in ("letters", "digits", "x,y")
    }

    assert "Answer with the letter of the correct option only." in shown["letters"]
    assert "Answer with the number of the correct option only." in shown["digits"]
    assert "1. yes\\n2. no" in shown["digits"]
    assert "Answer with the label of the correct option only." in shown["x,y"]
    assert "x. yes\\ny. no" in shown["x,y"]
    hashes = {
        Scorer(bench.model, device="cpu", labels=labels).prompter.template_sha256
        for labels in ("letters", "digits", "x,y", "x,z")
    }
    assert len(hashes) == 4


def test_files_that_exist_are_kept(bench: Bench, questions: Path) -> None:
    kept = bench.folder / "kept"
    kept.write_text("mine", encoding="utf-8")

    for option in ("--output", "--summary", "--report"):
        refused(compare(bench, questions, option, kept), "exists; --force-new replaces a file")
    assert kept.read_text(encoding="utf-8") == "mine"
    refused(
        compare(bench, questions, "--summary", bench.folder / "no" / "file"), "there is no folder"
    )
    same = bench.folder / "same"
    refused(compare(bench, questions, "--summary", same, "--report", same), "name two files")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "compare needs INPUT and --model, or --from ROWS"),
        (("--from", "rows", "--model", "m"), "rows; remove --model"),
        (("--from", "rows", "--limit", "3", "--resume", "x.jsonl"), "rows; remove"),
        (("--from", "rows", "--dry-run"), "rows; remove --dry-run"),
        (("--from", "rows", "--pride-fraction", "1"), "at least 0 and below 1"),
        (("--from", "rows", "--fail-if", "flips>1"), "unknown metric 'flips'"),
        (("--from", "rows", "--fail-if", "flip_rate"), "as in 'flip_rate>0.2'"),
        (("--from", "rows", "--fail-if", "flip_rate>0.2.1"), "as in 'flip_rate>0.2'"),
        (("--from", "rows", "--fail-if", "flip_rate=0.2"), "as in 'flip_rate>0.2'"),
        (("--from", "no-such-file"), "no-such-file: can't be read"),
    ],
)
def test_usage(arguments: tuple[str, ...], message: str) -> None:
    refused(run("compare", *arguments), message)


@pytest.mark.parametrize(
    ("condition", "code", "said"),
    [
        ("flip_rate>0.99", 1, "--fail-if flip_rate>0.99: flip_rate is 1"),
        ("flip_rate>=1", 1, "flip_rate is 1"),
        ("flip_rate>1", 0, ""),
        (" flip_rate < 1e0 ", 0, ""),
        ("tie_rate<=0", 1, "tie_rate is 0"),
        ("accuracy<0.5", 1, "accuracy is undefined: no question has a gold answer"),
    ],
)
def test_thresholds_decide_the_exit_code(
    tmp_path: Path, condition: str, code: int, said: str
) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [MINIMAL])
    summary = tmp_path / "summary.json"
    done = run("compare", "--from", rows, "-q", "--fail-if", condition, "--summary", summary)

    assert done.code == code
    assert said in done.err
    failed = json.loads(summary.read_bytes())["failed"]
    assert len(failed) == code
    assert all(said in text for text in failed)


def test_noise_in_rows_exits_1(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [one(repeat=[-0.1, -3.0000000000000004])])
    done = run("compare", "--from", rows)

    assert done.code == 1
    assert "0 flips and 1 of 2 log-probabilities with other bits" in " ".join(done.err.split())
    assert "NOT isolated" in done.err


def test_a_manifest_of_other_rows_is_not_shown(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [MINIMAL])
    beside = tmp_path / "rows.jsonl.manifest.json"
    beside.write_text(json.dumps({"rows_sha256": "0" * 64, "numerics_key": "k" * 64}))
    report = tmp_path / "report.html"
    done = run("compare", "--from", rows, "--report", report, "-q")

    assert done.code == 0
    text = report.read_text(encoding="utf-8")
    assert "belongs to other rows" in text
    assert "k" * 64 not in text
    beside.write_text("{")
    refused(run("compare", "--from", rows), "not a manifest")


def test_the_documentation_names_every_key_and_figure() -> None:
    from scorer.compare.measures import ABOUT
    from scorer.compare.rows import OptionMean, Ordering

    text = (Path(__file__).parent.parent / "docs" / "compare.md").read_text(encoding="utf-8")
    names = [
        *CompareRow.__struct_fields__,
        *Ordering.__struct_fields__,
        *OptionMean.__struct_fields__,
        *Measures.__struct_fields__,
        *ABOUT,
    ]

    assert [name for name in names if f"`{name}`" not in text] == []
