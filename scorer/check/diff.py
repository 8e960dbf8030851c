"""``scorer diff A B``: two files of rows, compared bit by bit and record by record, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from scorer.check.row_index import RowIndex, key_of
from scorer.check.row_values import Verdict, compare_rows
from scorer.check.tally import Tally
from scorer.errors import InputError
from scorer.records.source import reading
from scorer.rows import REMEDY, Score, decode_scores

if TYPE_CHECKING:
    from scorer.manifest import Json

IDS_KEPT = 20
"""Rows of each kind that are named; the others are only counted."""


@dataclass(slots=True)
class Named:
    """How many rows, and the ids of the first of them."""

    count: int = 0
    ids: list[str | int | None] = field(default_factory=list)

    def add(self, id_: str | int | None) -> None:
        """Count one record."""
        self.count += 1
        if len(self.ids) < IDS_KEPT:
            self.ids.append(id_)


@dataclass(slots=True)
class Difference:
    """What comparing two sets of rows, earlier and later ones, came to.

    compared: records that both have, with one prompt. failed: of those, the ones that failed in
    both for one reason, where no value can be compared. moved: of those, the ones with a value
    whose bits differ; answers: the ones whose answer changed. prompts: records whose prompt's
    token ids differ, which are not compared. errors: records that failed in one only, or with
    another code. only_before, only_after: records that only one of them has.
    """

    tally: Tally = field(default_factory=Tally)
    compared: int = 0
    failed: int = 0
    moved: Named = field(default_factory=Named)
    answers: Named = field(default_factory=Named)
    prompts: Named = field(default_factory=Named)
    errors: Named = field(default_factory=Named)
    only_before: Named = field(default_factory=Named)
    only_after: Named = field(default_factory=Named)

    @property
    def equal(self) -> bool:
        """Whether there was something to compare and nothing differs in any way."""
        return self.tally.equal and not self._differs

    @property
    def _differs(self) -> bool:
        kinds = (self.moved, self.prompts, self.errors, self.only_before, self.only_after)
        return self.tally.mismatches > 0 or any(kind.count for kind in kinds)

    @property
    def verdict(self) -> str:
        """What it came to, in words."""
        if self.equal:
            return "the same bits"
        return "NOT the same" if self._differs else "nothing proven: no value was compared"

    def add(self, before: Score, after: Score) -> None:
        """Compare the two rows of one record."""
        errors = [row.error for row in (before, after) if row.error is not UNSET]
        if len(errors) == 2 and errors[0].code == errors[1].code:
            self.compared += 1
            self.failed += 1
            return
        verdict = compare_rows(self.tally, before, after)
        if verdict is Verdict.prompt:
            self.prompts.add(after.id)
            return
        self.compared += 1
        if verdict is Verdict.moved:
            self.moved.add(after.id)
            if before.answer != after.answer:
                self.answers.add(after.id)
        elif verdict is Verdict.error:
            self.errors.add(after.id)

    def fields(self) -> dict[str, Json]:
        """Return the figures for a report."""
        kinds = ("moved", "answers", "prompts", "errors", "only_before", "only_after")
        return {
            "equal": self.equal,
            "rows_compared": self.compared,
            "rows_failed_in_both": self.failed,
            **tally_fields(self.tally),
            "rows": {name: _named(getattr(self, name)) for name in kinds},
        }

    def table(self) -> list[tuple[str, str]]:
        """Return what a person reads."""
        tally = self.tally
        rows = [
            ("rows compared", f"{self.compared:,}"),
            ("values compared", f"{tally.comparisons:,} bit by bit, {tally.mismatches:,} differ"),
        ]
        if self.failed:
            rows.append(("failed in both", f"{self.failed:,} rows, for the same reason each"))
        if tally.mismatches:
            rows.append(("largest difference", f"{tally.largest:.3g} nats"))
        for text, named in (
            ("values differ", self.moved),
            ("answer differs", self.answers),
            ("prompt changed", self.prompts),
            ("error differs", self.errors),
            ("only in the first", self.only_before),
            ("only in the second", self.only_after),
        ):
            if named.count:
                rows.append((text, f"{named.count:,} rows: {_ids(named)}"))
        rows += [("for example", example) for example in tally.examples]
        return rows


def diff(before: Path, after: Path) -> Difference:
    """Compare two files of rows by id, in any order. Raises InputError.

    The second is read once to find its rows (21 bytes of memory each), then both are streamed.
    """
    for path in (before, after):
        if path.suffix in (".gz", ".zst"):
            raise InputError(f"{path}: rows are read as they are written; decompress it first")
        with reading(str(path), REMEDY):
            apart = path.exists() and not path.is_file()
        if apart and (path is after or path.is_dir()):
            raise InputError(f"{path}: is no file, and the second one is read twice; name a file")
    difference = Difference()
    with RowIndex(after) as index:
        for row in decode_scores(before):
            other = index.take(key_of(row.id, row.line))
            if other is None:
                difference.only_before.add(row.id)
            else:
                difference.add(row, other)
        for row in index.rest():
            difference.only_after.add(row.id)
    return difference


def changed_fields(
    before: Mapping[str, Json], after: Mapping[str, Json], inside: str = ""
) -> dict[str, Json]:
    """Return the fields of two numerics keys that differ, each with both its values.

    One that is null and one that is not there differ, too: they make two keys.
    """
    changed: dict[str, Json] = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed |= changed_fields(old, new, f"{inside}{name}.")
        elif old != new or (name in before) != (name in after):
            changed[f"{inside}{name}"] = {"before": old, "after": new}
    return changed


def tally_fields(tally: Tally) -> dict[str, Json]:
    """Return a tally's figures for a report; an infinite difference, which JSON lacks, is null."""
    finite = tally.largest < float("inf")
    return {
        "comparisons": tally.comparisons,
        "mismatches": tally.mismatches,
        "largest_nats": tally.largest if finite else None,
        "examples": list(tally.examples),
    }


def _named(named: Named) -> Json:
    return {"count": named.count, "ids": list(named.ids)}


def _ids(named: Named) -> str:
    shown = ", ".join(map(repr, named.ids))
    return shown if named.count <= len(named.ids) else f"{shown}, …"
