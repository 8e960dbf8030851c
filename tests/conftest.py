"""Shared fixtures: where the models and tokenizers for tests come from, and the ``gpu`` marker."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scorer.turns import PYTHONS_OWN
from tests.commands import RECORDS, Bench, write_lines

REPO = Path(__file__).resolve().parent.parent
DEMO_MODEL = REPO / "examples" / "demo-model"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _qwen3_folder() -> Path:
    named = os.environ.get("SCORER_QWEN3_TOKENIZER")
    return Path(named) if named else REPO.parent / "shared" / "qwen3-tokenizer"


def find_qwen3_tokenizer() -> Path | None:
    """Return the folder of the real Qwen3 tokenizer where there is one."""
    folder = _qwen3_folder()
    return folder if (folder / "tokenizer.json").is_file() else None


def qwen3_tokenizer_dir() -> Path:
    """Return the folder of the real Qwen3 tokenizer, or skip the calling test with the reason."""
    folder = find_qwen3_tokenizer()
    if folder is None:
        pytest.skip(
            f"no Qwen3 tokenizer at {_qwen3_folder()}: set SCORER_QWEN3_TOKENIZER to a folder that "
            "holds Qwen3's tokenizer.json and tokenizer_config.json"
        )
    return folder


@pytest.fixture(autouse=True)
def _nothing_stays_frozen() -> Iterator[None]:
    """What a run freezes for the garbage collector, it gives back, however it ends."""
    yield
    assert gc.get_freeze_count() < PYTHONS_OWN, "a run of Turns was neither finished nor closed"


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    return qwen3_tokenizer_dir()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    assert (DEMO_MODEL / "model.safetensors").is_file(), (
        f"the bundled model is missing: {DEMO_MODEL}"
    )
    return DEMO_MODEL


def _gpu_missing() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := _gpu_missing()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights that scores at once; not to be written to."""
    from tests.models import write_model

    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def bench(
    tiny_model: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    """A model, records and a folder; the cache is shared, so a self-test passes only once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Bench(tiny_model, write_lines(tmp_path / "in.jsonl", RECORDS), tmp_path)
