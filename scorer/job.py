"""One ``scorer score``: a file in, a file and its manifest out, a summary for who waits for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import UNSET

from scorer import __version__
from scorer.answers import Plan
from scorer.errors import UsageError
from scorer.manifest import hash_files, sha256_of, write_manifest
from scorer.rows import RowDigest, Score, encode_score
from scorer.source import Counts, Source, at_line
from scorer.summary import Summary

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.progress import Reporter
    from scorer.scoring import Scorer

_ERRORS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Job:
    """Scores a source into an output.

    output: a path, None for stdout. manifest: a path, None for none. limit: the first N records.
    replace: an output that exists is written anew instead of refused.
    """

    source: Source
    output: Path | None
    manifest: Path | None
    limit: int | None
    replace: bool
    reporter: Reporter

    def check(self) -> Counts:
        """Find what can be found before a model is loaded. Raises UsageError, InputError."""
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"--limit must be 0 or more, got {self.limit}")
        for path in (self.output, self.manifest):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
            if _same_file(path, Path(self.source.name)):
                raise UsageError(f"{path}: is the input, which is never replaced; write elsewhere")
            if path.exists() and not (path.is_file() and self.replace):
                raise UsageError(f"{path}: exists; --force-new replaces a file")
        if self.output is not None and self.output == self.manifest:
            raise UsageError(f"{self.output}: is both output and manifest; name two files")
        if self.output is None and sys.stdout is None:
            raise UsageError("stdout is closed; write to a file with --output")
        return self.source.check_ids()

    def run(self, scorer: Scorer, counts: Counts) -> Summary:
        """Score, write and report.

        Raises UsageError, ModelError, and while scoring InputError, IsolationError, DeviceError.
        """
        started = time.perf_counter()
        reader = scorer.reader
        loaded = time.perf_counter()
        summary = Summary()
        digest = RowDigest()
        total = counts.records if self.limit is None else min(counts.records, self.limit)
        with self.opened() as out, self.reporter.counting(total) as counter:
            for row in scorer.score(self.source.records(self.limit)):
                line = encode_score(row)
                out.write(line)
                digest.update(line)
                summary.add(row)
                self._report_error(row, summary)
                counter.advance(errors=summary.errors.total(), fill=reader.counts.fill)
        scored = time.perf_counter()
        if self.manifest is not None:
            timings: dict[str, Json] = {
                "load_seconds": loaded - started,
                "score_seconds": scored - loaded,
                "selftest": "remembered" if reader.selftests.remembered else "run",
            }
            manifest = {
                **produced_by(self, scorer, counts),
                "counts": {**summary.fields(), **work_done(scorer)},
                "rows": digest.rows,
                "rows_sha256": digest.hexdigest(),
            }
            with writing(str(self.manifest)):
                write_manifest(self.manifest, {**manifest, "timings": timings})
        self._close(scorer, summary, scored - loaded)
        return summary

    def dry_run(self, scorer: Scorer) -> Summary:
        """Parse, tokenise and plan without a model; report what would fail."""
        summary = Summary()
        reads = tokens = 0
        for item in scorer.prepare(self.source.records(self.limit)):
            if isinstance(item, Plan):
                summary.records += 1
                summary.warned += bool(item.prepared.warnings)
                summary.add_prompt(len(item.prepared.token_ids))
                reads += len(item.reads)
                tokens += sum(len(read) for read in item.reads)
            else:
                summary.add(item)
                self._report_error(item, summary)
        self.reporter.table(
            f"{self.source.name}: dry run",
            [
                *summary.table(),
                ("reads", f"{reads:,} of {tokens:,} tokens in all"),
                ("longest prompt", f"{summary.longest_prompt:,} tokens"),
            ],
        )
        return summary

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the output. Raises UsageError where it can't be written."""
        if self.output is None:
            with writing("<stdout>"):
                yield sys.stdout.buffer
                sys.stdout.buffer.flush()
            return
        with writing(str(self.output)), self.output.open("wb" if self.replace else "xb") as file:
            yield file

    def _report_error(self, row: Score, summary: Summary) -> None:
        shown = summary.errors.total()
        if row.error is not UNSET and shown <= _ERRORS_SHOWN:
            self.reporter.say(at_line(self.source.name, row.line, row.error.message))
            if shown == _ERRORS_SHOWN:
                self.reporter.say("further errors are in the output only")

    def _close(self, scorer: Scorer, summary: Summary, seconds: float) -> None:
        reader = scorer.reader
        counts = reader.counts
        rows = summary.table()
        if counts.forwards:
            speed = f"{counts.reads / seconds:,.0f} reads/s, "
            speed += f"{counts.real_tokens / seconds:,.0f} tokens/s, "
            speed += f"{counts.forwards:,} forwards {counts.fill:.0%} full"
            rows += [("speed", speed), ("isolation", reader.selftests.describe())]
        rows.append(("numerics key", reader.numerics_key))
        self.reporter.table(f"{self.source.name}: {scorer.checkpoint.name}", rows)


def _same_file(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn the system's refusals to write ``name`` into UsageError; a closed pipe is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"{name}: can't be written: {error.strerror or error}; make room, or write elsewhere"
        ) from error


def produced_by(job: Job, scorer: Scorer, counts: Counts) -> dict[str, Json]:
    """Return what produces a job's rows, for its manifest; equal for equal runs."""
    checkpoint = scorer.checkpoint
    tokenizer = [checkpoint.path / name for name in ("tokenizer.json", "tokenizer_config.json")]
    reader = scorer.reader
    return {
        "scorer": __version__,
        "numerics_key": reader.numerics_key,
        "numerics": reader.numerics,
        "model": {
            "name": checkpoint.name,
            "revision": checkpoint.revision,
            "weights_sha256": reader.numerics["weights_sha256"],
            "config_sha256": sha256_of(checkpoint.config),
            "tokenizer_sha256": hash_files(file for file in tokenizer if file.is_file()),
            "template_sha256": scorer.prompter.template_sha256,
        },
        "settings": {**scorer.settings, "limit": job.limit},
        "input": {
            "name": job.source.name,
            "sha256": counts.sha256,
            "bytes": counts.bytes,
            "records": counts.records,
            "blank_lines": counts.blank,
        },
        "selftest": {"comparisons": reader.selftests.comparisons},
    }


def work_done(scorer: Scorer) -> dict[str, Json]:
    """Return how many forwards, reads and tokens a scorer has computed."""
    counts = scorer.reader.counts
    return {
        "forwards": counts.forwards,
        "reads": counts.reads,
        "read_tokens": counts.real_tokens,
        "forward_tokens": counts.forward_tokens,
    }


def summary_json(summary: Summary) -> str:
    """Return the closing summary as one JSON line."""
    return json.dumps(summary.fields(), ensure_ascii=False)


def cache_dir() -> Path:
    """Return the folder where a job remembers passed self-tests: ``$XDG_CACHE_HOME/scorer``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "scorer"
