"""One line of input: a :class:`Record`, or a :class:`BadLine` that says why it is none.

A line is one JSON object in UTF-8. The rules, beyond those the keys state themselves:

- ``null`` for a known key is the same as leaving the key out.
- A key given twice in one object: the last one counts.
- A whole number is written as one: ``1.0``, ``true`` and ``"1"`` are not ints.
- ``label`` (the gold answer) as a string is an option's exact text, as an int always its
  index from 0. So with the options ``["1", "0"]``, ``"0"`` is the second and ``0`` the first.
- Unknown keys are carried along, value bytes unchanged. One edit away from a known name of
  five letters or more, a key is taken for a typo and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from scorer.errors import ErrorCode, RowError
from scorer.jsonline import cut, is_plain, object_fields, quoted, shown, value_of

# Of whole-vocabulary requests nothing good comes: an entry is about 100 bytes of JSON, so this
# many are 2 MB for every position read. It stays below every Qwen3 vocabulary (151,669 ids).
MAX_TOP_K: Final = 20_000
MIN_LETTERED: Final = 2
MAX_LETTERED: Final = 26
MAX_TOKEN_ID: Final = 2**31 - 1

ROLES: Final = ("system", "user", "assistant")
PROMPT_KEYS: Final = ("prompt", "messages", "prompt_token_ids", "question")
KNOWN_KEYS: Final = (
    "id",
    *PROMPT_KEYS,
    "state",
    "options",
    "label",
    "targets",
    "logprobs",
    "prompt_logprobs",
)

_LEAST_ID: Final = -(2**63)
_LARGEST_ID: Final = 2**64 - 1
_LONGEST_TYPO: Final = max(map(len, KNOWN_KEYS)) + 1
_NULL: Final = msgspec.Raw(b"null")

_TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
_TopK = Annotated[int, Meta(ge=0, le=MAX_TOP_K)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat; ``role`` is one of :data:`ROLES`."""

    role: str
    content: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. Exactly one of the four :data:`PROMPT_KEYS` is not None.

    ``line`` is the physical line, from 1. ``state`` is a string as given, or the raw JSON of
    any other value. ``gold_index`` is the option that ``label`` names. ``logprobs`` and
    ``prompt_logprobs``: None = none, 0 = the chosen token only, k = and k alternatives.
    """

    line: int
    id: str | int
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    question: str | None = None
    state: str | msgspec.Raw | None = None
    options: tuple[str, ...] | None = None
    label: str | int | None = None
    gold_index: int | None = None
    targets: tuple[int | str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    extra: dict[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record. ``id`` is None where none could be made out."""

    line: int
    id: str | int | None
    error: RowError
    extra: Mapping[str, msgspec.Raw] = field(default_factory=dict)


class _Given(msgspec.Struct, frozen=True):
    """The known keys of an object as they are given, null like left out."""

    id: str | int | None = None
    prompt: str | None = None
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)] | None = None
    prompt_token_ids: Annotated[tuple[_TokenId, ...], Meta(min_length=1)] | None = None
    question: str | None = None
    state: msgspec.Raw = _NULL
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
    return _parsed_by_key(data, line) if record is None else record


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
    try:
        return _id(_fields(data), line)
    except RowError:
        return None


def _parsed_at_once(data: bytes, line: int) -> Record | None:
    """The record on a plain line, decoded in one go; None where ``_parsed_by_key`` has to look.

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
        state=None if given.state == _NULL else _state_of(given.state),
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
    extra = _extra(object_fields(data))
    typo = any(len(key) <= _LONGEST_TYPO and _meant(key) for key in extra)
    return (None if typo else given), extra


def _is_record(given: _Given) -> bool:
    """Whether the keys go together, each of which is as it should be; but for the label."""
    prompts = (given.prompt, given.messages, given.prompt_token_ids, given.question)
    if prompts.count(None) != len(prompts) - 1:
        return False
    if isinstance(given.id, int) and not _LEAST_ID <= given.id <= _LARGEST_ID:
        return False
    if given.question is not None:
        return given.options is not None and MIN_LETTERED <= len(given.options) <= MAX_LETTERED
    if given.messages is not None and any(own.role not in ROLES for own in given.messages):
        return False
    return bool(given.state == _NULL)


def _parsed_by_key(data: bytes, line: int) -> Record | BadLine:
    """The record on one line, or what is wrong with it, one key after the other."""
    id_: str | int | None = None
    extra: dict[str, msgspec.Raw] = {}
    try:
        fields = _fields(data)
        extra = _extra(fields)
        id_ = _id(fields, line)
        return _record(fields, line, id_, extra)
    except RowError as error:
        # Tracebacks would keep the line, however long, for as long as the error.
        error.__context__ = None
        return BadLine(line, id_, error.with_traceback(None), extra)


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The object's values by key, without the known keys that are null."""
    fields = object_fields(data)
    return {key: raw for key, raw in fields.items() if raw != _NULL or key not in KNOWN_KEYS}


def _extra(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {key: _carried(raw) for key, raw in fields.items() if key not in KNOWN_KEYS}


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
    if not _LEAST_ID <= value <= _LARGEST_ID:
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f"$.id: an int has at most 64 bits, got {shown(value)}; write it as a string",
        )
    return value


def _record(
    fields: Mapping[str, msgspec.Raw], line: int, id_: str | int, extra: dict[str, msgspec.Raw]
) -> Record:
    for key in extra:
        known = _meant(key) if len(key) <= _LONGEST_TYPO else None
        if known is not None:
            raise RowError(
                ErrorCode.UNKNOWN_KEY,
                f"unknown key {quoted(key)} is one edit away from {quoted(known)}; "
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
    return _state_of(fields["state"])


def _state_of(raw: msgspec.Raw) -> str | msgspec.Raw:
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
        raise RowError(
            ErrorCode.UNKNOWN_LABEL,
            f"$.label: a string label is an option's exact text, got {quoted(label)}, options are "
            f"{cut(', '.join(map(quoted, options)))}; correct it, or give the index from 0",
        )
    return label, matches[0]


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


def _carried(raw: msgspec.Raw) -> msgspec.Raw:
    """An unknown key's value as its bytes are; a carriage return between its tokens is a space.

    Readers of text take a lone one for the end of a line, and a row is one line for everybody.
    """
    value = bytes(raw)
    return msgspec.Raw(value.replace(b"\r", b" ") if b"\r" in value else value)


@lru_cache(maxsize=1024)
def _meant(key: str) -> str | None:
    """The known name of five letters or more that ``key`` is one edit away from."""
    for known in KNOWN_KEYS:
        if len(known) >= 5 and _one_edit_apart(key, known):
            return known
    return None


def _one_edit_apart(a: str, b: str) -> bool:
    """One letter added, dropped or replaced, or two neighbours swapped."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return max(len(a), len(b)) <= 1 or (len(a) == 2 and a == b[::-1])
