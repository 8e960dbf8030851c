"""What the person at the terminal sees, all of it on stderr: notes, progress, a closing table.

A progress bar only on a terminal; elsewhere one plain line every 30 seconds. User text never
reaches the terminal as markup or control characters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_PLAIN_EVERY = 30.0


def printable(text: str) -> str:
    """Return text with every control character escaped but newline and tab."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else ascii(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    """Return text without control characters, white space at line ends folded into one space."""
    return printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))


@dataclass(slots=True)
class Reporter:
    """Writes to stderr, or nothing at all when quiet."""

    quiet: bool = False
    _console: Console | None = None

    @property
    def console(self) -> Console:
        """The Rich console on stderr; it honours NO_COLOR."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        return self._console

    def say(self, text: str) -> None:
        """Write one line."""
        if not self.quiet:
            self.console.print(one_line(text), soft_wrap=True)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Write names and values."""
        if self.quiet:
            return
        from rich.table import Table

        table = Table(title=printable(title), title_justify="left", show_header=False, box=None)
        table.add_column(style="dim")
        table.add_column()
        for name, value in rows:
            table.add_row(name, printable(value))
        self.console.print(table)

    @contextmanager
    def counting(self, total: int, done: int = 0) -> Iterator[Counter]:
        """Show how far ``total`` records have come, of which ``done`` were before."""
        if self.quiet:
            yield Counter(total, done)
        elif self.console.is_terminal:
            with _bar(self.console) as bar:
                task = bar.add_task("", total=total, completed=done, note="")
                yield _BarCounter(total, done, bar=bar, task=task)
        else:
            yield _PlainCounter(total, done, reporter=self)


def _bar(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
    )

    return Progress(
        TextColumn("scoring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


@dataclass(slots=True)
class Counter:
    """Counts finished records; this one shows nothing. before: those of an earlier run."""

    total: int
    before: int = 0
    started: float = field(default_factory=time.monotonic)
    done: int = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.before

    def advance(self, count: int = 1, *, errors: int, fill: float | None) -> None:
        """Count more records. fill: real tokens over the tokens of all forwards."""
        self.done += count
        self._show(errors, fill)

    def _show(self, errors: int, fill: float | None) -> None:
        del errors, fill

    def _note(self, errors: int, fill: float | None) -> str:
        """Rate and time left since this run began, errors, and how full the forwards are."""
        rate = (self.done - self.before) / max(time.monotonic() - self.started, 1e-9)
        left = timedelta(seconds=round((self.total - self.done) / rate)) if rate else "?"
        filled = "" if fill is None else f", {fill:.0%} full"
        return f"{rate:,.0f}/s, {left} left, {errors} errors{filled}"


@dataclass(slots=True)
class _BarCounter(Counter):
    bar: Progress = field(kw_only=True)
    task: TaskID = field(kw_only=True)
    shown: float = 0.0

    def _show(self, errors: int, fill: float | None) -> None:
        now = time.monotonic()
        if now - self.shown >= 0.1 or self.done == self.total:
            self.shown = now
            self.bar.update(self.task, completed=self.done, note=self._note(errors, fill))


@dataclass(slots=True)
class _PlainCounter(Counter):
    reporter: Reporter = field(kw_only=True)
    shown: float = field(default_factory=time.monotonic)

    def _show(self, errors: int, fill: float | None) -> None:
        now = time.monotonic()
        if now - self.shown >= _PLAIN_EVERY:
            self.shown = now
            note = self._note(errors, fill)
            self.reporter.say(f"{self.done:,} of {self.total:,} records, {note}")
