"""Readers that are broken on purpose, for the tests of the check: each in one way, by one bit.

A fault is planted in the class, so that a second reader of the process has it too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from scorer.model import Qwen3
from scorer.numeric import exp
from scorer.reader import Reader
from scorer.reduction import RawReduction, RowRequests, reduce_host
from scorer.shapes import Batch, Layout
from scorer.tables import ReadResult
from tests.sharing import one_bit, share_on_cpu

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and the scenarios that have to find it.

    found_by: with the small batches of the tests, these and no others. named: those of them that
    are there for it, which find it whatever the batches are.
    """

    name: str
    plant: Plant
    found_by: frozenset[str]
    named: frozenset[str]


def one_ulp(result: Any) -> Any:
    """Return a read's result with every log-probability one step lower."""
    if isinstance(result, ReadResult):  # a part of what other reads see too: of a copy
        return msgspec.structs.replace(result, whole=one_ulp(result.whole))
    changed: dict[str, Any] = {}
    for name in ("chosen_logprob", "target_logprob", "top_logprob"):
        values = getattr(result, name)
        lower = [math.nextafter(float(value), -math.inf) for value in values]
        changed[name] = np.array(lower) if isinstance(values, np.ndarray) else lower
    if isinstance(result, msgspec.Struct):
        return msgspec.structs.replace(result, **changed)
    return replace(result, **changed)


def one_ulp_of_the_chosen(result: Any) -> Any:
    """Return a read's result with the chosen tokens' log-probabilities one step lower."""
    whole = getattr(result, "whole", result)
    lower = one_ulp(whole).chosen_logprob
    if isinstance(result, ReadResult):
        whole = msgspec.structs.replace(whole, chosen_logprob=lower)
        return msgspec.structs.replace(result, whole=whole)
    return replace(result, chosen_logprob=lower)


def where(broken: Callable[[Batch, int], bool], change: Callable[[Any], Any] = one_ulp) -> Plant:
    """Return a fault: one ulp in the reads of a batch, by their place, of which this is true."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def changed(flight: Any, results: list[Any]) -> list[Any]:
            return [
                change(result) if broken(flight.batch, place) else result
                for place, result in enumerate(results)
            ]

        _in_results(monkeypatch, changed)

    return plant


def _in_results(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any, list[Any]], list[Any]]
) -> None:
    """Change what comes back of a batch, both ways in which it does."""
    for name in ("collect", "results"):
        honest = getattr(Reader, name)

        def broken(self: Reader, flight: Any, honest: Any = honest) -> list[Any]:
            return changed(flight, honest(self, flight))

        monkeypatch.setattr(Reader, name, broken)


def _shape_of_partners(batch: Batch, place: int) -> bool:
    """As if the forward were as long as its reads, and every third length had another kernel."""
    del place
    return batch.real_tokens % 3 == 1


def _tokens_of_partners(batch: Batch, place: int) -> bool:
    others = [read for index, read in enumerate(batch.reads) if index != place]
    return bool(others) and int(others[0].tokens.sum()) % 2 == 1


def _request(batch: Batch, place: int) -> bool:
    return int(batch.reads[place].requests.top_k[-1]) in (0, 50)


def _leftover(batch: Batch, place: int) -> bool:
    """As if what an earlier process had compiled were not what this one compiles."""
    del batch, place
    return "TRITON_CACHE_DIR" in os.environ


def drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a clock: two forwards are right, two differ, and so on.

    So any one differs from the next but one, wherever the clock stands when a scenario begins.
    """
    count = iter(range(10**9))

    def changed(_flight: Any, results: list[Any]) -> list[Any]:
        return [one_ulp(result) for result in results] if next(count) % 4 < 2 else results

    _in_results(monkeypatch, changed)


