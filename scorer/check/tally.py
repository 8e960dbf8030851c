"""Values compared bit by bit and counted: how many, how many moved, by how much."""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scorer.numeric import Float64s
from scorer.reduction import Int32s, Reduced

EXAMPLES_KEPT = 5
"""Differences that are told one by one; the others are only counted."""

_BRIEF = reprlib.Repr()  # a list of entries, an option's text: of any length
_BRIEF.maxtuple = 8
_BRIEF.maxstring = 60


@dataclass(slots=True)
class Tally:
    """What has been compared so far.

    comparisons, mismatches: values. largest: the largest difference of two log-probabilities, in
    nats; infinite where one of them is not finite. examples: the first differences, in words.
    failure: why the comparison could not be made as it should, "" if it could. notes: what else
    there is to say. left_out: parts that can't apply here, each with the reason.
    """

    comparisons: int = 0
    mismatches: int = 0
    largest: float = 0.0
    examples: list[str] = field(default_factory=list)
    failure: str = ""
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether something was compared and nothing moved; nothing compared proves nothing."""
        return self.comparisons > 0 and self.mismatches == 0 and not self.failure

    def nats(self, expected: Float64s, got: Float64s, where: str) -> None:
        """Compare log-probabilities, float64 of one shape; where both are NaN there is none."""
        known = ~(np.isnan(expected) & np.isnan(got))
        self.comparisons += int(np.count_nonzero(known))
        moved = known & (_bits(expected) != _bits(got))
        if not moved.any():
            return
        with np.errstate(invalid="ignore"):  # infinity less itself
            far = np.abs(expected[moved] - got[moved])
        # Zeros of two signs are other bits at no distance, NaN is at every distance.
        largest = float(np.max(np.where(np.isnan(far), math.inf, far)))
        first = int(np.argmax(moved))
        self._moved(int(moved.sum()), largest, f"{where}: {expected[first]!s} → {got[first]!s}")

    def integers(self, expected: Int32s, got: Int32s, where: str) -> None:
        """Compare ids or ranks, int32 of one shape; where both are negative there is none."""
        self.comparisons += int(np.count_nonzero((expected >= 0) | (got >= 0)))
        moved = expected != got
        if moved.any():
            first = int(np.argmax(moved))
            self._moved(int(moved.sum()), 0.0, f"{where}: {expected[first]} → {got[first]}")

    def value(self, expected: object, got: object, where: Callable[[], str], *, nats: bool) -> None:
        """Compare two values of rows: floats by their bits, anything else by ``==``.

        where: asked only where they differ; most values don't.
        """
        self.comparisons += 1
        if isinstance(expected, float) and isinstance(got, float):
            if struct.pack("<d", expected) != struct.pack("<d", got):
                far = abs(expected - got) if nats else 0.0
                far = math.inf if math.isnan(far) else far
                self._moved(1, far, f"{where()}: {expected!r} → {got!r}")
        elif expected != got:
            said = f"{_BRIEF.repr(expected)} → {_BRIEF.repr(got)}"
            self._moved(1, 0.0, f"{where()}: {said}")

    def reads(self, expected: Reduced, got: Reduced, where: str) -> None:
        """Compare all that two computations of one read came to.

        Nothing where the first one's last distribution is not finite: how far NaN spreads among
        the tokens before it is not defined.
        """
        if expected.nonfinite[-1]:
            self.left_out.append(f"{where}: its logits are not finite")
            return
        for name in ("log_sum", "chosen_logprob", "target_logprob", "top_logprob"):
            self.nats(getattr(expected, name), getattr(got, name), f"{where}, {name}")
        for name in ("chosen_id", "target_rank", "top_id"):
            self.integers(getattr(expected, name), getattr(got, name), f"{where}, {name}")

    def differs(self, what: str) -> None:
        """Count a difference that is no pair of values, such as a value only one side has."""
        self.comparisons += 1
        self._moved(1, 0.0, what)

    def _moved(self, count: int, largest: float, example: str) -> None:
        self.mismatches += count
        self.largest = max(self.largest, largest)
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(example)


def _bits(values: Float64s) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.ascontiguousarray(values).view(np.uint64)
