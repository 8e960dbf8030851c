"""One of n contiguous parts of a file's records, for n jobs whose outputs are put end to end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from scorer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` (from 1) of ``count``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``2/7``. Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shard is i/n with 1 <= i <= n, as in 2/7, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def span(self, records: int) -> tuple[int, int]:
        """The records, from 0, that this part starts with and ends before.

        The parts 1 to n are all records in order, each once; their sizes differ by one at most.
        """
        return records * (self.index - 1) // self.count, records * self.index // self.count

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
