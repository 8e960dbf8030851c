"""What an interrupted job left, whether it may go on, and where.

The manifest stands beside the rows from the first row on and is replaced at checkpoints, each
time after the rows that it speaks of are on disk. So after a crash the file holds the rows of the
manifest, then perhaps more whole rows, then perhaps part of one. The part is cut off, whole rows
are kept.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from scorer.errors import RowError, UsageError
from scorer.job.output import RowFile
from scorer.manifest import Json
from scorer.records.lines import End
from scorer.records.source import Counts, Source
from scorer.rows import RowDigest

TAIL: Final = 64
"""Rows that are scored again before another driver's rows follow them."""

_START_OVER: Final = "--force-new starts over"


class InputDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an input and their hash."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a manifest that a job needs to go on.

    scored_input: the lines of the rows that are written. earlier_numerics: what the first rows
    were computed with, where that was something else. counts: at the last checkpoint.
    """

    scorer: str
    numerics_key: str
    numerics: dict[str, Any]
    model: dict[str, Any]
    settings: dict[str, Any]
    input: InputDigest
    scored_input: InputDigest
    earlier_numerics: list[dict[str, Any]]
    complete: bool
    rows: int
    rows_sha256: str
    counts: dict[str, Any]
    timings: dict[str, Any]


@dataclass(slots=True)
class Kept:
    """The rows that stay: the manifest beside them, also as it is written, their bytes, where
    the last one's record ends, their digest, and the last few.
    """

    manifest: Manifest | None = None
    whole: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    end: End | None = None
    digest: RowDigest = field(default_factory=RowDigest)
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=TAIL))

    @property
    def rows(self) -> int:
        """How many rows stay."""
        return self.digest.rows


def read_manifest(path: Path, output: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest at ``path``, and all of it as it is written.

    Raises UsageError where there is none, or none that a job can go on with.
    """
    try:
        whole = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(whole, Manifest), whole
    except FileNotFoundError:
        raise UsageError(
            f"{output}: can't be resumed: there is no manifest {path} that says what wrote it; "
            f"restore it, or {_START_OVER}"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path}: not a manifest that a job can go on with: {error}; {_START_OVER}"
        ) from error


def check_same(old: Manifest, new: dict[str, Json], counts: Counts, source: Source) -> int | None:
    """Whether rows of ``old`` may be followed by rows of ``new`` as far as no model is needed.

    Returns how many rows may stay, None for all. Another limit is no difference, nor is what shares
    its prefix: no bit depends on it. The input may
    differ after the lines of the rows that are written (it has grown, or a line that stopped the
    job was mended), unless this is a shard, whose place depends on the whole input.

    Raises UsageError that names what differs.
    """
    now = msgspec.convert(
        {key: new[key] for key in ("scorer", "model", "settings")}, type=dict[str, Any]
    )
    before: dict[str, Any] = {
        "scorer": old.scorer,
        "model": old.model,
        "settings": old.settings,
    }
    ignored = {"model.name", "model.revision", "settings.shared_prefix"}
    ignored.add("model.weights_sha256")  # see numerics
    if now["settings"].get("shard") is None:
        ignored.add("settings.limit")
    differing = differences(before, now, ignored)
    most = None
    if (old.input.bytes, old.input.sha256) != (counts.bytes, counts.sha256):
        most = old.rows
        same = source.prefix_sha256(old.scored_input.bytes) == old.scored_input.sha256
        if now["settings"].get("shard") is not None:
            differing.append("the input (a shard's lines depend on the whole of it)")
        elif not same:
            differing.append(
                f"the input (its first {old.scored_input.bytes} bytes, which are scored already)"
            )
    if differing:
        raise UsageError(_refusal(differing))
    return most


def check_numerics(old: Manifest, numerics: dict[str, Json]) -> bool:
    """Whether rows of ``numerics`` may follow those of ``old`` at once.

    False when only the driver differs: then the last rows have to come out the same first. Raises
    UsageError that names what else differs.
    """
    differing = differences(old.numerics, numerics, set())
    if not differing:
        return True
    if all(what.startswith("driver:") for what in differing):
        return False
    raise UsageError(_refusal(differing))


def differences(old: Any, new: Any, ignored: set[str], where: str = "") -> list[str]:
    """The places where two JSON values differ, with both values."""
    if where in ignored or old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        dot = "." if where else ""
        return [
            text
            for key in sorted({*old, *new})
            for text in differences(old.get(key), new.get(key), ignored, f"{where}{dot}{key}")
        ]
    return [f"{where}: was {_short(old)}, is {_short(new)}"]


def keep_rows(
    file: RowFile, manifest: Manifest, most: int | None, add: Callable[[bytes], int]
) -> Kept:
    """Go through the rows of ``file``; ``add`` takes each line and returns its input line.

    most: no row after this many stays. Changes nothing. Raises UsageError when the rows are not
    those that the manifest speaks of.
    """
    kept = Kept(manifest)
    last = 0
    for line in file.lines():
        checked = kept.rows < manifest.rows
        if kept.rows == most or not line.endswith(b"\n"):
            break
        try:
            number = add(line)
        except (msgspec.DecodeError, RowError) as error:
            if checked:
                raise _changed(file, f"line {kept.rows + 1} is no row: {error}") from None
            break  # not yet known to be on disk when the machine went down
        if number <= last:
            raise _changed(file, f"line {kept.rows + 1} is of no later record than the one before")
        last = number
        kept.size += len(line)
        kept.digest.update(line)
        kept.tail.append(line)
        if kept.rows == manifest.rows and kept.digest.hexdigest() != manifest.rows_sha256:
            raise _changed(file, f"the sha256 of its first {kept.rows} rows differs")
    if kept.rows < manifest.rows:
        raise _changed(file, f"it has {kept.rows} whole rows, not {manifest.rows}")
    return kept


def check_place(kept: Kept, file: RowFile, last: int, source: Source, start: int) -> None:
    """Whether the kept rows are those of the first records, none missing or doubled.

    last: the input line of the last of them. Their lines rise, so the last one settles it.
    """
    if kept.rows:
        kept.end = source.end_of(start + kept.rows - 1)
        if kept.end is None or kept.end.line != last:
            raise _changed(file, f"its {kept.rows} rows are not those of the first records")


def _changed(file: RowFile, how: str) -> UsageError:
    return UsageError(
        f"{file.path}: has changed since the job wrote it: {how}; restore it, or {_START_OVER}"
    )


def _refusal(differing: list[str]) -> str:
    return (
        "--resume goes on with the same input, model, settings and numerics only; what differs: "
        f"{'; '.join(differing)}; make it the same, or {_START_OVER}"
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
