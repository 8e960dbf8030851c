"""The host's work in other processes: the same bytes, and nothing lost whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scorer.errors import (
    DeviceError,
    InterruptError,
    IsolationError,
    ModelError,
    ScorerError,
    StopAtError,
    WorkerError,
)
from scorer.job.job import Job
from scorer.job.summary import Summary
from scorer.progress import Reporter
from scorer.records import lines as lines_module
from scorer.records.source import Source
from scorer.shapes import BatchShape
from scorer.workers import pool as workers_module
from scorer.workers.pool import FEW_RECORDS, choose_workers
from tests.commands import REPO, refused, run, write_lines
from tests.model_free import ModelFreeReader, model_free, write_tokenizer_only
from tests.models import MERGES, QWEN_ADDED, environment
from tests.tiny_tokenizer import write_tokenizer

Fault = Callable[[int], None]
ROWS = 600


def record(n: int) -> object:
    """Every kind of record and of what is wrong with one."""
    kinds: list[object] = [
        {"id": f"r{n}", "prompt": f"{n} " * (1 + n % 40), "logprobs": n % 3},
        {"id": f"r{n}", "question": f"which, {n}?", "options": ["a", f"b {n}"], "label": n % 3},
        {"id": f"r{n}", "messages": [{"role": "user", "content": f"é {n}"}], "options": ["a", "b"]},
        {"prompt": "x", "options": [f" {n} and more", " b"], "targets": [n % 300], "topic": [n]},
        {"prompt": "1" * (n % 7), "prompt_logprobs": n % 2, "logprobs": 1},
        {"prompt_token_ids": [7 if n % 4 == 1 else 8, n % 200], "targets": [1]},
        b"",
        b'{"id": "no end',
    ]
    return kinds[n % len(kinds)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("workers")
    tokenizer = write_tokenizer(base / "tokenizer", merges=MERGES, added=QWEN_ADDED)
    return write_tokenizer_only(base / "model", tokenizer)


@dataclass
class Bench:
    """An input in many small pieces, and jobs over it with so many workers."""

    folder: Path
    model: Path

    def __post_init__(self) -> None:
        self.records = write_lines(self.folder / "in.jsonl", map(record, range(ROWS)))

    def run(
        self, out: str, workers: int, fault: Fault | None = None, depth: int = 1, **job: Any
    ) -> Summary:
        reader = ModelFreeReader(BatchShape(256, 16), depth=depth, before_launch=fault)
        path = self.folder / out
        with Source(self.records) as source:
            own = Job(
                source,
                path,
                Path(f"{path}.manifest.json"),
                job.pop("limit", None),
                False,
                Reporter(quiet=True),
                workers=workers,
                **job,
            )
            return own.run(model_free(self.model, reader), own.check())

    def written(self, out: str) -> bytes:
        return (self.folder / out).read_bytes()

    def manifest(self, out: str) -> dict[str, Any]:
        found = json.loads((self.folder / f"{out}.manifest.json").read_text("utf-8"))
        assert isinstance(found, dict)
        del found["timings"]
        return found


@pytest.fixture
def bench(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(lines_module, "PIECE", 1500)
    return Bench(tmp_path, model)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes of all workers, as they are started."""
    processes: list[subprocess.Popen[bytes]] = []
    start = workers_module._start

    def watched(descriptor: int) -> subprocess.Popen[bytes]:
        processes.append(start(descriptor))
        return processes[-1]

    monkeypatch.setattr(workers_module, "_start", watched)
    return processes


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    bench: Bench, started: list[subprocess.Popen[bytes]]
) -> None:
    none = bench.run("0", 0, depth=2)
    for workers in (1, 3):
        assert bench.run(str(workers), workers, depth=2).fields() == none.fields()
        assert bench.written(str(workers)) == bench.written("0")
        assert bench.manifest(str(workers)) == bench.manifest("0")
    assert none.records == bench.written("0").count(b"\n") > ROWS // 2
    assert none.errors.keys() >= {"invalid_json", "unknown_label", "empty_prompt"}
    assert none.errors["nonfinite_logits"] > 0
    assert len(started) == 4
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 4  # none is left


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_at_the_first_error(bench: Bench, workers: int) -> None:
    with pytest.raises(StopAtError, match=r"in\.jsonl:6: .* NaN"):
        bench.run("out", workers, on_error="stop")
    assert bench.written("out").count(b"\n") == 5
    assert bench.manifest("out")["rows"] == 5


@pytest.mark.parametrize("error", [DeviceError("no memory"), IsolationError("bits move")])
def test_a_launch_that_fails_leaves_what_was_whole(bench: Bench, error: ScorerError) -> None:
    bench.run("whole", 0)

    def fault(forward: int) -> None:
        if forward == 20:
            raise error

    for workers in (0, 2):
        with pytest.raises(type(error)):
            bench.run(f"out-{workers}", workers, fault, depth=2)
    assert bench.written("out-0") == bench.written("out-2")
    assert bench.manifest("out-2")["rows"] == bench.written("out-2").count(b"\n") > 0
    bench.run("out-0", 2, resume=True)
    bench.run("out-2", 0, resume=True)
    assert bench.written("out-0") == bench.written("out-2") == bench.written("whole")