def float_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a sum over the vocabulary in float32, in an order that the batch decides."""
    honest = reduce_host

    def broken(logits: Any, requests: RowRequests, n_ids: int) -> RawReduction:
        raw = honest(logits, requests, n_ids)
        shift = 61 * len(logits)
        sums = []
        for row, most in zip(logits, raw.max, strict=True):
            terms = exp(row.astype(np.float64) - float(most)).astype(np.float32)
            total = np.cumsum(np.roll(terms, shift), dtype=np.float32)[-1]
            sums.append(int(float(total) * 2.0**63))
        high = np.array([total >> 32 for total in sums], dtype=np.uint64)
        low = np.array([total & 0xFFFFFFFF for total in sums], dtype=np.uint64)
        return replace(raw, sum_hi=high, sum_lo=low)

    monkeypatch.setattr("scorer.reader.reduce_host", broken)


def chat_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a memory: a plain model's turn leaves something behind."""
    from transformers import Qwen3ForCausalLM

    honest = Qwen3ForCausalLM.generate
    turns: list[int] = []

    def generate(self: Any, *arguments: Any, **more: Any) -> Any:
        turns.append(1)
        return honest(self, *arguments, **more)

    monkeypatch.setattr(Qwen3ForCausalLM, "generate", generate)
    where(lambda _batch, _place: len(turns) % 2 == 1)(monkeypatch)


def unread_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bit in the first hidden state of forwards of more reads than R.

    Such forwards only the self-test makes.
    """
    honest = Qwen3.hidden_states

    def hidden_states(self: Qwen3, layout: Layout, *, rows: int, graph: bool = True) -> Any:
        hidden = honest(self, layout, rows=rows, graph=graph).clone()
        if len(layout.segments) > rows + 1:
            hidden.view(torch.int32 if hidden.element_size() == 4 else torch.int16)[0, 0] ^= 1
        return hidden

    monkeypatch.setattr(Qwen3, "hidden_states", hidden_states)


FAULTS = (
    Fault(
        "one ulp in all but the first place",
        where(lambda _batch, place: place > 0),
        frozenset({"position", "lengths", "shuffled", "requests"}),
        frozenset({"position"}),
    ),
    Fault(
        "a shape that depends on the partners",
        where(_shape_of_partners),
        frozenset({"company", "partner-lengths", "lengths", "shuffled", "requests"}),
        frozenset({"company", "partner-lengths"}),
    ),
    Fault(
        "a sum in float32 whose order depends on the batch",
        float_atomics,
        # position: its place decides which rows of its partners share an lm_head call with it
        frozenset({"company", "position", "lengths", "shuffled", "requests"}),
        frozenset({"position"}),
    ),
    Fault(
        "a partner's tokens leak",
        where(_tokens_of_partners),
        # other lengths are other tokens, and what is asked decides which partners there are
        frozenset({"company", "contents", "partner-lengths", "lengths", "shuffled", "requests"}),
        frozenset({"contents"}),
    ),
    Fault(
        "what is asked moves the answer",
        where(_request),
        frozenset({"requests"}),
        frozenset({"requests"}),
    ),
    Fault(
        "a chat turn leaves something behind",
        chat_state,
        frozenset({"chat-turn"}),
        frozenset({"chat-turn"}),
    ),
    Fault(
        "a process differs from the next",
        where(_leftover),
        frozenset({"fresh-process"}),
        frozenset({"fresh-process"}),
    ),
    Fault(
        "an unread hidden state",
        unread_state,
        frozenset({"hidden-states", "fresh-process"}),
        frozenset({"hidden-states"}),
    ),
    Fault(
        "two forwards in four differ",
        drift,
        frozenset(
            {
                *("repeat", "company", "position", "contents", "partner-lengths", "lengths"),
                *("shuffled", "requests", "chat-turn", "fresh-process"),
            }
        ),
        frozenset({"repeat"}),
    ),
)


def _shared_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bit behind every shared prefix: on the CPU sharing is planted with it."""
    share_on_cpu(monkeypatch, one_bit)


SHARING_FAULT = Fault(
    "a read that shares its prefix has another bit",
    _shared_bit,
    # requests: what else is asked of a record decides whether its reads share
    frozenset({"shared-prefix", "hidden-states", "fresh-process", "requests"}),
    frozenset({"shared-prefix"}),
)
