"""Does the host keep up? A whole job on a GPU: how busy that is, rows a second, memory on the way.

`python -m tests.bench_job [--shape 0.6B] [--rows 100000]`: from a file of prompts of about 60
tokens to a file of rows, with random weights. How busy the GPU is, nvidia-smi says
(utilization.gpu: the share of a period in which at least one kernel ran), five times a second
between the first batch and the last.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from threading import Thread

from scorer.job.job import Job
from scorer.progress import Reporter
from scorer.reader import InFlight, Reader
from scorer.records.source import Source
from scorer.shapes import Batch
from tests.bench_reads import make_scorer
from tests.soak import WORDS, resident_mb

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--id=0"]


def write_prompts(path: Path, rows: int, words: int) -> None:
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            prompt = " ".join(chance.choices(WORDS, k=words))
            record = {"id": f"r{number}", "prompt": prompt, "options": [" good", " bad"]}
            file.write(json.dumps(record) + "\n")


def listen(lines: Iterable[str], samples: list[tuple[float, int]]) -> None:
    """Stamp nvidia-smi's lines as they come."""
    samples.extend((time.time(), int(line)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=60)
    given = parser.parse_args()
    batches: list[float] = []  # when each was launched
    memory: list[int] = []

    class Watched(Reader):
        """Notes when batches are launched."""

        def launch(self, batch: Batch) -> InFlight:
            batches.append(time.time())
            if len(batches) % 100 == 0:
                memory.append(resident_mb())
            return super().launch(batch)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        scorer = make_scorer(folder / "model", given.shape)
        scorer.reader.__class__ = Watched
        write_prompts(folder / "warm.jsonl", 2000, given.words)
        write_prompts(folder / "in.jsonl", given.rows, given.words)
        for file in ("warm", "in"):
            batches.clear()
            memory.clear()
            counts = scorer.reader.counts
            forwards, tokens = counts.forwards, counts.real_tokens
            samples: list[tuple[float, int]] = []
            with (
                Source(folder / f"{file}.jsonl") as source,
                subprocess.Popen(
                    [*QUERY, "--loop-ms=200"], stdout=subprocess.PIPE, text=True
                ) as smi,
            ):
                out = folder / f"{file}.scores.jsonl"
                job = Job(source, out, folder / f"{file}.json", None, False, Reporter(quiet=True))
                assert smi.stdout is not None
                Thread(target=listen, args=(smi.stdout, samples), daemon=True).start()
                began, cpu = time.perf_counter(), time.process_time()
                job.run(scorer, job.check())
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                smi.terminate()
            if file == "warm":
                continue
            first, last = batches[0], batches[-1]
            busy = [share for at, share in samples if first + 0.3 < at < last]
            rows, span = given.rows, last - first
            length = (counts.real_tokens - tokens) / rows
            print(
                f"{given.shape}, {rows:,} rows of {length:.1f} tokens in {seconds:.1f} s: "
                f"{rows / seconds:,.0f} rows/s; from the first batch to the last "
                f"{rows / span:,.0f} rows/s, {counts.forwards - forwards} forwards, GPU busy "
                f"{fmean(busy):.1f} % (least {min(busy)}, {len(busy)} samples); "
                f"{1e6 * cpu / rows:.0f} µs of this process's time a row"
            )
            print(f"resident MB every 100 batches: {memory}")


if __name__ == "__main__":
    main()
