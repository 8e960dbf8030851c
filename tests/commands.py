"""Run the command line: in this process, where torch is loaded once, or in one of its own."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scorer.cli import main

REPO = Path(__file__).resolve().parent.parent
PROGRAM = [sys.executable, "-c", "from scorer.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command: exit code, stdout's bytes, stderr's text."""

    code: int
    out: bytes
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: str | Path) -> Done:
    """Run ``scorer`` in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    argv = ["scorer", *map(str, arguments)]
    code: object = None
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    for stream in (out, err):
        stream.flush()
    assert isinstance(out.buffer, io.BytesIO)
    assert isinstance(err.buffer, io.BytesIO)
    return Done(code, out.buffer.getvalue(), err.buffer.getvalue().decode())


def run_apart(
    *arguments: str | Path,
    env: Mapping[str, str],
    stdin: bytes = b"",
    program: Iterable[str] = PROGRAM,
) -> Done:
    """Run ``scorer`` in a process of its own."""
    done = subprocess.run(
        [*program, *map(str, arguments)],
        cwd=REPO,
        env=dict(env),
        input=stdin,
        capture_output=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Write JSONL; bytes are written as they are, other values as JSON."""
    path.write_bytes(
        b"".join(
            (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
            for line in lines
        )
    )
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def refused(done: Done, message: str, code: int = 2) -> None:
    """Assert one line of error, that holds ``message``, and nothing else."""
    assert re.fullmatch(r"scorer: [^\n]*\n", done.err), done.err
    assert message in done.err
    assert done.out == b""
    assert done.code == code


RECORDS: list[dict[str, Any]] = [
    {"id": "q", "question": "Is the sky blue?", "options": ["yes", "no"], "label": "yes"},
    {"id": "p", "prompt": "Is it?", "options": [" yes", " no"], "targets": [" no"], "logprobs": 2},
    {"id": "l", "prompt": "Is it?", "options": [" maybe so", " no"], "prompt_logprobs": 1},
    {"id": "m", "messages": [{"role": "user", "content": "Hi"}], "logprobs": 0, "topic": "[b]x"},
    {"prompt_token_ids": [1, 2, 3], "targets": [7]},
]


@dataclass(frozen=True)
class Bench:
    """A model, a file of records that can all be scored, and a folder to write to."""

    model: Path
    records: Path
    folder: Path

    def score(self, *options: str | Path) -> Done:
        return run("score", self.records, "--model", self.model, "--device", "cpu", *options)
