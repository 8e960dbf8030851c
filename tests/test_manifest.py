from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from scorer import manifest
from scorer.checkpoint import find_checkpoint
from scorer.errors import DeviceError
from scorer.manifest import (
    Json,
    canonical_json,
    hash_files,
    library_versions,
    numerics_fields,
    sha256_of,
    write_manifest,
)
from scorer.model import Qwen3
from scorer.scoring import Scorer
from scorer.shapes import BatchShape
from tests.commands import Bench
from tests.models import N_IDS, copy_model, edit_config, edit_weights

COMPUTE_NOTHING = {
    "": (
        "checkpoint cli cli_options environment errors manifest processor progress rows "
        "scoring show turns"
    ),
    "bench": "baselines figures instruments report run sizes start workloads",
    "check": (
        "against diff fresh_process job plain report row_index row_values run scenarios "
        "sharing subject tally"
    ),
    "compare": ("charts job measures metrics pride questions report report_html stats thresholds"),
    "job": "identity job output resume run shard stopping summary",
    "prompts": (
        "frames labels literal options prompter rendering sandbox skeleton templates "
        "tokenizer truncation words"
    ),
    "records": (
        "compression jsonline lines mapping record record_keys record_line source unknown_keys"
    ),
    "workers": "hands host pool worker",
}
"""Modules, by folder, in which no bit of a score is made from token ids."""

# -- hashes


def test_canonical_json_is_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    assert sha256_of({"a": 1, "b": 2}) == sha256_of({"b": 2, "a": 1})
    assert sha256_of({}) == hashlib.sha256(b"{}").hexdigest()


def test_hash_files_is_of_names_and_contents(tmp_path: Path) -> None:
    def written(folder: str, **files: bytes) -> list[Path]:
        (tmp_path / folder).mkdir()
        paths = [tmp_path / folder / name for name in files]
        for path, data in zip(paths, files.values(), strict=True):
            path.write_bytes(data)
        return paths

    first = written("first", a=b"one", b=b"two")
    again = written("again", b=b"two", a=b"one")
    os.utime(again[0], (0, 0))

    assert hash_files(first) == hash_files(again) == hash_files(reversed(first))
    others = [
        written("content", a=b"one", b=b"twO"),
        written("name", a=b"one", c=b"two"),
        written("swapped", a=b"two", b=b"one"),
        written("seam", a=b"onet", b=b"wo"),
        written("longer", a=b"one", b=b"two\0"),
        written("more", a=b"one", b=b"two", c=b""),
        first[:1],
    ]
    hashes = {hash_files(files) for files in others}
    assert len(hashes) == len(others)
    assert hash_files(first) not in hashes


def test_hash_files_by_hand_and_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    monkeypatch.setattr(manifest, "_CHUNK", 4)
    file, empty = tmp_path / "x", tmp_path / "empty"
    file.write_bytes(b"0123456789")
    empty.write_bytes(b"")

    pieces = [sha(b"0123"), sha(b"4567"), sha(b"89")]
    listing = json.dumps([["empty", 0, []], ["x", 10, pieces]], separators=(",", ":"))
    assert hash_files([file, empty]) == sha(listing.encode())


def test_library_versions() -> None:
    assert library_versions(["numpy", "no-such-library"]) == {
        "numpy": np.__version__,
        "no-such-library": None,
    }


def test_a_manifest_replaces_its_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")

    write_manifest(path, {"é": [1.5, None]})
    with pytest.raises(ValueError, match="Out of range float"):
        write_manifest(path, {"x": float("nan")})

    assert path.read_text(encoding="utf-8") == '{\n  "é": [\n    1.5,\n    null\n  ]\n}\n'
    assert list(tmp_path.iterdir()) == [path]


# -- the numerics key


@pytest.fixture(scope="module")
def qwen(tiny_model: Path) -> Qwen3:
    return Qwen3.load(find_checkpoint(str(tiny_model)), torch.device("cpu"), torch.float32)


def key(qwen: Qwen3, **changes: Any) -> str:
    values: dict[str, Any] = {
        "shape": BatchShape(512, 32),
        "isolation": "packed",
        "reduction": "host",
        "n_ids": N_IDS,
        "weights_sha256": "0" * 64,
    }
    return sha256_of(numerics_fields(qwen, **(values | changes)))


def test_the_key_is_the_same_twice(qwen: Qwen3) -> None:
    assert key(qwen) == key(qwen)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": BatchShape(1024, 32)},
        {"shape": BatchShape(512, 64)},
        {"isolation": "alone"},
        {"reduction": "device"},
        {"n_ids": N_IDS + 1},
        {"weights_sha256": "1" * 64},
    ],
    ids=",".join,
)
def test_the_key_changes_with_the_reads_shape(qwen: Qwen3, changes: dict[str, Any]) -> None:
    assert key(qwen, **changes) != key(qwen)


