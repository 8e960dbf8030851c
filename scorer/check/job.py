"""One ``scorer check``: a model and records in; a table, a report and a verdict out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorer import __version__
from scorer.check.diff import Difference
from scorer.check.report import doing, fields_of, show
from scorer.check.run import Outcome, Scenario, run
from scorer.check.subject import Level, make_subject
from scorer.errors import InputError, ScorerError, UsageError
from scorer.job.output import print_out, replace_file, same_file, writing
from scorer.manifest import spelled
from scorer.records.source import Counts, Source

if TYPE_CHECKING:
    from scorer.check.against import Earlier
    from scorer.manifest import Json
    from scorer.progress import Reporter
    from scorer.records.record import BadLine, Record
    from scorer.scoring import Scorer

EXIT_MISMATCH = 1
EXIT_CHANGED = 3

_EXAMPLES = ("chat.jsonl", "continuations.jsonl", "sentiment.jsonl")


@dataclass(frozen=True, slots=True)
class Report:
    """Where the document goes: a file, None for none, and stdout or not."""

    path: Path | None
    replace: bool
    to_stdout: bool

    def check(self, inputs: Iterable[Path]) -> None:
        """Find what can be found before a model is loaded. Raises UsageError.

        inputs: files that are read, which the report must not replace.
        """
        if self.path is None:
            return
        with writing(str(self.path)):
            if not self.path.parent.is_dir():
                raise UsageError(
                    f"{self.path}: there is no folder {self.path.parent}; create it first"
                )
            if any(same_file(self.path, file) for file in inputs):
                raise UsageError(f"{self.path}: is read by this check; write elsewhere")
            if self.path.exists() and not (self.path.is_file() and self.replace):
                raise UsageError(f"{self.path}: exists; --force-new replaces a file")

    def check_beside(self, model: Path) -> None:
        """Raise UsageError where a file of the model would be replaced."""
        if self.path is not None and self.path.parent.resolve() == model.resolve():
            raise UsageError(f"{self.path}: is in the model's folder; write elsewhere")

    def keep(self, document: dict[str, Json]) -> None:
        """Put the file in place: at every moment it is a whole one. Raises UsageError."""
        if self.path is not None:
            text = json.dumps(document, indent=2, allow_nan=False)
            with writing(str(self.path)):
                replace_file(self.path, f"{text}\n".encode())

    def close(self, document: dict[str, Json]) -> None:
        """Put the last document where it goes, on stdout first: a file may fail. Raises UsageError.

        A closed stdout is a BrokenPipeError.
        """
        try:
            if self.to_stdout:
                print_out(json.dumps(document, allow_nan=False))
        finally:
            self.keep(document)


def bundled_examples() -> list[str]:
    """Return the example files: of the installed package, else of the checkout.

    Raises InputError where neither has them.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parent / "examples"):
        files = [folder / name for name in _EXAMPLES]
        if all(file.is_file() for file in files):
            return [str(file) for file in files]
    raise InputError("the bundled examples are not installed; give a file of records as INPUT")


def check(
    names: Sequence[str],
    scorer: Scorer,
    scenarios: Sequence[Scenario],
    level: Level,
    limit: int | None,
    report: Report,
    reporter: Reporter,
) -> int:
    """Run scenarios on the records of some inputs; return the exit code.

    Once the records have been scored a first time, the report is there, and is written after every
    scenario, so that whatever ends the process leaves a valid one. names: of the inputs. Raises
    UsageError, ModelError, InputError; InterruptError, KeyboardInterrupt, DeviceError.
    """
    report.check(map(Path, names))
    report.check_beside(scorer.checkpoint.path)
    with ExitStack() as stack:
        sources = [stack.enter_context(Source(name)) for name in names]
        counts = [source.check_ids() for source in sources]
        subject = make_subject(scorer, _in_turn(sources), level, limit)
    head: dict[str, Json] = {
        **_made_by(scorer, sources, counts),
        "level": level.name,
        "records": len(subject.records),
        "records_skipped": subject.skipped,
        "victims": [len(victim) for victim in subject.victims],
    }
    outcome = Outcome()
    report.keep(_document(head, outcome, complete=False, exit_code=None))
    for outcome in run(subject, scenarios, doing(reporter)):
        report.keep(_document(head, outcome, complete=False, exit_code=None))
    code = 0 if outcome.passed else EXIT_MISMATCH
    if outcome.stopped is not None:
        code = getattr(outcome.stopped, "exit_code", 130)
    title = f"{scorer.checkpoint.name}: {_where(scorer)}, {level.name} check"
    looked_at = len(subject.records) + subject.skipped
    about = [("records", f"{len(subject.records):,} of {looked_at:,} that were looked at")]
    if subject.skipped:
        kinds = ", ".join(f"{code} {count:,}" for code, count in sorted(subject.reasons.items()))
        about.append(("left out", f"{subject.skipped:,} records that can't be scored: {kinds}"))
    show(title, about, outcome, reporter)
    reporter.table("", [("numerics key", scorer.reader.numerics_key)])
    report.close(_document(head, outcome, complete=outcome.stopped is None, exit_code=code))
    if outcome.stopped is not None:
        raise outcome.stopped
    return code


