"""Write what this machine's GPU gives for ``fixture_cases``, for machines that have none.

``python -m tests.make_reduction_fixtures tests/data/reduction_fixtures.npz``; the file holds each
field of each case's ``RawReduction``, not the logits, which ``fixture_cases`` makes again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scorer.cuda.device import DeviceReducer
from scorer.reduction import RawReduction
from tests.reduction_cases import Case, fixture_cases


def to_torch(case: Case, device: torch.device) -> torch.Tensor:
    """The case's logits as a tensor of its dtype."""
    if case.dtype == "bfloat16":
        return torch.from_numpy(case.logits.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(case.logits).to(device)


def device_results(case: Case, device: torch.device) -> RawReduction:
    reducer = DeviceReducer(
        device,
        max_rows=len(case.logits),
        vocab_size=case.logits.shape[1],
        n_ids=case.n_ids,
    )
    return reducer.reduce(to_torch(case, device), case.requests).raw


def main(path: Path) -> None:
    device = torch.device("cuda")
    cases = fixture_cases()
    made = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    arrays: dict[str, np.ndarray[Any, Any]] = {"made": np.array(json.dumps(made))}
    for case in cases:
        arrays[f"{case.name}/logits_sha256"] = np.array(case.sha256())
        raw = device_results(case, device)
        for field in fields(raw):
            arrays[f"{case.name}/{field.name}"] = getattr(raw, field.name)
    np.savez_compressed(path, allow_pickle=False, **arrays)
    rows = sum(len(case.logits) for case in cases)
    print(f"{path}: {len(cases)} cases, {rows} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
