"""Rows made by hand, for tests of what compares them."""

from __future__ import annotations

import math
from typing import Any

from scorer.rows import Failure, OptionScore, Score, TokenScore


def option(text: str, token: int, logprob: float) -> OptionScore:
    return OptionScore(
        text=text,
        token_ids=(token,),
        logprob=logprob,
        probability=math.exp(logprob),
        rank=1,
        is_greedy=True,
    )


def token(token_id: int, logprob: float, rank: int = 1) -> TokenScore:
    return TokenScore(token_id=token_id, text="x", bytes=(120,), logprob=logprob, rank=rank)


def row(id_: str | int | None, line: int = 1, **fields: Any) -> Score:
    values: dict[str, Any] = {
        "prompt_tokens": 3,
        "prompt_sha256": "aa",
        "answer": "yes",
        "margin": 0.25,
        "options": (option("yes", 5, -0.5), option("no", 6, -0.75)),
    }
    return Score(id=id_, line=line, **(values | fields))


def failed(id_: str | int | None, code: str, line: int = 1) -> Score:
    return Score(id=id_, line=line, error=Failure(code=code, message="in words"))
