"""JSONL in: files in pieces of whole lines, each line a record or what is wrong with it."""

from __future__ import annotations
