"""``scorer compare``: the same question in several orders of its options, and what order did."""

from __future__ import annotations
