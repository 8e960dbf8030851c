"""What of passed self-tests is remembered on disk, and what is left there where that fails."""

from __future__ import annotations

import resource
from pathlib import Path

from scorer.probes import Outcome
from scorer.selftest import _load, _store

PASSED = {0: Outcome(comparisons=12, packings=3), 128: Outcome(comparisons=5, packings=1)}


def test_what_passed_is_remembered_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "selftest-key.json"
    _store(file, {0: PASSED[0]})
    _store(file, PASSED)
    assert _load(file) == PASSED
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "selftest-key.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as a disk that is full
    try:
        _store(file, PASSED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "selftest-key.json"
    file.mkdir()
    _store(file, PASSED)
    assert _load(file) == {}
    assert list(tmp_path.iterdir()) == [file]
    assert list(file.iterdir()) == []
