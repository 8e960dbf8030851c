"""Rows, paths and numbers that a comparison must refuse, or take without harm."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scorer.compare.blocks import Collector, Reading
from scorer.compare.measures import measure
from scorer.compare.metrics import spread
from scorer.compare.report import number
from scorer.compare.rows import decode_rows
from scorer.compare.stats import Share, interval, resampled
from scorer.errors import InputError
from tests.commands import Bench, refused, run, write_lines

ROW: dict[str, Any] = {
    "id": "q",
    "options": ["yes", "no"],
    "orderings": [
        {"order": [0, 1], "logprobs": [-0.1, -3.0]},
        {"order": [1, 0], "logprobs": [-0.5, -1.0]},
    ],
}


def of(logprobs: list[float], **fields: Any) -> dict[str, Any]:
    """A row whose first ordering was read as ``logprobs``."""
    first, second = ROW["orderings"]
    return {**ROW, "orderings": [{**first, "logprobs": logprobs}, second], **fields}


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "compare.md").read_text(encoding="utf-8")
    found = re.search(r'^\{"id": "q1".*?\]\}$', text, re.MULTILINE | re.DOTALL)
    assert found is not None
    row = json.loads(found[0])

    done = run("compare", "--from", write_lines(tmp_path / "rows.jsonl", [row]), "-q", "--json")

    assert done.code == 0, done.err
    assert done.rows[0]["measures"]["metrics"]["flip_rate"]["value"] == 1
    masses = [sum(np.exp(own["logprobs"])) for own in row["orderings"]]
    assert all(mass <= 1.0001 for mass in masses)


def test_probabilities_that_were_rounded_up_hold_all_mass_and_no_more(tmp_path: Path) -> None:
    # e^-0.105 + e^-2.302 = 0.90032 + 0.10006 = 1.0004
    source = write_lines(tmp_path / "rows.jsonl", [of([-0.105, -2.302])])
    (row,) = decode_rows(source)

    assert row.orderings
    assert row.orderings[0].label_mass == 1
    assert run("compare", "--from", source, "-q").code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (of([-0.0, -0.0]), "$.orderings[0].logprobs: the labels' probabilities are at most 1 toge"),
        (of([-1.7e308, -0.1]), "finite and at most 0 (and at least -1e+300), got -1.7e+308"),
        ({**ROW, "id": None}, "$.id: a row without an error has a string or an int, got null"),
        (json.dumps({**ROW, "state": "Z"}).encode().replace(b"Z", b"\xff"), "a line is UTF-8"),
        (json.dumps({**ROW, "state": "\ud800"}).encode(), "half of a surrogate pair"),
        (b'{"id": 1, "state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "values nest at most"),
    ],
)
def test_rows_that_nothing_can_be_made_of_are_refused(
    tmp_path: Path, line: dict[str, Any] | bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else json.dumps(line).encode())

    with pytest.raises(InputError, match=re.escape(message)) as caught:
        list(decode_rows(path))
    assert str(caught.value).startswith(f"{path}:1: not a row of scorer compare: ")


def test_a_byte_order_mark_is_no_part_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode())

    assert len(list(decode_rows(path))) == 1


@pytest.mark.parametrize("state", ["1e999", "1" * 6000, '{"a": [-1e999]}'])
def test_a_state_that_no_float_holds_is_shown_as_it_is(tmp_path: Path, state: str) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({**ROW, "state": "Z"}).replace('"Z"', state), encoding="utf-8")
    report = tmp_path / "report.html"
    done = run("compare", "--from", source, "--report", report, "-q")

    assert done.code == 0, done.err
    assert state[:500].replace('"', "&#34;") in report.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--report", "--summary"])
@pytest.mark.parametrize("name", ["rows.jsonl", "./rows.jsonl", "rows.jsonl.manifest.json", "link"])
def test_reports_never_replace_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = write_lines(Path("rows.jsonl"), [ROW])
    before = rows.read_bytes()
    Path("link").symlink_to("rows.jsonl")

    refused(
        run("compare", "--from", rows, option, name, "--force-new"),
        f"{option} {Path(name)}: would replace the ",
    )
    assert rows.read_bytes() == before


@pytest.mark.parametrize("which", ["in.jsonl", "rows.jsonl", "rows.jsonl.manifest.json"])
def test_a_run_never_reports_into_its_own_files(bench: Bench, which: str) -> None:
    question = {"id": 1, "question": "Is it?", "options": ["yes", "no"]}
    source = write_lines(bench.folder / "in.jsonl", [question])
    before = source.read_bytes()
    rows = bench.folder / "rows.jsonl"
    job = ("compare", source, "--model", bench.model, "--device", "cpu", "--output", rows)

    refused(run(*job, "--report", bench.folder / which, "--force-new"), "would replace the ")
    assert source.read_bytes() == before
    assert not rows.exists()


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [ROW])

    refused(run("compare", "--from", rows, "--report", tmp_path, "--force-new"), "is not a file")
    one, other = tmp_path / "x", f"{tmp_path}/../{tmp_path.name}/x"
    refused(run("compare", "--from", rows, "--report", one, "--summary", other), "name two files")


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [ROW])

    refused(run("compare", "--from", rows, "--seed", "-1"), "--seed must be at least 0, got -1")
    refused(run("compare", "--from", rows, "--fail-if", "margin>1e999"), "and a number, as in")


def test_a_threshold_says_more_digits_than_it_was_missed_by(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [of([-0.30000000001, -1.5])])
    done = run("compare", "--from", rows, "-q", "--fail-if", "label_mass>0.9512500001")

    assert done.code == 1
    limit, value = re.findall(r"0\.\d+", done.err)
    assert limit == "0.9512500001"
    assert float(value) > 0.9512500001


def test_why_nothing_could_be_compared_is_said(tmp_path: Path) -> None:
    failed = [
        {"id": number, "error": {"code": code, "message": "no"}}
        for number, code in enumerate(["b", "a", "c", "c"])
    ]
    rows = write_lines(tmp_path / "rows.jsonl", failed)

    refused(run("compare", "--from", rows), "4 rows, 4 of them errors (c 2, a 1, b 1); give")


def test_the_report_does_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    """Also of questions with one content, of labels that vary, and of equally frequent errors."""
    rows = [
        {**ROW, "id": f"q{number}", "question": "The same?", "content_sha256": "same"}
        for number in range(14)
    ]
    first = rows[3]["orderings"][0]
    rows[3] = {**rows[3], "orderings": [{**first, "labels": ["x", "y"]}, ROW["orderings"][1]]}
    rows[5] = {**rows[5], "orderings": [{**first, "labels": ["A", "B"]}, ROW["orderings"][1]]}
    rows[7] = {**rows[7], "orderings": [{**first, "label_mass": 0.5}, ROW["orderings"][1]]}
    rows[9] = {**rows[9], "orderings": [{**first, "label_mass": None}, ROW["orderings"][1]]}
    rows += [{"id": f"e{code}", "error": {"code": code, "message": ""}} for code in "ab"]
    written = set()
    for own in (rows, rows[::-1]):
        source = write_lines(tmp_path / "rows.jsonl", own)
        files = tmp_path / "report.html", tmp_path / "summary.json"
        options = ("--report", files[0], "--summary", files[1], "--force-new", "-q")
        assert run("compare", "--from", source, *options).code == 1
        written.add(tuple(file.read_bytes() for file in files))

    assert len(written) == 1


def test_a_report_claims_no_even_spread_where_orders_are_not_balanced(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    for orderings, claimed in ((ROW["orderings"], True), (ROW["orderings"][:1], False)):
        rows = [{**ROW, "id": i, "orderings": orderings} for i in range(3)]
        source = write_lines(tmp_path / "rows.jsonl", rows)
        done = run("compare", "--from", source, "--report", report, "--force-new", "-q")
        text = " ".join(report.read_text(encoding="utf-8").split())

        assert done.code == 0
        assert ("because every option stands at every position equally often" in text) == claimed
        assert ("┄ even" in text) == claimed
        assert ("the one at" in text) == claimed


def test_the_first_words_are_about_the_most_readings(tmp_path: Path) -> None:
    """Not about the one question of three options, all of whose readings chose the first."""
    first = [{"order": order, "logprobs": [-0.1, -3.0]} for order in ([0, 1], [1, 0])]
    rows: list[dict[str, Any]] = [{**ROW, "id": i, "orderings": first} for i in range(4)]
    orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    three = [{"order": order, "logprobs": [-0.1, -3.0, -4.0]} for order in orders]
    rows.append({"id": "three", "options": ["a", "b", "c"], "orderings": three})
    report = tmp_path / "report.html"
    source = write_lines(tmp_path / "rows.jsonl", rows)
    done = run("compare", "--from", source, "--report", report, "-q")

    assert done.code == 0
    assert "Of 2 options, the one at 1. is chosen in 100.0 %" in report.read_text(encoding="utf-8")


def test_resamples_stay_between_the_ratios_of_single_questions() -> None:
    """Sums of thirds and sevenths: samples of zeros alone are 0, and none is below."""
    tops = np.array([0.0] * 37 + [1 / 3, 2 / 3, 6 / 7])
    replicates = resampled([Share(tops, np.ones(40))], 0)[:, 0]
    bounds = interval(replicates)

    assert replicates.min() == 0
    assert 0 < (replicates == 0).mean() < 0.2  # (37/40)^40 = 0.044
    assert bounds is not None
    assert bounds[0] == 0
    assert replicates.max() <= 6 / 7


def test_resamples_of_tiny_and_of_huge_values_keep_their_digits() -> None:
    for scale in (1e-320, 1e-300, 1e-12, 1e300):
        tops = np.array([1.0, 2.0, 4.0, 8.0]) * scale
        replicates = resampled([Share(tops, np.ones(4))], 0)[:, 0]

        assert replicates.min() >= scale
        assert replicates.max() <= 8 * scale
        assert replicates.mean() == pytest.approx(3.75 * scale, rel=0.05)


def test_equal_recalls_have_no_spread_at_all() -> None:
    for numerator in range(1, 50):
        assert spread([float(Fraction(numerator, 49))] * 3) == 0
    assert spread([0.25, 0.75]) == 0.25


def test_no_rate_leaves_0_to_1() -> None:
    """Fractions of many kinds; every interval of a rate is one of shares."""
    random = np.random.default_rng(5)
    collector = Collector()
    for question in range(60):
        k = int(random.integers(2, 6))
        shifts = [
            tuple((p + s) % k for p in range(k)) for s in range(int(random.integers(2, k + 1)))
        ]
        logits = random.normal(size=(len(shifts), k)) + 4 * (np.array(shifts) == 0)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        collector.add(
            Reading(
                key=f"{question:03}",
                gold=0,
                orders=tuple(shifts),
                logprobs=tuple(map(tuple, np.minimum(logprobs, 0).tolist())),
                masses=(1.0,) * len(shifts),
                repeats=(None,) * len(shifts),
            )
        )
    found = measure(collector.blocks(), seed=0, pride_fraction=0.1)
    for name in ("accuracy", "flip_rate", "pairwise_flip_rate", "label_mass", "chance", "tie_rate"):
        metric = found.metrics[name]
        assert metric.value is not None
        assert isinstance(metric.low, float)
        assert isinstance(metric.high, float)
        assert 0 <= metric.low <= metric.value <= metric.high <= 1, name


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(-0.0, "rate", "0.0 %"), (-0.0, "nats", "0 nats"), (1e300, "nats", "1.000e+300 nats")],
)
def test_numbers_at_the_edge(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text
