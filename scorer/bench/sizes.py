"""The published sizes of dense Qwen3, and checkpoints of a size that have no weights on disk.

Speed depends on the sizes alone, so it can be measured with weights that are drawn at random. Pure:
nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scorer.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of a config.json that decide how much a forward computes.

    vocabulary: rows of the embedding and the lm_head. n_ids: the token ids that the tokenizer has;
    the rest pads the vocabulary. tied: the lm_head is the embedding.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocabulary: int = 151_936
    n_ids: int = 151_669
    tied: bool = False

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint of this size."""
        return {
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 40_960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        }


SIZES: Final[Mapping[str, Size]] = {
    # Not one of Qwen's: small enough for a CPU, and for tests.
    "tiny": Size(128, 320, 2, 4, 2, head_dim=64, vocabulary=4096, n_ids=4000, tied=True),
    # Qwen/Qwen3-<size>, config.json
    "0.6B": Size(1024, 3072, 28, 16, 8, tied=True),
    "1.7B": Size(2048, 6144, 28, 16, 8, tied=True),
    "4B": Size(2560, 9728, 36, 32, 8, tied=True),
    "8B": Size(4096, 12_288, 36, 32, 8),
    "14B": Size(5120, 17_408, 40, 40, 8),
    "32B": Size(5120, 25_600, 64, 64, 8),
}


def weightless(name: str) -> Checkpoint:
    """Return a checkpoint of a size that holds a config and no weights, for ``Qwen3.random``."""
    return Checkpoint(f"random {name}", Path(), None, SIZES[name].config(), ())


def layer_parameters(config: Mapping[str, Any]) -> int:
    """Return the elements of all matrices that every token is multiplied by, layer by layer.

    Query, key, value, output, gate, up and down of each layer. Not the embedding, the lm_head (of
    which only asked-for rows are computed), nor the norms.
    """
    hidden, head_dim = int(config["hidden_size"]), int(config["head_dim"])
    heads, kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    mlp = 3 * hidden * int(config["intermediate_size"])
    return int(config["num_hidden_layers"]) * (attention + mlp)
