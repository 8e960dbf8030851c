"""One line of ``scorer compare``'s rows: a question, all its orderings, and what they come to.

docs/compare.md describes the format, so that other tools can write it. What a report needs are
``id``, ``options`` and each ordering's ``order`` and ``logprobs``; all that can be derived from
them is written for people and programs, and not read back.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from scorer.compare.blocks import NONE, Block, Reading
from scorer.compare.orderings import Order, check_order
from scorer.errors import InputError, RowError
from scorer.numeric import prob_mass
from scorer.records.jsonline import MAX_DEPTH, check_text
from scorer.records.source import at_line, reading
from scorer.rows import Failure


class Ordering(msgspec.Struct, frozen=True, kw_only=True):
    """One ordering of a question and its read.

    ``order[p]`` is the listed index of the option shown at position p, ``labels[p]`` the label it
    had, ``logprobs[p]`` that label's log-probability (nats, over the whole vocabulary).
    ``answer_index`` is the listed index of the option chosen, None with ``tied`` (listed indices)
    when several are best. ``margin`` is the best less the second-best log-probability.
    ``label_mass`` is ``Σ exp(logprobs)``; None where ``logprobs`` are relative to the labels only.
    ``repeat``: the same log-probabilities read a second time among other reads.
    """

    order: Order
    labels: tuple[str, ...] | UnsetType = UNSET
    logprobs: tuple[float, ...]
    answer_index: int | UnsetType | None = UNSET
    tied: tuple[int, ...] | UnsetType = UNSET
    label_mass: float | UnsetType | None = UNSET
    margin: float | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    prompt_sha256: str | UnsetType = UNSET
    repeat: tuple[float, ...] | UnsetType = UNSET


class OptionMean(msgspec.Struct, frozen=True, kw_only=True):
    """An option's means over the orderings: of its probability among the labels, of its logprob.

    ``chosen``: in how many orderings it was the answer.
    """

    text: str
    probability: float
    logprob: float
    chosen: int


class CompareRow(msgspec.Struct, frozen=True, kw_only=True):
    """One question. UNSET fields are not written.

    ``options`` are as listed, ``content_sha256`` hashes question, state and options in any order.
    ``answer`` is the option of the greatest mean probability, None with ``tied`` when several are;
    ``margin`` is how much its mean log-probability exceeds the best other one (negative where the
    two means disagree). ``flipped_pairs`` of ``pairs`` of orderings chose different options;
    ``spread`` is the most that any option's probability differs between two orderings.
    """

    id: str | int | None
    line: int | UnsetType = UNSET
    question: str | UnsetType = UNSET
    state: msgspec.Raw | UnsetType = UNSET
    options: tuple[str, ...] | UnsetType = UNSET
    gold_index: int | UnsetType = UNSET
    content_sha256: str | UnsetType = UNSET
    orderings: tuple[Ordering, ...] | UnsetType = UNSET
    means: tuple[OptionMean, ...] | UnsetType = UNSET
    answer: str | UnsetType | None = UNSET
    answer_index: int | UnsetType | None = UNSET
    tied: tuple[int, ...] | UnsetType = UNSET
    correct: bool | UnsetType = UNSET
    pairs: int | UnsetType = UNSET
    flipped_pairs: int | UnsetType = UNSET
    spread: float | UnsetType = UNSET
    label_mass: float | UnsetType | None = UNSET
    margin: float | UnsetType | None = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    extra: dict[str, msgspec.Raw] | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(CompareRow)

_DEPTH: Final = MAX_DEPTH + 1
"""Rows hold what a record brought along one level deeper, in ``extra``."""

_LEAST_LOGPROB: Final = -1e300
"""Sums of what is not below stay finite."""

_ROUNDING: Final = 0.01
"""By how much probabilities may exceed 1 together: logarithms written with two decimals."""


def encode_row(row: CompareRow) -> bytes:
    """``row`` as one line, newline included. Raises ValueError if it would not read back equal."""
    line = _ENCODER.encode(row)
    try:
        same = _DECODER.decode(line) == row
    except msgspec.ValidationError:
        same = False
    if not same:
        raise ValueError(f"the row of question {row.id!r} can't be written as JSON")
    return line + b"\n"


def decode_row(line: bytes) -> CompareRow:
    """One line of :func:`encode_row`. Raises msgspec.DecodeError for any other."""
    try:
        check_text(line, _DEPTH)
        row = _DECODER.decode(line)
        return row if row.error is not UNSET else completed(row, reading_of(row))
    except (RowError, ValueError) as error:
        if isinstance(error, msgspec.DecodeError):
            raise
        raise msgspec.ValidationError(str(error)) from error


def decode_rows(path: Path) -> Iterator[CompareRow]:
    """The rows of a file, in order, checked and with all that is derived made anew.

    Raises :class:`InputError`, naming the line; also for an id that is there twice.
    """
    name = str(path)
    lines: dict[str, int] = {}
    with reading(name), path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if not line.strip():
                continue
            try:
                row = decode_row(line)
                if row.id is not None and lines.setdefault(str(row.id), number) != number:
                    first = lines[str(row.id)]
                    raise ValueError(
                        f"ids are unique, got {row.id!r} again (first in line {first})"
                    )
            except (msgspec.DecodeError, ValueError) as error:
                what = f"not a row of scorer compare: {error}; see docs/compare.md"
                raise InputError(at_line(name, number, what)) from None
            yield row


def reading_of(row: CompareRow) -> Reading:
    """Return what was read. Raises ValueError for a row that breaks a rule, naming it."""
    if row.id is None:
        raise ValueError("$.id: a row without an error has a string or an int, got null")
    if row.options is UNSET or row.orderings is UNSET or not row.orderings:
        raise ValueError("a row has options and at least one of orderings, or an error")
    k = len(row.options)
    if k < 2 or len(set(row.options)) != k:
        raise ValueError(f"$.options: at least two texts that differ, got {k}")
    if row.gold_index is not UNSET and not 0 <= row.gold_index < k:
        raise ValueError(f"$.gold_index: 0 to {k - 1}, got {row.gold_index}")
    for place, ordering in enumerate(row.orderings):
        _check_ordering(ordering, k, f"$.orderings[{place}]")
    if len({ordering.order for ordering in row.orderings}) != len(row.orderings):
        raise ValueError("$.orderings: every order once; a second read of one is its repeat")
    return Reading(
        key=row.content_sha256 or _content(row),
        gold=None if row.gold_index is UNSET else row.gold_index,
        orders=tuple(ordering.order for ordering in row.orderings),
        logprobs=tuple(ordering.logprobs for ordering in row.orderings),
        masses=tuple(
            None if mass is None else min(prob_mass(logprobs) if mass is UNSET else mass, 1.0)
            for ordering in row.orderings
            for mass, logprobs in ((ordering.label_mass, ordering.logprobs),)
        ),
        repeats=tuple(
            None if ordering.repeat is UNSET else ordering.repeat for ordering in row.orderings
        ),
    )


def _check_ordering(ordering: Ordering, k: int, where: str) -> None:
    if not check_order(ordering.order, k):
        raise ValueError(f"{where}.order: a permutation of 0 to {k - 1}, got {ordering.order}")
    for name, values in (("logprobs", ordering.logprobs), ("repeat", ordering.repeat)):
        if values is UNSET:
            continue
        if len(values) != k:
            raise ValueError(f"{where}.{name}: {k} values, one a position, got {len(values)}")
        for position, value in enumerate(values):
            if not _LEAST_LOGPROB <= value <= 0:
                raise ValueError(
                    f"{where}.{name}[{position}]: a log-probability is finite and at most 0 "
                    f"(and at least {_LEAST_LOGPROB:g}), got {value}"
                )
    if (total := sum(map(math.exp, ordering.logprobs))) > 1 + _ROUNDING:
        raise ValueError(
            f"{where}.logprobs: the labels' probabilities are at most 1 together, got {total:.4g}; "
            "write natural logarithms of probabilities"
        )
    if ordering.labels is not UNSET and len(ordering.labels) != k:
        raise ValueError(f"{where}.labels: {k} labels, one a position, got {len(ordering.labels)}")
    mass = ordering.label_mass
    if mass is not UNSET and mass is not None and not 0 <= mass <= 1 + _ROUNDING:
        raise ValueError(f"{where}.label_mass: 0 to 1, got {mass}")


def _content(row: CompareRow) -> str:
    """Return a key for rows that bring none; where a question isn't given either, by the id."""
    question = row.id if row.question is UNSET else row.question
    options = () if row.options is UNSET else row.options
    return hashlib.sha256(json.dumps([question, sorted(options)]).encode()).hexdigest()


