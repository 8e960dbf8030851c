from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec import UNSET

from scorer.compare.charts import Bar, Reference, bars
from scorer.compare.measures import Metric
from scorer.compare.report import bounds, figure, number
from tests.commands import run, write_lines

HOSTILE = (
    "</p><script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\u202eabc"
)


def row(number_: int, *, k: int = 2, **fields: Any) -> dict[str, Any]:
    """A question whose reader prefers the first position, by a little less each time."""
    options = [f"option {i}" for i in range(k)]
    orders = [[(p + shift) % k for p in range(k)] for shift in range(k)]
    logprobs = [-0.5 - 0.01 * number_, *[-2.0 - p for p in range(1, k)]]
    orderings = [{"order": order, "logprobs": logprobs} for order in orders]
    return {"id": number_, "options": options, "orderings": orderings, **fields}


def page_of(tmp_path: Path, rows: list[dict[str, Any]], *options: str) -> str:
    report = tmp_path / "report.html"
    source = write_lines(tmp_path / "rows.jsonl", rows)
    done = run("compare", "--from", source, "--report", report, "-q", *options)
    assert done.code in (0, 1), done.err
    return report.read_text(encoding="utf-8")


class _Page(HTMLParser):
    """Checks that tags close, and keeps tags with attributes and all text."""

    VOID = ("meta", "link", "br", "img", "line", "rect", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_brings_everything_with_it(tmp_path: Path) -> None:
    page = _Page(page_of(tmp_path, [row(i, k=2 + i % 3, gold_index=i % 2) for i in range(30)]))
    names = {tag for tag, _ in page.tags}

    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), tag
            assert name not in ("src", "href", "srcset", "action"), tag
            assert "url(" not in (value or "")
    style = "".join(
        page.text[: page.text.index("What the order of the options does to the answer")]
    )
    assert "@import" not in style
    assert "url(" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    assert ("html", {"lang": "en"}) in page.tags


def test_charts_say_in_words_what_they_show(tmp_path: Path) -> None:
    page = _Page(page_of(tmp_path, [row(i, gold_index=0) for i in range(10)]))
    charts = [attributes for tag, attributes in page.tags if tag == "svg"]

    assert len(charts) >= 4
    assert all(own["role"] == "img" and own["aria-label"] for own in charts)
    assert any(
        own["aria-label"]
        == "Picks by position, 2 options. 1.: 100.0 %; 2.: 0.0 %; even, 50.0 %: 50 %."
        for own in charts
    )


def test_text_of_users_stays_text(tmp_path: Path) -> None:
    hostile = row(1, question=HOSTILE, state={"x": HOSTILE}, gold_index=0)
    hostile["id"] = HOSTILE
    hostile["options"] = [HOSTILE, f"other {HOSTILE}"]
    for own in hostile["orderings"]:
        own["labels"] = ["<b>A</b>", "[red]B[/red]"]
    text = page_of(tmp_path, [hostile, row(2)])
    page = _Page(text)

    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<b>A</b>" not in text
    shown = "".join(page.text)
    assert "</p><script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\\x1b[31mred" in shown
    assert "<b>A</b>" in shown
    assert "[red]B[/red]" in shown


def test_the_terminal_obeys_no_text_of_users(tmp_path: Path) -> None:
    own = row(1)
    for ordering in own["orderings"]:
        ordering["labels"] = ["[red]A[/red]\x1b[31m", "B"]
    done = run("compare", "--from", write_lines(tmp_path / "[b]rows.jsonl", [own]))

    assert done.code == 0
    assert "[b]rows.jsonl" in done.err
    assert "[red]A[/red]\\x1b[31m 100.0 %" in " ".join(done.err.split())
    assert "\x1b[31m" not in done.err


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    shown = "".join(_Page(page_of(tmp_path, [row(1), row(2)])).text)

    assert "Not known: no manifest rows.jsonl.manifest.json beside the rows." in shown
    assert "not measured: nothing was read twice" in shown
    assert "undefined: no question has a gold answer" in shown
    assert "model unknown" in shown
    assert "Recall" not in shown.split("All figures")[0].replace("RStd", "")


def test_findings_are_said(tmp_path: Path) -> None:
    rows = [row(1), {"id": 9, "error": {"code": "prompt_too_long", "message": "long"}}]
    shown = "".join(_Page(page_of(tmp_path, rows, "--fail-if", "flip_rate>0.5")).text)

    assert "--fail-if flip_rate>0.5: flip_rate is 1" in shown
    assert re.search(r"Questions without a result:\s+prompt_too_long 1", shown)


def test_positions_are_named_where_they_matter(tmp_path: Path) -> None:
    content = []
    for i in range(10):
        own = row(i)
        first, second = own["orderings"]
        second["logprobs"] = first["logprobs"][::-1]  # the same option, now at position 2
        content.append(own)
    text = page_of(tmp_path, content)
    assert "The positions are chosen evenly, as far as can be told (χ², p = 1)." in text

    text = page_of(tmp_path, [row(i) for i in range(10)], "--force-new")
    assert "Of 2 options, the one at 1. is chosen in 100.0 % (100.0 to 100.0 %) of the" in text


