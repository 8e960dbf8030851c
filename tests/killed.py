"""The program that test_killed kills: ``scorer score`` without a model, on a slow disk.

Everything is imported and read once. For each line on stdin a child is forked that runs the command
line as it is, but for its reader (``model_free``), for a disk that takes a few bytes at a time, and
for checkpoints every few milliseconds. The child's pid is written to stdout, then, when it has
ended, its status. The byte that ``state`` holds says what the child is at.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from scorer import cli, manifest, scoring
from scorer.job import output
from scorer.job import run as job_run
from scorer.progress import Reporter
from scorer.records.record_line import parse_line
from scorer.workers import pool as workers
from tests.model_free import ModelFreeReader, model_free

WRITING, REPLACING = 1, 2
_CHECKPOINT_SECONDS = 0.2
_LARGEST_PIECE = 1500
_WRITE_SECONDS = 0.001


def slow_disk(seed: int) -> None:
    """Make writes land in pieces of any size, and say when the manifest is being replaced."""
    chance = random.Random(seed)
    pwrite, fsync, replace = os.pwrite, os.fsync, output.replace_file

    def pieces(descriptor: int, data: Any, offset: int) -> int:
        STATE[0] = WRITING
        time.sleep(_WRITE_SECONDS)
        done = pwrite(descriptor, data[: chance.randint(1, _LARGEST_PIECE)], offset)
        STATE[0] = WRITING if done < len(data) else 0
        return done

    def slowly(descriptor: int) -> None:
        time.sleep(chance.random() * 0.004)
        fsync(descriptor)

    def said(path: Path, data: bytes) -> None:
        STATE[0] = REPLACING
        replace(path, data)
        STATE[0] = 0

    os.pwrite, os.fsync = pieces, slowly  # type: ignore[assignment]
    manifest.replace_file = said  # type: ignore[attr-defined]
    job_run.CHECKPOINT_SECONDS = _CHECKPOINT_SECONDS


def serve(model: Path, count: int, arguments: list[str]) -> None:
    """Fork a child for each line on stdin, with so many workers."""
    workers.choose_workers = lambda records: count  # noqa: ARG005
    prepared = model_free(model)
    list(prepared.prepare([parse_line(b'{"prompt": "x", "logprobs": 0}', 1)]))
    Reporter().table("ready", [])
    scoring.Scorer = lambda *_, **__: prepared  # type: ignore[assignment, misc]
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        STATE[0] = 0
        child = os.fork()
        if child == 0:
            prepared.__dict__["reader"] = ModelFreeReader(n_ids=prepared.prompter.n_ids)
            slow_disk(number)
            sys.argv = ["scorer", *arguments, *line.split()]
            cli.main()
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    with Path(sys.argv[2]).open("r+b") as file:
        STATE = mmap.mmap(file.fileno(), 1)
        serve(Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:])
