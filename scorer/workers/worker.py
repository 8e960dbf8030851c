"""A process that does the host's work: requests come in on a socket, answers go out in their order.

It is started by ``workers``, holds no model and imports neither torch nor transformers. Signals
that people send to a job are blocked here: the job's own process ends this one, and when that is
gone, however it ended, the socket ends and so does this process.
"""

from __future__ import annotations

import gc
import socket
import struct
import traceback
from typing import BinaryIO, Final

import msgspec

from scorer.asks import Ask
from scorer.errors import InputError, ModelError, ScorerError, UsageError, WorkerError
from scorer.records.lines import Piece
from scorer.tables import Results
from scorer.workers.host import Host, HostSettings, Rows

LENGTH: Final = struct.Struct("<Q")
DONE, REFUSED, BROKEN = b"\0", b"\1", b"\2"
"""What an answer begins with: behind it the answer, an error of ours, or a traceback."""

OUT_OF_MEMORY: Final = "a worker process ran out of memory; free some, or use fewer --workers"
_OURS: Final[dict[str, type[ScorerError]]] = {
    kind.__name__: kind for kind in (InputError, ModelError, UsageError, WorkerError)
}


class Take(msgspec.Struct, tag=True, array_like=True):
    """``Host.take``; the answer is what it returns."""

    number: int
    lines: Piece


class Write(msgspec.Struct, tag=True, array_like=True):
    """``Host.write``; the answer is what it returns."""

    number: int
    count: int
    results: Results
    most_on_device: int | None
    stop_at_error: bool


class _Refusal(msgspec.Struct, array_like=True):
    kind: str
    message: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUEST: Final = msgspec.msgpack.Decoder(Take | Write)


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it goes."""
    gc.freeze()  # what is imported stays; to look through it again and again takes a few per cent
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as requests:
        try:
            serve(requests, connection)
        except (EOFError, ConnectionError):
            return


def serve(requests: BinaryIO, connection: socket.socket) -> None:
    """Answer requests, the first of which says what for, until one can't be answered.

    Raises EOFError or ConnectionError when nobody is left to answer.
    """
    host: Host | None = None
    going = True
    while going:
        data = read_frame(requests)
        try:
            if host is None:
                settings = msgspec.msgpack.decode(data, type=HostSettings)
                host = Host(settings.prompter(), settings)
                continue
            answer = DONE + _ENCODER.encode(_answer(host, _REQUEST.decode(data)))
        except BaseException as error:  # noqa: BLE001  (the process that asked raises it)
            answer = _refusal(error)
            going = False
        connection.sendall(LENGTH.pack(len(answer)) + answer)


def _refusal(error: BaseException) -> bytes:
    if isinstance(error, MemoryError):
        error = WorkerError(OUT_OF_MEMORY)
    kind = type(error).__name__
    if kind in _OURS:
        return REFUSED + _ENCODER.encode(_Refusal(kind, str(error)))
    return BROKEN + "".join(traceback.format_exception(error)).encode()


def _answer(host: Host, request: Take | Write) -> list[tuple[Ask, ...]] | Rows:
    if isinstance(request, Take):
        return host.take(request.number, request.lines)
    return host.write(
        request.number,
        request.count,
        host.parts(request.number, request.count, request.results),
        most_on_device=request.most_on_device,
        stop_at_error=request.stop_at_error,
    )


def read_frame(stream: BinaryIO) -> bytes:
    """Read one message: its length, then so many bytes. Raises EOFError where it ends early."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def refused(answer: bytes) -> Exception:
    """Return the error that an answer is."""
    if answer[:1] == REFUSED:
        refusal = msgspec.msgpack.decode(memoryview(answer)[1:], type=_Refusal)
        return _OURS[refusal.kind](refusal.message)
    return RuntimeError(f"in a worker process: {answer[1:].decode()}")
