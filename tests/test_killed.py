"""Killed at random moments and resumed until done: no line lost, doubled or changed."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.commands import REPO, read_rows, write_lines
from tests.killed import REPLACING, WRITING
from tests.model_free import write_tokenizer_only
from tests.models import MERGES, QWEN_ADDED, environment
from tests.tiny_tokenizer import write_tokenizer

KILLS = int(os.environ.get("SCORER_KILLS", "50"))
KILLS_WITH_WORKERS = KILLS // 5
ROWS = 3000
LONGEST = 0.3  # seconds until a kill


@dataclass
class Victim:
    """The server of children, and what became of those that were killed."""

    process: subprocess.Popen[str]
    state: mmap.mmap
    out: Path
    workers: int
    ends: Counter[str] = field(default_factory=Counter)
    torn: list[tuple[int, int]] = field(default_factory=list)
    in_manifest: int = 0

    def start(self, *options: str | Path) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, ("-o", self.out, *options))) + "\n")
        self.process.stdin.flush()
        return int(self.answer())

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def size(self) -> int:
        return self.out.stat().st_size if self.out.exists() else 0

    def end(self) -> int:
        return int(self.answer())


@pytest.fixture(params=[0, 2])
def victim(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Victim]:
    """A server whose children have so many workers."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer", merges=MERGES, added=QWEN_ADDED)
    model = write_tokenizer_only(tmp_path / "model", tokenizer)
    lines: list[object] = [
        b"rotten" if n % 50 == 7 else {"id": f"é{n}", "prompt": f"{n} " * (n % 10), "logprobs": 4}
        for n in range(ROWS)
    ]
    records = write_lines(tmp_path / "in.jsonl", lines)
    state = tmp_path / "state"
    state.write_bytes(b"\0")
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.killed", model, state, str(request.param)),
                *("score", records, "-m", model),
            ],
            cwd=REPO,
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    with state.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 1)
    victim = Victim(process, shared, tmp_path / "out.jsonl", request.param)
    try:
        assert victim.answer() == "ready", (tmp_path / "err").read_text()
        yield victim
    finally:
        process.kill()
        process.communicate()
        shared.close()


def kill_once(victim: Victim, chance: random.Random, *, at: int) -> None:
    """Start or go on, and kill at a random moment; ``at``: only while it is at this, if not 0."""
    sort = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    if at:
        sort = signal.SIGKILL
    before = victim.size()
    child = victim.start("--resume")
    deadline = time.monotonic() + 5
    if chance.random() < 0.8:  # else perhaps before the first row
        while victim.size() <= before and time.monotonic() < deadline:
            time.sleep(0.001)
    time.sleep(chance.random() * LONGEST)
    while at and victim.state[0] != at and time.monotonic() < deadline:
        time.sleep(0)
    if at == WRITING:
        time.sleep(chance.random() * 0.02)
    with suppress(ProcessLookupError):  # it was through already
        os.kill(child, sort)
    code = victim.end()
    assert code in (-sort, 128 + sort, 1), code  # 1: it was through, with error rows
    victim.ends[f"{sort.name} {code}"] += 1
    if code == -signal.SIGKILL and victim.state[0] == REPLACING:
        victim.in_manifest += 1
    written = victim.out.read_bytes() if victim.out.exists() else b""
    behind = len(written) - (written.rfind(b"\n") + 1)
    if code == -signal.SIGKILL:
        victim.torn.append((len(written), behind))
    elif code == 128 + sort and len(written) != before:  # else it was not writing yet
        manifest = json.loads(Path(f"{victim.out}.manifest.json").read_text(encoding="utf-8"))
        assert behind == 0
        assert manifest["rows"] == written.count(b"\n")


def test_killed_at_random_moments(victim: Victim, capsys: pytest.CaptureFixture[str]) -> None:
    out = victim.out
    victim.out = out.with_name("whole.jsonl")
    victim.start()
    assert victim.end() == 1  # a few lines are rotten
    whole = victim.out.read_bytes()
    assert len(read_rows(victim.out)) == ROWS
    chance = random.Random(7)
    job = 0
    kills = 0
    enough = KILLS_WITH_WORKERS if victim.workers else KILLS
    while kills < enough:
        victim.out = out.with_name(f"out-{job}.jsonl")
        job += 1
        while kills < enough:
            kill_once(victim, chance, at=(REPLACING, 0, WRITING, 0)[kills % 4])
            kills += 1
            assert whole.startswith(_whole_lines(victim.out))
            if victim.size() == len(whole):
                break
        victim.start("--resume")
        assert victim.end() == 1
        assert victim.out.read_bytes() == whole
        folder = {path.name for path in out.parent.iterdir() if path.name.startswith(".")}
        assert folder == set(), "a scratch file was left behind"

    report = histogram(victim, len(whole), job)
    with capsys.disabled():
        print(f"\n{report}")
    least = min(10, enough // 5)
    assert victim.in_manifest >= least, report
    assert len({size for size, _ in victim.torn}) > least, report
    assert sum(behind > 0 for _, behind in victim.torn) >= least // 2, report


def _whole_lines(path: Path) -> bytes:
    written = path.read_bytes() if path.exists() else b""
    return written[: written.rfind(b"\n") + 1]


def histogram(victim: Victim, size: int, jobs: int) -> str:
    """Where the kills landed: in the file by tenths, and in the line that was being written."""
    tenths = Counter(min(9, 10 * at // size) for at, _ in victim.torn)
    behind = Counter(min(9, part // 50) for _, part in victim.torn if part)
    in_manifest = f"{victim.in_manifest} while the manifest was being replaced"
    return "\n".join(
        [
            f"{sum(victim.ends.values())} kills, {jobs} jobs: {dict(victim.ends)}; {in_manifest}",
            f"SIGKILL by tenth of the {size} bytes: {[tenths[n] for n in range(10)]}",
            f"lines torn, by 50 bytes of the line: {[behind[n] for n in range(10)]}",
        ]
    )