@pytest.mark.parametrize("forward", [0, 10, 30])
def test_a_worker_that_is_killed_ends_the_job_and_loses_nothing(
    bench: Bench, started: list[subprocess.Popen[bytes]], forward: int
) -> None:
    bench.run("whole", 0)

    def fault(number: int) -> None:
        if number == forward:
            started[1].kill()
            started[1].wait()

    with pytest.raises(WorkerError, match=r"\(pid \d+\) was killed by SIGKILL") as caught:
        bench.run("out", 3, fault)
    assert caught.value.exit_code == 4
    assert any("the same command with --resume goes on" in note for note in caught.value.__notes__)
    assert bench.written("whole").startswith(bench.written("out"))
    assert bench.manifest("out")["rows"] == bench.written("out").count(b"\n")
    assert {process.returncode for process in started} == {-signal.SIGKILL}
    bench.run("out", 2, resume=True)
    assert bench.written("out") == bench.written("whole")


def test_signals_to_a_worker_are_not_for_it(
    bench: Bench, started: list[subprocess.Popen[bytes]]
) -> None:
    bench.run("whole", 0)

    def fault(number: int) -> None:
        if number == 5:
            for process in started:
                assert os.getpgid(process.pid) != os.getpgid(0)
                for sort in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    process.send_signal(sort)
            time.sleep(0.1)

    bench.run("out", 2, fault)
    assert bench.written("out") == bench.written("whole")


def test_a_signal_to_the_job_finishes_what_is_in_flight(bench: Bench) -> None:
    bench.run("whole", 0)

    def fault(number: int) -> None:
        if number == 20:
            os.kill(os.getpid(), signal.SIGINT)

    for workers in (0, 2):
        with pytest.raises(InterruptError):
            bench.run(f"out-{workers}", workers, fault)
    assert bench.written("out-0") == bench.written("out-2")
    bench.run("out-2", 1, resume=True)
    assert bench.written("out-2") == bench.written("whole")


def test_an_error_in_a_worker_is_the_error_of_the_job(tmp_path: Path, bench: Bench) -> None:
    tokenizer = write_tokenizer(tmp_path / "plain", merges=MERGES, chat_template=None)
    bench.model = write_tokenizer_only(tmp_path / "no-chat", tokenizer)
    bench.records = write_lines(
        tmp_path / "in.jsonl",
        [{"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}], "logprobs": 0}],
    )
    messages = []
    for workers in (0, 2):
        with pytest.raises(ModelError, match="no chat template") as caught:
            bench.run(f"out-{workers}", workers)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_fault_of_our_own_is_not_hidden(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    program = workers_module._PROGRAM.replace(
        "from scorer.workers.worker",
        "from scorer.workers import host; del host.parsed; from scorer.workers.worker",
    )
    monkeypatch.setattr(workers_module, "_PROGRAM", program)
    with pytest.raises(RuntimeError, match=r"in a worker process: (?s:.*)NameError.*'parsed'"):
        bench.run("out", 1)


def test_workers_that_can_not_start_leave_none(
    bench: Bench, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "_PROGRAM", "import sys; sys.exit(3)")
    with pytest.raises(WorkerError, match="ended with 3"):
        bench.run("out", 2)
    assert all(process.returncode is not None for process in started)


def test_a_worker_imports_no_torch() -> None:
    program = "import sys, scorer.workers.worker; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=REPO
    )
    assert b"scorer.workers.host" in done.stdout
    for name in (b"'torch'", b"'transformers'", b"'cupy'", b"'typer'", b"'rich'"):
        assert name not in done.stdout


def test_few_records_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, workers in ((1, 0), (2, 2), (3, 2), (4, 3), (16, 4)):
        monkeypatch.setattr(workers_module, "_cores", lambda cores=cores: cores)
        assert choose_workers(FEW_RECORDS - 1) == 0
        assert choose_workers(FEW_RECORDS) == workers


def test_workers_do_not_outlive_a_killed_job(tmp_path: Path, model: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.model_free import model_free;\n"
        "scorer = model_free(Path(sys.argv[1]))\n"
        "with scorer.hands(2) as hands:\n"
        "    print(*(worker.process.pid for worker in hands._workers), flush=True)\n"
        "    time.sleep(60)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", program, model],
        cwd=REPO,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    pids = list(map(int, job.stdout.readline().split()))
    assert len(pids) == 2
    job.kill()
    job.communicate()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a worker outlives its job"
        time.sleep(0.02)


def test_workers_that_the_system_refuses(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(WorkerError, match="2 worker processes can't be started: Resource temp"):
        bench.run("out", 2)
    assert not (bench.folder / "out").exists()


def test_the_number_of_workers_from_the_command_line(
    tiny_model: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    records = write_lines(tmp_path / "in.jsonl", [{"prompt": f"{n}", "logprobs": 0} for n in "ab"])
    command = ("score", records, "-m", tiny_model, "--device", "cpu", "-q", "--workers")
    assert run(*command, "0").out == run(*command, "2").out != b""
    assert len(started) == 2
    refused(run(*command, "-1"), "'--workers'")
