"""What a row says, value by value, so that two rows of one record can be compared.

A value's name holds the token ids it is of, never its place in a list: with other options or more
entries asked for, the ones that both rows hold are still found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import UNSET

from scorer.check.tally import Tally
from scorer.rows import OptionScore, Score, TokenScore

Name = tuple[str | int | tuple[int, ...], ...]
Values = Mapping[Name, object]

NATS = frozenset({"logprob", "logprob_per_token", "logprob_per_byte", "margin"})
"""Last parts of the names of values in nats."""

_OPTION = ("logprob", "probability", "logprob_per_token", "logprob_per_byte", "rank", "is_greedy")
_ROW = ("answer", "answer_per_token", "answer_per_byte", "label_mass", "margin")


class Verdict(StrEnum):
    """What came of comparing the rows of one record."""

    equal = "equal"
    moved = "moved"
    prompt = "prompt changed"
    error = "error changed"


def values_of(row: Score) -> dict[Name, object]:
    """Return the values of a row by name; of a failed one its error code.

    What merely repeats the input (``line``, ``extra``, gold) or is prose (``warnings``) is not
    among them.
    """
    if row.error is not UNSET:
        return {("error",): row.error.code}
    return dict(_values(row))


def _values(row: Score) -> Iterator[tuple[Name, object]]:
    for name in _ROW:
        if (value := getattr(row, name)) is not UNSET:
            yield (name,), value
    for option in row.options or ():
        yield from _option(option)
    for target in row.targets or ():
        yield from _token(("target",), target)
    if row.logprobs is not UNSET:
        yield ("chosen",), row.logprobs.chosen.token_id
        for entry in (row.logprobs.chosen, *row.logprobs.top):
            yield from _token(("next",), entry)
    for position, place in enumerate(row.prompt_logprobs or ()):
        if place is not None:
            yield ("chosen at", position), place.chosen.token_id
            for entry in (place.token, place.chosen, *place.top):
                yield from _token(("at", position), entry)


def _option(option: OptionScore) -> Iterator[tuple[Name, object]]:
    for name in _OPTION:
        if (value := getattr(option, name)) is not UNSET:
            yield ("option", option.token_ids, name), value


def _token(where: Name, token: TokenScore) -> Iterator[tuple[Name, object]]:
    yield (*where, token.token_id, "logprob"), token.logprob
    yield (*where, token.token_id, "rank"), token.rank


def spelled(name: Name) -> str:
    """Return a value's name in words."""
    return " ".join(
        "+".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in name
    )


def compare_values(tally: Tally, expected: Values, got: Values, where: str) -> None:
    """Compare what both hold by its bits; what only one holds is a difference."""
    compare_shared(tally, expected, got, where)
    for mine, theirs, side in ((expected, got, "before"), (got, expected, "after")):
        for name in mine.keys() - theirs.keys():
            tally.differs(f"{where}, {spelled(name)}: only {side}")


def compare_shared(tally: Tally, expected: Values, got: Values, where: str) -> None:
    """Compare what both hold by its bits, and nothing else."""
    for name, value in expected.items():
        if name in got:
            in_nats = name[-1] in NATS
            tally.value(value, got[name], f"{where}, {spelled(name)}", nats=in_nats)


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