def completed(row: CompareRow, read: Reading) -> CompareRow:
    """Return the row with everything that follows from what was read."""
    block = Block.of([read])
    options = () if row.options is UNSET else row.options
    given = () if row.orderings is UNSET else row.orderings
    orderings = tuple(
        msgspec.structs.replace(
            ordering,
            answer_index=None if choice == NONE else choice,
            tied=_best(ordering) if choice == NONE else UNSET,
            label_mass=mass,
            margin=margin,
        )
        for ordering, choice, mass, margin in zip(
            given, block.choices[0].tolist(), read.masses, block.margins[0].tolist(), strict=True
        )
    )
    probabilities, logprobs = block.mean_probabilities[0].tolist(), block.mean_logprobs[0].tolist()
    answer = int(block.answers[0])
    greatest = max(probabilities)
    best = tuple(i for i, value in enumerate(probabilities) if value == greatest)
    others = [value for i, value in enumerate(logprobs) if i != answer]
    known = [mass for mass in read.masses if mass is not None]
    by_content = block.by_content(block.probabilities)[0]
    return msgspec.structs.replace(
        row,
        content_sha256=read.key,
        orderings=orderings,
        means=tuple(
            OptionMean(text=text, probability=probability, logprob=logprob, chosen=chosen)
            for text, probability, logprob, chosen in zip(
                options, probabilities, logprobs, block.choice_counts[0].tolist(), strict=True
            )
        ),
        answer=None if answer == NONE else options[answer],
        answer_index=None if answer == NONE else answer,
        tied=best if answer == NONE else UNSET,
        correct=UNSET if read.gold is None else answer == read.gold,
        pairs=int(block.pairs[0]),
        flipped_pairs=int(block.flipped_pairs[0]),
        spread=float((by_content.max(axis=0) - by_content.min(axis=0)).max()),
        label_mass=math.fsum(known) / len(known) if len(known) == len(read.masses) else None,
        margin=None if answer == NONE else logprobs[answer] - max(others),
    )


def _best(ordering: Ordering) -> tuple[int, ...]:
    """Return the listed indices of an ordering's best options, ascending."""
    greatest = max(ordering.logprobs)
    pairs = zip(ordering.order, ordering.logprobs, strict=True)
    return tuple(sorted(index for index, value in pairs if value == greatest))