@pytest.mark.parametrize("variable", manifest._ENVIRONMENT)
def test_the_key_changes_with_the_environment(
    qwen: Qwen3, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    unset = key(qwen)
    monkeypatch.setenv(variable, "1")
    one = key(qwen)
    monkeypatch.setenv(variable, "2")

    assert len({unset, one, key(qwen)}) == 3


def test_the_key_does_not_change_with_other_variables(
    qwen: Qwen3, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(qwen)
    monkeypatch.setenv("SCORER_SOMETHING", "1")
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert key(qwen) == before


def test_the_key_changes_with_the_threads(qwen: Qwen3) -> None:
    threads = torch.get_num_threads()
    before = key(qwen)
    torch.set_num_threads(threads + 1)
    try:
        assert key(qwen) != before
    finally:
        torch.set_num_threads(threads)
    assert key(qwen) == before


def test_the_key_changes_with_the_precision_of_products(qwen: Qwen3) -> None:
    """On a CPU with bfloat16 units this setting rounds float32 operands."""
    before = key(qwen)
    torch.set_float32_matmul_precision("medium")
    try:
        assert key(qwen) != before
    finally:
        torch.set_float32_matmul_precision("highest")
    assert key(qwen) == before


def test_the_key_changes_with_the_attention_that_torch_may_choose(qwen: Qwen3) -> None:
    before = key(qwen)
    with sdpa_kernel(SDPBackend.MATH):
        assert key(qwen) != before
    assert key(qwen) == before


def test_a_driver_that_nobody_knows_is_no_part_of_a_key(
    qwen: Qwen3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qwen, "device", torch.device("cuda", 0))
    monkeypatch.setattr(manifest, "cuda_fields", lambda: {"driver": "580.1"})
    key(qwen)
    monkeypatch.setattr(manifest, "cuda_fields", lambda: {"driver": None})
    with pytest.raises(DeviceError, match=r"version of the NVIDIA driver.*nvidia-smi"):
        key(qwen)


def test_torchs_newer_settings_of_precision_are_in_the_key(qwen: Qwen3) -> None:
    """Mixed with the older ones, torch refuses to say what those are."""
    before = key(qwen)
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    matmul.fp32_precision = "bf16"
    try:
        assert key(qwen) != before
    finally:
        matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_model", lambda: "another CPU"),
        ("hash_files", lambda _: "another source"),
        ("software_fields", lambda: {"torch": "9.9"}),
    ],
)
def test_the_key_changes_with_the_machine(
    qwen: Qwen3, monkeypatch: pytest.MonkeyPatch, name: str, value: Callable[..., Json]
) -> None:
    before = key(qwen)
    monkeypatch.setattr(manifest, name, value)
    assert key(qwen) != before


def test_the_key_changes_with_the_frequencies_of_the_rotation(
    qwen: Qwen3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU computes them, also for a GPU, and another CPU may round one otherwise."""
    before = key(qwen)
    frequencies = qwen._model.model.rotary_emb.inv_freq
    other = frequencies.clone()
    other[3] = torch.nextafter(other[3], torch.tensor(0.0))
    monkeypatch.setattr(qwen._model.model.rotary_emb, "inv_freq", other)
    assert key(qwen) != before


def test_every_module_computes_or_does_not() -> None:
    """A new one must be put into one of the two lists, so that none that computes is forgotten."""
    folder = Path(manifest.__file__).parent
    modules = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    computes = set(manifest._COMPUTES)
    nothing = {
        str(Path(place) / f"{name}.py")
        for place, names in COMPUTE_NOTHING.items()
        for name in names.split()
    }

    assert not computes & nothing
    assert {path for path in modules if not path.endswith("__init__.py")} == computes | nothing


def test_the_key_of_a_run(bench: Bench) -> None:
    """What the model is changes the key; where it lies and what is scored does not."""

    def key_of(model: Path, **arguments: Any) -> str:
        scorer = Scorer(model, **({"device": "cpu"} | arguments))
        assert scorer.reader.numerics_key == sha256_of(scorer.reader.numerics)
        return scorer.reader.numerics_key

    plain = key_of(bench.model)
    moved = copy_model(bench.model, bench.folder / "moved")
    weights = copy_model(bench.model, bench.folder / "weights")
    edit_weights(weights, model__norm__weight=torch.full((64,), 1.0000001))
    config = edit_config(copy_model(bench.model, bench.folder / "config"), rms_norm_eps=1e-5)

    assert key_of(moved) == plain
    assert key_of(moved, logprobs=5, system="Be brief.", truncate_prompt=True) == plain
    changed = [
        key_of(weights),
        key_of(config),
        key_of(bench.model, dtype="bfloat16"),
        key_of(bench.model, isolation="alone"),
        key_of(bench.model, tokens_per_forward=256),
        key_of(bench.model, rows_per_forward=24),
    ]
    assert len({plain, *changed}) == 7


def test_the_manifest_says_what_produced_the_rows(bench: Bench) -> None:
    moved = copy_model(bench.model, bench.folder / "moved")
    out = bench.folder / "out.jsonl"
    assert bench.score("-o", out, "--model", moved, "--limit", "3", "--dtype", "bfloat16").code == 0

    told = json.loads((bench.folder / "out.jsonl.manifest.json").read_text())

    assert told["numerics_key"] == sha256_of(told["numerics"])
    assert told["numerics"]["dtype"] == "bfloat16"
    assert told["numerics"]["tokens_per_forward"] == 512
    weights = told["model"]["weights_sha256"]
    assert weights == hash_files([moved / "model.safetensors"])
    assert told["model"]["name"] == str(moved)
    assert told["model"]["revision"] is None
    assert told["model"]["tokenizer_sha256"] == hash_files(
        moved / name for name in ("tokenizer.json", "tokenizer_config.json")
    )
    assert told["input"]["sha256"] == hashlib.sha256(bench.records.read_bytes()).hexdigest()
    assert told["rows_sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert told["rows"] == told["counts"]["scored"] == 3
    assert told["counts"]["reads"] == 4  # the question's, the prompt's, prompt and longer option
    assert told["counts"]["forward_tokens"] == 512 * told["counts"]["forwards"]
    assert told["selftest"]["comparisons"] > 10_000
