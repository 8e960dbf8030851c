"""One ``scorer compare``: rows and their manifest out, figures, reports, thresholds."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from scorer import __version__
from scorer.compare.orderings import Orders
from scorer.compare.pride import check_fraction
from scorer.compare.questions import Comparison, Repeats, ask, plan, second_pass
from scorer.compare.rows import CompareRow, decode_row, decode_rows, encode_row
from scorer.errors import InputError, UsageError
from scorer.job.job import Job
from scorer.job.output import RowFile, StdoutRows, writing
from scorer.job.run import CHECKPOINT_SECONDS, Run
from scorer.job.stopping import StopRequest
from scorer.records.source import Counts, Marks, at_line, reading

if TYPE_CHECKING:
    from scorer.compare.measures import Measures
    from scorer.compare.thresholds import Threshold
    from scorer.manifest import Json
    from scorer.progress import Reporter
    from scorer.scoring import Scorer

_ERRORS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Findings:
    """What a comparison came to, as reports show it.

    source: the input's or rows' name. manifest: what produced the rows, None where not known, with
    the reason in note. failures: thresholds that failed.
    """

    source: str
    comparison: Comparison
    measures: Measures
    manifest: Mapping[str, Json] | None
    note: str
    failures: tuple[str, ...]

    @property
    def isolated(self) -> bool | None:
        """Whether the second pass gave the same bits; None without one."""
        differing = self.measures.metrics["noise_differing"].value
        return None if differing is None else differing == 0

    @property
    def clean(self) -> bool:
        """Whether there is nothing to report: no row errors, failed thresholds or noise."""
        return not (self.comparison.errors or self.failures or self.isolated is False)

    def summary(self) -> bytes:
        """Return the figures as one line of JSON, newline included; equal for equal rows."""
        manifest = self.manifest or {}
        fields = {
            "scorer": __version__,
            "rows": self.comparison.rows,
            "errors": dict(sorted(self.comparison.errors.items())),
            "numerics_key": manifest.get("numerics_key"),
            "model": manifest.get("model"),
            "failed": list(self.failures),
            "measures": self.measures,
        }
        return msgspec.json.encode(fields) + b"\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is made of the rows: figures, and where they go.

    seed: of samples, splits and the bootstrap. summary, report: files, None for none.
    """

    seed: int
    pride_fraction: float
    thresholds: Sequence[Threshold]
    summary: Path | None
    report: Path | None
    replace: bool
    reporter: Reporter

    def check(self) -> None:
        """Find what can be found before anything is read. Raises UsageError."""
        check_fraction(self.pride_fraction)
        if self.seed < 0:
            raise UsageError(f"--seed must be at least 0, got {self.seed}")
        for path in (self.summary, self.report):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
            if path.exists() and not path.is_file():
                raise UsageError(f"{path}: is not a file; name one")
            if path.exists() and not self.replace:
                raise UsageError(f"{path}: exists; --force-new replaces a file")
        if self.summary is not None and self.report is not None and same(self.summary, self.report):
            raise UsageError(f"{self.summary}: is both summary and report; name two files")

    def check_apart(self, others: Mapping[str, Path | None]) -> None:
        """Find out whether a summary or report would be written over another file of the job.

        others: what a file is to the job, and its path, None for none. Raises UsageError.
        """
        for option, path in (("--summary", self.summary), ("--report", self.report)):
            for name, other in others.items():
                if path is not None and other is not None and same(path, other):
                    raise UsageError(f"{option} {path}: would replace the {name}; write elsewhere")

    def conclude(
        self, source: str, comparison: Comparison, manifest: Mapping[str, Json] | None, note: str
    ) -> Findings:
        """Take the figures, write the files, show the summary. Raises InputError, UsageError."""
        from scorer.compare.report import show
        from scorer.compare.report_html import page

        measures = comparison.measures(seed=self.seed, pride_fraction=self.pride_fraction)
        failed = [threshold.failure(measures.metrics) for threshold in self.thresholds]
        findings = Findings(
            source, comparison, measures, manifest, note, tuple(text for text in failed if text)
        )
        if self.summary is not None:
            with writing(str(self.summary)):
                self.summary.write_bytes(msgspec.json.format(findings.summary(), indent=2) + b"\n")
        if self.report is not None:
            with writing(str(self.report)):
                self.report.write_text(page(findings), encoding="utf-8")
        show(findings, self.reporter)
        return findings