def check_against(
    source: Source,
    scorer: Scorer,
    earlier: Earlier,
    sample: int | None,
    report: Report,
    reporter: Reporter,
) -> int:
    """Score an earlier file's records again and compare; return the exit code.

    The report is there from the start, and an interruption leaves one of what was compared until
    then. Raises UsageError, ModelError, InputError; and, with the report written, IsolationError,
    DeviceError, InterruptError, KeyboardInterrupt.
    """
    from scorer.check.against import score_again

    report.check([Path(source.name), earlier.path, earlier.manifest_path])
    report.check_beside(scorer.checkpoint.path)
    counts = source.check_ids()
    changed = earlier.changed(scorer)
    notes = earlier.notes(scorer, counts)
    first, last = earlier.span(counts)
    total = last - first if sample is None else min(sample, last - first)
    difference = Difference()
    made_by = _made_by(scorer, [source], [counts])

    def document(code: int | None, *, complete: bool) -> dict[str, Json]:
        found: dict[str, Json] = {
            "file": spelled(str(earlier.path)),
            "numerics_key": earlier.manifest.numerics_key,
            "changed_fields": changed,
            "sample": sample,
            "notes": list(notes),
            **difference.fields(),
        }
        return {
            **made_by,
            "complete": complete,
            "exit_code": code,
            "passed": code == 0,
            "against": found,
        }

    def show(verdict: str) -> None:
        rows = [("verdict", verdict), *difference.table(), *(("note", note) for note in notes)]
        reporter.table(f"{earlier.path} and the same records now", rows)
        if changed:
            reporter.table(
                "fields of the numerics key that differ",
                [(name, json.dumps(both)) for name, both in changed.items()],
            )
        reporter.table("", [("numerics key", scorer.reader.numerics_key)])

    report.keep(document(None, complete=False))
    try:
        with reporter.counting(total) as counter:
            score_again(scorer, earlier, source, counts, sample, counter, difference)
    except (ScorerError, KeyboardInterrupt) as stop:
        show(f"stopped before the end; until then {difference.verdict}")
        report.close(document(getattr(stop, "exit_code", 130), complete=False))
        raise
    code = EXIT_CHANGED if changed else 0 if difference.equal else EXIT_MISMATCH
    show(f"{difference.verdict}, in another environment" if changed else difference.verdict)
    report.close(document(code, complete=True))
    return code


def _in_turn(sources: Sequence[Source]) -> Iterator[Record | BadLine]:
    """Yield a record of each source in turn, until all have come to their end."""
    waiting: list[Iterator[Record | BadLine]] = [source.records() for source in sources]
    while waiting:
        for records in list(waiting):
            record = next(records, None)
            if record is None:
                waiting.remove(records)
            else:
                yield record


def _made_by(
    scorer: Scorer, sources: Iterable[Source], counts: Iterable[Counts]
) -> dict[str, Json]:
    from scorer.environment import describe_environment
    from scorer.job.identity import model_identity

    reader = scorer.reader
    return {
        "scorer": __version__,
        "model": {**model_identity(scorer), "weights_sha256": reader.numerics["weights_sha256"]},
        "settings": scorer.settings,
        "input": [
            {"name": spelled(source.name), "sha256": count.sha256, "records": count.records}
            for source, count in zip(sources, counts, strict=True)
        ],
        "numerics_key": reader.numerics_key,
        "numerics": reader.numerics,
        "environment": describe_environment(),
    }


def _document(
    head: dict[str, Json], outcome: Outcome, *, complete: bool, exit_code: int | None
) -> dict[str, Json]:
    return {**head, "complete": complete, "exit_code": exit_code, **fields_of(outcome)}


def _where(scorer: Scorer) -> str:
    numerics = scorer.reader.numerics
    device = numerics.get("gpu") or "CPU"
    return f"{numerics['dtype']} on {device}, {numerics['isolation']}"
