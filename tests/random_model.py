"""Checkpoints of the real Qwen3 sizes with seeded random weights: speed and bits, no meaning."""

from __future__ import annotations

import shutil
from pathlib import Path

SHAPES: dict[str, dict[str, int]] = {
    # hidden, intermediate, layers, heads, key/value heads, head_dim: as in Qwen's own config.json
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


def write_random_config(folder: Path, tokenizer: Path, *, shape: str, vocab_size: int) -> None:
    """Write the config of a shape, and another checkpoint's tokenizer, into a folder."""
    from transformers import Qwen3Config

    config = Qwen3Config(
        **SHAPES[shape],
        vocab_size=vocab_size,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    config.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / file).is_file():
            shutil.copyfile(tokenizer / file, folder / file)


def write_random_checkpoint(
    folder: Path, tokenizer: Path, *, shape: str, vocab_size: int, seed: int = 0
) -> None:
    """Write a bfloat16 checkpoint of a shape, with another's tokenizer, into a folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_random_config(folder, tokenizer, shape=shape, vocab_size=vocab_size)
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # billions of draws
            Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder)).save_pretrained(folder)
    finally:
        torch.set_default_dtype(default)
