"""What the host does with records: from lines to what is asked of the model, and from its answers
to rows. Needs no model and no device, and so can be done in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
from msgspec import UNSET

from scorer.answers import Plan, answers, failed, plan
from scorer.asks import Ask
from scorer.errors import RowError
from scorer.job.summary import Counted
from scorer.prompts.labels import LabelSet
from scorer.prompts.prompter import Prepared, Prompter
from scorer.records.lines import Piece
from scorer.records.record import BadLine, Record
from scorer.records.source import parsed
from scorer.rows import Score, encode_scores
from scorer.tables import ReadResult, Results, parts_of

_ERRORS_NAMED = 10


class HostSettings(msgspec.Struct, frozen=True):
    """What makes a host: the tokenizer's folder, the model's limits, and the options of a job."""

    tokenizer: str
    max_tokens: int
    vocab_size: int
    system: str | None
    question_template: str | None
    parse_special: bool
    truncate_prompt: bool
    labels: str
    logprobs: int | None
    prompt_logprobs: int | None

    def prompter(self) -> Prompter:
        """Return the prompter. Raises ModelError, UsageError."""
        return Prompter(
            Path(self.tokenizer),
            max_tokens=self.max_tokens,
            vocab_size=self.vocab_size,
            system=self.system,
            question_template=self.question_template,
            parse_special=self.parse_special,
            truncate=self.truncate_prompt,
            labels=LabelSet.parse(self.labels),
        )


class Rows(msgspec.Struct, array_like=True):
    """Rows of a stretch of records, written out.

    data: the rows, each with its newline. last: the input line of the last one, 0 where there is
    none. counted: what they come to. errors: input line and message of the first few that are
    errors. stopped: the same of the record that they end before, if they do.
    """

    data: bytes
    last: int
    counted: Counted
    errors: list[tuple[int, str]]
    stopped: tuple[int, str] | None = None


class Host:
    """Plans records, and keeps what their rows need until these are written."""

    def __init__(self, prompter: Prompter, settings: HostSettings) -> None:
        self._prompter = prompter
        self._settings = settings
        self._kept: dict[int, list[Plan | Score]] = {}

    def plan(self, prepared: Prepared) -> Plan:
        """Return what a record asks. Raises RowError."""
        settings = self._settings
        return plan(prepared, logprobs=settings.logprobs, prompt_logprobs=settings.prompt_logprobs)

    def prepare(self, records: Sequence[Record | BadLine]) -> list[Plan | Score]:
        """Return each record's plan, or its error row."""
        prepared = iter(self._prompter.prepare([own for own in records if isinstance(own, Record)]))
        plans: list[Plan | Score] = []
        for record in records:
            if isinstance(record, BadLine):
                plans.append(failed(record, record.error))
                continue
            item = next(prepared)
            if isinstance(item, RowError):
                plans.append(failed(record, item))
                continue
            try:
                plans.append(self.plan(item))
            except RowError as error:
                plans.append(failed(item, error))
        return plans

    def answer(
        self,
        plans: Sequence[Plan | Score],
        results: Sequence[ReadResult],
        most_on_device: int | None,
    ) -> list[Score]:
        """Return the rows of planned records. results: of all their reads, in order."""
        asked = [own for own in plans if isinstance(own, Plan)]
        ends = list(accumulate(len(own.asks) for own in asked))
        each = [results[end - len(own.asks) : end] for own, end in zip(asked, ends, strict=True)]
        rows = iter(answers(asked, each, self._prompter, most_on_device))
        return [next(rows) if isinstance(own, Plan) else own for own in plans]

    def take(self, number: int, lines: Piece) -> list[tuple[Ask, ...]]:
        """Plan the records of some lines, keep them under a number, return what each asks."""
        plans = self.prepare(list(parsed(lines)))
        self._kept[number] = plans
        return [own.asks if isinstance(own, Plan) else () for own in plans]

    def parts(self, number: int, count: int, results: Results) -> list[ReadResult]:
        """Return the results of each read of the next ``count`` records under a number."""
        return parts_of(
            results,
            [
                ask.counts
                for own in self._kept[number][:count]
                if isinstance(own, Plan)
                for ask in own.asks
            ],
        )

    def write(
        self,
        number: int,
        count: int,
        results: Sequence[ReadResult],
        *,
        most_on_device: int | None,
        stop_at_error: bool,
    ) -> Rows:
        """Write the rows of the next ``count`` records that are kept under a number.

        results: of all their reads, in order. stop_at_error: end before the first error row.
        """
        plans = self._kept.pop(number)
        if count < len(plans):
            self._kept[number] = plans[count:]
        scores = self.answer(plans[:count], results, most_on_device)
        rows = Rows(b"", 0, Counted(), [])
        for place, score in enumerate(scores):
            if score.error is not UNSET:
                if stop_at_error:
                    rows.stopped = score.line, score.error.message
                    del scores[place:]
                    break
                if len(rows.errors) < _ERRORS_NAMED:
                    rows.errors.append((score.line, score.error.message))
            plan = plans[place]
            rows.counted.add(score, plan.prepared.record if isinstance(plan, Plan) else None)
        rows.data = encode_scores(scores)
        rows.last = scores[-1].line if scores else 0
        return rows
