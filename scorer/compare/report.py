"""What a comparison came to, for the person at the terminal; and the words both reports use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from scorer.compare.measures import ABOUT, Metric
from scorer.progress import printable

if TYPE_CHECKING:
    from scorer.compare.job import Findings
    from scorer.progress import Reporter

_HEADLINES = (
    "accuracy",
    "accuracy_averaged",
    "circular_accuracy",
    "sensitivity_gap",
    "flip_rate",
    "pairwise_flip_rate",
    "rstd",
    "pick_v",
    "pick_p",
    "kendall_tau",
    "pride_gain",
    "label_mass",
    "margin",
    "tie_rate",
)


def figure(metric: Metric, unit: str) -> str:
    """Return a figure as people write it; a dash where it is undefined."""
    return "–" if metric.value is None else number(metric.value, unit)


def number(value: float, unit: str) -> str:
    """Return a number with its unit: a rate in percent, else up to three decimals."""
    if value == 0:
        value = 0.0  # never -0
    if unit == "rate":
        # One of a million must not read as none.
        small = 0 < abs(value) < 0.0005
        return f"{value * 100:.2g} %" if small else f"{value * 100:.1f} %"
    if unit == "p" and value < 1e-300:
        text = "< 1e-300"  # computed as 0 where it underflows
    elif value == 0:
        text = "0"
    elif abs(value) < 0.001:
        text = f"{value:.1e}"
    else:
        whole = value == int(value)
        text = f"{value:,.0f}" if whole else f"{value:,.3f}"
        if abs(value) >= 1e15:
            text = f"{value:.3e}"
    return f"{text} nats" if unit == "nats" else text


def bounds(metric: Metric, unit: str) -> str:
    """Return the 95 % interval, or "" where there is none."""
    if metric.low is UNSET or metric.high is UNSET:
        return ""
    low, high = number(metric.low, unit), number(metric.high, unit)
    suffix = {"rate": " %", "nats": " nats"}.get(unit, "")
    return f"{low.removesuffix(suffix)} to {high}"


def asked(findings: Findings) -> str:
    """Return how much was asked, in words."""
    measures = findings.measures
    kinds = ", ".join(f"{n:,} with {k}" for k, n in sorted(measures.options.items()))
    return (
        f"{measures.questions:,} questions ({kinds} options), {measures.readings:,} readings, "
        f"{measures.with_gold:,} questions with a gold answer"
    )


def noise(findings: Findings) -> str:
    """Return the noise floor in one sentence."""
    metrics = findings.measures.metrics
    flips, values = metrics["noise_flips"], metrics["noise_differing"]
    if flips.value is None or values.value is None:
        return "not measured: nothing was read twice"
    differing = round(values.value * values.n)
    text = (
        f"{round(flips.value * flips.n):,} flips and {differing:,} of {values.n:,} "
        f"log-probabilities with other bits, in {flips.n:,} orderings read a second time among "
        "other reads"
    )
    if differing:
        largest = metrics["noise_largest"].value or 0.0
        text += f" (largest difference {largest:.2g} nats): the reads are NOT isolated"
    return text


def show(findings: Findings, reporter: Reporter) -> None:
    """Write the summary to stderr."""
    if reporter.quiet:
        return
    from rich.table import Table

    measures = findings.measures
    table = Table(title=printable(f"{findings.source}: order of the options"), box=None)
    table.title_justify = "left"
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_column()
    for name in _HEADLINES:
        metric, about = measures.metrics[name], ABOUT[name]
        note = about.text if metric.reason is UNSET else metric.reason
        interval = bounds(metric, about.unit)
        table.add_row(about.title, figure(metric, about.unit), interval, note)
    console = reporter.console
    console.print(table)
    rows = [("asked", asked(findings))]
    for k in sorted(measures.options):
        rates = [
            f"{findings.comparison.label(k, own.position)} {figure(own.rate, 'rate')}"
            for own in measures.pick_rates
            if own.options == k
        ]
        rows.append((f"picks of {k}", f"{', '.join(rates)} (1/k: {number(1 / k, 'rate')})"))
    if findings.comparison.errors:
        kinds = ", ".join(f"{code} {n:,}" for code, n in findings.comparison.error_counts)
        rows.append(("errors", f"{findings.comparison.errors.total():,}: {kinds}"))
    rows.append(("noise floor", noise(findings)))
    reporter.table("", rows)
