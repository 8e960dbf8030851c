"""Records in, scores out: the public Python API, and what the command line runs on.

::

    from scorer.scoring import Scorer

    scorer = Scorer("Qwen/Qwen3-0.6B")
    for score in scorer.score([{"question": "Is the sky blue?", "options": ["yes", "no"]}]):
        print(score.answer, score.label_mass)
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from scorer.answers import Plan, answers, failed, plan
from scorer.errors import DeviceError, RowError, UsageError
from scorer.labels import LabelSet
from scorer.packing import Packer
from scorer.prompts import Prepared, Prompter
from scorer.records import MAX_TOP_K, BadLine, Record, parse_line
from scorer.shapes import Batch, BatchShape, Read
from scorer.templates import default_question_template

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.model import DeviceName, DtypeName
    from scorer.reader import InFlight, Reader, ReductionName
    from scorer.rows import Score
    from scorer.tables import ReadResult

Isolation = Literal["packed", "alone"]

_RECORDS_AT_ONCE = 256
"""Records tokenised in one call: enough to keep the tokenizer's threads busy."""

_WINDOW_FORWARDS = 8
"""The packing window in forwards of T tokens: more fills better, less answers sooner."""


@dataclass(slots=True)
class _Slot:
    """A record on its way: its plan and the results of its reads so far, or its row."""

    plan: Plan | None
    results: list[ReadResult | None]
    missing: int
    row: Score | None


