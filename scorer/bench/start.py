"""From nothing to the first score, with a clock: what a benchmark starts with and says of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scorer.bench import workloads
from scorer.bench.figures import Phase, StartUp
from scorer.bench.sizes import SIZES, weightless

if TYPE_CHECKING:
    from scorer.checkpoint import Checkpoint
    from scorer.model import DeviceName, DtypeName
    from scorer.reader import Reader
    from scorer.scoring import Scorer

SEED = 20_261_130


@dataclass(slots=True, eq=False)
class Started:
    """What can be timed now.

    plain: a transformers model as it comes, over the same weights. scorer: over the same reader;
    None for a model without a tokenizer.
    """

    reader: Reader
    plain: Any
    scorer: Scorer | None
    start_up: StartUp


class _Clock:
    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self._last = time.perf_counter()

    def end(self, name: str, *, ours: bool) -> None:
        """End the phase that began where the last one ended."""
        now = time.perf_counter()
        self.phases.append(Phase(name, now - self._last, ours))
        self._last = now


def start(
    shape: str | None,
    model: str | None,
    device_name: DeviceName,
    dtype_name: DtypeName,
    tokens: int | None,
    rows: int | None,
) -> Started:
    """Import, load or draw, prove and score once; return what was made and how long it took.

    shape: of weights that are drawn at random; model: a folder or hub id; both None for a shape
    that suits the device. tokens, rows: T and R, None for the device's default. The self-test is
    run, never remembered. Raises UsageError, ModelError, IsolationError, DeviceError.
    """
    clock = _Clock()
    from transformers import Qwen3ForCausalLM  # noqa: F401 - its import is what is timed

    from scorer.bench import baselines, instruments
    from scorer.manifest import hash_files
    from scorer.model import Qwen3, choose_device, choose_dtype, choose_shape
    from scorer.reader import Reader

    clock.end("libraries", ours=False)
    device = choose_device(device_name)
    instruments.wake(device)
    clock.end("device", ours=False)

    scorer = None
    if model is None:
        shape = shape or ("0.6B" if device.type == "cuda" else "tiny")
        checkpoint, n_ids = weightless(shape), SIZES[shape].n_ids
    else:
        checkpoint, scorer = _opened(model)
        n_ids = checkpoint.vocab_size if scorer is None else scorer.prompter.n_ids
    clock.end("tokenizer", ours=True)

    dtype = choose_dtype(dtype_name, device, checkpoint)
    batch_shape = choose_shape(device, tokens, rows)
    if model is None:
        qwen3 = Qwen3.random(checkpoint, device, dtype, seed=SEED)
        weights = f"random, seed {SEED}"
    else:
        with ThreadPoolExecutor(max_workers=1) as pool:
            hashed = pool.submit(hash_files, checkpoint.weights)
            qwen3 = Qwen3.load(checkpoint, device, dtype)
            weights = hashed.result()
    instruments.wait(device)
    clock.end("weights", ours=False)

    reader = Reader.of(qwen3, batch_shape, n_ids=n_ids, weights_sha256=weights)
    clock.end("reader", ours=True)
    reader.selftests.require(qwen3, batch_shape, batch_shape.tokens)
    clock.end("self-test", ours=True)
    baselines.packed(reader, [workloads.one_read(60, n_ids, SEED)])
    clock.end("first score", ours=True)

    age = instruments.process_age()
    if scorer is not None:
        scorer.reader = reader
    return Started(reader, qwen3.plain(), scorer, _start_up(clock.phases, age))


def _opened(model: str) -> tuple[Checkpoint, Scorer | None]:
    from scorer.checkpoint import find_checkpoint
    from scorer.scoring import Scorer

    checkpoint = find_checkpoint(model)
    if not (checkpoint.path / "tokenizer.json").is_file():
        return checkpoint, None
    return checkpoint, Scorer(checkpoint.path)


def _start_up(phases: list[Phase], age: float | None) -> StartUp:
    ours = sum(phase.seconds for phase in phases if phase.ours)
    if age is None:
        reason = "the system doesn't say when the process was started"
        return StartUp(seconds=None, reason=reason, our_seconds=ours, phases=tuple(phases))
    before = Phase("interpreter", age - sum(phase.seconds for phase in phases), ours=False)
    return StartUp(seconds=age, reason=None, our_seconds=ours, phases=(before, *phases))
