"""Bitwise reproducible classifier scores from Qwen3 models.

The public names are imported on first use, so that ``import scorer`` (and
``scorer --help``) never pays for torch.
"""

from __future__ import annotations

__version__ = "0.1.0"
