"""Keys that no record has: carried along as they are, or taken for typos of the known ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from scorer.records.record import KNOWN_KEYS

_LONGEST_TYPO: Final = max(map(len, KNOWN_KEYS)) + 1


def extra_of(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The values of the unknown keys among an object's, to be carried along."""
    return {key: _carried(raw) for key, raw in fields.items() if key not in KNOWN_KEYS}


def first_typo(keys: Iterable[str]) -> tuple[str, str] | None:
    """The first of ``keys`` that is one edit away from a known name, and that name."""
    for key in keys:
        if len(key) <= _LONGEST_TYPO and (known := _meant(key)):
            return key, known
    return None


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
