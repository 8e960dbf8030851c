"""The scenario in which reads of one record share what they have in common.

Through the public path: the same records scored with sharing and without, every value of every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from scorer.check.row_values import compare_values, values_of
from scorer.check.subject import NotRunError, Subject
from scorer.check.tally import Tally
from scorer.compare.orderings import Orders, reordered
from scorer.errors import RowError
from scorer.records.record import Record

if TYPE_CHECKING:
    from scorer.reader import Reader

PREFIXES: Final = (1, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
"""Lengths of prompts that options share: around the boundaries of attention's tiles."""

_FEW_PREFIXES: Final = (1, 64, 65)
_OPTIONS: Final = (" perhaps not today", " never in my life")
_BEHIND: Final = 40
"""Tokens that the options take at most, one a byte."""


def shared_prefix(subject: Subject, tally: Tally) -> None:
    """Options of one prompt and orderings of one question, sharing their prefix and apart."""
    reader = subject.reader
    if reader.alone:
        raise NotRunError("--isolation alone: a read has no company to share with")
    if not reader.model.shares:
        raise NotRunError(
            f"on {reader.model.device} nothing is shared: {reader.model.attention} computes other "
            "bits for a prefix by itself"
        )
    if not reader.share:
        raise NotRunError("--no-shared-prefix: nothing is shared")
    before = reader.counts.shared_tokens
    _compare(subject, tally, "prompt", _continuations(subject, tally))
    _compare(subject, tally, "ordering", _orderings(subject))
    saved = reader.counts.shared_tokens - before
    if not saved and not tally.mismatches:
        raise NotRunError(
            f"nothing could be shared in forwards of {reader.shape.tokens} tokens and at most "
            f"{reader.shape.rows} reads"
        )
    tally.notes.append(f"{saved:,} tokens were shared instead of recomputed")


def _compare(subject: Subject, tally: Tally, what: str, records: Sequence[Record]) -> None:
    """Score records apart, then sharing, in file order and backwards."""
    with _apart(subject.reader):
        base = list(subject.scorer.score(records, together=True))
    for place, row in enumerate(base, 1):
        if row.error is not UNSET:
            tally.left_out.append(f"{what} {place}: {row.error.code}")
    places = range(len(records))
    for name, order in (("", places), (", backwards", places[::-1])):
        rows = subject.scorer.score((records[place] for place in order), together=True)
        for place, row in zip(order, rows, strict=True):
            if base[place].error is UNSET:
                where = f"{what} {place + 1}{name}"
                compare_values(tally, values_of(base[place]), values_of(row), where)


@contextmanager
def _apart(reader: Reader) -> Iterator[None]:
    """Let reads share nothing for a while."""
    reader.share = False
    try:
        yield
    finally:
        reader.share = True


def _continuations(subject: Subject, tally: Tally) -> list[Record]:
    """Return prompts of the lengths, with options of several tokens each."""
    longest = min(subject.reader.shape.tokens, subject.max_tokens) - _BEHIND
    records: list[Record] = []
    for length in PREFIXES if subject.level.every_length else _FEW_PREFIXES:
        if length > longest:
            tally.left_out.append(f"prefix of {length} tokens: no room for it and two options")
            continue
        records.append(
            Record(
                line=len(records) + 1,
                id=length,
                prompt_token_ids=tuple(subject.material(length).tokens.tolist()),
                options=_OPTIONS,
                logprobs=5,
                prompt_logprobs=1,
            )
        )
    return records


def _orderings(subject: Subject) -> list[Record]:
    """Return the input's lettered questions, each in its cyclic orders."""
    derived: list[Record] = []
    for place, record in enumerate(subject.records):
        own = msgspec.structs.replace(record, line=place + 1)  # of several files, some are the same
        try:
            derived += [reordered(own, order) for order in Orders().of(own)]
        except RowError:  # no lettered question
            continue
    return derived
