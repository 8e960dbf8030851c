"""The pipeline without a model: rows a second, processor time a row, memory along the way.

    python -m tests.soak                 1,000,000 short rows (some minutes, 1 GB of disk)
    python -m tests.soak --rows 20000    a small one
    python -m tests.soak --kind question lettered questions of some 60 tokens

Parse, tokenise with the bundled model's tokenizer, pack, invented numbers in place of a forward,
logarithms, rows, digest, write. What the reader itself takes is part of the figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scorer.job.job import Job
from scorer.progress import Reporter
from scorer.records.source import Source
from scorer.shapes import BatchShape
from tests.model_free import ModelFreeReader, model_free, write_tokenizer_only

REPO = Path(__file__).resolve().parent.parent
WORDS = re.findall(
    "[a-z]+", "the a this it was is not very good bad slow fast food room staff screen never again"
)


@dataclass(frozen=True, slots=True)
class Soak:
    """What a run came to.

    own_seconds, other_seconds: processor time of this process and of its workers. curve: resident
    megabytes of all of them, at equal distances.
    """

    rows: int
    seconds: float
    own_seconds: float
    other_seconds: float
    curve: list[int]
    sha256: str

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows in {self.seconds:,.1f} s: {self.rows / self.seconds:,.0f} rows/s, "
            f"processor time {1e6 * self.own_seconds / self.rows:.1f} µs a row in this process, "
            f"{1e6 * self.other_seconds / self.rows:.1f} in others\n"
            f"resident MB along the way: {self.curve}\nsha256 of the rows {self.sha256}"
        )


def short(n: int, chance: random.Random) -> dict[str, object]:
    """A prompt of about ten tokens and two one-token options."""
    text = " ".join(chance.choices(WORDS, k=8))
    return {"id": f"r{n}", "prompt": f"{text} {n}", "options": [" good", " bad"]}


def question(n: int, chance: random.Random) -> dict[str, object]:
    """A lettered question with a state."""
    text = " ".join(chance.choices(WORDS, k=12))
    options = ["positive", "negative", "neither"]
    return {"id": f"r{n}", "question": "Which kind of review?", "state": text, "options": options}


KINDS: dict[str, Callable[[int, random.Random], dict[str, object]]] = {
    "short": short,
    "question": question,
}


def processor_seconds() -> tuple[float, float]:
    """What this process has taken, all threads, and those that it started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), usage.ru_utime + usage.ru_stime


def resident_mb() -> int:
    """Resident memory of this process and of those that it has started."""
    children = Path("/proc/self/task").glob("*/children")
    pids = ["self", *(pid for listed in children for pid in listed.read_text("ascii").split())]
    statuses = [Path(f"/proc/{pid}/status").read_text("ascii") for pid in pids]
    return sum(int(status.partition("VmRSS:")[2].split()[0]) for status in statuses) // 1024


def soak(folder: Path, rows: int, kind: str = "short", workers: int | None = None) -> Soak:
    """Score ``rows`` records of a kind in ``folder``."""
    chance = random.Random(1)
    path = folder / "in.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for n in range(rows):
            file.write(json.dumps(KINDS[kind](n, chance)) + "\n")
    model = write_tokenizer_only(folder / "model", REPO / "examples" / "demo-model")
    curve: list[int] = []
    expected = -(-rows * (12 if kind == "short" else 60) // 8192)
    every = max(1, expected // 12)

    def look(forward: int) -> None:
        if forward % every == 0:
            curve.append(resident_mb())

    reader = ModelFreeReader(BatchShape(8192, 512), before_launch=look)
    scorer = model_free(model, reader)
    out = folder / "out.jsonl"
    with Source(path) as source:
        job = Job(
            source,
            out,
            folder / "manifest.json",
            None,
            False,
            Reporter(quiet=True),
            workers=workers,
        )
        began, cpu = time.perf_counter(), processor_seconds()
        job.run(scorer, job.check())
        seconds = time.perf_counter() - began
        own, others = (now - then for now, then in zip(processor_seconds(), cpu, strict=True))
    with out.open("rb") as rows_written:
        digest = hashlib.file_digest(rows_written, "sha256").hexdigest()
    return Soak(rows, seconds, own, others, curve, digest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=sorted(KINDS), default="short")
    parser.add_argument(
        "--workers", type=int, help="processes for the host's work (default: by rows)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scorer-soak-") as name:
        print(soak(Path(name), given.rows, given.kind, given.workers))
