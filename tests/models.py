"""Tiny Qwen3 checkpoints with seeded random weights and a byte-level tokenizer of their own.

They answer nonsense, at once, and need no bundled model. The tokenizer has one token a byte, so
that token counts can be told by eye, and few merges: `` yes`` and `` no`` are one token each.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.tiny_tokenizer import write_tokenizer

QWEN_ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
MERGES = (("Ġ", "y"), ("e", "s"), ("Ġy", "es"), ("Ġ", "n"), ("Ġn", "o"))
CHAT = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
N_IDS = 256 + len(MERGES) + len(QWEN_ADDED)
VOCAB_ROWS = 320
MAX_TOKENS = 512


def write_model(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Write a checkpoint (float32 weights) and its tokenizer; ``config``: values of Qwen3Config."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    values: dict[str, Any] = {
        "vocab_size": VOCAB_ROWS,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    Qwen3ForCausalLM(Qwen3Config(**(values | config))).save_pretrained(folder)
    return write_tokenizer(folder, merges=MERGES, added=QWEN_ADDED, chat_template=CHAT)


def copy_model(model: Path, folder: Path) -> Path:
    """Copy a checkpoint, to be changed."""
    shutil.copytree(model, folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change values of a checkpoint's config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | changes), encoding="utf-8")
    return folder


def edit_weights(folder: Path, **changes: Any) -> Path:
    """Replace tensors of a checkpoint; None removes one, dots are written ``__``."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    for key, tensor in changes.items():
        name = key.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def environment(cache: Path, **changes: str) -> dict[str, str]:
    """Return variables for a process of its own: one thread, offline, its own cache folder."""
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    return {
        **plain,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(cache),
        **changes,
    }