class Scorer:
    """Scores records with one model, in isolated single-forward reads.

    model: a folder or a hub id; revision: of a hub id. device, dtype, isolation: as the options
    of ``scorer score``. reduction: where distributions are reduced, ``auto`` for where the model
    runs; the bits are the same. tokens_per_forward, rows_per_forward: T and R; None for the
    device's default. shared_prefix: reads of one record share their common prefix where the device
    can do it; the bits are the same. logprobs, prompt_logprobs: what is asked of records that don't
    say. labels: what stands for a question's options, as ``LabelSet.parse`` reads it. cache: the
    folder where passed self-tests are remembered, None to run them in every process.

    The tokenizer and the checkpoint's configuration are read at once, the weights when the
    first score is asked for. Raises UsageError, ModelError; while scoring IsolationError,
    DeviceError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        revision: str | None = None,
        device: DeviceName = "auto",
        dtype: DtypeName = "auto",
        isolation: Isolation = "packed",
        reduction: ReductionName = "auto",
        tokens_per_forward: int | None = None,
        rows_per_forward: int | None = None,
        shared_prefix: bool = True,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        system: str | None = None,
        question_template: str | None = None,
        parse_special: bool = False,
        truncate_prompt: bool = False,
        labels: str = "letters",
        cache: Path | None = None,
    ) -> None:
        from scorer.checkpoint import find_checkpoint

        for name, value in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
            if value is not None and not 0 <= value <= MAX_TOP_K:
                raise UsageError(
                    f"{name} must be 0 (the chosen token only) to {MAX_TOP_K}, got {value}; the "
                    "whole vocabulary is not given"
                )
        if isolation not in ("packed", "alone"):
            raise UsageError(f"isolation must be packed or alone, got {isolation!r}")
        label_set = LabelSet.parse(labels)
        self.checkpoint = find_checkpoint(os.fspath(model), revision)
        self.prompter = Prompter(
            self.checkpoint.path,
            max_tokens=self.checkpoint.max_tokens,
            vocab_size=self.checkpoint.vocab_size,
            system=system,
            question_template=question_template,
            parse_special=parse_special,
            truncate=truncate_prompt,
            labels=label_set,
        )
        self.question_template = question_template or default_question_template(label_set.noun)
        self.isolation = isolation
        self._device = device
        self._dtype = dtype
        self._reduction = reduction
        self._tokens = tokens_per_forward
        self._rows = rows_per_forward
        self._shared_prefix = shared_prefix
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs
        self._cache = cache
        self.settings: dict[str, Json] = {
            "isolation": isolation,
            "shared_prefix": shared_prefix,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "system": system,
            "question_template": question_template,
            "parse_special": parse_special,
            "truncate_prompt": truncate_prompt,
            "labels": labels,
        }

    @cached_property
    def reader(self) -> Reader:
        """The loaded model with its batch shape; made when it is first needed."""
        from scorer.manifest import hash_files, numerics_fields
        from scorer.model import Qwen3, choose_device, choose_dtype, default_shape
        from scorer.reader import Reader, choose_reduction

        device = choose_device(self._device)
        dtype = choose_dtype(self._dtype, device, self.checkpoint)
        reduction = choose_reduction(self._reduction, device)
        default = default_shape(device)
        shape = BatchShape(
            tokens=default.tokens if self._tokens is None else self._tokens,
            rows=default.rows if self._rows is None else self._rows,
        )
        with ThreadPoolExecutor(max_workers=1) as pool:  # hashing hides behind loading
            weights = pool.submit(hash_files, self.checkpoint.weights)
            model = Qwen3.load(self.checkpoint, device, dtype)
            numerics = numerics_fields(
                model,
                shape,
                isolation=self.isolation,
                reduction=reduction,
                n_ids=self.prompter.n_ids,
                weights_sha256=weights.result(),
            )
        return Reader(
            model,
            shape,
            alone=self.isolation == "alone",
            n_ids=self.prompter.n_ids,
            numerics=numerics,
            cache=self._cache,
            reduction=reduction,
            share=self._shared_prefix and model.shares and self.isolation == "packed",
        )

    def plan_one(self, record: Record | BadLine) -> Plan:
        """Return one record's plan, without the model. Raises RowError."""
        if isinstance(record, BadLine):
            raise record.error
        (prepared,) = self.prompter.prepare([record])
        if isinstance(prepared, RowError):
            raise prepared
        return self._plan(prepared)

    def prepare(self, records: Iterable[Record | BadLine]) -> Iterator[Plan | Score]:
        """Yield each record's plan, or its error row; in order, without the model.

        A thread reads and tokenises the next records meanwhile; the tokenizer's own code and the
        device's need no turn of Python's.
        """
        rest = iter(records)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare") as pool:
            ahead = pool.submit(self._prepare_some, rest)
            while ready := ahead.result():
                ahead = pool.submit(self._prepare_some, rest)
                yield from ready

    def _prepare_some(self, records: Iterator[Record | BadLine]) -> list[Plan | Score]:
        """Take a handful of records and plan them; empty at the end."""
        chunk = list(islice(records, _RECORDS_AT_ONCE))
        prepared = iter(self.prompter.prepare([one for one in chunk if isinstance(one, Record)]))
        plans: list[Plan | Score] = []
        for record in chunk:
            if isinstance(record, BadLine):
                plans.append(failed(record, record.error))
                continue
            item = next(prepared)
            if isinstance(item, RowError):
                plans.append(failed(record, item))
                continue
            try:
                plans.append(self._plan(item))
            except RowError as error:
                plans.append(failed(item, error))
        return plans

    def _plan(self, prepared: Prepared) -> Plan:
        return plan(prepared, logprobs=self._logprobs, prompt_logprobs=self._prompt_logprobs)

    def score(
        self,
        records: Iterable[Record | BadLine | Mapping[str, object]],
        *,
        stop: Callable[[], bool] = lambda: False,
        together: bool = False,
    ) -> Iterator[Score]:
        """Yield one score a record, in the order of the records.

        records: parsed ones, or mappings with the keys of an input line (their ``line`` is
        then their place, from 1). Streams: a bounded window of records is held at a time.
        stop: asked at every record; when true, the batch in flight is finished and the rows that
        are whole in order come, but no others. together: records in a row that have the same
        ``line`` are one record of the input, and may share what they have in common. When the
        device fails, rows that were whole before still come, then the error.
        """
        slots: deque[_Slot] = deque()  # in the records' order
        try:
            for _ in self._turns(records, slots, stop, together=together):
                yield from _finished(slots)
        except DeviceError:
            yield from _finished(slots)
            raise

    def _turns(
        self,
        records: Iterable[Record | BadLine | Mapping[str, object]],
        slots: deque[_Slot],
        stop: Callable[[], bool],
        *,
        together: bool,
    ) -> Iterator[None]:
        """Fill slots and compute what they wait for; yields whenever the first may be done."""
        reader = self.reader
        packer = Packer(
            reader.shape,
            alone=reader.alone,
            window=_WINDOW_FORWARDS * reader.shape.tokens,
            share=reader.share,
        )
        places: dict[int, tuple[_Slot, int]] = {}  # of each waiting read
        flights: deque[InFlight] = deque()  # launched, the oldest first
        key = 0
        for items in _by_record(self.prepare(parsed(records)), together=together):
            if stop():
                break
            reads: list[Read] = []
            for item in items:
                slot = _slot(item)
                slots.append(slot)
                if slot.plan is not None:
                    own = slot.plan.reads
                    for place in range(len(own)):
                        places[key + len(reads) + place] = slot, place
                    reads += own
                    self._close(slot)
            packer.add(range(key, key + len(reads)), reads)
            key += len(reads)
            while packer.full and not stop():
                self._turn(flights, packer.pop(), places)
                yield
            if slots and slots[0].row is not None:
                yield
        while flights or (len(packer) and not stop()):
            self._turn(flights, packer.pop() if len(packer) and not stop() else None, places)
            yield

    def _turn(
        self,
        flights: deque[InFlight],
        batch: Batch | None,
        places: dict[int, tuple[_Slot, int]],
    ) -> None:
        """Launch a batch, and make the rows of the oldest one in flight meanwhile.

        The oldest is waited for when as many are in flight as the reader takes, or when there is
        nothing to launch. When a launch fails, what was in flight is still collected.
        """
        reader = self.reader
        oldest = None
        if flights and (batch is None or len(flights) >= reader.depth):
            oldest = flights.popleft()
            reader.wait(oldest)
        try:
            if batch is not None:
                flights.append(reader.launch(batch))
        except DeviceError:
            if oldest is not None:
                self._take(oldest, places)
            with suppress(DeviceError):  # of the fault that is raised already
                while flights:
                    self._take(flights.popleft(), places)
            raise
        if oldest is not None:
            self._take(oldest, places)

    def _take(self, flight: InFlight, places: dict[int, tuple[_Slot, int]]) -> None:
        """Take in a batch's results."""
        for key, result in zip(flight.batch.keys, self.reader.results(flight), strict=True):
            slot, place = places.pop(key)
            slot.results[place] = result
            slot.missing -= 1
            self._close(slot)

    def _close(self, slot: _Slot) -> None:
        """Make the row when the last of the record's reads has come back."""
        if slot.missing or slot.plan is None:
            return
        results = [reduced for reduced in slot.results if reduced is not None]
        (slot.row,) = answers([slot.plan], [results], self.prompter, self.reader.max_device_k)


def _slot(item: Plan | Score) -> _Slot:
    if isinstance(item, Plan):
        return _Slot(item, [None] * len(item.asks), len(item.asks), None)
    return _Slot(None, [], 0, item)


def _by_record(items: Iterator[Plan | Score], *, together: bool) -> Iterator[list[Plan | Score]]:
    """Yield what belongs to one record of the input: one by one, or all in a row of one line."""
    if not together:
        return ([item] for item in items)
    return (list(own) for _, own in groupby(items, key=_line))


def _line(item: Plan | Score) -> int:
    return item.prepared.record.line if isinstance(item, Plan) else item.line


def _finished(slots: deque[_Slot]) -> Iterator[Score]:
    """Yield and drop the rows at the front that are done."""
    while slots and (row := slots[0].row) is not None:
        slots.popleft()
        yield row


def parsed(
    records: Iterable[Record | BadLine | Mapping[str, object]],
) -> Iterator[Record | BadLine]:
    """Yield records as they are, and mappings parsed as if each were a line of input."""
    for line, record in enumerate(records, start=1):
        if isinstance(record, Record | BadLine):
            yield record
        else:
            yield parse_line(msgspec.json.encode(record), line)
