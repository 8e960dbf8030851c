"""From a line to its record, or to its id alone: decoded in one go, key by key where need be."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from scorer.records.jsonline import is_plain, object_fields
from scorer.records.record import (
    LARGEST_ID,
    LEAST_ID,
    MAX_LETTERED,
    MAX_TOKEN_ID,
    MAX_TOP_K,
    MIN_LETTERED,
    NULL,
    ROLES,
    BadLine,
    Message,
    Record,
)
from scorer.records.record_keys import id_by_key, record_by_key, state_of
from scorer.records.unknown_keys import extra_of, first_typo

_TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
_TopK = Annotated[int, Meta(ge=0, le=MAX_TOP_K)]


class _Given(msgspec.Struct, frozen=True):
    """The known keys of an object as they are given, null like left out."""

    id: str | int | None = None
    prompt: str | None = None
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)] | None = None
    prompt_token_ids: Annotated[tuple[_TokenId, ...], Meta(min_length=1)] | None = None
    question: str | None = None
    state: msgspec.Raw = NULL
    options: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    label: str | int | None = None
    targets: tuple[_TokenId | str, ...] | None = None
    logprobs: _TopK | None = None
    prompt_logprobs: _TopK | None = None


class _OnlyGiven(_Given, frozen=True, forbid_unknown_fields=True):
    """The same of an object that has no other keys."""


class _Id(msgspec.Struct, frozen=True):
    id: str | int | None = None


_ID: Final = msgspec.json.Decoder(_Id)
_GIVEN: Final = msgspec.json.Decoder(_Given)
_ONLY_GIVEN: Final = msgspec.json.Decoder(_OnlyGiven)


def parse_line(data: bytes, line: int) -> Record | BadLine:
    """The record on one line (``data`` without BOM; a line ending may be there)."""
    record = _parsed_at_once(data, line) if is_plain(data) else None
    return record_by_key(data, line) if record is None else record


def line_id(data: bytes, line: int) -> str | int | None:
    """The id that :func:`parse_line` gives this line, at a fraction of its cost."""
    if is_plain(data):
        try:
            id_ = _ID.decode(data).id
        except msgspec.MsgspecError:
            pass  # the other way knows what this is
        else:
            if isinstance(id_, str):
                return id_
            if id_ is None:
                return line
    return id_by_key(data, line)


def _parsed_at_once(data: bytes, line: int) -> Record | None:
    """The record on a plain line, decoded in one go; None where ``record_by_key`` has to look.

    What is accepted here is a record by the other way too, and the same one.
    """
    given, extra = _decoded(data)
    if given is None or not _is_record(given):
        return None
    options, label = given.options, given.label
    if label is None:
        gold_index = None
    elif options is None:
        return None
    elif isinstance(label, str) and options.count(label) == 1:
        gold_index = options.index(label)
    elif isinstance(label, int) and 0 <= label < len(options):
        gold_index = label
    else:
        return None
    return Record(
        line=line,
        id=line if given.id is None else given.id,
        prompt=given.prompt,
        messages=given.messages,
        prompt_token_ids=given.prompt_token_ids,
        question=given.question,
        state=None if given.state == NULL else state_of(given.state),
        options=options,
        label=label,
        gold_index=gold_index,
        targets=given.targets or (),
        logprobs=given.logprobs,
        prompt_logprobs=given.prompt_logprobs,
        extra=extra,
    )


def _decoded(data: bytes) -> tuple[_Given | None, dict[str, msgspec.Raw]]:
    """The known keys, and the others; None where one of them is not as it should be."""
    try:
        return _ONLY_GIVEN.decode(data), {}
    except msgspec.MsgspecError as error:
        if "unknown field" not in str(error):
            return None, {}
    try:
        given = _GIVEN.decode(data)
    except msgspec.MsgspecError:
        return None, {}
    extra = extra_of(object_fields(data))
    return (given if first_typo(extra) is None else None), extra


def _is_record(given: _Given) -> bool:
    """Whether the keys go together, each of which is as it should be; but for the label."""
    prompts = (given.prompt, given.messages, given.prompt_token_ids, given.question)
    if prompts.count(None) != len(prompts) - 1:
        return False
    if isinstance(given.id, int) and not LEAST_ID <= given.id <= LARGEST_ID:
        return False
    if given.question is not None:
        return given.options is not None and MIN_LETTERED <= len(given.options) <= MAX_LETTERED
    if given.messages is not None and any(own.role not in ROLES for own in given.messages):
        return False
    return bool(given.state == NULL)
