"""Run a check's scenarios in this process, the fresh one included."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from scorer.check.run import SCENARIOS, Kind, Outcome, Scenario, run
from scorer.check.subject import QUICK, Level, Subject, make_subject
from scorer.records.record_line import parse_line
from scorer.scoring import Scorer
from tests import commands

NAMES = tuple(scenario.name for scenario in SCENARIOS)
PROOFS = tuple(scenario.name for scenario in SCENARIOS if scenario.kind is Kind.proof)
NEEDS_CUDA = {"reduction", "graph", "shared-prefix"}


def subject_of(model: Path, *, level: Level = QUICK, **options: Any) -> Subject:
    """A small forward, so that a check takes a second."""
    small: dict[str, Any] = {"device": "cpu", "tokens_per_forward": 128, "rows_per_forward": 8}
    records = [
        parse_line(msgspec.json.encode(record), line)
        for line, record in enumerate(commands.RECORDS, start=1)
    ]
    return make_subject(Scorer(model, **(small | options)), records, level, None)


_run = subprocess.run  # the real one


def in_this_process(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Stand where ``subprocess.run`` stands, for `scorer` commands; others, compilers, are run."""
    program = [sys.executable, "-P", *commands.PROGRAM[1:]]
    if list(command[:4]) != program:
        other: subprocess.CompletedProcess[str] = _run(command, env=env, **more)
        return other
    assert env is not None
    with patch.dict(os.environ, env, clear=True):
        done = commands.run(*command[4:])
    return subprocess.CompletedProcess(command, done.code, done.out.decode(), done.err)


def outcome_of(subject: Subject, scenarios: Sequence[Scenario] = SCENARIOS) -> Outcome:
    """Run scenarios; a new process is one in this process."""
    with patch("scorer.check.fresh_process.subprocess.run", in_this_process):
        return list(run(subject, scenarios, lambda _: nullcontext()))[-1]


def scenario(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)
