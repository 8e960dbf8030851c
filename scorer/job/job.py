"""One ``scorer score``: a file in, file and manifest out, a summary for whoever is waiting."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from scorer.answers import Plan
from scorer.errors import UsageError
from scorer.job.output import RowFile, StdoutRows, same_file
from scorer.job.shard import Shard
from scorer.job.summary import Summary
from scorer.records.source import Counts, Source, at_line

if TYPE_CHECKING:
    from scorer.job.run import Run
    from scorer.progress import Reporter
    from scorer.scoring import Scorer

_ERRORS_SHOWN = 10

OnError = Literal["row", "stop"]


@dataclass(frozen=True, slots=True)
class Job:
    """Scores a source into an output.

    output: a path, None for stdout. manifest: a path, None for none. limit: the first N records.
    replace: an output that exists is written anew instead of refused. resume: it is gone on with.
    shard: one part of the records. on_error: ``stop`` ends before the first error row. workers: how
    many processes do the host's work, None for what the number of records is worth.
    """

    source: Source
    output: Path | None
    manifest: Path | None
    limit: int | None
    replace: bool
    reporter: Reporter
    resume: bool = False
    shard: Shard | None = None
    on_error: OnError = "row"
    workers: int | None = None

    def check(self) -> Counts:
        """Find what can be found before a model is loaded. Raises UsageError, InputError."""
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"--limit must be 0 or more, got {self.limit}")
        if self.resume and self.replace:
            raise UsageError("--resume goes on with an output, --force-new replaces it: choose one")
        if self.resume and (self.output is None or self.manifest is None):
            raise UsageError("--resume goes on with a file: name it with --output")
        for path in (self.output, self.manifest):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
            if same_file(path, Path(self.source.name)):
                raise UsageError(f"{path}: is the input, which is never replaced; write elsewhere")
            _check_kind(path)
            if path.exists() and not (self.replace or self.resume):
                remedy = "--force-new replaces a file, --resume goes on with what a job left"
                raise UsageError(f"{path}: exists; {remedy}")
        if self.output is not None and self.output == self.manifest:
            raise UsageError(f"{self.output}: is both output and manifest; name two files")
        if self.output is None and sys.stdout is None:
            raise UsageError("stdout is closed; write to a file with --output")
        return self.source.check_ids()

    def check_beside(self, model: Path) -> None:
        """Raise UsageError where a file of the model would be replaced."""
        for path in (self.output, self.manifest):
            if path is not None and path.parent.resolve() == model.resolve():
                raise UsageError(f"{path}: is in the model's folder; write elsewhere")

    def span(self, counts: Counts) -> tuple[int, int]:
        """The records, from 0, that are scored: the first, and the one behind the last."""
        total = counts.records if self.limit is None else min(counts.records, self.limit)
        return (0, total) if self.shard is None else self.shard.span(total)

    def run(self, scorer: Scorer, counts: Counts) -> Summary:
        """Score, write and report.

        Raises UsageError, ModelError, and while scoring InputError, IsolationError, DeviceError,
        InterruptError, StopAtError; the rows written until then are whole, and in a file the job
        can be resumed. A chat template that is missing or refused ends the job before anything is
        loaded or written if one record, a question or chat, needs it.
        """
        from scorer.job.run import Run

        self.check_beside(scorer.checkpoint.path)
        with self.opened() as out:
            run = Run(self, scorer, counts, out)
            run.go()
        if (warning := run.summary.warning) is not None:
            self.reporter.say(warning)
        self._close(scorer, run)
        return run.summary

    def dry_run(self, scorer: Scorer, counts: Counts) -> Summary:
        """Parse, tokenise and plan without a model; report what would fail."""
        summary = Summary()
        reads = tokens = 0
        first, last = self.span(counts)
        for item in scorer.prepare(self.source.records(last, start=first)):
            if isinstance(item, Plan):
                summary.records += 1
                summary.warned += bool(item.prepared.warnings)
                summary.add_prompt(item.prepared.tokens)
                reads += len(item.asks)
                tokens += sum(map(len, item.asks))
            elif item.error is not UNSET:
                self.report_errors([(item.line, item.error.message)], summary.errors.total())
                summary.add(item)
        self.reporter.table(
            f"{self.source.name}: dry run",
            [
                *summary.table(rehearsed=True),
                ("reads", f"{reads:,} of {tokens:,} tokens in all"),
                ("longest prompt", f"{summary.longest_prompt:,} tokens"),
            ],
        )
        return summary

    @contextmanager
    def opened(self) -> Iterator[RowFile | StdoutRows]:
        """Open the output, for this job alone. Raises UsageError where it can't be written.

        A file that stays empty is removed when an error ends the job: nothing is in the way then.
        """
        if self.output is None:
            with StdoutRows() as stdout:
                yield stdout
            return
        with RowFile(self.output, create=not (self.replace or self.resume)) as file:
            if not file.locked:
                self.reporter.say(
                    f"{self.output}: its file system has no locks; see that no other job writes it"
                )
            try:
                yield file
            except BaseException:
                file.flush()
                untouched = file.is_new and not file.started
                if untouched or self.manifest is None or not self.manifest.exists():
                    file.remove_if_empty()
                raise

    def report_errors(self, errors: Iterable[tuple[int, str]], before: int) -> None:
        """Name the first few error rows, by line and message. before: how many came earlier."""
        for shown, (line, message) in enumerate(errors, before + 1):
            if shown <= _ERRORS_SHOWN:
                self.reporter.say(at_line(self.source.name, line, message))
            if shown == _ERRORS_SHOWN:
                self.reporter.say("further errors are in the output only")

    def _close(self, scorer: Scorer, run: Run) -> None:
        rows = run.summary.table()
        if run.seconds is None:
            rows.append(("resumed", "all rows were there already"))
        else:
            reader = scorer.reader
            counts = reader.counts
            if run.before:
                rows.append(("resumed", f"after {run.before:,} rows that were there already"))
            if counts.forwards:
                speed = f"{counts.reads / run.seconds:,.0f} reads/s, "
                speed += f"{counts.real_tokens / run.seconds:,.0f} tokens/s, "
                speed += f"{counts.forwards:,} forwards {counts.fill:.0%} full"
                rows.append(("speed", speed))
                if counts.shared_tokens:
                    rows.append(("shared prefixes", counts.describe_sharing()))
                rows.append(("isolation", reader.selftests.describe()))
            rows.append(("numerics key", reader.numerics_key))
        self.reporter.table(f"{self.source.name}: {scorer.checkpoint.name}", rows)


def _check_kind(path: Path) -> None:
    """Raise UsageError where there is something else than a file."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it")
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path}: is a link to a file that is not there; remove it, or create it")
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{path}: is a pipe or a device, and no job can be resumed there; name a file, or send "
            "--output - there"
        )


def summary_json(summary: Summary) -> str:
    """Return the closing summary as one JSON line."""
    return json.dumps(summary.fields(), ensure_ascii=False)


def cache_dir() -> Path:
    """Return the folder where a job remembers passed self-tests: ``$XDG_CACHE_HOME/scorer``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "scorer"
