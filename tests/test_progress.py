from __future__ import annotations

import io
import itertools
import os
import pty
import re
import sys
import time
from contextlib import redirect_stderr
from types import SimpleNamespace

import pytest

from scorer import progress
from scorer.progress import Reporter, one_line, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, é, 漢, 🙂", "plain, é, 漢, 🙂"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 back\x08 return\r", "bell\\x07 back\\x08 return\\r"),
        ("\x9b2J", "\\x9b2J"),  # the 8-bit control sequence
        ("\u202eright to left", "\\u202eright to left"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("[bold]markup[/bold] :smile:", "[bold]markup[/bold] :smile:"),
    ],
)
def test_printable(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_one_line() -> None:
    assert one_line("a\n  b\r\n\n\x1bc\u2028d") == "a b \\x1bc d"


def written(quiet: bool = False, *, total: int = 3) -> str:
    """What a reporter writes of text that would be markup, colours and pictures."""
    err = io.StringIO()
    with redirect_stderr(err):
        reporter = Reporter(quiet)
        reporter.say("note [red]x[/red] :smile: \x1b[31m\nsecond")
        with reporter.counting(total) as counter:
            for _ in range(total):
                counter.advance(errors=1, fill=0.5)
        reporter.table("title [b]t[/b] :+1: \x1b[0m", [("name", "value [i]v[/i] \x07")])
    return err.getvalue()


def test_user_text_is_neither_markup_nor_control() -> None:
    text = written()

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "note [red]x[/red] :smile: \\x1b[31m second\n" in text
    assert "title [b]t[/b] :+1: \\x1b[0m" in text
    assert "value [i]v[/i] \\x07" in text


def test_quiet_writes_nothing() -> None:
    assert written(quiet=True) == ""


def test_plain_progress_is_one_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(time.monotonic(), 11.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    lines = [line for line in written(total=12).splitlines() if " records, " in line]

    assert 1 <= len(lines) < 12
    assert re.fullmatch(r"\d+ of 12 records, \d+/s, [\d:]+ left, 1 errors, 50% full", lines[0])


def on_a_terminal() -> str:
    """What ``written`` writes where stderr is a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as err, redirect_stderr(err):
        assert sys.stderr.isatty()
        reporter = Reporter()
        with reporter.counting(2) as counter:
            counter.advance(errors=0, fill=None)
            counter.advance(errors=0, fill=None)
        reporter.table("title", [("name", "value")])
    seen = b""
    try:
        while piece := os.read(ours, 1 << 16):
            seen += piece
    except OSError:  # how Linux says that the other end has closed
        pass
    os.close(ours)
    return seen.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;[0-9;]+)m")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    text = on_a_terminal()

    assert "2/2" in text
    assert COLOUR.search(text)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    text = on_a_terminal()

    assert "2/2" in text
    assert not COLOUR.search(text)
