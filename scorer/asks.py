"""What is asked of one read, as small as it can be said: made, kept and sent by the thousand."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np

from scorer.prompts.words import ID_BYTES
from scorer.reduction import RowRequests
from scorer.shapes import IntArray, Read


class Ask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One read of a record: of its prompt, or of the prompt and one option of several tokens.

    tokens: int32, little endian. option: how many of the last tokens are an option's, each of which
    is asked for where it is predicted; 0 for a read of the prompt alone. An option's last token is
    not read, since nothing is asked behind it: every token that is, can make the answer no number.
    Of a read of the prompt: targets, the ids asked for behind it; entries, how many of the best;
    before, the same at every place before that, beside the token that stands there, None where
    these places are not read.
    """

    tokens: bytes
    option: int = 0
    targets: tuple[int, ...] = ()
    entries: int = 0
    before: int | None = None

    def __len__(self) -> int:
        return len(self.tokens) // ID_BYTES - (self.option > 0)

    @property
    def counts(self) -> tuple[int, int]:
        """How many distributions are read, and how many targets are asked for."""
        if self.option:
            return self.option, self.option
        if self.before is None:
            return 1, len(self.targets)
        return len(self), len(self) - 1 + len(self.targets)

    def read(self) -> Read:
        """Return the read that answers this."""
        tokens = np.frombuffer(self.tokens, np.int32)
        n = len(tokens)
        if self.option:
            option = self.tokens[-ID_BYTES * self.option :]
            return Read(tokens[:-1], _range(n - 1 - self.option, n - 1), _each(option))
        if self.before is None:
            return Read(tokens, _range(n - 1, n), _last(self.targets, self.entries))
        offsets = np.arange(n + 1, dtype=np.int32)
        offsets[n] += len(self.targets) - 1
        last = np.array(self.targets, dtype=np.int32)
        requests = RowRequests(
            target_ids=np.concatenate([tokens[1:], last]),
            target_offsets=offsets,
            top_k=np.array([*[self.before] * (n - 1), self.entries], dtype=np.int32),
        )
        return Read(tokens, np.arange(n, dtype=np.int32), requests)


# The records of a file mostly ask for the same, and arrays take time to make. Where they don't, few
# are kept.


@lru_cache(maxsize=4096)
def _range(start: int, end: int) -> IntArray:
    return np.arange(start, end, dtype=np.int32)


@lru_cache(maxsize=256)
def _last(targets: tuple[int, ...], entries: int) -> RowRequests:
    """One row's requests."""
    return RowRequests.of([targets], [entries])


@lru_cache(maxsize=256)
def _each(option: bytes) -> RowRequests:
    """One target a row: the tokens of an option."""
    ids = np.frombuffer(option, dtype=np.int32)
    return RowRequests(
        target_ids=ids,
        target_offsets=np.arange(len(ids) + 1, dtype=np.int32),
        top_k=np.zeros(len(ids), dtype=np.int32),
    )
