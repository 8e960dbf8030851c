"""Element-wise functions in pieces: an element's bits don't depend on its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from scorer.errors import IsolationError
from scorer.pieces import InPieces
from scorer.scoring import Scorer

THREADS = (1, 2, 3, 5, 8, 12)
SHAPES = ((512, 352), (1000, 352), (100, 9728), (37, 352), (3, 7))
"""Rows and columns: the demo model's, rests of all kinds, more than one turn of the threads."""

RECORDS = ({"prompt": "a film", "logprobs": 0},)

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's threads, also to more than there are cores; sets them back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def moved(function: Function, values: torch.Tensor) -> int:
    """Return how many values of some rows differ when the rows stand in reversed order."""
    return int((function(values) != function(values.flip(0)).flip(0)).sum())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_place_and_no_number_of_threads_moves_a_bit(
    threads: Callable[[int], None], shape: tuple[int, int], dtype: torch.dtype
) -> None:
    silu = InPieces(torch.nn.SiLU())
    values = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    results = []
    for count in THREADS:
        threads(count)
        assert moved(silu, values) == 0, count
        results.append(silu(values))

    assert results[0].dtype == dtype
    assert results[0].shape == shape
    for result in results[1:]:
        assert torch.equal(result, results[0])
    expected = torch.nn.functional.silu(values.double())
    accuracy = 2**-22 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(results[0].double(), expected, rtol=accuracy, atol=1e-30)


def test_torch_alone_moves_bits(threads: Callable[[int], None]) -> None:
    """Where this fails, torch has changed and `InPieces` may not be needed any more."""
    threads(5)
    values = torch.randn((512, 352), generator=torch.Generator().manual_seed(1))

    assert moved(torch.nn.functional.silu, values) > 0


@pytest.mark.parametrize("count", THREADS[1:])
def test_the_self_test_passes_with_any_number_of_threads(
    threads: Callable[[int], None], demo_model: Path, count: int
) -> None:
    threads(count)
    scorer = Scorer(demo_model, device="cpu", cache=None)

    assert len(list(scorer.score(RECORDS))) == 1
    assert scorer.reader.selftests.comparisons > 100_000


def test_the_self_test_finds_an_activation_that_knows_places(
    threads: Callable[[int], None], demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(5)
    monkeypatch.setattr("scorer.model.InPieces", lambda function: function)

    with pytest.raises(IsolationError, match="use --isolation alone"):
        list(Scorer(demo_model, device="cpu", cache=None).score(RECORDS))
