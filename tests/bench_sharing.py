"""What sharing prefixes gives: orderings and lengths of the prefix against reads apart.

`python -m tests.bench_sharing [--shape 4B] [--forwards 12]`: random weights on a GPU. Each line is
one run of the same reads shared and apart, side by side; it ends with an error where a bit differs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from scorer.bench import baselines, workloads
from scorer.bench.sizes import SIZES
from scorer.bench.start import SEED
from tests.bench_reads import make_scorer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="4B", choices=list(SIZES))
    parser.add_argument("--forwards", type=int, default=12)
    parser.add_argument("--orderings", type=int, nargs="+", default=[2, 4, 10])
    parser.add_argument("--prefixes", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--own", type=int, default=48)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader = make_scorer(Path(folder), arguments.shape).reader
        print("orderings  prefix  apart reads/s  shared reads/s  ratio  by tokens  forwards")
        for prefix in arguments.prefixes:
            for k in arguments.orderings:
                orderings = workloads.Orderings(reads=k, prefix=prefix, own=arguments.own)
                workload = workloads.make(
                    "orderings",
                    reader.shape,
                    forwards=arguments.forwards,
                    n_ids=reader.n_ids,
                    max_tokens=reader.model.checkpoint.max_tokens,
                    seed=SEED,
                    orderings=orderings,
                )
                reads = workload.reads
                records = [place // k for place in range(len(reads))]
                seconds = []
                runs = []
                for own in (None, records):
                    baselines.packed(reader, reads[:k], None if own is None else own[:k])
                    started = time.perf_counter()
                    runs.append(baselines.packed(reader, reads, own))
                    seconds.append(time.perf_counter() - started)
                apart, shared = runs
                if not np.array_equal(apart.logprobs, shared.logprobs):
                    raise SystemExit(f"{orderings}: shared reads differ from reads apart")
                if not shared.shared_tokens:
                    raise SystemExit(f"{orderings}: nothing was shared")
                saved = workload.tokens / (workload.tokens - shared.shared_tokens)
                print(
                    f"{k:9}  {prefix:6}  {len(reads) / seconds[0]:13.1f}  "
                    f"{len(reads) / seconds[1]:14.1f}  {seconds[0] / seconds[1]:5.2f}  {saved:9.2f}"
                    f"  {apart.forwards} / {shared.forwards}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
