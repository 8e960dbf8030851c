"""The host's work on lines, in this process or in others."""

from __future__ import annotations
