"""One line of output: a :class:`Score`, strict JSON, every float64 read back to the same bits."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from scorer.errors import InputError, RowError
from scorer.records.jsonline import MAX_DEPTH, check_text
from scorer.records.source import at_line, reading

# What a row is made of holds no cycles, so that the garbage collector need not count it: it would
# stop to look through all that Python holds while the device waits.


class TokenScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A token and its log-probability (nats, natural logarithm) over the whole vocabulary.

    ``text`` shows U+FFFD where the token splits a character, ``bytes`` (0 to 255 each) are
    exact. ``rank`` is from 1, among the ids that the tokenizer has: logits of padding ids (a model
    may have more rows than its tokenizer has ids) take part in ``logprob`` only.
    """

    token_id: int
    text: str
    bytes: tuple[int, ...]
    logprob: float
    rank: int


class OptionScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An option: ``logprob`` is summed over ``token_ids``, ``rank`` is among the options.

    ``probability`` is the softmax of ``logprob`` over the options. ``is_greedy``: every token
    has rank 1 at its place. ``logprob_per_token`` and ``logprob_per_byte`` (UTF-8, with the spaces
    that moved to it from the prompt's end) are there when options have several tokens,
    ``seam_changed`` only when true.
    """

    text: str
    label: str | UnsetType = UNSET
    token_ids: tuple[int, ...]
    logprob: float
    probability: float
    rank: int
    is_greedy: bool
    logprob_per_token: float | UnsetType = UNSET
    logprob_per_byte: float | UnsetType = UNSET
    seam_changed: bool | UnsetType = UNSET


class ReadLogprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The next-token distribution at the end of the prompt: its argmax, and the k first."""

    chosen: TokenScore
    top: tuple[TokenScore, ...]


class PositionLogprobs(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """The distribution before one prompt token: ``token`` is the one that stands there."""

    token: TokenScore
    chosen: TokenScore
    top: tuple[TokenScore, ...]


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Why a row has no results; ``code`` is an :class:`~scorer.errors.ErrorCode`."""

    code: str
    message: str


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One row. UNSET fields are not written: not asked for, or not known when it failed.

    ``answer`` is None with ``tied`` (indices of the best options) when several are best;
    ``answer_per_token`` and ``answer_per_byte`` are None when theirs tie. ``label_mass`` is
    the sum of the labels' probabilities, None where labels are not one token each.
    ``margin`` is the best option's log-probability less the second's, None with one option.
    ``correct`` is ``answer_index == gold_index``. ``prompt_sha256`` (hex) is over the token
    ids as little-endian uint32. The first of ``prompt_logprobs`` is None.
    """

    id: str | int | None
    line: int
    prompt_tokens: int | UnsetType = UNSET
    prompt_sha256: str | UnsetType = UNSET
    answer: str | UnsetType | None = UNSET
    answer_index: int | UnsetType | None = UNSET
    tied: tuple[int, ...] | UnsetType = UNSET
    answer_per_token: str | UnsetType | None = UNSET
    answer_per_byte: str | UnsetType | None = UNSET
    label_mass: float | UnsetType | None = UNSET
    margin: float | UnsetType | None = UNSET
    gold_index: int | UnsetType = UNSET
    correct: bool | UnsetType = UNSET
    options: tuple[OptionScore, ...] | UnsetType = UNSET
    targets: tuple[TokenScore, ...] | UnsetType = UNSET
    logprobs: ReadLogprobs | UnsetType = UNSET
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    truncated_tokens: int | UnsetType = UNSET
    extra: dict[str, msgspec.Raw] | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Score)


def encode_score(score: Score) -> bytes:
    """``score`` as one line, newline included.

    The encoder writes NaN and infinities as null without a word, so a line with a null in it is
    read back and compared. Raises :class:`ValueError` where it says anything else than ``score``.
    """
    line = _ENCODER.encode(score)
    if b"null" not in line:
        return line + b"\n"
    try:
        same = _DECODER.decode(line) == score
    except msgspec.DecodeError:
        same = False
    if not same:
        where = _not_finite(score, "$") or "a value of a type that its field does not have"
        raise ValueError(f"the row of line {score.line} can't be written as JSON: {where}")
    return line + b"\n"


def encode_scores(scores: Sequence[Score]) -> bytes:
    """What ``encode_score`` makes of each, end to end, in a fraction of the time."""
    lines = _ENCODER.encode_lines(scores)
    return b"".join(map(encode_score, scores)) if b"null" in lines else lines


def decode_score(line: bytes) -> Score:
    """The row on one line that :func:`encode_score` wrote.

    Raises :class:`msgspec.DecodeError` or :class:`RowError` where it is none.
    """
    check_text(line, MAX_DEPTH + 1)  # a record's values are one deeper, under extra
    return _DECODER.decode(line)


def whole_rows(file: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file of rows and their numbers, from 1.

    Raises :class:`InputError` where one does not end: the last, of a run that was stopped.
    """
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            raise InputError(
                at_line(
                    name,
                    number,
                    "a row ends with a newline, got a part of one (the run that wrote it was "
                    "stopped); resume that run, or remove the line",
                )
            )
        yield number, line


REMEDY: Final = "give an output of scorer score"
"""What to do where rows are expected and there are none."""


def decode_scores(path: str | os.PathLike[str]) -> Iterator[Score]:
    """The rows of a file that :func:`encode_score` wrote, in order, streaming.

    Raises :class:`InputError`, naming the line, where a line is no row or the last one is
    not whole.
    """
    name = os.fspath(path)
    with reading(name, REMEDY), Path(name).open("rb") as file:
        for number, line in whole_rows(file, name):
            try:
                row = decode_score(line)
            except (msgspec.DecodeError, RowError) as error:
                raise InputError(
                    at_line(
                        name,
                        number,
                        f"not a row of scores: {error}; {REMEDY}",
                    )
                ) from None
            yield row


class RowDigest:
    """SHA-256 over the emitted lines, newlines included, and their number."""

    def __init__(self) -> None:
        self.rows = 0
        self._sha256 = hashlib.sha256()

    def update(self, lines: bytes, count: int = 1) -> None:
        """Takes the next ``count`` lines of :func:`encode_score`."""
        self.rows += count
        self._sha256.update(lines)

    def hexdigest(self) -> str:
        """The digest of the lines so far."""
        return self._sha256.hexdigest()


def _not_finite(value: object, where: str) -> str | None:
    """The place and value of the first float that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} is {value}; a value that was not computed is a row error"
    if isinstance(value, msgspec.Struct):
        parts = ((f"{where}.{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = ((f"{where}[{index}]", item) for index, item in enumerate(value))
    else:
        return None
    return next(filter(None, (_not_finite(item, place) for place, item in parts)), None)
