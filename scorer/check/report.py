"""What a check came to: a table for the person at the terminal, a JSON document for machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from scorer.check.diff import tally_fields
from scorer.check.run import Kind, Outcome, Result, Scenario, Status
from scorer.progress import printable

if TYPE_CHECKING:
    from scorer.check.tally import Tally
    from scorer.manifest import Json
    from scorer.progress import Reporter

_STYLES: Final = {
    Status.passed: "green",
    Status.failed: "bold red",
    Status.interrupted: "red",
    Status.shown: "green",
    Status.not_shown: "yellow",
    Status.not_run: "dim",
    Status.reported: "",
}

_NARROW: Final = 72
"""Columns of a terminal on which not all of the table can be read."""


def fields_of(outcome: Outcome) -> dict[str, Json]:
    """Return the results for the report, and a summary of them."""
    counts: dict[str, Json] = {
        status.value: len(outcome.of(status)) for status in Status if outcome.of(status)
    }
    control = outcome.control
    return {
        "passed": outcome.passed,
        "summary": {
            "scenarios": counts,
            "parts_not_run": sum(len(result.tally.left_out) for result in outcome.results),
            **tally_fields(outcome.proven),
        },
        "control": None if control is None else control.status.value,
        "scenarios": [_fields(result) for result in outcome.results],
    }


def _fields(result: Result) -> dict[str, Json]:
    return {
        "name": result.scenario.name,
        "kind": result.scenario.kind.value,
        "about": result.scenario.about,
        "status": result.status.value,
        "reason": result.reason or None,
        **tally_fields(result.tally),
        "seconds": round(result.seconds, 3),
        "notes": list(result.tally.notes),
        "parts_not_run": list(result.tally.left_out),
    }


def show(
    title: str, about: Sequence[tuple[str, str]], outcome: Outcome, reporter: Reporter
) -> None:
    """Write the table and the verdict to stderr. about: what stands before the verdict."""
    if reporter.quiet:
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=printable(title), title_justify="left", box=None)
    narrow = reporter.console.width < _NARROW
    columns = ["moved"] if narrow else ["compared", "moved", "largest", "time"]
    for name in ("scenario", "result"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for result in outcome.results:
        tally = result.tally
        cells = {
            "compared": f"{tally.comparisons:,}",
            "moved": f"{tally.mismatches:,}",
            "largest": nats(tally),
            "time": f"{result.seconds:,.1f} s",
        }
        table.add_row(
            result.scenario.name,
            Text(result.status.value, _STYLES[result.status]),
            *(cells[name] if tally.comparisons else "" for name in columns),
        )
    reporter.console.print(table)
    reporter.table("", [*about, *verdict(outcome)])


def verdict(outcome: Outcome) -> list[tuple[str, str]]:
    """Return what the check says in the end, in words."""
    proven = outcome.proven
    compared = f"{proven.comparisons:,} values compared bit by bit"
    proofs = [r for r in outcome.results if r.scenario.kind is Kind.proof]
    ran = [r for r in proofs if r.status in (Status.passed, Status.failed)]
    failed = outcome.of(Status.failed)
    rows: list[tuple[str, str]] = []
    for result in failed:
        told = [result.reason, *result.tally.examples]
        rows += [("failed", f"{result.scenario.name}: {text}") for text in told]
    if failed:
        names = ", ".join(result.scenario.name for result in failed)
        if proven.mismatches:
            moved = f"{proven.mismatches:,} moved, by up to {nats(proven)}"
            rows.append(("NOT REPRODUCIBLE", f"{names}: {compared}, {moved}"))
        else:
            rows.append(("NOT PROVEN", f"{names}: {compared}, 0 moved"))
    elif not outcome.passed:
        ended = "was stopped before its end" if outcome.stopped else "ran no proof"
        rows.append(("no verdict", f"the check {ended}; {compared}, 0 moved"))
    else:
        rows.append(("REPRODUCIBLE", f"{len(ran)} scenarios, {compared}, 0 moved"))
    rows += [("not run", f"{r.scenario.name}: {r.reason}") for r in outcome.of(Status.not_run)]
    for result in outcome.results:
        if left_out := result.tally.left_out:
            text = f"{len(left_out)} parts of {result.scenario.name}: {'; '.join(left_out)}"
            rows.append(("not run", text))
    if outcome.control is not None:
        rows.append(("control", _control(outcome.control, proven)))
    return rows


def _control(result: Result, ours: Tally) -> str:
    tally = result.tally
    mine = f"ours: {ours.mismatches:,} of {ours.comparisons:,}"
    if result.status is Status.shown:
        return (
            "ordinary padded batches by transformers, the same prompts: "
            f"{tally.mismatches:,} of {tally.comparisons:,} values moved, by up to {nats(tally)}; "
            f"{mine}"
        )
    if result.status is Status.not_shown:
        return (
            "this machine did not show the problem: ordinary padded batches by transformers moved "
            f"none of {tally.comparisons:,} values here, so there was no difference for the check "
            f"to detect; {mine}"
        )
    return f"{result.status.value}: {result.reason}"


def nats(tally: Tally) -> str:
    """Return the largest difference with its unit."""
    return "0" if tally.largest == 0 else f"{tally.largest:.2g} nats"


def listing(scenarios: Sequence[Scenario]) -> str:
    """Return the names of the scenarios and what each of them compares."""
    return "".join(f"{s.name:16} {s.kind.value:8} {s.about}\n" for s in scenarios)


def doing(reporter: Reporter) -> Callable[[Scenario], AbstractContextManager[None]]:
    """Return what says which scenario is running: a spinner, or a line where no terminal is."""

    @contextmanager
    def run(scenario: Scenario) -> Iterator[None]:
        text = f"{scenario.name}: {scenario.about}"
        if reporter.quiet:
            yield
        elif reporter.console.is_terminal:
            with reporter.console.status(printable(text)):
                yield
        else:
            reporter.say(text)
            yield

    return run
