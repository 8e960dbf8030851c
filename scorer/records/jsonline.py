"""One line of strict JSON: the values of its object, or the error that explains why not.

Stricter than the decoder beneath it, which skips over values without looking at their text:
UTF-8 throughout, no half surrogate pair anywhere, a fixed depth.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from scorer.errors import ErrorCode, RowError

# Fixed, so that what is accepted does not depend on how much of the call stack is in use.
MAX_DEPTH: Final = 128

# As ints: of one byte Python looks for the byte, of bytes for a substring, which takes longer.
_BACKSLASH: Final = ord("\\")
_OPENING: Final = (ord("["), ord("{"))
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT_BYTE: Final = re.compile(r"(.*) \(byte (\d+)\)$")
# A string to its end (or the line's), or one bracket.
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|[][{}]', re.DOTALL)
_DEEPER: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_MAYBE_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# One escape after the other, so that the `\\` of `\\ud800` is not taken for half an escape.
_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_TYPE_NAMES: Final = {
    "NoneType": "null",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "string",
    "list": "list",
    "array": "list",
    "dict": "object",
}


def object_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The values of the object in ``data`` by key, as raw JSON; of a key given twice the last.

    Raises :class:`RowError` (``invalid_utf8``, ``lone_surrogate``, ``invalid_json``,
    ``not_an_object``).
    """
    check_text(data)
    try:
        return _OBJECT.decode(data)
    except msgspec.ValidationError as error:
        got = str(error).rpartition("got ")[2].strip("`")
        raise RowError(
            ErrorCode.NOT_AN_OBJECT,
            f"a record is one JSON object, got {_TYPE_NAMES.get(got, got)}; "
            'write {"prompt": …} on one line',
        ) from None
    except msgspec.DecodeError as error:
        raise _broken_json(data, str(error)) from None


def check_text(data: bytes, max_depth: int = MAX_DEPTH) -> None:
    """What the decoder leaves out where it skips over values.

    Raises :class:`RowError` (``invalid_utf8``, ``lone_surrogate``, ``invalid_json``).
    """
    _check_utf8(data)
    _check_depth(data, max_depth)
    _check_surrogates(data)


def is_plain(data: bytes) -> bool:
    """Whether ``check_text`` finds nothing in ``data``, where that can be told at a glance."""
    return (
        (_BACKSLASH not in data or b"\\u" not in data or _MAYBE_SURROGATE.search(data) is None)
        and (
            len(data) <= MAX_DEPTH or data.count(_OPENING[0]) + data.count(_OPENING[1]) <= MAX_DEPTH
        )
        and (data.isascii() or _is_utf8(data))
    )


def value_of(raw: msgspec.Raw, where: str) -> object:
    """The value of ``raw``; ints stay exact, whatever their size.

    Raises :class:`RowError` (``invalid_value``) for a number out of range: 1e999, or an int
    of thousands of digits.
    """
    try:
        value: object = msgspec.json.decode(raw)
    except msgspec.ValidationError as error:
        rule, _, below = str(error).partition(" - at `$")
        raise RowError(
            ErrorCode.INVALID_VALUE,
            f"{where}{below.rstrip('`')}: {rule.lower()}; write a smaller number",
        ) from None
    return value


def shown(value: object) -> str:
    """Type and value, short and on one line, for a message."""
    name = _TYPE_NAMES[type(value).__name__]
    if isinstance(value, str):
        return f"{name} {quoted(value)}"
    if isinstance(value, bool):
        return f"{name} {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} {cut(str(value))}"
    return name


def quoted(text: str) -> str:
    """``text`` as a JSON string, cut short, with what a terminal would obey or hide escaped."""
    encoded = msgspec.json.encode(cut(text)).decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in encoded)


def cut(text: str, width: int = 80) -> str:
    """``text`` in at most ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _check_utf8(data: bytes) -> None:
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            ErrorCode.INVALID_UTF8,
            f"a line is UTF-8, got 0x{data[error.start]:02x} at byte {error.start} "
            f"({error.reason}); save the file as UTF-8",
        ) from None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_depth(data: bytes, max_depth: int) -> None:
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    depth = 0
    for token in _BRACKETS.finditer(data):
        depth += _DEEPER.get(token[0], 0)
        if depth > max_depth:
            raise RowError(
                ErrorCode.INVALID_JSON,
                f"values nest at most {max_depth} deep, got more at byte {token.start()}; "
                "flatten the value, or write it as a string",
            )


def _check_surrogates(data: bytes) -> None:
    if _MAYBE_SURROGATE.search(data) is None:
        return
    for escape in _ESCAPES.finditer(data):
        if escape[1]:
            raise RowError(
                ErrorCode.LONE_SURROGATE,
                f"text is Unicode, got half of a surrogate pair, {escape[1].decode()}, at byte "
                f"{escape.start()}; write the whole pair or leave it out",
            )


def _broken_json(data: bytes, reason: str) -> RowError:
    match = _AT_BYTE.match(reason)
    if match is None:
        text = "the line ends in the middle of a value; write one whole object on one line"
        return RowError(ErrorCode.INVALID_JSON, f"not valid JSON: {text}")
    what = match[1].removeprefix("JSON is malformed: ")
    at = int(match[2])
    near = quoted(data[max(0, at - 16) : at + 16].decode("utf-8", "replace"))
    remedy = "write one JSON object a line"
    if data[at:].startswith((b"NaN", b"Infinity")):
        remedy = "JSON has no NaN and no Infinity: write null, or leave the key out"
    return RowError(
        ErrorCode.INVALID_JSON, f"not valid JSON: {what} at byte {at}, near {near}; {remedy}"
    )
