"""``--fail-if 'flip_rate>0.2'``: conditions on the metrics of a summary, for use in CI."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from scorer.compare.measures import ABOUT, Metric
from scorer.errors import UsageError

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CONDITION: Final = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """Fails when ``metric comparison limit`` holds, and when the metric is undefined."""

    metric: str
    comparison: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read ``NAME>NUMBER`` (or >=, <, <=). Raises UsageError."""
        match = _CONDITION.fullmatch(text)
        try:
            limit = float(match[3]) if match else math.nan
        except ValueError:
            limit = math.nan
        if match is None or not math.isfinite(limit):
            raise UsageError(
                f"--fail-if {text!r}: expected a metric, one of > >= < <=, and a number, as in "
                "'flip_rate>0.2'"
            )
        if match[1] not in ABOUT:
            raise UsageError(
                f"--fail-if: unknown metric {match[1]!r}: choose from {', '.join(ABOUT)}"
            )
        return cls(match[1], match[2], limit)

    def failure(self, metrics: Mapping[str, Metric]) -> str | None:
        """Return why it fails, None when it doesn't."""
        metric = metrics[self.metric]
        if metric.value is None:
            return f"{self}: {self.metric} is undefined: {metric.reason}"
        if _COMPARISONS[self.comparison](metric.value, self.limit):
            return f"{self}: {self.metric} is {_written(metric.value)}"
        return None

    def __str__(self) -> str:
        return f"--fail-if {self.metric}{self.comparison}{_written(self.limit)}"


def _written(value: float) -> str:
    """Return a number in full, so that a value beside its limit never reads the same."""
    return repr(value).removesuffix(".0")
