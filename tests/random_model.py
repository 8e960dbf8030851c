"""Checkpoints of the real Qwen3 sizes with seeded random weights: speed and bits, no meaning."""

from __future__ import annotations

import shutil
from pathlib import Path

from scorer.bench.sizes import SIZES


def write_random_config(folder: Path, tokenizer: Path, *, shape: str, vocab_size: int) -> None:
    """Write the config of a shape, and another checkpoint's tokenizer, into a folder."""
    from transformers import Qwen3Config

    values = SIZES[shape].config() | {"vocab_size": vocab_size, "tie_word_embeddings": True}
    config = Qwen3Config(**values)
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
