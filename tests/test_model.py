"""Which device and dtype a model gets where none is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scorer.checkpoint import find_checkpoint
from scorer.errors import UsageError
from scorer.model import DtypeName, choose_dtype
from tests.random_model import write_random_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
AMX = ("amx_bf16", "amx_tile", "avx512_bf16")
AVX512 = ("avx2", "avx512_bf16", "avx512f")


@pytest.mark.parametrize(
    ("device", "stored", "flags", "expected"),
    [
        (CPU, "bfloat16", AMX, torch.bfloat16),
        (CPU, "float32", AMX, torch.float32),
        (CPU, "float16", AMX, torch.float32),
        (CPU, None, AMX, torch.float32),
        (CPU, "bfloat16", AVX512, torch.float32),
        (CPU, "bfloat16", (), torch.float32),
        (CUDA, "bfloat16", (), torch.bfloat16),
        (CUDA, "float16", (), torch.float16),
        (CUDA, "float32", AMX, torch.bfloat16),
    ],
)
def test_auto_is_what_is_stored_where_that_is_fast(
    demo_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    stored: str | None,
    flags: tuple[str, ...],
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr("scorer.model.cpu_flags", lambda: flags)
    write_random_config(tmp_path, demo_model, shape="tiny", vocab_size=4032)
    (tmp_path / "model.safetensors").touch()
    checkpoint = find_checkpoint(str(tmp_path))
    checkpoint.config.pop("torch_dtype", None)
    checkpoint.config["dtype"] = stored

    assert choose_dtype("auto", device, checkpoint) == expected


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("float32", CUDA, "--dtype bfloat16 or --device cpu"),
        ("float16", CPU, "use float32 or bfloat16"),
    ],
)
def test_a_dtype_that_a_device_does_not_serve_is_refused(
    demo_model: Path, name: DtypeName, device: torch.device, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_dtype(name, device, find_checkpoint(str(demo_model)))