class CompareRun(Run):
    """The run of a comparison: a row a question instead of a record, its figures at the end.

    repeats: questions that are read twice. comparison: of all rows, those that were there too.
    """

    def __init__(
        self,
        job: Job,
        scorer: Scorer,
        counts: Counts,
        out: RowFile | StdoutRows,
        orders: Orders,
        repeats: int,
    ) -> None:
        super().__init__(job, scorer, counts, out)
        self.comparison = Comparison()
        self._orders = orders
        self._sample = repeats
        self._again: Repeats | None = None

    @property
    def produced(self) -> dict[str, Json]:
        """What produced the rows; of a job that had nothing left to do, what its manifest says."""
        return self._head or self._kept.whole

    def _take_in(self, line: bytes) -> int:
        row = decode_row(line)
        if row.line is UNSET:
            raise msgspec.ValidationError("a row of this job has its line")
        self.comparison.add(row)
        self._last_line = row.line
        return row.line

    def _rows(
        self, start: int, end: int, stop: StopRequest, marks: Marks | None = None
    ) -> Iterator[CompareRow]:
        score = partial(self._scorer.score, stop=stop)
        source = self._job.source
        if self._again is None:
            span = source.records(self._end, start=self._first)
            self._again = second_pass(score, span, self._orders, self._sample)
        records = source.records(end, start=start, marks=marks)
        return ask(partial(score, together=True), records, self._orders, self._again)

    def _scored_again(self, start: int, end: int) -> Generator[tuple[int, bytes], None, None]:
        for row in self._rows(start, end, StopRequest()):
            assert row.line is not UNSET
            yield row.line, encode_row(row)

    def _workers(self) -> int:
        return 0  # what is asked is made of the records here

    def _score(self, stop: StopRequest) -> None:
        job, out, counts = self._job, self._out, self._scorer.reader.counts
        due = time.monotonic() + CHECKPOINT_SECONDS
        with job.reporter.counting(self._end - self._first, self._kept.rows) as counter:
            start = self._first + self._kept.rows
            for row in self._rows(start, self._end, stop, self._marks):
                assert row.line is not UNSET
                line = encode_row(row)
                self._before_rows()
                out.write(line)
                self._kept.digest.update(line)
                self.comparison.add(row)
                self._marks.pass_by(row.line)
                errors = self.comparison.errors.total()
                if row.error is not UNSET:
                    _say_error(job, row.line, row.error.message, errors)
                counter.advance(errors=errors, fill=counts.fill)
                if time.monotonic() >= due:
                    self._checkpoint()
                    due = time.monotonic() + CHECKPOINT_SECONDS
        if stop() and self._first + self._kept.rows < self._end:
            raise stop.error()

    def _counted(self) -> dict[str, Json]:
        errors: dict[str, Json] = dict(sorted(self.comparison.errors.items()))
        return {"records": self.comparison.rows, "errors": errors}


def run(
    job: Job, scorer: Scorer, counts: Counts, orders: Orders, repeats: int, outcome: Outcome
) -> Findings:
    """Ask, write rows and manifest, conclude. repeats: questions that are read twice.

    Raises UsageError, ModelError, and while scoring InputError, IsolationError, DeviceError,
    InterruptError; the rows written until then are whole, and in a file the job can be resumed.
    """
    outcome.check_apart(
        {"input": Path(job.source.name), "rows": job.output, "manifest": job.manifest}
    )
    scorer.settings["compare"] = {
        "orders": orders.kind,
        "max_orders": orders.limit,
        "seed": orders.seed,
        "repeated_questions": repeats,
    }
    job.check_beside(scorer.checkpoint.path)
    with job.opened() as out:
        asking = CompareRun(job, scorer, counts, out, orders, repeats)
        asking.go()
    if asking.seconds is not None:
        work = scorer.reader.counts
        speed = f"{work.reads / asking.seconds:,.0f} reads/s"
        job.reporter.say(f"{work.reads:,} reads in {asking.seconds:,.1f} s, {speed}")
        if work.shared_tokens:
            job.reporter.say(f"shared prefixes: {work.describe_sharing()}")
    manifest = asking.produced if job.manifest is None else read_json(job.manifest)
    return outcome.conclude(job.source.name, asking.comparison, manifest, "")


def rehearse(job: Job, scorer: Scorer, orders: Orders) -> bool:
    """Count, tokenise and check without a model; return whether every question can be asked."""
    questions = readings = tokens = longest = 0
    errors: Counter[str] = Counter()
    for source, plans, failure in plan(scorer.prepare, job.source.records(job.limit), orders):
        questions += 1
        readings += len(plans)
        lengths = [len(own.prepared.token_ids) for own in plans]
        tokens += sum(lengths)
        longest = max(longest, *lengths, 0)
        if failure is not None:
            errors[failure.code] += 1
            _say_error(job, source.line, failure.message, errors.total())
    kinds = ", ".join(f"{code} {count:,}" for code, count in errors.most_common())
    job.reporter.table(
        f"{job.source.name}: dry run",
        [
            ("questions", f"{questions:,}"),
            ("reads", f"{readings:,} of {tokens:,} tokens in all"),
            ("longest prompt", f"{longest:,} tokens"),
            ("errors", f"{errors.total():,}: {kinds}" if errors else "none"),
        ],
    )
    return not errors


def conclude_from(rows: Path, outcome: Outcome) -> Findings:
    """Conclude from rows written before, without a model. Raises InputError, UsageError."""
    outcome.check_apart({"rows": rows, "manifest": _manifest_path(rows)})
    comparison = Comparison()
    for row in decode_rows(rows):
        comparison.add(row)
    manifest, note = _manifest_beside(rows)
    return outcome.conclude(str(rows), comparison, manifest, note)


def read_json(path: Path) -> dict[str, Json]:
    """Return a manifest. Raises InputError."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a manifest: {error}; restore it, or remove it") from error
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: not a manifest; restore it, or remove it")
    return manifest


def same(a: Path, b: Path) -> bool:
    """Whether two paths, of which either may not exist yet, are one file."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def _manifest_path(rows: Path) -> Path:
    return Path(f"{rows}.manifest.json")


def _manifest_beside(rows: Path) -> tuple[Mapping[str, Json] | None, str]:
    """Return the manifest of these rows and no others, or None and why."""
    path = _manifest_path(rows)
    if not path.is_file():
        return None, f"no manifest {path.name} beside the rows"
    manifest = read_json(path)
    with reading(str(rows)), rows.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if manifest.get("rows_sha256") != digest:
        return None, f"{path.name} belongs to other rows (their sha256 differs)"
    return manifest, ""


def _say_error(job: Job, line: int, message: str, count: int) -> None:
    if count <= _ERRORS_SHOWN:
        job.reporter.say(at_line(job.source.name, line, message))
        if count == _ERRORS_SHOWN:
            job.reporter.say("further errors are not shown here")
