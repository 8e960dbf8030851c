"""Bitwise reproducible classifier scores from Qwen3 models.

The public names are imported on first use, so that ``import scorer`` (and ``scorer --help``)
never pays for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.errors import (
        DeviceError,
        InputError,
        IsolationError,
        ModelError,
        RowError,
        ScorerError,
        UsageError,
    )
    from scorer.records.source import Source
    from scorer.rows import OptionScore, Score, TokenScore
    from scorer.scoring import Scorer

__version__ = "0.1.0"

__all__ = [
    "DeviceError",
    "InputError",
    "IsolationError",
    "ModelError",
    "OptionScore",
    "RowError",
    "Score",
    "Scorer",
    "ScorerError",
    "Source",
    "TokenScore",
    "UsageError",
]

_MODULES = {"OptionScore": "rows", "Score": "rows", "TokenScore": "rows", "Scorer": "scoring"}
_MODULES |= {"Source": "records.source"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
