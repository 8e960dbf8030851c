"""A line key by key: the record on it, or what is wrong with which value, and how to mend it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from scorer.errors import ErrorCode, RowError
from scorer.records.jsonline import cut, object_fields, quoted, shown, value_of
from scorer.records.record import (
    KNOWN_KEYS,
    LARGEST_ID,
    LEAST_ID,
    MAX_LETTERED,
    MAX_TOKEN_ID,
    MAX_TOP_K,
    MIN_LETTERED,
    NULL,
    PROMPT_KEYS,
    ROLES,
    BadLine,
    Message,
    Record,
)
from scorer.records.unknown_keys import extra_of, first_typo


def record_by_key(data: bytes, line: int) -> Record | BadLine:
    """The record on one line, or what is wrong with it, one key after the other."""
    id_: str | int | None = None
    extra: dict[str, msgspec.Raw] = {}
    try:
        fields = _fields(data)
        extra = extra_of(fields)
        id_ = _id(fields, line)
        return _record(fields, line, id_, extra)
    except RowError as error:
        # Tracebacks would keep the line, however long, for as long as the error.
        error.__context__ = None
        return BadLine(line, id_, error.with_traceback(None), extra)


def id_by_key(data: bytes, line: int) -> str | int | None:
    """The id of the record on one line, whatever else is wrong with it; None where none is."""
    try:
        return _id(_fields(data), line)
    except RowError:
        return None


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The object's values by key, without the known keys that are null."""
    fields = object_fields(data)
    return {key: raw for key, raw in fields.items() if raw != NULL or key not in KNOWN_KEYS}


def _value(fields: Mapping[str, msgspec.Raw], key: str) -> object:
    return value_of(fields[key], f"$.{key}")


def _id(fields: Mapping[str, msgspec.Raw], line: int) -> str | int:
    if "id" not in fields:
        return line
    value = _value(fields, "id")
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type("$.id", "string or int", value)
    if not LEAST_ID <= value <= LARGEST_ID:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f"$.id: an int has at most 64 bits, got {shown(value)}; write it as a string",
        )
    return value


def _record(
    fields: Mapping[str, msgspec.Raw], line: int, id_: str | int, extra: dict[str, msgspec.Raw]
) -> Record:
    typo = first_typo(extra)
    if typo is not None:
        raise RowError(
            ErrorCode.UNKNOWN_KEY,
            f"unknown key {quoted(typo[0])} is one edit away from {quoted(typo[1])}; "
            "correct it, or rename it to carry it along",
        )
    given = [key for key in PROMPT_KEYS if key in fields]
    if not given:
        raise RowError(
            ErrorCode.NO_PROMPT,
            f"a record has one of {', '.join(PROMPT_KEYS)}, got {_keys(fields)}; add one",
        )
    if len(given) > 1:
        raise RowError(
            ErrorCode.CONFLICTING_PROMPTS,
            f"a record has exactly one of {', '.join(PROMPT_KEYS)}, got {' and '.join(given)}; "
            "keep one, or make two records",
        )
    options = _options(fields, lettered="question" in fields)
    label, gold_index = _gold(fields, options)
    return Record(
        line=line,
        id=id_,
        prompt=_text(fields, "prompt"),
        messages=_messages(fields),
        prompt_token_ids=_prompt_token_ids(fields),
        question=_text(fields, "question"),
        state=_state(fields),
        options=options,
        label=label,
        gold_index=gold_index,
        targets=_targets(fields),
        logprobs=_top_k(fields, "logprobs"),
        prompt_logprobs=_top_k(fields, "prompt_logprobs"),
        extra=extra,
    )


def _text(fields: Mapping[str, msgspec.Raw], key: str) -> str | None:
    return _string(_value(fields, key), f"$.{key}") if key in fields else None


def _messages(fields: Mapping[str, msgspec.Raw]) -> tuple[Message, ...] | None:
    if "messages" not in fields:
        return None
    values = _list(_value(fields, "messages"), "$.messages")
    if not values:
        raise RowError(
            ErrorCode.EMPTY_PROMPT, "$.messages: at least one message is needed, got []; add one"
        )
    return tuple(_message(value, f"$.messages[{i}]") for i, value in enumerate(values))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise _wrong_type(where, "object", value)
    if value.keys() != {"role", "content"}:
        raise RowError(
            ErrorCode.UNKNOWN_KEY
            if value.keys() - {"role", "content"}
            else ErrorCode.INVALID_VALUE,
            f"{where}: a message has role and content and nothing else, got "
            f"{_keys(value)}; write these two",
        )
    role = _string(value["role"], f"{where}.role")
    if role not in ROLES:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f"{where}.role: expected {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {quoted(role)}; "
            "put the text in one of these turns",
        )
    return Message(role, _string(value["content"], f"{where}.content"))


def _prompt_token_ids(fields: Mapping[str, msgspec.Raw]) -> tuple[int, ...] | None:
    if "prompt_token_ids" not in fields:
        return None
    where = "$.prompt_token_ids"
    values = _list(_value(fields, "prompt_token_ids"), where)
    if not values:
        raise RowError(
            ErrorCode.EMPTY_PROMPT, f"{where}: at least one token id is needed, got []; add one"
        )
    return tuple(_token_id(value, where, i) for i, value in enumerate(values))


def _state(fields: Mapping[str, msgspec.Raw]) -> str | msgspec.Raw | None:
    if "state" not in fields:
        return None
    if "question" not in fields:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            "$.state: state belongs to a question, got none; "
            "add question and options, or rename the key to carry it along",
        )
    return state_of(fields["state"])


