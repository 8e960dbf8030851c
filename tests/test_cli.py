"""The command line from outside: one line for every refusal, exit codes, closed pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest

from scorer.errors import DeviceError, IsolationError
from scorer.reader import Reader
from tests.commands import (
    PROGRAM,
    REPO,
    Bench,
    refused,
    run,
    run_apart,
    write_lines,
)
from tests.models import environment


def test_duplicate_ids(bench: Bench) -> None:
    twice = write_lines(
        bench.folder / "twice.jsonl",
        [{"id": 3, "prompt": "a"}, {"id": "x", "prompt": "b"}, {"id": "3", "prompt": "c"}],
    )

    done = run("score", twice, "--model", "/nowhere", "-o", bench.folder / "out.jsonl")

    refused(done, f"{twice}:3: ids are unique, got '3' again (first at {twice}:1;")
    assert not (bench.folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "'--device'"),
        (["--dtype", "int8"], "'--dtype'"),
        (["--isolation", "none"], "'--isolation'"),
        (["--limit", "-1"], "--limit must be 0 or more, got -1"),
        (["--limit", "all"], "'--limit'"),
        (["--tokens-per-forward", "0"], "'--tokens-per-forward': must be at least 1, got 0"),
        (["--rows-per-forward", "-5"], "'--rows-per-forward': must be at least 1, got -5"),
        (["--logprobs", "-1"], "logprobs must be 0 (the chosen token only) to 20000, got -1"),
        (["--prompt-logprobs", "20001"], "prompt_logprobs must be 0"),
        (["--revision", "main"], "--revision needs a hub id"),
        (["--bogus"], "--bogus"),
        (
            ["--question-template", "/nowhere.jinja"],
            "--question-template /nowhere.jinja: can't be read: No such file or directory; name",
        ),
        (["--manifest", "/nowhere/m.json"], "there is no folder /nowhere; create it first"),
        (["-o", "/nowhere/out.jsonl"], "there is no folder /nowhere; create it first"),
        (["-o", "."], ".: is a folder; name a file in it"),
        (["-o", "/dev/full", "--force-new"], "/dev/full: is a pipe or a device"),
    ],
)
def test_bad_options(bench: Bench, options: list[str], message: str) -> None:
    refused(bench.score(*options), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ question", "line 1: "),
        ("{{ question }} {{ answer }}", "unknown variable 'answer'"),
        (" \n", "holds no text"),
        ("Is it?", "uses neither question nor state"),
    ],
)
def test_bad_question_templates(bench: Bench, text: str, message: str) -> None:
    template = bench.folder / "question.jinja"
    template.write_text(text, encoding="utf-8")

    refused(bench.score("--question-template", template), message)


def test_a_question_template_that_is_not_utf8(bench: Bench) -> None:
    template = bench.folder / "question.jinja"
    template.write_bytes(b"{{ question }} \xff")

    refused(bench.score("--question-template", template), "can't be read as UTF-8")


def test_a_question_template_is_used_and_recorded(bench: Bench) -> None:
    template = bench.folder / "question.jinja"
    text = "\ufeffQ: {{ question }}{% for o in options %} {{ o.label }}={{ o.text }}{% endfor %}\n"
    template.write_text(text, encoding="utf-8")

    done = run("show", bench.records, "-m", bench.model, "--question-template", template, "--json")

    assert (
        "<|im_start|>user\nQ: Is the sky blue? A=yes B=no<|im_end|>" in json.loads(done.out)["text"]
    )


def test_missing_arguments_and_commands() -> None:
    refused(run("score"), "Missing argument 'INPUT'")
    refused(run("score", "in.jsonl"), "--model")
    refused(run("scor"), "No such command 'scor'")


def test_an_input_that_is_not_there(bench: Bench) -> None:
    missing = bench.folder / "missing.jsonl"
    refused(run("score", missing, "-m", bench.model), f"{missing}: can't be read: No such file")
    refused(run("score", bench.folder, "-m", bench.model), "Is a directory")


# -- what goes wrong while scoring


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeviceError("out of memory in a forward"), 4),
        (IsolationError("self-test failed"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(Reader, "launch", fail)
    done = bench.score("-q", "-o", bench.folder / "out.jsonl")

    refused(done, str(error) or "interrupted", code)
    if isinstance(error, IsolationError):  # with other settings, which is the remedy, begin anew
        assert not [path for path in bench.folder.iterdir() if path.name.startswith("out.jsonl")]
        return
    manifest = json.loads((bench.folder / "out.jsonl.manifest.json").read_text())
    assert (manifest["complete"], manifest["rows"]) == (False, 0)


def test_a_bug_is_not_hidden(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(Reader, "launch", fail)
    with pytest.raises(ZeroDivisionError):
        bench.score("-q")


@pytest.mark.parametrize("code", [0, 3, "no licence"])
def test_a_library_that_ends_the_process_is_not_obeyed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: object
) -> None:
    """A job that has not come to its end must not look as if it had, nor as if a pipe closed."""

    def fail(*_: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(Reader, "launch", fail)
    with pytest.raises(RuntimeError, match=f"a library ended the process, with {code!r}"):
        bench.score("-q")


# -- processes of their own


PROBE = """
import json, sys
from scorer.cli import main
ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["scorer", *arguments]
    try:
        main()
    except SystemExit as stop:
        ends.append(stop.code)
