"""SIGINT and SIGTERM while rows are written: the first asks to stop, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from scorer.errors import InterruptError, TerminateError

_HEARD = b"\nscorer: stopping after the batch in flight; the same signal again stops at once\n"


def terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM where nothing has to be finished first."""
    raise TerminateError("terminated")


class StopRequest:
    """Whether a signal has asked to stop, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    def error(self) -> InterruptError:
        """What the command ends with."""
        if self.signal == signal.SIGTERM:
            return TerminateError("terminated")
        return InterruptError("interrupted")

    @contextmanager
    def listening(self, *, quiet: bool) -> Iterator[None]:
        """Take the two signals over. In a thread that is not the main one they are not ours."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def heard(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None:  # as without us: what is on disk can be resumed
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.signal = number
            if not quiet:  # past Python's buffers, which may be in the middle of a write
                os.write(2, _HEARD)

        before = {
            number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
