"""What a row says, value by value, so that two rows of one record can be compared.

A value's name is the path to it in the row. An option and a token are known in it by their token
ids, not by their place in a list: with other options or more entries asked for, the ones that both
rows hold are still found. Which ones there are, in which order, is a value too, the list's.

Every field of a row is a value, a new one too, but for what is no result:

- ``id`` and ``line``, which say what record the row is of: rows are compared that belong together;
- ``gold_index`` and ``extra``, which repeat the input (``correct`` is compared);
- ``warnings`` and the ``message`` of an error, which are prose (the error's ``code`` is compared).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from scorer.check.tally import Tally
from scorer.rows import Score

if TYPE_CHECKING:
    from scorer.compare.rows import CompareRow

Key = int | tuple[int, ...]
Name = tuple[str | Key, ...]
Values = Mapping[Name, object]

NO_RESULTS: Final = frozenset({"id", "line", "gold_index", "extra", "warnings", "message"})
"""Fields of rows that are not compared; why, says the module."""

NATS: Final = frozenset(
    {"logprob", "logprob_per_token", "logprob_per_byte", "margin", "logprobs", "repeat"}
)
"""Fields whose values are in nats."""

_KEYS: Final = ("token_ids", "token_id", "order")
"""Fields that say which one an item of a list is."""


class Verdict(StrEnum):
    """What came of comparing the rows of one record."""

    equal = "equal"
    moved = "moved"
    prompt = "prompt changed"
    error = "error changed"


def values_of(row: Score | CompareRow) -> dict[Name, object]:
    """Return the values of a row by name."""
    values: dict[Name, object] = {}
    _add_fields(values, (), row)
    return values


def _add_fields(values: dict[Name, object], where: Name, struct: msgspec.Struct) -> None:
    for field in struct.__struct_fields__:
        value = getattr(struct, field)
        if value is not UNSET and field not in NO_RESULTS:
            _add(values, (*where, field), value)


def _add(values: dict[Name, object], name: Name, value: object) -> None:
    if isinstance(value, msgspec.Struct):
        _add_fields(values, name, value)
    elif isinstance(value, tuple) and not all(isinstance(item, int | str) for item in value):
        keys = _keys(value)
        values[name] = len(value) if keys is None else keys
        for key, item in zip(keys or range(len(value)), value, strict=True):
            _add(values, (*name, key), item)
    else:  # token ids, bytes, labels: one value together
        values[name] = value


def _keys(items: Sequence[object]) -> tuple[Key, ...] | None:
    """Return what tells the items of a list apart, None where nothing in them does."""
    for field in _KEYS:
        keys = [getattr(item, field, None) for item in items]
        known = tuple([key for key in keys if key is not None])
        if len(set(known)) == len(items):
            return known
    return None


def spelled(name: Name) -> str:
    """Return a value's name in words."""
    return " ".join(
        "+".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in name
    )


def _where(where: str, name: Name) -> str:
    return f"{where}, {spelled(name)}"


def compare_values(tally: Tally, expected: Values, got: Values, where: str) -> None:
    """Compare what both hold by its bits; what only one holds is a difference."""
    compare_shared(tally, expected, got, where)
    for mine, theirs, side in ((expected, got, "before"), (got, expected, "after")):
        for name in mine:
            if name not in theirs:
                tally.differs(f"{_where(where, name)}: only {side}")


def compare_shared(tally: Tally, expected: Values, got: Values, where: str) -> None:
    """Compare what both hold by its bits, and nothing else."""
    for name, value in expected.items():
        if name in got:
            in_nats = isinstance(value, float) and not NATS.isdisjoint(name)
            tally.value(value, got[name], partial(_where, where, name), nats=in_nats)


def compare_rows(tally: Tally, expected: Score, got: Score) -> Verdict:
    """Compare two rows of one record; rows of two prompts are told apart and not compared."""
    if expected.prompt_sha256 != got.prompt_sha256 and UNSET not in (
        expected.prompt_sha256,
        got.prompt_sha256,
    ):
        return Verdict.prompt
    where = f"id {expected.id!r}"
    if (expected.error is UNSET) != (got.error is UNSET):
        after = "scored" if got.error is UNSET else f"error {got.error.code}"
        before = "scored" if expected.error is UNSET else f"error {expected.error.code}"
        tally.differs(f"{where}: {before} → {after}")
        return Verdict.error
    before_count = tally.mismatches
    compare_values(tally, values_of(expected), values_of(got), where)
    if tally.mismatches == before_count:
        return Verdict.equal
    return Verdict.moved if expected.error is UNSET else Verdict.error
