"""What is refused by name before or while loading, and that what is accepted is read right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from scorer.checkpoint import find_checkpoint
from scorer.errors import ModelError, ScorerError, UsageError
from scorer.manifest import hash_files
from scorer.scoring import Scorer
from tests.models import (
    MAX_TOKENS,
    VOCAB_ROWS,
    copy_model,
    edit_config,
    edit_weights,
    write_model,
)


@pytest.fixture
def copied(tiny_model: Path, tmp_path: Path) -> Path:
    return copy_model(tiny_model, tmp_path / "model")


def refused(message: str, name: str | Path, revision: str | None = None) -> str:
    """Assert that no checkpoint is found; return why."""
    with pytest.raises(ModelError) as caught:
        find_checkpoint(str(name), revision)
    assert message in str(caught.value)
    return str(caught.value)


def refused_when_loaded(message: str, folder: Path) -> str:
    """Assert that the gate is passed and the weights are refused; return why."""
    scorer = Scorer(folder, device="cpu")
    with pytest.raises(ModelError) as caught:
        _ = scorer.reader
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_that_is_accepted(tiny_model: Path) -> None:
    found = find_checkpoint(str(tiny_model))

    assert found.name == str(tiny_model)
    assert found.revision is None
    assert found.weights == (tiny_model / "model.safetensors",)
    assert (found.max_tokens, found.vocab_size) == (MAX_TOKENS, VOCAB_ROWS)


# -- the gate: config.json


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe' is not supported: the rows that an"),
        ({"model_type": "llama"}, "model_type 'llama' is not supported"),
        ({"model_type": None}, "model_type None is not supported"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantisation (fp8) is not supported: use the checkpoint in bfloat16",
        ),
        ({"quantization_config": {}}, "quantisation (unnamed) is not supported"),
        ({"quantization_config": "fp8"}, "quantization_config must be an object, got 'fp8'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic' is not supported"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor 0.5 is not supported",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_scaling": ["yarn"]}, "rope_scaling must be an object"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"use_sliding_window": True}, "sliding-window attention"),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights"),
        ({"vocab_size": None}, "vocab_size must be a positive integer, got None"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, got True"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, got '64'"),
    ],
)
def test_refused_by_name(copied: Path, changes: dict[str, Any], message: str) -> None:
    refused(message, edit_config(copied, **changes))


def test_either_rope_key_can_refuse(copied: Path) -> None:
    """Of a config with both keys transformers takes the older one."""
    edit_config(
        copied,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rope_scaling={"rope_type": "dynamic", "factor": 2.0},
    )
    refused("rope type 'dynamic' is not supported", copied)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"model_type": "qwen3",', "config.json: not readable as JSON"),
        (b'{"model_type": "\xff"}', "config.json: not readable as JSON"),
        (b"", "config.json: not readable as JSON"),
        (b'["qwen3"]', "config.json: expected a JSON object, got list"),
    ],
)
def test_broken_config(copied: Path, text: bytes, message: str) -> None:
    (copied / "config.json").write_bytes(text)
    refused(message, copied)


def test_config_that_is_no_file(copied: Path) -> None:
    (copied / "config.json").unlink()
    refused("no config.json; not a model folder", copied)
    (copied / "config.json").mkdir()
    refused("config.json: can't be read: Is a directory", copied)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "no such function"},
        {"num_attention_heads": "four"},
        {"rms_norm_eps": None},
        {"rope_parameters": {"rope_type": "linear"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": "two"}},
        {"layer_types": ["full_attention"]},
    ],
    ids=str,
)
def test_values_that_the_library_refuses(copied: Path, changes: dict[str, Any]) -> None:
    refused_when_loaded("can't be loaded", edit_config(copied, **changes))


# -- names


def test_names_that_are_no_model(tmp_path: Path, tiny_model: Path) -> None:
    file = tiny_model / "model.safetensors"
    refused(f"--model {file} is a file; give the folder that holds config.json", file)
    refused("no such folder, and not a hub id", tmp_path / "nowhere")
    for name in ("nowhere", "./no/where", "~/model", "a/b/c"):
        refused(f"--model {name}: no such folder, and not a hub id such as Qwen/Qwen3-0.6B", name)
    with pytest.raises(UsageError, match="--revision needs a hub id"):
        find_checkpoint(str(tiny_model), "main")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_hub_id_that_is_not_cached(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    message = refused("Qwen/Qwen3-0.6B: not complete in the local cache", "Qwen/Qwen3-0.6B")

    assert "HF_HUB_OFFLINE=1" in message
    assert "hf download Qwen/Qwen3-0.6B" in message
    refused("Qwen/Qwen3-0.6B: not complete", "Qwen/Qwen3-0.6B", "main")
    refused("couldn't be fetched from the hub", "not an/id!")
    assert not hub.exists()


@pytest.mark.parametrize(
    "error", [httpx.ProxyError("no proxy"), httpx.ReadTimeout("slow"), OSError("no room")], ids=repr
)
def test_a_hub_that_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    refused(f"couldn't be fetched from the hub: {error}", "someone/tiny")


def test_a_hub_id_that_is_cached(hub: Path, tiny_model: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / "models--someone--tiny"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)

    found = find_checkpoint("someone/tiny")

    assert (found.name, found.revision) == ("someone/tiny", commit)
    assert found.path == repository / "snapshots" / commit
    assert find_checkpoint("someone/tiny", commit).revision == commit
    refused("not complete in the local cache", "someone/tiny", "other")


# -- weights


def split_in_shards(folder: Path) -> list[Path]:
    """Replace model.safetensors by two shards and their index."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard, {"format": "pt"})
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    file.unlink()
    return [folder / shard for shard in shards]


