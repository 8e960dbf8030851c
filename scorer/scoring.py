"""Records in, scores out: the public Python API, and what the command line runs on.

::

    from scorer.scoring import Scorer

    scorer = Scorer("Qwen/Qwen3-0.6B")
    for score in scorer.score([{"question": "Is the sky blue?", "options": ["yes", "no"]}]):
        print(score.answer, score.label_mass)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scorer.answers import Plan
from scorer.errors import InputError, ModelError, RowError, UsageError
from scorer.prompts.labels import LabelSet
from scorer.prompts.templates import default_question_template
from scorer.records.mapping import as_records
from scorer.records.record import MAX_TOP_K, BadLine, Record
from scorer.rows import Score
from scorer.turns import LAUNCH_ERRORS, Chunk, Turns
from scorer.workers.hands import Hands, Here, one_ahead
from scorer.workers.host import Host, HostSettings

if TYPE_CHECKING:
    from scorer.asks import Ask
    from scorer.manifest import Json
    from scorer.model import DeviceName, DtypeName
    from scorer.reader import Reader, ReductionName
    from scorer.records.lines import Lines
    from scorer.workers.host import Rows

Isolation = Literal["packed", "alone"]

_RECORDS_AT_ONCE = 256
"""Records tokenised in one call: enough to keep the tokenizer's threads busy."""


