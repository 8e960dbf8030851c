"""One ``scorer compare``: rows and their manifest out, figures, reports, thresholds."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from scorer import __version__
from scorer.compare import Comparison, ask, plan, second_pass
from scorer.compare_rows import decode_rows, encode_row
from scorer.errors import InputError, UsageError
from scorer.job import Job, produced_by, work_done
from scorer.manifest import write_manifest
from scorer.orderings import Orders
from scorer.output import writing
from scorer.pride import check_fraction
from scorer.rows import RowDigest
from scorer.source import Counts, at_line, reading

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.measures import Measures
    from scorer.progress import Reporter
    from scorer.scoring import Scorer
    from scorer.thresholds import Threshold

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
        for path in (self.summary, self.report):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
            if path.exists() and not (path.is_file() and self.replace):
                raise UsageError(f"{path}: exists; --force-new replaces a file")
        if self.summary is not None and self.summary == self.report:
            raise UsageError(f"{self.summary}: is both summary and report; name two files")

    def conclude(
        self, source: str, comparison: Comparison, manifest: Mapping[str, Json] | None, note: str
    ) -> Findings:
        """Take the figures, write the files, show the summary. Raises InputError, UsageError."""
        from scorer.report import show
        from scorer.report_html import page

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


def run(
    job: Job, scorer: Scorer, counts: Counts, orders: Orders, repeats: int, outcome: Outcome
) -> Findings:
    """Ask, write rows and manifest, conclude. repeats: questions that are read twice.

    Raises UsageError, ModelError, and while scoring InputError, IsolationError, DeviceError.
    """
    started = time.perf_counter()
    reader = scorer.reader
    loaded = time.perf_counter()
    again = second_pass(scorer.score, job.source.records(job.limit), orders, repeats)
    repeated = time.perf_counter()
    comparison = Comparison()
    digest = RowDigest()
    total = counts.records if job.limit is None else min(counts.records, job.limit)
    with job.opened() as out, job.reporter.counting(total) as counter:
        out.start()
        for row in ask(scorer.score, job.source.records(job.limit), orders, again):
            line = encode_row(row)
            out.write(line)
            digest.update(line)
            comparison.add(row)
            if row.error is not UNSET and row.line is not UNSET:
                _say_error(job, row.line, row.error.message, comparison.errors.total())
            counter.advance(errors=comparison.errors.total(), fill=reader.counts.fill)
        out.sync()
    asked = time.perf_counter()
    manifest: dict[str, Json] = {
        **produced_by(job, scorer, counts),
        "compare": {
            "orders": orders.kind,
            "max_orders": orders.limit,
            "seed": orders.seed,
            "repeated_questions": repeats,
        },
        "counts": {
            "records": comparison.rows,
            "errors": dict(sorted(comparison.errors.items())),
            **work_done(scorer),
        },
        "rows": digest.rows,
        "rows_sha256": digest.hexdigest(),
    }
    if job.manifest is not None:
        timings: dict[str, Json] = {
            "load_seconds": loaded - started,
            "repeat_seconds": repeated - loaded,
            "compare_seconds": asked - repeated,
            "selftest": "remembered" if reader.selftests.remembered else "run",
        }
        with writing(str(job.manifest)):
            write_manifest(job.manifest, {**manifest, "timings": timings})
    reads, seconds = reader.counts.reads, asked - loaded
    job.reporter.say(f"{reads:,} reads in {seconds:,.1f} s, {reads / seconds:,.0f} reads/s")
    return outcome.conclude(job.source.name, comparison, manifest, "")


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
    comparison = Comparison()
    for row in decode_rows(rows):
        comparison.add(row)
    manifest, note = _manifest_beside(rows)
    return outcome.conclude(str(rows), comparison, manifest, note)


def _manifest_beside(rows: Path) -> tuple[Mapping[str, Json] | None, str]:
    """Return the manifest of these rows and no others, or None and why."""
    path = Path(f"{rows}.manifest.json")
    if not path.is_file():
        return None, f"no manifest {path.name} beside the rows"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a manifest: {error}; restore it, or remove it") from error
    with reading(str(rows)), rows.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not isinstance(manifest, dict) or manifest.get("rows_sha256") != digest:
        return None, f"{path.name} belongs to other rows (their sha256 differs)"
    return manifest, ""


def _say_error(job: Job, line: int, message: str, count: int) -> None:
    if count <= _ERRORS_SHOWN:
        job.reporter.say(at_line(job.source.name, line, message))
        if count == _ERRORS_SHOWN:
            job.reporter.say("further errors are not shown here")
