"""The report as one HTML file: no network, no script, light and dark, printable.

All text of users goes through the template's escaping, after control characters were made visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from scorer import __version__
from scorer.compare.charts import Bar, Reference, bars
from scorer.compare.measures import ABOUT, ByOrder, Measures, Metric
from scorer.compare.orderings import softmaxes
from scorer.compare.report import asked, bounds, figure, noise, number
from scorer.compare.rows import CompareRow, Ordering
from scorer.progress import printable

if TYPE_CHECKING:
    from scorer.compare.job import Findings
    from scorer.manifest import Json

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_ORDERINGS_SHOWN = 6
_TEXT_SHOWN = 600
_OPTION_SHOWN = 160


@dataclass(frozen=True, slots=True)
class _Line:
    """A figure of the table."""

    title: str
    value: str
    interval: str
    n: str
    text: str


@dataclass(frozen=True, slots=True)
class _Tile:
    title: str
    value: str
    interval: str
    text: str


@dataclass(frozen=True, slots=True)
class _Shown:
    """An option where it stood: its number as listed gives it its colour."""

    label: str
    text: str
    index: int
    probability: float
    chosen: bool
    gold: bool


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    options: tuple[_Shown, ...]
    margin: str


@dataclass(frozen=True, slots=True)
class _Question:
    id: str
    question: str
    state: str
    verdict: str
    columns: tuple[_Column, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class _HeatRow:
    order: str
    accuracy: str
    cells: tuple[float, ...]
    ties: float


@dataclass(frozen=True, slots=True)
class _Heat:
    k: int
    questions: int
    columns: tuple[str, ...]
    rows: tuple[_HeatRow, ...]


def page(findings: Findings) -> str:
    """Return the whole file's text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["percent"] = lambda value: number(value, "rate")
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    measures = findings.measures
    return template.render(
        version=__version__,
        source=printable(findings.source),
        model=printable(_model(findings.manifest)),
        asked=asked(findings),
        sentences=list(_sentences(findings)),
        tiles=list(_tiles(measures.metrics)),
        lines=[_line(name, metric) for name, metric in measures.metrics.items()],
        picks=[(k, _picks(findings, k)) for k in sorted(measures.options)],
        recalls=[(k, _recalls(findings, k)) for k in sorted(measures.options)],
        balanced=_balanced(measures),
        has_gold=measures.with_gold > 0,
        margins=_margins(findings),
        masses=_masses(findings),
        priors=list(_priors(findings)),
        heats=[_heat(findings, k) for k in sorted(measures.options)],
        orders_left_out=measures.orders_left_out,
        questions=[_question(findings, row) for row in findings.comparison.sensitive],
        noise=noise(findings),
        isolated=findings.isolated,
        failures=findings.failures,
        errors=[(printable(code), n) for code, n in findings.comparison.error_counts],
        environment=list(_environment(findings)),
        note=findings.note,
        seed=measures.seed,
        resamples=measures.resamples,
    )