class Scorer:
    """Scores records with one model, in isolated single-forward reads.

    model: a folder or a hub id; revision: of a hub id. device, dtype, isolation: as the options
    of ``scorer score``. reduction: where distributions are reduced, ``auto`` for where the model
    runs; the bits are the same. tokens_per_forward, rows_per_forward: T and R; None for the
    device's default. shared_prefix: reads of one record share their common prefix where the device
    can do it; the bits are the same. logprobs, prompt_logprobs: what is asked of records that don't
    say. question_template: the text of a Jinja template with ``question``, ``state`` and
    ``options`` (not the path of one), None for the default. labels: what stands for a question's
    options, as ``LabelSet.parse`` reads it. cache: the folder where passed self-tests are
    remembered, None to run them in every process.

    Records are taken in the thread that takes the rows, ahead of these: as many as fill eight
    forwards and those in flight, and up to 512 more. A Scorer is for one thread at a time.

    The tokenizer and the checkpoint's configuration are read at once, the weights when the
    first score is asked for. Raises UsageError, ModelError; while scoring IsolationError,
    DeviceError, and ModelError at the first question or chat where the chat template is missing or
    refused.
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
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        from scorer.checkpoint import find_checkpoint

        _check_choice("device", device, ("auto", "cpu", "cuda"))
        _check_choice("dtype", dtype, ("auto", "bfloat16", "float16", "float32"))
        _check_choice("isolation", isolation, ("packed", "alone"))
        _check_choice("reduction", reduction, ("auto", "host", "device"))
        _check_whole("tokens_per_forward", tokens_per_forward)
        _check_whole("rows_per_forward", rows_per_forward)
        for name, text in (
            ("system", system),
            ("question_template", question_template),
            ("labels", labels),
        ):
            if not isinstance(text, str | None):
                raise UsageError(f"{name} must be a string, got {text!r}")
        for name, value in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
            _check_whole(name, value)
            if value is not None and not 0 <= value <= MAX_TOP_K:
                raise UsageError(
                    f"{name} must be 0 (the chosen token only) to {MAX_TOP_K}, got {value}; the "
                    "whole vocabulary is not given"
                )
        label_set = LabelSet.parse(labels)
        self.checkpoint = find_checkpoint(os.fspath(model), revision)
        self._host_settings = HostSettings(
            tokenizer=os.fspath(self.checkpoint.path),
            max_tokens=self.checkpoint.max_tokens,
            vocab_size=self.checkpoint.vocab_size,
            system=system,
            question_template=question_template,
            parse_special=parse_special,
            truncate_prompt=truncate_prompt,
            labels=labels,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        self.prompter = self._host_settings.prompter()
        self._host = Host(self.prompter, self._host_settings)
        self.question_template = (
            default_question_template(label_set.noun)
            if question_template is None
            else question_template
        )
        self.isolation = isolation
        self._device = device
        self._dtype = dtype
        self._reduction = reduction
        self._tokens = tokens_per_forward
        self._rows = rows_per_forward
        self._shared_prefix = shared_prefix
        self._cache = None if cache is None else Path(cache)
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
        from scorer.manifest import hash_files
        from scorer.model import Qwen3, choose_device, choose_dtype, choose_shape
        from scorer.reader import Reader, choose_reduction

        device = choose_device(self._device)
        dtype = choose_dtype(self._dtype, device, self.checkpoint)
        shape = choose_shape(device, self._tokens, self._rows)
        reduction = choose_reduction(self._reduction, device)
        with ThreadPoolExecutor(max_workers=1) as pool:  # hashing hides behind loading
            weights = pool.submit(hash_files, self.checkpoint.weights)
            model = Qwen3.load(self.checkpoint, device, dtype)
            return Reader.of(
                model,
                shape,
                n_ids=self.prompter.n_ids,
                weights_sha256=weights.result(),
                alone=self.isolation == "alone",
                reduction=reduction,
                cache=self._cache,
                share=self._shared_prefix,
            )

    def plan_one(self, record: Record | BadLine) -> Plan:
        """Return one record's plan, without the model. Raises RowError."""
        if isinstance(record, BadLine):
            raise record.error
        (prepared,) = self.prompter.prepare([record])
        if isinstance(prepared, RowError):
            raise prepared
        return self._host.plan(prepared)

    def prepare(self, records: Iterable[Record | BadLine]) -> Iterator[Plan | Score]:
        """Yield each record's plan, or its error row; in order, without the model.

        A thread tokenises the next records meanwhile; the tokenizer's own code and the device's
        run without the GIL.
        """
        for plans in self._prepared(records):
            yield from plans

    def _prepared(self, records: Iterable[Record | BadLine]) -> Iterator[list[Plan | Score]]:
        rest = iter(records)
        some = iter(lambda: list(islice(rest, _RECORDS_AT_ONCE)), [])
        return one_ahead(some, self._host.prepare)

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
        device or a self-test fails, rows that were whole before still come, then the error.
        """
        reader = self.reader
        chunks = (
            Chunk(plans, list(map(_asks, plans)), list(map(_line, plans)) if together else None)
            for plans in self._prepared(as_records(records))
        )
        for own in Turns[list[Plan | Score]](reader, stop).run(chunks):
            plans = own.origin[own.start : own.end]
            yield from self._host.answer(plans, own.results, reader.max_device_k)

    def hands(self, workers: int) -> Hands:
        """Return who does the host's work for ``write``: so many processes, or this one for 0."""
        if not workers:
            return Here(Host(self.prompter, self._host_settings))
        from scorer.workers.pool import Workers

        return Workers(self._host_settings, workers)

    def write(
        self,
        lines: Iterable[Lines],
        hands: Hands,
        *,
        stop: Callable[[], bool] = lambda: False,
        stop_at_error: bool = False,
    ) -> Generator[Rows, None, None]:
        """Yield the rows of lines of input, as ``score`` makes them, written out.

        stop_at_error: the rows end before the first record that would be an error row.
        """
        reader = self.reader
        most = reader.max_device_k
        try:
            for stretch in Turns[int](reader, stop).run(hands.chunks(lines)):
                hands.write(stretch, most_on_device=most, stop_at_error=stop_at_error)
                yield from hands.ready()
        except (*LAUNCH_ERRORS, InputError, ModelError):
            yield from hands.rest()
            raise
        yield from hands.rest()


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_whole(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} must be a whole number, got {value!r}")


def _asks(item: Plan | Score) -> tuple[Ask, ...]:
    return item.asks if isinstance(item, Plan) else ()


def _line(item: Plan | Score) -> int:
    return item.prepared.record.line if isinstance(item, Plan) else item.line
