"""``scorer check --against``: an earlier file of scores, computed again here and compared.

The manifest beside the rows says with which settings and which numerics key they were made. The
settings are taken from it; a key that differs is a changed environment, told field by field.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from scorer.check.diff import Difference, changed_fields
from scorer.check.row_index import RowIndex, key_of, keys_of
from scorer.errors import InputError, UsageError
from scorer.job.identity import model_identity
from scorer.job.shard import Shard
from scorer.manifest import sha256_of
from scorer.records.record import BadLine, Record
from scorer.records.source import Counts, Source, reading
from scorer.rows import REMEDY

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.progress import Counter
    from scorer.scoring import Scorer

_HERE = ("dtype", "reduction", "tokens_per_forward", "rows_per_forward")
"""Options that the numerics key names; on another device they may not be served."""


class _Input(msgspec.Struct, frozen=True):
    name: str
    sha256: str


class _Settings(msgspec.Struct, frozen=True):
    """Those that a Scorer takes, unset where the rows' version had none; and which records."""

    isolation: str | UnsetType = UNSET
    logprobs: int | UnsetType | None = UNSET
    prompt_logprobs: int | UnsetType | None = UNSET
    system: str | UnsetType | None = UNSET
    question_template: str | UnsetType | None = UNSET
    parse_special: bool | UnsetType = UNSET
    truncate_prompt: bool | UnsetType = UNSET
    labels: str | UnsetType = UNSET
    limit: int | None = None
    shard: str | None = None


class _Numerics(msgspec.Struct, frozen=True):
    """Of the numerics key's fields those that are read here."""

    device: str
    dtype: str
    reduction: str
    tokens_per_forward: int
    rows_per_forward: int


class _Manifest(msgspec.Struct, frozen=True):
    """The parts of a manifest that say how its rows can be had again."""

    numerics_key: str
    numerics: dict[str, Any]
    settings: _Settings
    model: dict[str, Any]
    input: _Input
    rows_sha256: str
    earlier_numerics: list[dict[str, Any]] = []
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Earlier:
    """Rows that were written before, and what their manifest says of them."""

    path: Path
    manifest: _Manifest

    @classmethod
    def read(cls, path: Path) -> Earlier:
        """Read the manifest beside the rows. Raises InputError."""
        beside = _beside(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file; {REMEDY}")
        try:
            manifest = msgspec.json.decode(beside.read_bytes(), type=_Manifest)
            msgspec.convert(manifest.numerics, type=_Numerics)
        except OSError as error:
            raise InputError(
                f"{beside}: can't be read ({error.strerror}); without it nobody knows what the "
                "rows were made with; `scorer diff` compares rows without one"
            ) from error
        except msgspec.MsgspecError as error:
            raise InputError(f"{beside}: not a manifest of scores: {error}") from error
        if sha256_of(manifest.numerics) != manifest.numerics_key:
            raise InputError(
                f"{beside}: numerics_key is not the hash of its numerics: one of them was changed "
                "after the rows were written; `scorer diff` compares rows without a manifest"
            )
        return cls(path, manifest)

    @property
    def manifest_path(self) -> Path:
        """The manifest beside the rows."""
        return _beside(self.path)

    def input_name(self) -> str:
        """Return the input that the rows were made from. Raises UsageError where it is gone."""
        name = self.manifest.input.name
        if not Path(name).is_file():
            raise UsageError(
                f"--against {self.path}: its input {name} is not there; give the input as INPUT"
            )
        return name

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a Scorer's options: those that are given, else those of the rows.

        given: options by name, None for those that the rows' own settings decide. On another
        device than the rows' own, dtype and shape are that device's. Raises UsageError.
        """
        import torch

        from scorer.model import choose_device

        numerics, settings = self.manifest.numerics, self.manifest.settings
        options: dict[str, Any] = {
            name: value
            for name, value in msgspec.structs.asdict(settings).items()
            if name not in ("limit", "shard") and value is not UNSET
        }
        theirs = numerics.get("device")
        at_hand = theirs == "cpu" or torch.cuda.is_available()
        options["device"] = given["device"] or (theirs if at_hand else "auto")
        if theirs == choose_device(options["device"]).type:
            options |= {name: numerics[name] for name in _HERE if name in numerics}
        return options | {name: value for name, value in given.items() if value is not None}

    def changed(self, scorer: Scorer) -> dict[str, Json]:
        """Return the fields of the numerics key that differ here."""
        return changed_fields(self.manifest.numerics, scorer.reader.numerics)

    def notes(self, scorer: Scorer, counts: Counts) -> list[str]:
        """Return what else a reader of the comparison has to know."""
        manifest = self.manifest
        notes = []
        with reading(str(self.path), REMEDY), self.path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest.rows_sha256:
                notes.append("the rows are not the ones their manifest speaks of (their sha256)")
        if not manifest.complete:
            notes.append("the job that wrote the rows did not come to its end")
        if manifest.earlier_numerics:
            notes.append("some rows were made with an earlier numerics key, see their manifest")
        if counts.sha256 != manifest.input.sha256:
            notes.append("the input is not the one that the rows were made from (its sha256)")
        now = model_identity(scorer)
        notes += [
            f"the model's {name} differs: prompts may have changed"
            for name in ("tokenizer_sha256", "template_sha256")
            if now[name] != manifest.model.get(name)
        ]
        return notes

    def span(self, counts: Counts) -> tuple[int, int]:
        """Return which records of the input the rows are of: the first, and one behind the last."""
        limit, shard = self.manifest.settings.limit, self.manifest.settings.shard
        total = counts.records if limit is None else min(counts.records, limit)
        return (0, total) if shard is None else Shard.parse(shard).span(total)


def score_again(
    scorer: Scorer,
    earlier: Earlier,
    source: Source,
    counts: Counts,
    sample: int | None,
    counter: Counter,
    difference: Difference,
) -> None:
    """Score the rows' records again, or a sample of them, and compare.

    sample: so many rows, chosen by their ids and so the same ones in any order of the file.
    Records of the input that the rows lack are only looked for without a sample. Streams, into
    ``difference``, which an interruption leaves with what was compared until then. Raises
    InputError, DeviceError.
    """
    chosen = None if sample is None else frozenset(_sample(earlier.path, sample))
    first, last = earlier.span(counts)
    with RowIndex(earlier.path, wanted=None if chosen is None else chosen.__contains__) as index:

        def asked() -> Iterator[Record | BadLine]:
            for record in source.records(last, start=first):
                if index.may_have(key_of(record.id, record.line)):
                    yield record
                elif chosen is None:
                    difference.only_after.add(record.id)

        for row in scorer.score(asked()):
            before = index.take(key_of(row.id, row.line))
            if before is None:
                difference.only_after.add(row.id)
            else:
                difference.add(before, row)
            counter.advance(errors=0, fill=scorer.reader.counts.fill)
        for row in index.rest():
            difference.only_before.add(row.id)


def _beside(rows: Path) -> Path:
    return Path(f"{rows}.manifest.json")


def _sample(path: Path, count: int) -> list[str]:
    def rank(key: str) -> bytes:
        return hashlib.sha256(key.encode()).digest()

    return heapq.nsmallest(count, (key for key, _ in keys_of(path)), key=rank)
