"""Find a Qwen3 checkpoint, and refuse by name what isolated reads can't be promised for.

Nothing is loaded here and nothing of a checkpoint is ever executed: JSON is read, and safetensors
are listed. Needs no torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scorer.errors import ModelError, UsageError

SUPPORTED_ROPE = ("default", "linear", "yarn")
"""Rope types whose frequencies depend on the config alone, never on the longest partner."""

_DOWNLOAD = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk.

    name: as the user gave it. path: the folder. revision: the resolved commit of a hub model,
    None for a local folder. weights: the safetensors files, sorted by name.
    """

    name: str
    path: Path
    revision: str | None
    config: dict[str, Any]
    weights: tuple[Path, ...]

    @property
    def max_tokens(self) -> int:
        """The longest read, in tokens, that the model's positions allow."""
        return int(self.config["max_position_embeddings"])

    @property
    def vocab_size(self) -> int:
        """Rows of the lm_head; may exceed the number of token ids."""
        return int(self.config["vocab_size"])


def find_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Resolve a folder or a hub id to a checkpoint that passed the gate.

    The network is used only for a hub id, and not at all when ``HF_HUB_OFFLINE`` is set.
    Raises ModelError with the reason and the remedy for everything that is refused.
    """
    path = Path(name)
    if path.is_dir():
        if revision is not None:
            raise UsageError(f"--revision needs a hub id, but --model {name} is a folder")
        commit = None
    elif path.exists():
        raise ModelError(f"--model {name} is a file; give the folder that holds config.json")
    elif name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError(
            f"--model {name}: no such folder, and not a hub id such as Qwen/Qwen3-0.6B"
        )
    else:
        path = _download(name, revision)
        commit = path.name
    config = _read_config(path)
    _gate(config, path)
    return Checkpoint(name, path, commit, config, _weight_files(path))


def _download(name: str, revision: str | None) -> Path:
    import httpx
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=_DOWNLOAD,
                # Said here as well: of a commit it would ask the network for a list of files.
                local_files_only=constants.HF_HUB_OFFLINE,
            )
        )
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"--model {name}: not complete in the local cache and the hub can't be reached "
            f"(HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', 'unset')}); download it once with "
            f"`hf download {name}` or give a folder"
        ) from error
    except (httpx.HTTPError, ValueError, OSError) as error:
        at = "" if revision is None else f" at revision {revision}"
        raise ModelError(
            f"--model {name}{at}: couldn't be fetched from the hub: {error}; give a folder, or see "
            "that the name is right and the network is up"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no config.json; not a model folder") from error
    except OSError as error:
        raise ModelError(f"{file}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); fetch it again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected a JSON object, got {type(config).__name__}")
    return config


def _gate(config: dict[str, Any], path: Path) -> None:
    """Raise ModelError unless isolation can hold for this architecture."""

    def refuse(what: str, why: str) -> NoReturn:
        raise ModelError(f"{path}: {what} is not supported: {why}")

    model_type = config.get("model_type")
    if model_type == "qwen3_moe":
        refuse("model_type 'qwen3_moe'", "the rows that an expert sees depend on the partners")
    if model_type != "qwen3":
        refuse(f"model_type {model_type!r}", "scorer reads dense Qwen3 checkpoints ('qwen3') only")
    _check_types(config, path)
    if config.get("quantization_config") is not None:
        method = config["quantization_config"].get("quant_method", "unnamed")
        refuse(f"quantisation ({method})", "use the checkpoint in bfloat16")
    for key in ("rope_parameters", "rope_scaling"):  # of a config with both, either may count
        rope = config.get(key) or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type not in SUPPORTED_ROPE:
            refuse(
                f"rope type {rope_type!r}",
                f"only {', '.join(SUPPORTED_ROPE)} give frequencies that no partner can change",
            )
        share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if share is not None and share != 1:
            refuse(f"partial_rotary_factor {share!r}", "whole heads are rotated")
    partial = {str(kind) for kind in config.get("layer_types") or ()} - {"full_attention"}
    if partial or config.get("use_sliding_window"):
        kinds = ", ".join(sorted(partial)) or "use_sliding_window"
        refuse(f"sliding-window attention ({kinds})", "packed reads use full attention")
    if config.get("transformers_weights") is not None:
        refuse("transformers_weights in config.json", "the weights are model.safetensors")
    if (path / "adapter_config.json").exists():
        refuse("a folder with an adapter", "merge it into the weights, or remove it")


def _check_types(config: dict[str, Any], path: Path) -> None:
    """Raise ModelError for values that are nothing a Qwen3 config can hold."""
    for key in ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers"):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{path}/config.json: {key} must be a positive integer, got {value!r}")
    for key in ("quantization_config", "rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, dict):
            raise ModelError(f"{path}/config.json: {key} must be an object, got {config[key]!r}")
    if not isinstance(config.get("layer_types") or [], list):
        raise ModelError(
            f"{path}/config.json: layer_types must be a list, got {config['layer_types']!r}"
        )


def _weight_files(path: Path) -> tuple[Path, ...]:
    index = path / "model.safetensors.index.json"
    if index.is_file() and not (path / "model.safetensors").is_file():  # as transformers chooses
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted({str(name) for name in weight_map.values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: not a safetensors index ({error!r})") from error
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (path / name).is_file()]
    if not missing:
        return tuple(path / name for name in names)
    pickles = sorted(file.name for file in path.glob("*.bin"))
    if pickles:
        raise ModelError(
            f"{path}: holds only pickled weights ({', '.join(pickles)}), which can run code when "
            "loaded; convert them to safetensors"
        )
    raise ModelError(f"{path}: missing weights {', '.join(missing)}; fetch the checkpoint again")
