"""The host's work in processes of their own, so that the one that drives the device only moves it.

Each worker is asked over a socket and answers in order; it plans chunks of lines and writes the
rows of those that it has planned. Nothing here waits for a worker while there is anything else to
do, and no thread takes turns with the one that drives the device.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Self

import msgspec

from scorer.asks import Ask
from scorer.errors import WorkerError
from scorer.records.lines import Lines, Piece
from scorer.tables import gather
from scorer.turns import Chunk, Stretch
from scorer.workers.host import HostSettings, Rows
from scorer.workers.worker import DONE, LENGTH, Take, Write, refused

FEW_RECORDS: Final = 20_000
"""Below this, starting processes takes about as long as they save."""

_MOST_WORKERS: Final = 4
_AHEAD: Final = 2  # chunks that are planned before they are wanted, for each worker
_BUFFER: Final = 1 << 20
_SIGNALS: Final = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[2:];"
    " from scorer.workers.worker import main; main(int(sys.argv[1]))"
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_ASKS: Final = msgspec.msgpack.Decoder(list[tuple[Ask, ...]])
_ROWS: Final = msgspec.msgpack.Decoder(Rows)


def choose_workers(records: int) -> int:
    """Return how many workers a job of so many records gets: none where they would not pay.

    Two on two cores: what drives the device waits now and then, and takes less than a core.
    """
    cores = _cores()
    return 0 if records < FEW_RECORDS or cores < 2 else min(max(cores - 1, 2), _MOST_WORKERS)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class _Worker:
    """One process, what is on its way to and from it, and what it owes."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            for end in (self.connection, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            try:
                self.process = _start(theirs.fileno())
            except OSError:
                self.connection.close()
                raise
        self.connection.setblocking(False)
        self.outgoing: deque[memoryview] = deque()
        self.incoming = bytearray()
        self.owed: deque[tuple[bool, int]] = deque()  # of each answer: whether rows, and its number

    def end(self) -> None:
        """End the process. There is nothing in it that anybody needs."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a worker that serves a socket.

    It has no part in the signals that people send to a job: they are blocked before it begins, and
    it is in no group that a terminal signals.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(descriptor), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=(descriptor,),
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """See ``hands.Hands``. Starts so many processes at once; they load while the model does.

    Raises WorkerError where they can't be started and when one of them has died, and what one of
    them raised itself.
    """

    def __init__(self, settings: HostSettings, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._keepers: dict[int, _Worker] = {}  # of each chunk that is not written to its end
        self._planned: dict[int, list[tuple[Ask, ...]]] = {}
        self._rows: dict[int, Rows] = {}  # that have come, by number
        self._asked = self._given = 0  # rows: the next number to ask for, and to give
        try:
            for _ in range(count):
                worker = _Worker()
                self._workers.append(worker)
                self._selector.register(worker.connection, selectors.EVENT_READ, worker)
                self._send(worker, _ENCODER.encode(settings))
        except OSError as error:
            self.__exit__()
            raise WorkerError(
                f"{count} worker processes can't be started: {error.strerror}; --workers takes "
                "fewer, or 0"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.end()

    def chunks(self, lines: Iterable[Lines]) -> Iterator[Chunk[int]]:
        """See Hands."""
        rest = iter(lines)
        taken = given = 0
        more = True
        while True:
            while more and taken - given < _AHEAD * len(self._workers):
                own = next(rest, None)
                if own is None:
                    more = False
                else:
                    self._take(taken, own)
                    taken += 1
            if given == taken:
                return
            while given not in self._planned:
                self._exchange(wait=True)
            yield Chunk(given, self._planned.pop(given))
            given += 1

    def _take(self, number: int, lines: Lines) -> None:
        worker = min(self._workers, key=lambda worker: len(worker.owed))
        worker.owed.append((False, number))
        self._keepers[number] = worker
        piece = Piece(lines.first, lines.data, lines.too_long)
        self._send(worker, _ENCODER.encode(Take(number, piece)))

    def write(
        self, stretch: Stretch[int], *, most_on_device: int | None, stop_at_error: bool
    ) -> None:
        """See Hands."""
        worker = self._keepers[stretch.origin]
        if stretch.last:
            del self._keepers[stretch.origin]
        worker.owed.append((True, self._asked))
        self._asked += 1
        request = Write(
            stretch.origin,
            stretch.end - stretch.start,
            gather(stretch.results),
            most_on_device,
            stop_at_error,
        )
        self._send(worker, _ENCODER.encode(request))

    def ready(self) -> Iterator[Rows]:
        """See Hands."""
        if self._given < self._asked:
            self._exchange(wait=False)
        while self._given in self._rows:
            yield self._rows.pop(self._given)
            self._given += 1

    def rest(self) -> Iterator[Rows]:
        """See Hands."""
        while self._given < self._asked:
            self._exchange(wait=self._given not in self._rows)
            yield from self.ready()

    def _send(self, worker: _Worker, message: bytes) -> None:
        worker.outgoing += memoryview(LENGTH.pack(len(message))), memoryview(message)
        self._flush(worker)

    def _exchange(self, *, wait: bool) -> None:
        """Send what can be sent and take in what has come; wait until something can be done."""
        for key, events in self._selector.select(None if wait else 0):
            if events & selectors.EVENT_WRITE:
                self._flush(key.data)
            if events & selectors.EVENT_READ:
                self._receive(key.data)

    def _flush(self, worker: _Worker) -> None:
        outgoing = worker.outgoing
        try:
            while outgoing:
                sent = worker.connection.send(outgoing[0])
                if sent < len(outgoing[0]):
                    outgoing[0] = outgoing[0][sent:]
                else:
                    outgoing.popleft()
        except BlockingIOError:
            pass  # it is busy, and takes the rest later
        except ConnectionError:
            outgoing.clear()  # reading says why
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0)
        self._selector.modify(worker.connection, events, worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(_BUFFER)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            raise _death(worker.process)
        incoming = worker.incoming
        incoming += data
        while len(incoming) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(incoming)
            end = LENGTH.size + length
            if len(incoming) < end:
                return
            answer = bytes(memoryview(incoming)[LENGTH.size : end])
            del incoming[:end]
            self._accept(worker, answer)

    def _accept(self, worker: _Worker, answer: bytes) -> None:
        if answer[:1] != DONE:
            raise refused(answer)
        is_rows, number = worker.owed.popleft()
        content = memoryview(answer)[1:]
        if is_rows:
            self._rows[number] = _ROWS.decode(content)
        else:
            self._planned[number] = _ASKS.decode(content)


def _death(process: subprocess.Popen[bytes]) -> WorkerError:
    """Return what is to be said of a worker that closed its socket without a word."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        how = "closed its connection"
    else:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return WorkerError(
        f"a worker process (pid {process.pid}) {how} while scoring; where nobody sent SIGKILL, the "
        "system ran out of memory: free some, or use fewer --workers"
    )
