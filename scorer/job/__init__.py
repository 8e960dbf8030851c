"""``scorer score``: a file of records in, a file of rows and its manifest out, whatever ends it."""

from __future__ import annotations
