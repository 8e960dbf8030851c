"""A program around the reader has settings, streams and contexts of its own: none moves a bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from scorer.errors import UsageError
from scorer.rows import encode_score
from scorer.scoring import Scorer
from tests.conftest import DEMO_MODEL
from tests.random_model import write_random_checkpoint

Records = list[dict[str, object]]


def records(ids: int, count: int) -> Records:
    rng = np.random.default_rng(11)
    return [
        {"prompt_token_ids": rng.integers(0, ids, size=n).tolist(), "targets": [5, 17]}
        for n in rng.integers(1, 90, size=count)
    ]


def rows(scorer: Scorer, of: Records) -> list[bytes]:
    return [encode_score(row) for row in scorer.score(of)]


@contextmanager
def precision(name: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def one_thread_more() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("threads", one_thread_more),
        ("float32_precision", lambda: precision("medium")),
        ("flash_sdp_enabled", lambda: sdpa_kernel(SDPBackend.MATH)),
    ],
)
def test_settings_that_change_after_loading_are_refused(
    tiny_model: Path, name: str, changed: Callable[[], object]
) -> None:
    scorer = Scorer(tiny_model, device="cpu")
    some = records(100, 6)
    before = rows(scorer, some)
    with changed(), pytest.raises(UsageError, match=rf"{name} was .* and is .*load the model anew"):  # type: ignore[attr-defined]
        rows(scorer, some)
    assert rows(scorer, some) == before


def test_autocast_of_the_caller_moves_no_bit(tiny_model: Path) -> None:
    scorer = Scorer(tiny_model, device="cpu")
    some = records(100, 6)
    before = rows(scorer, some)
    linear = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.ones(4)).dtype == torch.bfloat16
        assert rows(scorer, some) == before
        assert rows(Scorer(tiny_model, device="cpu"), some) == before  # self-test and all


@pytest.mark.gpu
def test_streams_and_autocast_of_the_caller_move_no_bit_on_a_gpu(tmp_path: Path) -> None:
    """Rows are taken with another current stream each time, while the last ones are kept busy."""
    write_random_checkpoint(tmp_path / "model", DEMO_MODEL, shape="0.6B", vocab_size=5000)

    def fresh() -> Scorer:
        return Scorer(tmp_path / "model", device="cuda", tokens_per_forward=256, rows_per_forward=8)

    some = records(4000, 300)
    scorer = fresh()
    before = rows(scorer, some)
    with torch.autocast("cuda", torch.float16):
        assert rows(scorer, some) == before
        assert rows(fresh(), some) == before  # what is recorded in graphs, is so under it

    streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
    product = torch.zeros(2048, 2048, device="cuda")
    taken = scorer.score(some)
    got = []
    for place in range(len(some)):
        with torch.cuda.stream(streams[place % 3]):
            torch.mm(product, product)
            got.append(encode_score(next(taken)))
    assert got == before
