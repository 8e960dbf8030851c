"""``scorer bench``: isolated reads timed beside plain transformers."""

from __future__ import annotations
