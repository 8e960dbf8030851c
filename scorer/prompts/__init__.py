"""From a record to token ids: templates, the tokenizer, labels, options, truncation."""

from __future__ import annotations
