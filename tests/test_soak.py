"""The long run in small: ``python -m tests.soak`` does it with a million rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import KINDS, soak


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_memory_is_flat_once_the_window_is_full(tmp_path: Path, kind: str) -> None:
    done = soak(tmp_path, 25_000, kind)

    assert done.rows == 25_000
    half = done.curve[len(done.curve) // 2 :]
    assert len(half) >= 4
    assert max(half) - min(half) <= 6, done  # megabytes; a leak of 1 kB a row would be 12