def state_of(raw: msgspec.Raw) -> str | msgspec.Raw:
    """A state as a record has it: a string's text, the raw JSON of any other value."""
    if memoryview(raw)[0] == ord('"'):
        return _string(value_of(raw, "$.state"), "$.state")
    return raw.copy()


def _options(fields: Mapping[str, msgspec.Raw], *, lettered: bool) -> tuple[str, ...] | None:
    if "options" not in fields:
        if lettered:
            raise RowError(
                ErrorCode.INVALID_VALUE,
                f"$.options: a question needs {MIN_LETTERED} to {MAX_LETTERED} options, got none; "
                "add them, or use prompt",
            )
        return None
    values = _list(_value(fields, "options"), "$.options")
    options = tuple(_string(value, f"$.options[{i}]") for i, value in enumerate(values))
    if lettered and len(options) > MAX_LETTERED:
        raise RowError(
            ErrorCode.TOO_MANY_OPTIONS,
            f"$.options: a question has at most {MAX_LETTERED} options (A to Z), "
            f"got {len(options)}; split the question, or use prompt",
        )
    least = MIN_LETTERED if lettered else 1
    if len(options) < least:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f"$.options: a {'question' if lettered else 'prompt'} needs at least {least} "
            f"option{'s' if least > 1 else ''}, got {len(options)}; add options"
            + ("" if lettered else ", or leave the key out"),
        )
    return options


def _gold(
    fields: Mapping[str, msgspec.Raw], options: tuple[str, ...] | None
) -> tuple[str | int | None, int | None]:
    """``label`` as given, and the index of the option it names."""
    if "label" not in fields:
        return None, None
    label = _value(fields, "label")
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise _wrong_type("$.label", "string or int", label)
    if options is None:
        raise RowError(
            ErrorCode.UNKNOWN_LABEL,
            f"$.label: label names one of the options, got {shown(label)} without options; "
            "add options, or rename the key to carry it along",
        )
    if isinstance(label, int):
        if not 0 <= label < len(options):
            raise RowError(
                ErrorCode.UNKNOWN_LABEL,
                f"$.label: an int label is an option's index, 0 to {len(options) - 1}, "
                f"got {shown(label)}; correct it, or give the option's text",
            )
        return label, label
    matches = [index for index, option in enumerate(options) if option == label]
    if len(matches) > 1:
        raise RowError(
            ErrorCode.EQUAL_OPTIONS,
            f"$.label: {quoted(label)} is the text of options {matches[0]} and {matches[1]}; "
            "make the options differ",
        )
    if not matches:
        alike = [i for i, own in enumerate(options) if _compatible(own) == _compatible(label)]
        if alike:
            raise RowError(
                ErrorCode.UNKNOWN_LABEL,
                f"$.label: a string label is an option's exact text, got {cut(ascii(label))}, "
                f"which only looks like option {alike[0]}, {cut(ascii(options[alike[0]]))}; write "
                "both with the same characters, or give the index from 0",
            )
        raise RowError(
            ErrorCode.UNKNOWN_LABEL,
            f"$.label: a string label is an option's exact text, got {quoted(label)}, options are "
            f"{cut(', '.join(map(quoted, options)))}; correct it, or give the index from 0",
        )
    return label, matches[0]


def _compatible(text: str) -> str:
    """One spelling for texts that look alike: composed or not, of full width or of half."""
    return unicodedata.normalize("NFKC", text)


def _targets(fields: Mapping[str, msgspec.Raw]) -> tuple[int | str, ...]:
    if "targets" not in fields:
        return ()
    values = _list(_value(fields, "targets"), "$.targets")
    return tuple(
        value if isinstance(value, str) else _token_id(value, "$.targets", i, "string or int")
        for i, value in enumerate(values)
    )


def _top_k(fields: Mapping[str, msgspec.Raw], key: str) -> int | None:
    if key not in fields:
        return None
    value = _value(fields, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(f"$.{key}", "int", value)
    if not 0 <= value <= MAX_TOP_K:
        why = " (the whole vocabulary is not given)" if value == -1 else ""
        raise RowError(
            ErrorCode.LOGPROBS_LIMIT,
            f"$.{key}: expected 0 (the chosen token only) to {MAX_TOP_K}, "
            f"got {shown(value)}{why}; ask for fewer, or name tokens in targets",
        )
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(where, "string", value)
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong_type(where, "list", value)
    return value


def _token_id(value: object, where: str, index: int, expected: str = "int") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(f"{where}[{index}]", expected, value)
    if not 0 <= value <= MAX_TOKEN_ID:
        raise RowError(
            ErrorCode.TOKEN_OUT_OF_RANGE,
            f"{where}[{index}]: a token id is 0 or more and below the vocabulary's size, "
            f"got {shown(value)}; correct it",
        )
    return value


_REMEDIES: Final = {
    "string": "write one string, in double quotes",
    "int": "write a whole number without quotes or decimal point",
    "string or int": "write a string, or a whole number without decimal point",
    "list": "write it in [brackets]",
    "object": 'write {"role": …, "content": …}',
}


def _wrong_type(where: str, expected: str, value: object) -> RowError:
    return RowError(
        ErrorCode.WRONG_TYPE,
        f"{where}: expected {expected}, got {shown(value)}; {_REMEDIES[expected]}",
    )


def _keys(keys: Iterable[str]) -> str:
    return cut(", ".join(map(quoted, islice(keys, 8)))) or "no keys"
