"""What goes wrong around a job: signals, disks, models, from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scorer.errors import IsolationError
from scorer.model import Qwen3
from scorer.reader import InFlight, Reader
from scorer.scoring import Scorer
from scorer.selftest import SelfTests
from tests.commands import PROGRAM, REPO, Bench, read_rows, refused, run, write_lines
from tests.models import CHAT, copy_model, edit_config, edit_weights, environment


class TritonError(Exception):
    """Triton's own error, where there is no Triton."""

    __module__ = "triton.runtime.errors"


def many(bench: Bench, count: int = 400) -> Path:
    return write_lines(
        bench.folder / "many.jsonl",
        [{"id": n, "prompt": f"{n} " * 40, "logprobs": 5} for n in range(count)],
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_batch_and_says_how_to_go_on(
    bench: Bench, number: signal.Signals, code: int
) -> None:
    records, out = many(bench, 20_000), bench.folder / "out.jsonl"
    command = ["score", str(records), "-m", str(bench.model), "--device", "cpu", "-o", str(out)]
    process = subprocess.Popen(
        [*PROGRAM, *command, "-q", "--tokens-per-forward", "128"],
        cwd=REPO,
        env=environment(bench.folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (out.exists() and out.stat().st_size) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == code
    rows = read_rows(out)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert err == (
        f"scorer: {word}; {len(rows):,} of 20,000 rows are in {out}; the same command with "
        "--resume goes on\n"
    )
    assert [row["id"] for row in rows] == list(range(len(rows)))


def test_shards_and_resume_from_the_command_line(bench: Bench) -> None:
    whole = bench.score().out
    parts = b""
    for index in (1, 2, 3):
        out = bench.folder / f"{index}.jsonl"
        assert bench.score("-o", out, "--shard", f"{index}/3", "--resume").code == 0
        assert bench.score("-o", out, "--shard", f"{index}/3", "--resume").code == 0
        parts += out.read_bytes()
    assert parts == whole
    refused(bench.score("--shard", "4/3"), "--shard is i/n with 1 <= i <= n, as in 2/7, got '4/3'")
    refused(bench.score("--resume"), "--resume goes on with a file: name it with --output")
    refused(bench.score("--on-error", "skip"), "'--on-error'")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        TritonError("out of resource: shared memory, Required: 999999"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_a_device_that_fails_in_the_middle_of_a_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    records, out = many(bench), bench.folder / "out.jsonl"
    command = ("score", records, "-m", bench.model, "--device", "cpu", "-q")
    whole = run(*command).out
    real = Reader._launch_piece
    left = iter(range(20))

    def fail(self: Reader, flight: InFlight, *rest: object) -> None:
        if next(left, None) is None:
            raise error
        real(self, flight, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "_launch_piece", fail)
    done = run(*command, "-o", out)
    monkeypatch.undo()

    rows = read_rows(out)
    assert 0 < len(rows) < 400
    refused(done, f"; {len(rows)} of 400 rows are in {out}; the same command with --resume", 4)
    assert run(*command, "-o", out, "--resume").code == 0
    assert out.read_bytes() == whole


def test_a_fault_of_ours_is_none_of_the_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("our own mistake")

    monkeypatch.setattr(Reader, "_launch_piece", fail)
    with pytest.raises(ValueError, match="our own mistake"):
        list(Scorer(bench.model, device="cpu").score([{"prompt": "x", "logprobs": 0}]))


@pytest.mark.parametrize("command", ["score", "compare"])
def test_a_self_test_that_fails_replaces_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    question = {"question": "Is it?", "options": ["yes", "no"]}
    records = write_lines(bench.folder / "in.jsonl", [b"rotten", *[question] * 20])
    out = bench.folder / "out.jsonl"
    arguments = (command, records, "-m", bench.model, "--device", "cpu", "-q", "-o", out)
    assert run(*arguments).code == 1
    manifest = Path(f"{out}.manifest.json")
    old = out.read_bytes(), manifest.read_bytes()

    def moved(*_: object) -> None:
        raise IsolationError("a bit moved")

    monkeypatch.setattr(SelfTests, "require", moved)
    refused(
        run(*arguments, "--force-new", "--tokens-per-forward", "128"),
        f"a bit moved; no row was written, and {out} is as it was",
        1,
    )
    assert (out.read_bytes(), manifest.read_bytes()) == old


def test_weights_that_do_not_fit_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.Tensor, "isfinite", fail)  # what is made of them, in its turn
    done = bench.score()
    refused(done, "GiB in torch.float32) don't fit on cpu with what is made of them", 4)


def test_reads_with_nonfinite_logits_are_the_only_ones_to_fail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"id": n, "prompt": "xyz"[n % 3] * (n + 1), "logprobs": 1} for n in range(60)]
    records = write_lines(bench.folder / "in.jsonl", lines)
    command = ("score", records, "-m", bench.model, "--device", "cpu", "-q")
    clean = run(*command).rows
    bad = ord("y") - ord("!")  # the byte-level id of "y"
    real = Reader._launch_piece

    def spoil(
        self: Reader, flight: InFlight, hidden: torch.Tensor, rows: object, requests: object
    ) -> None:
        spoilt = hidden.clone()
        offset = 0
        for read in flight.batch.reads:
            if bad in read.tokens:
                spoilt[offset : offset + len(read)] = torch.nan
            offset += len(read)
        real(self, flight, spoilt, rows, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "_launch_piece", spoil)
    done = run(*command, "--json")

    assert done.code == 1
    for n, (row, other) in enumerate(zip(done.rows, clean, strict=True)):
        if n % 3 == 1:
            assert row["error"]["code"] == "nonfinite_logits"
        else:
            assert row == other
    assert json.loads(done.err)["errors"] == {"nonfinite_logits": 20}


def test_constant_scores_are_warned_about(bench: Bench) -> None:
    broken = copy_model(bench.model, bench.folder / "zeros")
    edit_weights(broken, model__norm__weight=torch.zeros(64))
    lines = [{"prompt": f"Number {n}?", "options": [" yes", " no"]} for n in range(20)]
    records = write_lines(bench.folder / "in.jsonl", lines)
    command = ("score", records, "--device", "cpu")

    done = run(*command, "-m", broken)
    fine = run(*command, "-m", bench.model)
    write_lines(records, lines[:1] * 20)
    same = run(*command, "-m", broken)
    in_pairs = run(*command, "-m", broken, "--rows-per-forward", "2")  # of several stretches

    assert "warning: every row has the same scores though the prompts differ" in done.err
    assert "not those of a trained model" in done.err
    assert "warning" not in fine.err
    for one_prompt in (same, in_pairs):
        assert one_prompt.code == 0
        assert len(one_prompt.rows) == 20
        assert "warning" not in one_prompt.err
    assert done.code == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_template_that_drops_the_text_is_warned_about(bench: Bench, workers: str) -> None:
    template = bench.folder / "constant.jinja"
    template.write_text("{% if false %}{{ question }}{{ options }}{% endif %}Is it?\n", "utf-8")
    lines = [
        {"question": f"Number {n}?", "state": n, "options": ["yes", "no"], "label": "yes"}
        for n in range(40)
    ]
    records = write_lines(bench.folder / "in.jsonl", lines)
    command = ("score", records, "-m", bench.model, "--device", "cpu", "--workers", workers)
    options = ("--question-template", template, "-o", bench.folder / "out.jsonl", "--force-new")

    done = run(*command, *options, "--json")
    write_lines(records, [line | {"question": "One?", "state": 1} for line in lines])
    same = run(*command, *options, "--json")
    write_lines(records, lines)
    fine = run(*command)

    assert (
        "warning: every row has the same prompt, and so the same scores, though the records ask "
        "different things"
    ) in " ".join(done.err.split())
    assert json.loads(done.out)["constant_scores"] is True
    assert json.loads(same.out)["constant_scores"] is False
    assert "warning: every" not in same.err + fine.err


def test_a_download_that_was_cut_short_and_no_network(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small files are there, the weights are a link to a blob that never came."""
    from huggingface_hub import constants

    hub, commit = bench.folder / "hub", "0" * 40
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = hub / "models--someone--tiny" / "snapshots" / commit
    copy_model(bench.model, snapshot)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{'1' * 64}")
    (hub / "models--someone--tiny" / "refs").mkdir()
    (hub / "models--someone--tiny" / "refs" / "main").write_text(commit)

    done = run("score", bench.records, "-m", "someone/tiny", "--device", "cpu")

    refused(done, "missing weights model.safetensors; fetch the checkpoint again")


def test_a_vocabulary_smaller_than_the_tokenizer(bench: Bench) -> None:
    small = edit_config(copy_model(bench.model, bench.folder / "small"), vocab_size=200)

    done = run("score", bench.records, "-m", small, "--device", "cpu")

    refused(done, "but the model's logits only 200 rows: tokenizer and model don't belong together")


def with_template(bench: Bench, name: str, template: str | None) -> Path:
    """Copy the model, with another chat template."""
    model = copy_model(bench.model, bench.folder / name)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    write_template(model, template)
    return model


def write_template(model: Path, template: str | None) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = template
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_chat_template_that_is_missing_or_hostile(bench: Bench) -> None:
    for template, reason in (
        (None, "no chat template"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{{ messages", "not valid Jinja"),
    ):
        model = with_template(bench, reason, template)

        done = run("score", bench.records, "-m", model, "--device", "cpu", "-q")

        refused(done, reason)


REFUSED_TEMPLATES = [
    (None, "no chat template"),
    ("{{ messages", "not valid Jinja"),
    ("{{ messages[0].content.upper }}", "got a function, upper"),
    ("{{ messages[0].content }}<think>\n", "inside <think>"),
]


@pytest.mark.parametrize(("template", "reason"), REFUSED_TEMPLATES)
@pytest.mark.parametrize("command", ["score", "compare"])
def test_a_refused_chat_template_is_found_before_the_weights_are_loaded(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    template: str | None,
    reason: str,
) -> None:
    model = with_template(bench, "model", template)
    question = {"question": "Is it?", "options": ["yes", "no"]}
    lines = [{"prompt": "x", "options": [" yes", " no"]}] * 900 + [b"rotten", question]
    records = write_lines(bench.folder / "in.jsonl", lines)
    out = bench.folder / "out.jsonl"
    arguments = (command, records, "-m", model, "--device", "cpu", "-q", "-o", out)

    def load(*_: object) -> None:
        raise AssertionError("the weights were loaded")

    with monkeypatch.context() as patch:
        patch.setattr(Qwen3, "load", load)
        done = run(*arguments)
    refused(done, reason)
    assert "--resume" not in done.err
    assert list(bench.folder.glob("out*")) == []

    write_template(model, CHAT)
    assert run(*arguments).code == 1  # the rotten line


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_refused_chat_template_that_is_met_late_leaves_what_was_there(
    bench: Bench, there: bool, workers: str
) -> None:
    model = with_template(bench, "model", None)
    escaped = b'{"\\u0071uestion": "Is it?", "options": ["yes", "no"]}'
    records = write_lines(bench.folder / "in.jsonl", [escaped])
    out = bench.folder / "out.jsonl"
    manifest = Path(f"{out}.manifest.json")
    if there:
        out.write_text("precious")
        manifest.write_text("precious too")

    arguments = ("-m", model, "--device", "cpu", "-q", "-o", out, "--workers", workers)
    done = run("score", records, *arguments, *(["--force-new"] if there else []))

    refused(done, "no chat template")
    assert "--resume" not in done.err
    if there:
        assert (out.read_text(), manifest.read_text()) == ("precious", "precious too")
    else:
        assert list(bench.folder.glob("out*")) == []


def test_raw_prompts_need_no_chat_template(bench: Bench) -> None:
    model = with_template(bench, "model", None)
    text = '"question" and "messages" \\ "question": 1'
    lines = [
        {"prompt": text, "options": [" yes", " no"], "tags": ["question"]},
        {"prompt_token_ids": [1, 2, 3], "targets": [7]},
        {"question": "Which?", "options": [str(n) for n in range(99)]},
    ]
    records = write_lines(bench.folder / "in.jsonl", lines)
    done = run("score", records, "-m", model, "--device", "cpu", "-q")
    assert [row.get("error", {}).get("code") for row in done.rows] == [
        None,
        None,
        "too_many_options",
    ]


def namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script where it may mount file systems, or skip the test."""
    command = ["unshare", "--mount", "--map-root-user", "bash", "-c"]
    try:
        able = subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True)  # noqa: PLW1510
    except FileNotFoundError:
        pytest.skip("no unshare")
    if able.returncode:
        pytest.skip("this user may not mount a file system of their own")
    return subprocess.run(
        [*command, script],
        cwd=REPO,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_disk_that_fills_up_and_has_room_again(bench: Bench) -> None:
    records = many(bench)
    score = f'"{sys.executable}" -c "from scorer.cli import main; main()" score {records} '
    score += f"-m {bench.model} --device cpu -q"
    done = namespace(
        f"""
        export OMP_NUM_THREADS=1 XDG_CACHE_HOME={bench.folder}
        {score} -o {bench.folder}/whole.jsonl
        mount -t tmpfs -o size=128k none /mnt
        {score} -o /mnt/out.jsonl; echo code $?
        tail -c 1 /mnt/out.jsonl | od -c
        mount -o remount,size=8m /mnt
        {score} -o /mnt/out.jsonl --resume; echo code $?
        cmp /mnt/out.jsonl {bench.folder}/whole.jsonl && echo same
        mount -o remount,ro /mnt
        {score} -o /mnt/other.jsonl; echo code $?
        """
    )
    codes = re.findall(r"code (\d+)", done.stdout)
    assert codes == ["2", "0", "2"], done.stderr
    assert "same" in done.stdout
    full, read_only = done.stderr.splitlines()
    assert full.startswith("scorer: /mnt/out.jsonl")
    assert "can't be written: No space left on device; make room" in full
    assert "--resume goes on with it" in full
    assert read_only.startswith("scorer: /mnt/other.jsonl: can't be written: Read-only file system")


def test_outputs_have_the_modes_that_the_user_asks_for(bench: Bench) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            out = bench.folder / f"{mask}.jsonl"
            assert bench.score("-o", out, "-q").code == 0
        finally:
            os.umask(before)
        for path in (out, Path(f"{out}.manifest.json")):
            assert path.stat().st_mode & 0o777 == mode, path


def test_no_path_is_made_of_what_records_say(bench: Bench) -> None:
    name = "../../escaped"
    lines = [{"id": name, "prompt": name, "logprobs": 0, "file": name, "output": f"/{name}"}]
    records = write_lines(bench.folder / "in.jsonl", lines)
    before = set(bench.folder.parent.rglob("*"))
    assert run("score", records, "-m", bench.model, "--device", "cpu", "-q").code == 0
    assert {
        path for path in set(bench.folder.parent.rglob("*")) - before if "cache" not in str(path)
    } == set()


def test_a_local_folder_is_scored_without_the_network(bench: Bench) -> None:
    """In a network namespace of its own there is none; nothing of the hub is asked for."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import socket, sys\n"
                "def refuse(*a, **k): raise AssertionError('the network was used')\n"
                "socket.socket.connect = socket.getaddrinfo = refuse\n"
                "from scorer.cli import main; main()"
            ),
            *("score", str(bench.records), "-m", str(bench.model), "--device", "cpu", "-q"),
        ],
        cwd=REPO,
        env={k: v for k, v in environment(bench.folder).items() if k != "HF_HUB_OFFLINE"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 5