slow = [name for name in ("torch", "transformers", "huggingface_hub") if name in sys.modules]
print(json.dumps([ends, slow]))
"""


def test_what_needs_no_model_loads_no_torch(bench: Bench) -> None:
    """Duplicate ids, refused options, dry runs and ``show`` answer within a second."""
    twice = write_lines(bench.folder / "twice.jsonl", [{"id": 1}, {"id": 1}])
    model = ["--model", str(bench.model)]
    records = str(bench.records)
    (bench.folder / "moe").mkdir()
    (bench.folder / "moe" / "config.json").write_text('{"model_type": "qwen3_moe"}')
    commands = [
        ["score", str(twice), *model],
        ["score", records, *model, "--logprobs", "-1"],
        ["score", records, *model, "--tokens-per-forward", "0"],
        ["score", records, "--model", str(bench.folder / "moe")],
        ["score", records, *model, "--dry-run", "--quiet"],
        ["show", records, *model],
        [],
    ]

    done = run_apart(
        json.dumps(commands), env=environment(bench.folder), program=[sys.executable, "-c", PROBE]
    )

    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1]) == [[2, 2, 2, 2, 0, 0, 0], []]
    assert "Traceback" not in done.err


@pytest.fixture
def endless(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """A run, fed by stdin, whose first rows are written long before its last."""
    many = write_lines(
        bench.folder / "many.jsonl",
        [{"id": n, "prompt": f"{n} " * 60, "logprobs": 5} for n in range(20_000)],
    )
    with many.open("rb") as lines:
        process = subprocess.Popen(
            [*PROGRAM, "score", "-", "-m", bench.model, "--device", "cpu", "--quiet"],
            cwd=REPO,
            env=environment(bench.folder),
            stdin=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_closed_pipe_ends_the_run_quietly(endless: subprocess.Popen[bytes]) -> None:
    assert endless.stdout is not None
    assert endless.stderr is not None

    assert json.loads(endless.stdout.readline())["id"] == 0
    endless.stdout.close()

    assert endless.stderr.read() == b""
    assert endless.wait(60) == 128 + signal.SIGPIPE


def test_interrupted_while_scoring(endless: subprocess.Popen[bytes]) -> None:
    assert endless.stdout is not None
    endless.stdout.readline()

    endless.send_signal(signal.SIGINT)
    out, err = endless.communicate(timeout=60)

    assert re.fullmatch(rb"scorer: interrupted; [\d,]+ of 20,000 rows are written\n", err)
    assert endless.returncode == 130
    assert out == b"" or out.endswith(b"}\n")


def shell(command: str, bench: Bench, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command where ``scorer`` is the program and ``$pipe`` the code of its end."""
    scorer = f'scorer() {{ "{sys.executable}" -c "from scorer.cli import main; main()" "$@"; }}'
    return subprocess.run(
        ["bash", "-c", f"{scorer}; {command}"],
        cwd=REPO,
        env=environment(
            bench.folder, IN=str(bench.records), MODEL=str(bench.model), HERE=str(bench.folder)
        )
        | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("scorer show $IN -m $MODEL > /dev/full", 2, "<stdout>: can't be written: No space left"),
        ("scorer score - -m $MODEL <&-", 2, "<stdin>: is closed"),
        ("scorer score $IN -m $MODEL >&-", 2, "stdout is closed"),
    ],
)
def test_streams_that_are_closed_or_full(
    bench: Bench, command: str, code: int, message: str
) -> None:
    done = shell(command, bench)

    assert re.fullmatch(r"scorer: [^\n]*\n", done.stderr), done.stderr
    assert message in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("scorer score $IN -m $MODEL -o $HERE/out --json -q >&-", 141),
        ("scorer show $IN -m $MODEL >&-", 141),
        ("scorer score $IN -m $MODEL -o $HERE/out 2>&-", 0),
        ("scorer score $IN -m $MODEL -o $HERE/out >&- 2>&-", 0),
        ("scorer score $IN -m $MODEL -o $HERE/out <&- >&- 2>&-", 0),
        ("scorer score $HERE/missing -m $MODEL 2>&-", 2),
    ],
)
def test_streams_that_are_closed_hold_nothing_up(bench: Bench, command: str, code: int) -> None:
    done = shell(command, bench)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    out = bench.folder / "out"
    if out.exists():
        assert out.read_bytes() == bench.score().out


@pytest.mark.parametrize(
    "command",
    [
        "scorer --help",
        "scorer score --help",
        "scorer show $IN -m $MODEL --json",
        "scorer --version",
    ],
)
def test_a_reader_that_goes_away(bench: Bench, command: str) -> None:
    done = shell(f"{command} | sleep 0; exit ${{PIPESTATUS[0]}}", bench)

    assert done.stderr == ""
    assert done.returncode in (0, 141)  # whether it has gone before the first byte is a race


@pytest.mark.parametrize("command", [["--help"], ["--version"]])
def test_a_reader_that_has_gone(bench: Bench, command: list[str]) -> None:
    """One is printed by Rich, which makes an exit of its own of it."""
    theirs, ours = os.pipe()
    os.close(theirs)
    done = subprocess.run(
        [*PROGRAM, *command],
        cwd=REPO,
        env=environment(bench.folder),
        stdout=ours,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(ours)
    assert (done.returncode, done.stderr) == (141, b"")