def test_noise_is_said(tmp_path: Path) -> None:
    own = row(1)
    own["orderings"][0]["repeat"] = own["orderings"][0]["logprobs"]
    assert "No noise:" in "".join(_Page(page_of(tmp_path, [own])).text)

    own["orderings"][1]["repeat"] = own["orderings"][1]["logprobs"][::-1]
    shown = "".join(_Page(page_of(tmp_path, [own], "--force-new")).text)
    assert "1 flips and 2 of 4 log-probabilities with other bits, in 2 orderings" in shown
    assert "NOT isolated" in shown


def test_sensitive_questions_stand_side_by_side(tmp_path: Path) -> None:
    rows = [row(i, question=f"Question number {i}?", gold_index=0) for i in range(25)]
    text = page_of(tmp_path, rows)
    shown = "".join(_Page(text).text)

    asked = re.findall(r"Question number (\d+)\?", shown)
    # The farther the first position is ahead, the farther a probability moves: the lower number.
    assert asked == [str(i) for i in range(10)]
    assert text.count('class="option chosen"') == 2 * 10


def test_of_many_orderings_some_are_shown(tmp_path: Path) -> None:
    text = page_of(tmp_path, [row(1, k=9, question="Many options?")])

    assert text.count('class="option chosen"') == 6
    assert "3 more orderings in the rows" in text


def test_26_options_have_room(tmp_path: Path) -> None:
    text = page_of(tmp_path, [row(i, k=26, gold_index=i) for i in range(26)])

    assert 'class="chart wide"' in text
    assert "2 more orderings are in the rows" in text  # 26 orders, 24 in the table


def svg(text: str) -> ET.Element:
    return ET.fromstring(text)


def rects(text: str) -> Iterator[tuple[float, float]]:
    """Top and height of each bar."""
    for own in svg(text).iter("rect"):
        yield float(own.attrib["y"]), float(own.attrib["height"])


def test_bars_are_as_high_as_their_values() -> None:
    items = [Bar("a", 0.5), Bar("b", 0.25), Bar("c", 0.0), Bar("d", None)]
    (half_y, half), (quarter_y, quarter) = rects(bars("t", items, top=1.0))

    assert half == pytest.approx(2 * quarter, abs=0.11)
    assert half_y + half == pytest.approx(quarter_y + quarter, abs=0.11)  # one base line


def test_an_axis_of_percent_ends_at_100() -> None:
    ticks = [own.text for own in svg(bars("t", [Bar("a", 0.99, 0.9, 1.0, "99 %")])).iter("text")]

    assert "100 %" in ticks
    assert not {"125 %", "150 %", "200 %"} & set(ticks)


@pytest.mark.parametrize("largest", [1, 7, 645, 12_345, 999_999])
def test_an_axis_of_counts_leaves_room(largest: int) -> None:
    text = bars("t", [Bar("a", float(largest)), Bar("b", 1.0)], percent=False)
    tops = [y for y, _ in rects(text)]

    assert min(tops) >= 26  # below the top line
    assert min(tops) < 120  # above the middle


def test_a_chart_escapes_its_words() -> None:
    text = bars("<t>", [Bar('"<n>&', 0.1, text="<v>", note="<o>")], reference=Reference(0.2, "<r>"))
    root = svg(text)

    assert root.attrib["aria-label"] == '<t>. "<n>&: <v>; <r>: 20 %.'
    assert {'"<n>&', "<v>", "<o>"} <= {own.text for own in root.iter("text")}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "rate", "12.3 %"),
        (0.0, "rate", "0.0 %"),
        (1.0, "rate", "100.0 %"),
        (0.00000123, "rate", "0.00012 %"),
        (-0.015, "rate", "-1.5 %"),
        (1.5, "nats", "1.500 nats"),
        (0.0, "nats", "0 nats"),
        (2e-15, "nats", "2.0e-15 nats"),
        (6.0, "", "6"),
        (12345.678, "", "12,345.678"),
        (1e-5, "", "1.0e-05"),
        (0.0, "p", "< 1e-300"),
        (2.5e-209, "p", "2.5e-209"),
        (0.043, "p", "0.043"),
    ],
)
def test_numbers(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_figures_and_their_intervals() -> None:
    assert figure(Metric(value=None, n=0, reason="why"), "rate") == "–"
    assert bounds(Metric(value=0.5, n=3), "rate") == ""
    assert bounds(Metric(value=0.5, n=3, low=0.25, high=0.75), "rate") == "25.0 to 75.0 %"
    assert bounds(Metric(value=1.0, n=3, low=-1.0, high=2.5), "nats") == "-1 to 2.500 nats"
    assert bounds(Metric(value=0.1, n=3, low=0.05, high=0.25), "") == "0.050 to 0.250"
    assert Metric(value=0.5, n=3).low is UNSET
