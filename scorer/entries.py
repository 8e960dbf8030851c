"""Entries of a distribution: tokens, their text, their log-probability and rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scorer.errors import ErrorCode, RowError
from scorer.rows import TokenScore

if TYPE_CHECKING:
    from scorer.prompts.prompter import Prompter
    from scorer.tables import ReadResult


def zero_probability(what: str) -> RowError:
    """The error of a row that would need the logarithm of zero."""
    return RowError(
        ErrorCode.ZERO_PROBABILITY,
        f"{what} has probability zero (its logit is -inf), which has no log-probability; leave it "
        "out of the request",
    )


class Entries:
    """The prompt read's distributions as entries with the tokens' text.

    All raise RowError for a token of probability zero.
    """

    def __init__(self, reduced: ReadResult, prompter: Prompter) -> None:
        self._reduced = reduced
        self._prompter = prompter

    def targets(self, places: slice, token_ids: Iterable[int]) -> Iterator[TokenScore]:
        """Yield some of the read's targets, by their places; ``token_ids``: what they are."""
        reduced = self._reduced
        for token_id, logprob, rank in zip(
            token_ids, reduced.target_logprob[places], reduced.target_rank[places], strict=True
        ):
            yield self._entry(token_id, logprob, rank, by_name=True)

    def chosen(self, row: int) -> TokenScore:
        """The token of rank 1."""
        return self._entry(*self._reduced.chosen(row), 1)

    def top(self, row: int) -> tuple[TokenScore, ...]:
        """The listed ones, the first first."""
        listed = enumerate(self._reduced.top(row), 1)
        return tuple([self._entry(*entry, rank) for rank, entry in listed])

    def _entry(
        self, token_id: int, logprob: float, rank: int, *, by_name: bool = False
    ) -> TokenScore:
        (text,) = self._prompter.token_text([token_id])
        if logprob == -math.inf:
            what = f"token {token_id} ({text.text!r})"
            raise zero_probability(what if by_name else f"{what}, of rank {rank},")
        return TokenScore(
            token_id=token_id,
            text=text.text,
            bytes=text.values,
            logprob=logprob,
            rank=rank,
        )
