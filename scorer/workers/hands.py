"""Who does the host's work on lines: this process itself, or others (see ``pool``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

from scorer.records.lines import Lines
from scorer.turns import Chunk, Stretch
from scorer.workers.host import Host, Rows

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Hands(Protocol):
    """Plans lines and writes their rows; a context manager.

    Of a chunk ``origin`` is its number.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def chunks(self, lines: Iterable[Lines]) -> Iterator[Chunk[int]]:
        """Yield what the records of the lines ask, in order."""

    def write(
        self, stretch: Stretch[int], *, most_on_device: int | None, stop_at_error: bool
    ) -> None:
        """Have the rows of a stretch written, as ``Host.write`` does."""

    def ready(self) -> Iterator[Rows]:
        """Yield, in order, the rows that are written; waits for none."""

    def rest(self) -> Iterator[Rows]:
        """Yield all rows that are still to come."""


class Here:
    """The process that asks; a thread plans the next lines meanwhile.

    The tokenizer's own code and the device's run without the GIL.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rows: list[Rows] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""

    def chunks(self, lines: Iterable[Lines]) -> Iterator[Chunk[int]]:
        """See Hands."""
        return one_ahead(enumerate(lines), self._chunk)

    def _chunk(self, numbered: tuple[int, Lines]) -> Chunk[int]:
        number, lines = numbered
        return Chunk(number, self._host.take(number, lines))

    def write(
        self, stretch: Stretch[int], *, most_on_device: int | None, stop_at_error: bool
    ) -> None:
        """See Hands."""
        self._rows.append(
            self._host.write(
                stretch.origin,
                stretch.end - stretch.start,
                stretch.results,
                most_on_device=most_on_device,
                stop_at_error=stop_at_error,
            )
        )

    def ready(self) -> Iterator[Rows]:
        """See Hands."""
        while self._rows:
            yield self._rows.pop(0)

    def rest(self) -> Iterator[Rows]:
        """See Hands."""
        return self.ready()


def one_ahead(items: Iterable[_Item], make: Callable[[_Item], _Made]) -> Iterator[_Made]:
    """Yield what is made of each item, in order; a thread makes the next one meanwhile.

    The items are taken where this is iterated, one more than is yielded, and nowhere else: what
    they come from may belong to a thread. An error of theirs comes behind what was made before it.

    The thread is not waited for at the end. Where nobody wants the rest, the end may come when
    Python collects garbage, in any thread and with any lock held, and whoever waits for a thread
    then may wait for ever.
    """
    rest = iter(items)
    ahead: Future[_Made] | None = None
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare")
    try:
        while True:
            following: Future[_Made] | None = None
            fault: Exception | None = None
            try:
                following = pool.submit(make, next(rest))
            except StopIteration:
                pass
            except Exception as error:  # noqa: BLE001  (raised below)
                fault = error
            if ahead is not None:
                yield ahead.result()
            if fault is not None:
                raise fault
            if following is None:
                return
            ahead = following
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
