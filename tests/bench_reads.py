"""What asking for more entries costs: reads with `logprobs 20` against reads with targets only.

`python -m tests.bench_reads [--shape 4B] [--forwards 50]`: end to end from records to rows, random
weights, 60-token prompts, the two kinds of request in turn. With `--pretend 0.098` no GPU is
needed: a device that takes so many seconds a forward and computes nothing shows the host's part.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from scorer.checkpoint import find_checkpoint
from scorer.model import Qwen3, choose_shape
from scorer.reader import Reader
from scorer.scoring import Scorer
from scorer.shapes import Batch
from tests.conftest import DEMO_MODEL, find_qwen3_tokenizer
from tests.model_free import Flight, ModelFreeReader, model_free, write_tokenizer_only
from tests.random_model import write_random_config

VOCABULARY = 151_936


def make_scorer(folder: Path, shape: str) -> Scorer:
    """Return a scorer on CUDA whose weights were drawn on the device, never written."""
    tokenizer = find_qwen3_tokenizer() or DEMO_MODEL
    write_random_config(folder, tokenizer, shape=shape, vocab_size=VOCABULARY)
    (folder / "model.safetensors").touch()
    scorer = Scorer(folder)
    device = torch.device("cuda", 0)
    model = Qwen3.random(find_checkpoint(str(folder)), device, torch.bfloat16, seed=0)
    batch_shape = choose_shape(device, None, None)
    scorer.reader = Reader.of(
        model, batch_shape, n_ids=scorer.prompter.n_ids, weights_sha256="random"
    )
    return scorer


class Pretended(ModelFreeReader):
    """A device beside the host that takes so many seconds a forward."""

    seconds = 0.0
    _free = 0.0  # when it will have nothing to do
    _due: ClassVar[dict[int, float]] = {}

    def launch(self, batch: Batch) -> Flight:
        flight = super().launch(batch)
        self._free = max(self._free, time.perf_counter()) + self.seconds
        self._due[id(flight)] = self._free
        return flight

    def wait(self, flight: Flight) -> None:
        time.sleep(max(0.0, self._due.pop(id(flight)) - time.perf_counter()))


def pretended(folder: Path, seconds: float) -> Scorer:
    reader = Pretended(shape=choose_shape(torch.device("cuda"), None, None), depth=2)
    reader.seconds = seconds
    return model_free(write_tokenizer_only(folder / "model", DEMO_MODEL), reader)


def records(count: int, request: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {"prompt_token_ids": rng.integers(0, 4000, size=60).tolist(), **request}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="4B")
    parser.add_argument("--forwards", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pretend", type=float)
    arguments = parser.parse_args()
    requests: dict[str, dict[str, Any]] = {
        "targets only": {"targets": [5, 17]},
        "logprobs 20": {"targets": [5, 17], "logprobs": 20},
    }
    with tempfile.TemporaryDirectory() as folder:
        if arguments.pretend is None:
            scorer = make_scorer(Path(folder), arguments.shape)
        else:
            scorer = pretended(Path(folder), arguments.pretend)
        shape = scorer.reader.shape
        a_forward = min(shape.rows, shape.tokens // 60)
        list(scorer.score(records(2 * a_forward, requests["logprobs 20"], 0)))
        seconds: dict[str, list[float]] = {name: [] for name in requests}
        for seed in range(arguments.rounds):
            for name, request in requests.items():
                before = scorer.reader.counts.forwards
                started = time.perf_counter()
                rows = list(scorer.score(records(arguments.forwards * a_forward, request, seed)))
                seconds[name].append(time.perf_counter() - started)
                forwards = scorer.reader.counts.forwards - before
                print(
                    f"{arguments.shape} {name}: {len(rows)} reads in {forwards} forwards, "
                    f"{len(rows) / seconds[name][-1]:.1f} reads/s, "
                    f"{60 * len(rows) / seconds[name][-1]:.0f} tokens/s"
                )
        best = {name: min(times) for name, times in seconds.items()}
        cost = best["logprobs 20"] / best["targets only"] - 1
        print(json.dumps({"shape": arguments.shape, "cost_of_logprobs_20": cost}))


if __name__ == "__main__":
    main()
