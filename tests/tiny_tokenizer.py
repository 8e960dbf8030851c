"""A byte-level tokenizer of 256 bytes and a few merges, to be changed as a test needs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

BYTES = sorted(ByteLevel.alphabet())
ADDED = ("<|start|>", "<|end|>", "<think>", "</think>")
CHAT = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}"
    "{% endfor %}{{ '<|start|>assistant\\n' }}"
)


def write_tokenizer(
    folder: Path,
    *,
    merges: Sequence[tuple[str, str]] = (),
    added: Sequence[str] = ADDED,
    chat_template: Any = CHAT,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write tokenizer.json (its top-level keys replaced by ``changes``) and its config."""
    tokens = [*BYTES, *("".join(pair) for pair in merges)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": True,
    }
    parts = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(tokens) + place,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for place, content in enumerate(added)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(parts | changes), encoding="utf-8")
    config = {"chat_template": chat_template} | (config or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
