"""Entries of a distribution: tokens, their text, their log-probability and rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scorer.errors import ErrorCode, RowError
from scorer.rows import TokenScore

if TYPE_CHECKING:
    from scorer.prompts import Prompter
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

    rows: how many distributions. All raise RowError for a token of probability zero.
    """

    def __init__(self, reduced: ReadResult, prompter: Prompter) -> None:
        self._reduced = reduced
        self._prompter = prompter
        self.rows = len(reduced.chosen_id)

    def target(self, index: int, token_id: int) -> TokenScore:
        """The target number ``index`` of the read."""
        reduced = self._reduced
        return self._entry(
            token_id, reduced.target_logprob[index], reduced.target_rank[index], by_name=True
        )

    def chosen(self, row: int) -> TokenScore:
        """The token of rank 1."""
        reduced = self._reduced
        return self._entry(reduced.chosen_id[row], reduced.chosen_logprob[row], 1)

    def top(self, row: int) -> tuple[TokenScore, ...]:
        """The listed ones, the first first."""
        reduced = self._reduced
        start, end = reduced.top_offsets[row], reduced.top_offsets[row + 1]
        return tuple(
            self._entry(reduced.top_id[i], reduced.top_logprob[i], i - start + 1)
            for i in range(start, end)
        )

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
            bytes=tuple(text.raw),
            logprob=logprob,
            rank=rank,
        )