def one_logprob(folder: Path) -> float:
    (score,) = Scorer(folder, device="cpu").score([{"prompt": "Is it?", "options": [" yes"]}])
    assert isinstance(score.options, tuple)
    return score.options[0].logprob


def test_shards_are_read_and_hashed(copied: Path) -> None:
    whole = one_logprob(copied)
    shards = split_in_shards(copied)

    assert find_checkpoint(str(copied)).weights == tuple(shards)
    assert one_logprob(copied) == whole


def test_of_two_sets_of_weights_the_hashed_one_is_loaded(copied: Path, tmp_path: Path) -> None:
    """transformers takes model.safetensors where there is an index as well."""
    other = write_model(tmp_path / "other", seed=1)
    wanted = one_logprob(other)
    split_in_shards(copied)
    assert one_logprob(copied) != wanted
    shutil.copyfile(other / "model.safetensors", copied / "model.safetensors")

    assert find_checkpoint(str(copied)).weights == (copied / "model.safetensors",)
    assert one_logprob(copied) == wanted
    numerics = Scorer(copied, device="cpu").reader.numerics
    assert numerics["weights_sha256"] == hash_files([other / "model.safetensors"])


def test_missing_weights(copied: Path) -> None:
    shards = split_in_shards(copied)
    shards[1].unlink()
    refused("missing weights b.safetensors; fetch the checkpoint again", copied)
    (copied / "model.safetensors.index.json").unlink()
    refused("missing weights model.safetensors; fetch the checkpoint again", copied)
    (copied / "pytorch_model.bin").write_bytes(b"")
    refused("holds only pickled weights (pytorch_model.bin), which can run code", copied)


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"weight_map": []}', '{"weight_map": null}', "[]", '"x"']
)
def test_broken_index(copied: Path, text: str) -> None:
    split_in_shards(copied)
    (copied / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    refused("model.safetensors.index.json: not a safetensors index", copied)


def test_weights_that_are_no_safetensors(copied: Path) -> None:
    whole = (copied / "model.safetensors").read_bytes()
    for broken in (b"", b"not safetensors at all", whole[: len(whole) // 2], b"\xff" * 64):
        (copied / "model.safetensors").write_bytes(broken)
        refused_when_loaded("can't be loaded", copied)


LAYER = "model__layers__1__mlp__up_proj__weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: {LAYER: None}, "missing keys: model.layers.1.mlp.up_proj.weight"),
        (lambda: {LAYER: torch.zeros(96, 65)}, "mismatched keys: ('model.layers.1.mlp.up_proj"),
        (lambda: {"model__extra__weight": torch.zeros(3)}, "unexpected keys: model.extra.weight"),
        (lambda: {"score__weight": torch.zeros(2, 64)}, "unexpected keys: score.weight"),
        (lambda: {"model__embed_tokens__weight": None}, "model.embed_tokens.weight"),
    ],
)
def test_tensors_that_do_not_fit(
    copied: Path, change: Callable[[], dict[str, Any]], message: str
) -> None:
    refused_when_loaded(message, edit_weights(copied, **change()))


def test_an_untied_head_needs_its_tensor(tmp_path: Path) -> None:
    untied = write_model(tmp_path / "untied", tie_word_embeddings=False)
    value = one_logprob(untied)
    edit_weights(untied, lm_head__weight=torch.zeros(VOCAB_ROWS, 64))
    assert one_logprob(untied) == pytest.approx(-np.log(VOCAB_ROWS), abs=1e-12) != value
    refused_when_loaded("missing keys: lm_head.weight", edit_weights(untied, lm_head__weight=None))


def test_a_tied_head_may_be_stored_too_but_not_differ(copied: Path) -> None:
    """Qwen3-0.6B's own file holds both; were they to differ, the config would be wrong."""
    from safetensors.torch import load_file

    embedding = load_file(copied / "model.safetensors")["model.embed_tokens.weight"]
    value = one_logprob(copied)

    assert one_logprob(edit_weights(copied, lm_head__weight=embedding.clone())) == value
    edit_weights(copied, lm_head__weight=embedding + 1)
    refused_when_loaded("config.json ties lm_head.weight to the embedding", copied)


def test_an_adapter_beside_the_weights_is_refused(copied: Path) -> None:
    (copied / "adapter_config.json").write_text("{}")
    refused("a folder with an adapter is not supported: merge it", copied)


# -- the tokenizer


def test_a_missing_or_foreign_tokenizer(copied: Path) -> None:
    def scorer() -> Scorer:
        return Scorer(copied, device="cpu")

    edit_config(copied, vocab_size=100)
    with pytest.raises(ModelError, match="tokenizer and model don't belong together"):
        scorer()
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        scorer()
    (copied / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json: no such file"):
        scorer()


# -- rope types


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e6},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 1e6,
        },
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_rope_types_agree_with_transformers(tmp_path: Path, rope: dict[str, Any], key: str) -> None:
    """In float32, eager attention, one prompt, no padding: within 1e-4 nats at every position."""
    from transformers import Qwen3ForCausalLM

    folder = write_model(tmp_path / "model", rope_parameters=dict(rope))
    config = json.loads((folder / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    if key == "rope_scaling":  # as files of transformers 4 have it
        config["rope_theta"] = parameters.pop("rope_theta")
        parameters = None if rope["rope_type"] == "default" else parameters
    (folder / "config.json").write_text(json.dumps({**config, key: parameters}))
    ids = np.random.default_rng(7).integers(0, 256, size=400).tolist()
    scorer = Scorer(folder, device="cpu", tokens_per_forward=512)
    (score,) = scorer.score([{"prompt_token_ids": ids, "prompt_logprobs": 0}])
    model = Qwen3ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )

    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].double()
    expected = torch.log_softmax(logits[:-1], dim=-1)[torch.arange(399), torch.tensor(ids[1:])]

    assert isinstance(score.prompt_logprobs, tuple)
    got = [entry.token.logprob for entry in score.prompt_logprobs if entry is not None]
    assert len(got) == 399
    assert np.abs(np.array(got) - expected.numpy()).max() < 1e-4
    assert model.config.rope_parameters["rope_type"] == rope["rope_type"]


def test_rope_types_differ(tmp_path: Path) -> None:
    """The test above would see a rope type that is ignored."""
    values = [
        one_logprob(write_model(tmp_path / name, rope_parameters=rope))
        for name, rope in (
            ("default", {"rope_type": "default", "rope_theta": 1e4}),
            ("linear", {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
            ("yarn", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}),
        )
    ]
    assert len(set(values)) == 3


def test_every_refusal_is_an_error_of_ours() -> None:
    assert issubclass(ModelError, ScorerError)
    assert ModelError.exit_code == 2
