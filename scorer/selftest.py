"""The self-test at load: on this machine, with this model, do a read's bits depend on its partners?

Packed reads rest on one property of the libraries underneath: at a fixed number of rows, each row
of every matrix product is computed from that row alone, and attention from its segment alone. It is
never assumed. Before a rung is first used, reads are computed in several ways that must not matter
(`scorer.probes`) and their raw bits are compared. A pass is remembered under the numerics key,
which names everything that could change the answer.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scorer import probes
from scorer.probes import Outcome

if TYPE_CHECKING:
    from scorer.model import Qwen3
    from scorer.shapes import BatchShape


class SelfTests:
    """The self-tests of one numerics key: run when a rung is first used, remembered on disk.

    key: the numerics key. n_ids: probe reads use token ids below this. alone: each read has a
    forward to itself, so only the repeatability of a run is needed. share: reads of one record
    share their prefix, and that is proven too; not in the key, but in the name of what is
    remembered.
    """

    def __init__(
        self,
        key: str,
        n_ids: int,
        *,
        alone: bool,
        max_tokens: int,
        cache: Path | None,
        share: bool = False,
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.remembered = False
        self._n_ids = n_ids
        self._alone = alone
        self._share = share
        self._max_tokens = max_tokens
        name = f"selftest-{key}{'-shared' if share else ''}.json"
        self._file = None if cache is None else cache / name
        self._passed = _load(self._file)

    def require(self, model: Qwen3, shape: BatchShape, tokens: int) -> None:
        """Return once forwards of ``tokens`` tokens are proven. Raises IsolationError."""
        rung = 0 if self._alone else tokens
        if rung in self.outcomes:
            return
        passed = self._passed.get(rung)
        if passed is not None:
            self.outcomes[rung] = passed
            self.remembered = True
            return
        if self._alone:
            outcome = probes.repeatable(model, shape, self._n_ids, self._max_tokens)
        elif tokens == shape.tokens:
            outcome = probes.isolated_packed(model, shape, self._n_ids, self._max_tokens)
            if self._share:
                outcome += probes.shared(model, shape, self._n_ids, self._max_tokens)
        else:
            outcome = probes.isolated_single(model, shape, tokens, self._n_ids, self._max_tokens)
        self.outcomes[rung] = outcome
        self._passed[rung] = outcome
        _store(self._file, self._passed)

    @property
    def comparisons(self) -> int:
        """The values compared bit by bit, over all rungs."""
        return sum(outcome.comparisons for outcome in self.outcomes.values())

    def describe(self) -> str:
        """Say in one line what was proven, and when."""
        when = "remembered" if self.remembered else "just now"
        return f"self-test passed ({self.comparisons:,} values compared bit by bit, {when})"


def _load(file: Path | None) -> dict[int, Outcome]:
    if file is None or not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {
            int(rung): Outcome(entry["comparisons"], entry["packings"])
            for rung, entry in stored.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # a damaged cache only means that the test runs again


def _store(file: Path | None, outcomes: dict[int, Outcome]) -> None:
    if file is None:
        return
    entries = {
        str(rung): {"comparisons": outcome.comparisons, "packings": outcome.packings}
        for rung, outcome in outcomes.items()
    }
    # An unwritable cache folder, or a full disk, only means that the test runs again next time.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            written = Path(folder, file.name)
            written.write_text(json.dumps(entries), encoding="utf-8")
            written.replace(file)
