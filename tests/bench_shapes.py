"""How fast each batch shape scores a file: `python -m tests.bench_shapes [--model DIR]`.

The shapes take turns, so that a noisy machine treats them alike; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Literal

from scorer.scoring import Scorer
from tests.conftest import DEMO_MODEL

Case = tuple[int, int, Literal["packed", "alone"]]
CASES: tuple[Case, ...] = (
    (128, 16, "packed"),
    (256, 16, "packed"),
    (512, 8, "packed"),
    (512, 16, "packed"),
    (512, 32, "packed"),
    (1024, 32, "packed"),
    (2048, 32, "packed"),
    (512, 1, "alone"),
    (512, 16, "alone"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--input", type=Path, default=DEMO_MODEL.parent / "sentiment.jsonl")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    records = [json.loads(line) for line in arguments.input.read_text().splitlines()]
    scorers = {}
    for tokens, rows, isolation in CASES:
        scorers[tokens, rows, isolation] = scorer = Scorer(
            arguments.model,
            device=arguments.device,
            dtype=arguments.dtype,
            isolation=isolation,
            tokens_per_forward=tokens,
            rows_per_forward=rows,
        )
        list(scorer.score(records[:2]))
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(arguments.rounds):
        for case, scorer in scorers.items():
            started = time.perf_counter()
            list(scorer.score(records))
            best[case] = min(best[case], time.perf_counter() - started)
    alone = max(len(records) / best[case] for case in CASES if case[2] == "alone")
    print("tokens  rows  isolation  records/s  over the best alone")
    for (tokens, rows, isolation), seconds in best.items():
        rate = len(records) / seconds
        print(f"{tokens:6}  {rows:4}  {isolation:9}  {rate:9.1f}  {rate / alone:.2f}")


if __name__ == "__main__":
    main()