def _model(manifest: Mapping[str, Json] | None) -> str:
    model = (manifest or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return str(name) if name is not None else "model unknown"


def _sentences(findings: Findings) -> Iterator[str]:
    """Yield what a reader should take away, in plain words."""
    metrics = findings.measures.metrics
    flips = metrics["flip_rate"]
    if flips.value is not None:
        yield (
            f"For {_with_bounds(flips)} of the questions the answer changes with the order of the "
            "options."
        )
    accuracy, always = metrics["accuracy"], metrics["always_right"]
    if accuracy.value is not None and always.value is not None:
        yield (
            f"Accuracy is {figure(accuracy, 'rate')} on average over the orders; "
            f"{figure(always, 'rate')} of the questions are right in every order asked."
        )
    rates = [own for own in findings.measures.pick_rates if own.rate.value is not None]
    p = metrics["pick_p"]
    if p.value is not None and p.value >= 0.05:
        yield f"The positions are chosen evenly, as far as can be told (χ², p = {figure(p, 'p')})."
    elif rates and _balanced(findings.measures):
        # Of the questions with the number of options that most readings have.
        k = max(rates, key=lambda own: own.rate.n).options
        own_rates = [own for own in rates if own.options == k]
        far = max(own_rates, key=lambda own: abs((own.rate.value or 0.0) * k - 1))
        label = printable(findings.comparison.label(far.options, far.position))
        yield (
            f"Of {far.options} options, the one at {label} is chosen in "
            f"{_with_bounds(far.rate)} of the readings; even would be "
            f"{number(1 / far.options, 'rate')}."
        )


def _balanced(measures: Measures) -> bool:
    """Whether every option of every question stands equally often at each position.

    Where not, a reader of content alone need not choose the positions evenly.
    """
    choosing = sum(own.rate.n for own in measures.pick_rates if own.position == 0)
    return choosing == measures.metrics["pick_v"].n


def _with_bounds(metric: Metric) -> str:
    interval = bounds(metric, "rate")
    return f"{figure(metric, 'rate')} ({interval})" if interval else figure(metric, "rate")


def _tiles(metrics: Mapping[str, Metric]) -> Iterator[_Tile]:
    for name in ("flip_rate", "accuracy", "circular_accuracy", "rstd", "pick_v", "label_mass"):
        metric, about = metrics[name], ABOUT[name]
        text = about.text if metric.reason is UNSET else metric.reason
        yield _Tile(about.title, figure(metric, about.unit), bounds(metric, about.unit), text)


def _line(name: str, metric: Metric) -> _Line:
    about = ABOUT[name]
    reason = "" if metric.reason is UNSET else f"undefined: {metric.reason}"
    return _Line(
        about.title,
        figure(metric, about.unit),
        bounds(metric, about.unit),
        f"{metric.n:,}" if metric.value is not None else "",
        reason or about.text,
    )


def _rate_bar(name: str, rate: Metric, among: int, note: str = "") -> Bar:
    """Return a rate as one of ``among`` bars: the more, the shorter its text."""
    low = None if rate.low is UNSET else rate.low
    high = None if rate.high is UNSET else rate.high
    text = "" if rate.value is None else number(rate.value, "rate")
    if among > 5 and rate.value is not None:
        text = f"{rate.value * 100:.0f}"
    return Bar(printable(name), rate.value, low, high, text, note)


def _picks(findings: Findings, k: int) -> str:
    rates = [own for own in findings.measures.pick_rates if own.options == k]
    items = [_rate_bar(findings.comparison.label(k, own.position), own.rate, k) for own in rates]
    even = None
    if _balanced(findings.measures):
        even = Reference(1 / k, f"even, {number(1 / k, 'rate')}")
    return bars(f"Picks by position, {k} options", items, reference=even)


def _recalls(findings: Findings, k: int) -> str:
    rates = [own for own in findings.measures.recalls if own.options == k]
    items = [
        _rate_bar(findings.comparison.label(k, own.position), own.rate, k, f"n {own.rate.n:,}")
        for own in rates
    ]
    return bars(f"Recall by gold position, {k} options", items, top=1.0)


def _margins(findings: Findings) -> str:
    buckets = findings.measures.margins
    items = [
        _rate_bar(f"{own.low:g}", own.flip_rate, len(buckets), _short(own.flip_rate.n))
        for own in buckets
    ]
    return bars("Disagreement of another order in percent, by margin from … nats", items, top=1.0)


def _short(count: int) -> str:
    """Return a count in at most five characters, up to 999 million."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1000:,.0f}k" if count < 1_000_000 else f"{count / 1e6:,.0f}M"


def _masses(findings: Findings) -> str:
    counts = findings.measures.label_masses
    if not sum(counts):
        return ""
    items = [
        Bar(
            f"{place * 5}" if place % 4 == 0 else "",
            float(count),
            text=f"{count:,}" if count else "",
        )
        for place, count in enumerate(counts)
    ]
    return bars("Readings by label mass in percent", items, percent=False, compact=True)


def _priors(findings: Findings) -> Iterator[tuple[str, str]]:
    for prior in findings.measures.priors:
        k = len(prior.prior)
        items = [
            Bar(printable(findings.comparison.label(k, p)), value, text=number(value, "rate"))
            for p, value in enumerate(prior.prior)
        ]
        even = Reference(1 / k, f"even, {number(1 / k, 'rate')}")
        chart = bars(f"PriDe's prior of the labels, {k} options", items, reference=even)
        of = f"{prior.estimated_on:,} questions, applied to {prior.applied_to:,}"
        yield chart, f"{k} options: estimated on {of}"


def _heat(findings: Findings, k: int) -> _Heat:
    own = [row for row in findings.measures.orders if len(row.order) == k]
    return _Heat(
        k,
        findings.measures.options[k],
        tuple(f"option {option + 1}" for option in range(k)),
        tuple(_heat_row(row) for row in own),
    )


def _heat_row(row: ByOrder) -> _HeatRow:
    order = " ".join(str(index + 1) for index in row.order)
    return _HeatRow(order, figure(row.accuracy, "rate"), row.answers, row.ties)


def _question(findings: Findings, row: CompareRow) -> _Question:
    assert row.orderings is not UNSET
    assert row.options is not UNSET
    shown = _varied(row.orderings)
    gold = None if row.gold_index is UNSET else row.gold_index
    verdict = f"{row.flipped_pairs} of {row.pairs} pairs of orders disagree"
    if row.answer is not UNSET:
        averaged = "a tie" if row.answer is None else f"“{_cut(row.answer, _OPTION_SHOWN)}”"
        verdict += f"; averaged answer: {averaged}"
    return _Question(
        id=printable(str(row.id)),
        question="" if row.question is UNSET else _cut(row.question, _TEXT_SHOWN),
        state="" if row.state is UNSET else _cut(_state(row.state), _TEXT_SHOWN),
        verdict=verdict,
        columns=tuple(_column(findings, row.options, gold, ordering) for ordering in shown),
        left_out=len(row.orderings) - len(shown),
    )


def _varied(orderings: Sequence[Ordering]) -> list[Ordering]:
    """Return at most _ORDERINGS_SHOWN of the orderings, every answer among them if they fit."""
    first: dict[object, int] = {}
    for place, ordering in enumerate(orderings):
        first.setdefault(ordering.answer_index, place)
    wanted = [*first.values(), *(p for p in range(len(orderings)) if p not in first.values())]
    return [orderings[place] for place in sorted(wanted[:_ORDERINGS_SHOWN])]


def _column(
    findings: Findings, options: Sequence[str], gold: int | None, ordering: Ordering
) -> _Column:
    k = len(options)
    (probabilities,) = softmaxes([ordering.logprobs])
    labels = ordering.labels
    shown = tuple(
        _Shown(
            label=printable(
                findings.comparison.label(k, position)
                if labels is UNSET
                else labels[position].strip()
            ),
            text=_cut(options[index], _OPTION_SHOWN),
            index=index,
            probability=probabilities[position],
            chosen=index == ordering.answer_index,
            gold=index == gold,
        )
        for position, index in enumerate(ordering.order)
    )
    margin = "" if ordering.margin is UNSET else number(ordering.margin, "nats")
    return _Column(" ".join(str(index + 1) for index in ordering.order), shown, margin)


def _state(state: msgspec.Raw) -> str:
    text = bytes(state).decode()
    # Only a string is decoded: a number may be one that no float holds.
    return msgspec.json.decode(state, type=str) if text.startswith('"') else text


def _cut(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def _environment(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield the manifest's fields, nested names joined by dots; files' timings aside."""
    if findings.manifest is None:
        return
    for key, value in findings.manifest.items():
        if key != "timings":
            yield from _flat(key, value)


def _flat(name: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{name}.{key}", below)
    else:
        yield printable(name), printable(value if isinstance(value, str) else json.dumps(value))
