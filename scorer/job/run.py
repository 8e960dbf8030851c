"""One run of a job: go on where an earlier one stopped, or begin; write rows; keep checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from scorer.errors import IsolationError, ModelError, ScorerError, StopAtError, UsageError
from scorer.job.identity import identity, produced_by, work_done
from scorer.job.output import RowFile, StdoutRows, writing
from scorer.job.resume import (
    Kept,
    check_numerics,
    check_place,
    check_same,
    keep_rows,
    read_manifest,
)
from scorer.job.stopping import StopRequest
from scorer.job.summary import Summary
from scorer.manifest import write_manifest
from scorer.records.record import Record
from scorer.records.source import Counts, Marks, at_line, parsed
from scorer.rows import decode_score, encode_score

if TYPE_CHECKING:
    from scorer.job.job import Job
    from scorer.manifest import Json
    from scorer.scoring import Scorer
    from scorer.workers.hands import Hands

CHECKPOINT_SECONDS = 10.0
"""How often the rows are put on disk for sure and the manifest is replaced."""

_CHAT_KEYS = (b'"question"', b'"messages"')
"""What a line of a question or chat holds, unless its keys are written with escapes."""

_WORK = ("forwards", "reads", "read_tokens", "shared_tokens", "forward_tokens")


class Run:
    """Scores the records of a job that have no row yet, and writes their rows.

    before: rows that were there. seconds: of scoring, None when there was nothing to do. summary:
    over all rows, those that were there too.
    """

    def __init__(self, job: Job, scorer: Scorer, counts: Counts, out: RowFile | StdoutRows) -> None:
        self.summary = Summary()
        self.before = 0
        self.seconds: float | None = None
        self._job = job
        self._scorer = scorer
        self._counts = counts
        self._out = out
        self._first, self._end = job.span(counts)
        self._kept = Kept()
        self._last_line = 0
        self._marks = Marks()
        self._head: dict[str, Json] = {}
        self._hands: Hands = scorer.hands(0)
        self._loaded = False
        self._begun = False
        self._load_seconds = 0.0
        self._scoring_since = 0.0

    def go(self) -> None:
        """Do all of it. Raises what ``Job.run`` does."""
        job = self._job
        if job.resume and not self._is_new():
            self._keep_rows()
        if self._kept.manifest is not None and self._first + self._kept.rows == self._end:
            self._complete_without_model()
            return
        self._check_chat_template()
        with self._scorer.hands(self._workers()) as hands:  # they start while the model loads
            self._hands = hands
            self._load_and_score()

    def _check_chat_template(self) -> None:
        """Find out before the weights are loaded whether a record needs a chat template in vain.

        A template that is missing or refused concerns every question and every chat alike, so the
        first of them ends the job before a row is written: error rows are for what is wrong with a
        line. A file without them is scored. Raises ModelError.
        """
        if self._scorer.prompter.has_chat_template:
            return
        start = self._first + self._kept.rows
        for lines in self._job.source.lines(self._end, start=start):
            if any(key in lines.data for key in _CHAT_KEYS):
                records = [own for own in parsed(lines) if isinstance(own, Record)]
                self._scorer.prompter.prepare(records)

    def _workers(self) -> int:
        """How many processes do the host's work."""
        from scorer.workers.pool import choose_workers

        if self._job.workers is not None:
            return self._job.workers
        return choose_workers(self._end - self._first - self._kept.rows)

    def _load_and_score(self) -> None:
        job = self._job
        started = time.perf_counter()
        _ = self._scorer.reader
        self._load_seconds = time.perf_counter() - started
        self._loaded = True
        self._head = produced_by(job, self._scorer, self._counts)
        self._head["earlier_numerics"] = self._earlier_numerics()
        stop = StopRequest()
        with stop.listening(quiet=job.reporter.quiet):
            self._scoring_since = time.perf_counter()
            if not self._replaces():
                self._begin()
            with self._resumable():
                self._score(stop)
            if not self._begun:  # there was no record
                self._begin()
            self._out.sync()
            self.seconds = time.perf_counter() - self._scoring_since
            self._checkpoint(complete=True)

    def _replaces(self) -> bool:
        """Whether the rows or the manifest of another job are given up for this one's."""
        job, out = self._job, self._out
        if not job.replace or not isinstance(out, RowFile):
            return False
        return out.size > 0 or (job.manifest is not None and job.manifest.exists())

    def _begin(self) -> None:
        """Write from here on: what the output holds behind the kept rows goes."""
        self._begun = True
        self._out.start(self._kept.size)
        if self._kept.manifest is None or self._kept.manifest.complete:
            self._checkpoint()

    def _before_rows(self) -> None:
        """Begin, if this is the first row of a job that replaces another's.

        That one's rows stay until this job has proven that it can score. Raises IsolationError,
        DeviceError, UsageError.
        """
        if self._begun:
            return
        if not self._scorer.reader.counts.forwards:  # as yet there are error rows only
            self._scorer.reader.prove()
        self._begin()

    def _is_new(self) -> bool:
        """Whether there is no row to continue after: no file, or a job that died before one."""
        assert isinstance(self._out, RowFile)
        assert self._job.manifest is not None
        return self._out.size == 0 and not self._job.manifest.exists()

    def _keep_rows(self) -> None:
        """Take in the rows that are there, or refuse to go on. Raises UsageError."""
        job, out = self._job, self._out
        assert isinstance(out, RowFile)
        assert job.manifest is not None
        manifest, whole = read_manifest(job.manifest, out.path)
        same = identity(job, self._scorer, self._counts)
        most = check_same(manifest, same, self._counts, job.source)
        self._kept = keep_rows(out, manifest, most, self._take_in)
        self._kept.whole = whole
        self.before = self._kept.rows
        if self._first + self.before > self._end:
            raise UsageError(
                f"{out.path}: has {self.before} rows already, more than are asked for; ask for as "
                "many, or --force-new starts over"
            )
        check_place(self._kept, out, self._last_line, job.source, self._first)

    def _take_in(self, line: bytes) -> int:
        row = decode_score(line)
        self.summary.add(row)
        self._last_line = row.line
        return row.line

    def _complete_without_model(self) -> None:
        """Nothing is left to score; only the manifest may not say so yet."""
        manifest = self._kept.manifest
        assert manifest is not None
        assert self._job.manifest is not None
        self._out.start(self._kept.size)
        if manifest.complete and self._kept.rows == manifest.rows:
            return
        whole = self._kept.whole
        known = identity(self._job, self._scorer, self._counts)
        self._head = {**whole, **known, "model": whole["model"]}
        self._checkpoint(complete=True)

    def _earlier_numerics(self) -> list[Json]:
        """What other rows than those to come were computed with. Raises UsageError."""
        manifest, reader = self._kept.manifest, self._scorer.reader
        if manifest is None:
            return []
        if check_numerics(manifest, reader.numerics):
            return list(manifest.earlier_numerics)
        self._check_bits()
        behind = manifest.earlier_numerics
        first = 1 + (behind[-1]["rows"][1] if behind else 0)
        if first > self._kept.rows:
            return list(behind)
        entry: dict[str, Json] = {
            "rows": [first, self._kept.rows],
            "numerics_key": manifest.numerics_key,
            "numerics": manifest.numerics,
        }
        return [*behind, entry]

    def _check_bits(self) -> None:
        """Score the last rows again. Raises UsageError when a byte of one differs."""
        tail = self._kept.tail
        end = self._first + self._kept.rows
        with closing(self._scored_again(end - len(tail), end)) as again:
            for (number, row), line in zip(again, tail, strict=True):
                if row != line:
                    raise UsageError(
                        "--resume: the driver changed, and the row of "
                        f"{at_line(self._job.source.name, number, 'scores differently with it')}; "
                        "go on with the driver that the manifest names, or --force-new starts over"
                    )
        self._job.reporter.say(
            f"the driver changed; the last {len(tail)} rows came out the same, to the bit"
        )

    def _scored_again(self, start: int, end: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield the input line and the row of records that have one already."""
        for row in self._scorer.score(self._job.source.records(end, start=start)):
            yield row.line, encode_score(row)

    def _score(self, stop: StopRequest) -> None:
        """Write a row for each record that has none, until asked to stop."""
        job, scorer, out = self._job, self._scorer, self._out
        start = self._first + self._kept.rows
        digest, summary, counts = self._kept.digest, self.summary, scorer.reader.counts
        due = time.monotonic() + CHECKPOINT_SECONDS
        lines = job.source.lines(self._end, start=start, marks=self._marks)
        stop_at_error = job.on_error == "stop"
        writing_on = scorer.write(lines, self._hands, stop=stop, stop_at_error=stop_at_error)
        with (
            job.reporter.counting(self._end - self._first, self._kept.rows) as counter,
            closing(writing_on) as stretches,
        ):
            for rows in stretches:
                count = rows.counted.records
                if count:
                    self._before_rows()
                    out.write(rows.data)
                    digest.update(rows.data, count)
                    job.report_errors(rows.errors, summary.errors.total())
                    summary.take(rows.counted)
                    self._marks.pass_by(rows.last)
                    counter.advance(count, errors=summary.errors.total(), fill=counts.fill)
                if rows.stopped is not None:
                    raise StopAtError(at_line(job.source.name, *rows.stopped))
                if time.monotonic() >= due:
                    self._checkpoint()
                    due = time.monotonic() + CHECKPOINT_SECONDS
        if stop() and self._first + digest.rows < self._end:
            raise stop.error()

    @contextmanager
    def _resumable(self) -> Iterator[None]:
        """Whatever ends the scoring: rows and manifest agree, and the error says how to go on."""
        try:
            yield
        except ScorerError as error:
            if not self._begun:
                error.add_note(f"no row was written, and {self._job.output} is as it was")
                raise
            self._stopped(error)
            raise

    def _stopped(self, error: ScorerError) -> None:
        """Leave rows that can be gone on with, and add to the error how.

        Where there is none, and another model or other settings are the remedy, nothing is left.
        """
        if not self._kept.rows and isinstance(error, ModelError | IsolationError):
            if self._job.manifest is not None and isinstance(self._out, RowFile):
                self._job.manifest.unlink(missing_ok=True)
            return
        if isinstance(error, UsageError):  # rows can't be written: the last checkpoint stands
            if self._kept.rows and self._job.output is not None and self._job.output.exists():
                error.add_note(f"what is in {self._job.output} is whole, --resume goes on with it")
            return
        try:
            self._checkpoint()
        except UsageError as second:
            error.add_note(str(second))
        else:
            error.add_note(self._how_to_go_on(error))

    def _how_to_go_on(self, error: ScorerError) -> str:
        done = f"{self._kept.rows:,} of {self._end - self._first:,} rows"
        if self._job.output is None or self._job.manifest is None:
            return f"{done} are written"
        if isinstance(error, IsolationError):  # of other settings these rows know nothing
            return f"{done} are in {self._job.output}"
        fix = "correct the line, then " if isinstance(error, StopAtError) else ""
        again = f"{fix}the same command with --resume goes on"
        return f"{done} are in {self._job.output}; {again}"

    def _checkpoint(self, *, complete: bool = False) -> None:
        """Put the rows on disk, then the manifest that speaks of them. Raises UsageError."""
        self._out.sync()
        path = self._job.manifest
        if path is None or (isinstance(self._out, StdoutRows) and not complete):
            return
        kept = self._kept
        if self._loaded:  # self-tests of further rungs may have come since
            self._head["selftest"] = {"comparisons": self._scorer.reader.selftests.comparisons}
        manifest = {
            **self._head,
            "complete": complete,
            "counts": {**self._counted(), **self._work()},
            "rows": kept.rows,
            "rows_sha256": kept.digest.hexdigest(),
            "scored_input": self._scored_input(),
            "timings": self._times(),
        }
        with writing(str(path)):
            write_manifest(path, manifest)

    def _scored_input(self) -> dict[str, Json]:
        """The input up to the end of the last written row's record."""
        end = self._marks.passed() or self._kept.end
        if end is None:
            return {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
        return {"bytes": end.bytes, "sha256": end.sha256}

    def _counted(self) -> dict[str, Json]:
        """What the rows so far come to."""
        return self.summary.fields()

    def _work(self) -> dict[str, int]:
        """The work of this run and of those before it, as far as they told."""
        work = work_done(self._scorer) if self._loaded else dict.fromkeys(_WORK, 0)
        if self._kept.manifest is not None:
            for name in work:
                work[name] += self._kept.manifest.counts.get(name, 0)
        return work

    def _times(self) -> dict[str, Json]:
        """The seconds of this run and of those before it, as far as they told."""
        taken: dict[str, Any] = {"load_seconds": 0.0, "score_seconds": 0.0, "runs": 0}
        if self._kept.manifest is not None:
            taken |= self._kept.manifest.timings
        if self._loaded:
            taken["load_seconds"] += self._load_seconds
            taken["score_seconds"] += time.perf_counter() - self._scoring_since
            taken["selftest"] = "remembered" if self._scorer.reader.selftests.remembered else "run"
            taken["runs"] += 1
        return taken
