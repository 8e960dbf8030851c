"""From a prepared record to its reads, and from the reads' distributions to its row.

Pure: no model, no device. An option's value is a function of the prompt's token ids and its own
alone: a one-token option is a target of the prompt's read, a longer one has a read of prompt and
option to itself, so no option can move another.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from scorer.asks import Ask
from scorer.entries import Entries, zero_probability
from scorer.errors import ErrorCode, RowError
from scorer.numeric import exps
from scorer.prompts.prompter import Prepared, Prompter
from scorer.prompts.words import ID_BYTES, packed, unpacked
from scorer.records.record import BadLine, Record
from scorer.rows import (
    Failure,
    OptionScore,
    PositionLogprobs,
    ReadLogprobs,
    Score,
    TokenScore,
)
from scorer.shapes import Read
from scorer.tables import ReadResult

LOW_LABEL_MASS = 0.5
"""Label mass below which a row warns that the labels are not what the model wants to answer."""

MAX_ENTRIES = 2_000_000
"""The most alternatives of one row, some 200 MB of JSON."""


class Plan(msgspec.Struct, frozen=True):
    """The reads of one record.

    prepared: the record, rendered and tokenised. logprobs, prompt_logprobs: as asked, None for
    none. asks: the prompt's read first where there is one, then one for each option of several
    tokens, in order.
    """

    prepared: Prepared
    logprobs: int | None
    prompt_logprobs: int | None
    asks: tuple[Ask, ...]

    @property
    def reads(self) -> tuple[Read, ...]:
        """What is asked, as reads; made anew each time."""
        return tuple([ask.read() for ask in self.asks])

    @property
    def most_entries(self) -> int:
        """The longest list of entries that any one distribution is asked for."""
        return max(self.logprobs or 0, self.prompt_logprobs or 0)


def plan(prepared: Prepared, *, logprobs: int | None, prompt_logprobs: int | None) -> Plan:
    """Return the reads that a record needs.

    logprobs, prompt_logprobs: what is asked where the record itself says nothing. Raises
    RowError when a row of that many entries could not be held.
    """
    record = prepared.record
    if record.logprobs is not None:
        logprobs = record.logprobs
    if record.prompt_logprobs is not None:
        prompt_logprobs = record.prompt_logprobs
    if (prompt_logprobs or 0) * prepared.tokens > MAX_ENTRIES:
        raise RowError(
            ErrorCode.LOGPROBS_LIMIT,
            f"prompt_logprobs {prompt_logprobs} at each of {prepared.tokens} prompt tokens are "
            f"more than the {MAX_ENTRIES} entries of one row; ask for fewer, or shorten the prompt",
        )
    ids = prepared.ids
    short: list[int] = []
    asks: list[Ask] = []
    for option in prepared.options:
        own = option.token_ids
        if len(own) == 1:
            short += own
        else:
            asks.append(Ask(ids + packed(own), len(own)))
    if prepared.targets:
        short += [target.token_id for target in prepared.targets]
    if short or logprobs is not None or prompt_logprobs is not None:
        asks.insert(0, Ask(ids, 0, tuple(short), logprobs or 0, prompt_logprobs))
    return Plan(prepared, logprobs, prompt_logprobs, tuple(asks))


def failed(source: BadLine | Prepared | Record, error: RowError) -> Score:
    """Return the row of a record that can't be scored."""
    failure = Failure(code=error.code, message=str(error))
    if isinstance(source, Prepared):
        record = source.record
        return Score(
            id=record.id,
            line=record.line,
            prompt_tokens=source.tokens,
            prompt_sha256=prompt_sha256(source.ids),
            extra=record.extra or UNSET,
            error=failure,
        )
    extra = dict(source.extra)
    return Score(id=source.id, line=source.line, extra=extra or UNSET, error=failure)


def prompt_sha256(ids: bytes) -> str:
    """Return the hex SHA-256 over token ids, which are not negative, as little-endian uint32.

    ids: int32, little endian; the same bytes.
    """
    return hashlib.sha256(ids).hexdigest()


def answer(
    plan: Plan, results: Sequence[ReadResult], prompter: Prompter, notes: tuple[str, ...] = ()
) -> Score:
    """Return a record's row from the reduced distributions of its reads, in the plan's order.

    notes: what else the row has to say, behind the record's own warnings.

    Raises RowError for logits that are not finite, and for a token asked for by name whose
    probability is zero: no number is ever put in the place of a missing one.
    """
    outcome = _Outcome(plan, results)
    return outcome.row(exps(outcome.exponents()), prompter, notes)


def answers(
    plans: Sequence[Plan],
    results: Iterable[Sequence[ReadResult]],
    prompter: Prompter,
    most_on_device: int | None = None,
) -> list[Score]:
    """Return what ``answer`` does for many records at once, error rows included.

    most_on_device: the most entries of a distribution that a device lists: where more are asked
    for, the host has listed them, and the row says so. None: there is no device.
    """
    outcomes: list[_Outcome | RowError] = []
    exponents: list[float] = []
    for plan, own in zip(plans, results, strict=True):
        try:
            outcome = _Outcome(plan, own)
        except RowError as error:
            outcomes.append(error)
        else:
            outcomes.append(outcome)
            exponents += outcome.exponents()
    powers = exps(exponents)
    rows = []
    at = 0
    for plan, known in zip(plans, outcomes, strict=True):
        if isinstance(known, RowError):
            rows.append(failed(plan.prepared, known))
            continue
        end = at + known.powers
        notes: tuple[str, ...] = ()
        if most_on_device is not None and plan.most_entries > most_on_device:
            listed = f"more than {most_on_device} entries of a distribution were listed"
            notes = (f"{listed} by the host reduction",)
        try:
            rows.append(known.row(powers[at:end], prompter, notes))
        except RowError as error:
            rows.append(failed(plan.prepared, error))
        at = end
    return rows


class _Outcome:
    """The options' values. Raises RowError where one of them is none.

    powers: how many exponentials the row needs, those of ``exponents``.
    """

    __slots__ = (
        *("_at", "_greedy", "_has_mass", "_ordered", "_plan", "_prompt", "_several", "_values"),
        "powers",
    )

    def __init__(self, plan: Plan, results: Sequence[ReadResult]) -> None:
        for reduced in results:
            if reduced.nonfinite:  # how many depends on what the read shares a tile with
                raise RowError(
                    ErrorCode.NONFINITE_LOGITS,
                    "a distribution of the read holds NaN or infinite logits; the model or its "
                    "dtype overflows on this prompt",
                )
        asks, prepared = plan.asks, plan.prepared
        options = prepared.options
        prompt = results[0] if asks and not asks[0].option else None
        several = bool(asks) and asks[-1].option > 0
        # The prompt's last row: its options' tokens in order, then its targets.
        at = 0
        logprobs: list[float] = []
        ranks: list[int] = []
        if prompt is not None:
            logprobs, ranks = prompt.target_logprob, prompt.target_rank
            short = len(options) - (len(results) - 1)
            at = len(logprobs) - short - len(prepared.targets)
        if not several:
            end = at + len(options)
            values = logprobs[at:end]
            greedy = [rank == 1 for rank in ranks[at:end]]
            at = end
        else:
            values, greedy = [], []
            longer = iter(results if prompt is None else results[1:])
            for option in options:
                if len(option.token_ids) == 1:
                    values.append(logprobs[at])
                    greedy.append(ranks[at] == 1)
                    at += 1
                else:
                    read = next(longer)
                    values.append(math.fsum(read.target_logprob))
                    greedy.append(all(rank == 1 for rank in read.target_rank))
        self._ordered = sorted(values)
        if values and self._ordered[0] == -math.inf:
            option = options[values.index(-math.inf)]
            raise zero_probability(f"option {option.text!r}")
        self._plan = plan
        self._prompt = prompt
        self._values = values
        self._greedy = greedy
        self._at = at
        self._several = several
        self._has_mass = not several and not prepared.prefix_clash
        self.powers = 2 * len(values) if self._has_mass else len(values)

    def exponents(self) -> list[float]:
        """What the row needs e to the power of: for the softmax, then for the label mass."""
        values = self._values
        if not values:
            return []
        largest = self._ordered[-1]
        shifted = [value - largest for value in values]
        return shifted + values if self._has_mass else shifted

    def row(self, powers: Sequence[float], prompter: Prompter, notes: tuple[str, ...]) -> Score:
        """Return the row. Raises RowError where a token has probability zero."""
        plan, values, ordered = self._plan, self._values, self._ordered
        prepared = plan.prepared
        record = prepared.record
        options: tuple[OptionScore, ...] | UnsetType = UNSET
        answer: str | UnsetType | None = UNSET
        index: int | UnsetType | None = UNSET
        mass: float | UnsetType | None = UNSET
        margin: float | UnsetType | None = UNSET
        best: tuple[int, ...] = ()
        if values:
            options = self._options(powers)
            best = _best(values, ordered)
            answer, index = (options[best[0]].text, best[0]) if len(best) == 1 else (None, None)
            mass = math.fsum(powers[len(values) :]) if self._has_mass else None
            margin = ordered[-1] - ordered[-2] if len(values) > 1 else None
        gold = record.gold_index
        warnings = prepared.warnings + notes
        if not plan.asks or (record.question is not None and isinstance(mass, float)):
            warnings = prepared.warnings + _own_warnings(plan, mass) + notes
        row = Score(
            id=record.id,
            line=record.line,
            prompt_tokens=len(prepared.ids) // ID_BYTES,
            prompt_sha256=prompt_sha256(prepared.ids),
            answer=answer,
            answer_index=index,
            label_mass=mass,
            margin=margin,
            gold_index=UNSET if gold is None else gold,
            correct=UNSET if gold is None else best == (gold,),
            options=options,
            warnings=warnings or UNSET,
            extra=record.extra or UNSET,
        )
        more = self._more(best, options, prompter)  # what few rows have
        return msgspec.structs.replace(row, **more) if more else row

    def _more(
        self,
        best: tuple[int, ...],
        options: tuple[OptionScore, ...] | UnsetType,
        prompter: Prompter,
    ) -> dict[str, Any]:
        plan, prompt = self._plan, self._prompt
        prepared = plan.prepared
        fields: dict[str, Any] = {}
        if len(best) > 1:
            fields["tied"] = best
        if options is not UNSET and self._several:
            fields["answer_per_token"] = _answer_by(options, "logprob_per_token")
            fields["answer_per_byte"] = _answer_by(options, "logprob_per_byte")
        if prepared.truncated_tokens:
            fields["truncated_tokens"] = prepared.truncated_tokens
        if prompt is not None and prepared.targets:
            fields["targets"] = _targets(prepared, Entries(prompt, prompter), self._at)
        if prompt is not None and plan.logprobs is not None:
            entries = Entries(prompt, prompter)
            last = prompt.rows - 1
            fields["logprobs"] = ReadLogprobs(chosen=entries.chosen(last), top=entries.top(last))
        if prompt is not None and plan.prompt_logprobs is not None:
            fields["prompt_logprobs"] = _prompt_logprobs(prepared, Entries(prompt, prompter))
        return fields

    def _options(self, powers: Sequence[float]) -> tuple[OptionScore, ...]:
        """powers: e to the power of each value less the largest, and more.

        The softmax's denominator is the exact sum, rounded once: probabilities have the same bits
        in any order of the options.
        """
        prepared, values, greedy, ordered = (
            self._plan.prepared,
            self._values,
            self._greedy,
            self._ordered,
        )
        count = len(values)
        total = math.fsum(powers[:count])
        options = [
            OptionScore(
                text=option.text,
                label=UNSET if option.label is None else option.label,
                token_ids=option.token_ids,
                logprob=values[place],
                probability=powers[place] / total,
                rank=1 + count - bisect_right(ordered, values[place]),
                is_greedy=greedy[place],
                seam_changed=option.seam_changed or UNSET,
            )
            for place, option in enumerate(prepared.options)
        ]
        if self._several:
            moved = prepared.moved_spaces
            options = [
                msgspec.structs.replace(
                    option,
                    logprob_per_token=option.logprob / len(option.token_ids),
                    logprob_per_byte=option.logprob / (moved + len(option.text.encode())),
                )
                for option in options
            ]
        return tuple(options)


def _best(values: Sequence[float], ordered: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of the largest value, all of them where several are equal."""
    largest = ordered[-1]
    if len(ordered) == 1 or ordered[-2] != largest:
        return (values.index(largest),)
    return tuple([index for index, value in enumerate(values) if value == largest])


def _answer_by(options: tuple[OptionScore, ...], field: str) -> str | None:
    values = [getattr(option, field) for option in options]
    best = _best(values, sorted(values))
    return options[best[0]].text if len(best) == 1 else None


def _own_warnings(plan: Plan, mass: float | UnsetType | None) -> tuple[str, ...]:
    if not plan.asks:
        return ("nothing is asked: add options, targets, logprobs or prompt_logprobs",)
    question = plan.prepared.record.question
    if question is None or not isinstance(mass, float) or mass >= LOW_LABEL_MASS:
        return ()
    less = "most of the probability is on other tokens than the labels"
    return (f"label mass {mass:.3g}: {less}",)


def _targets(prepared: Prepared, entries: Entries, at: int) -> tuple[TokenScore, ...]:
    """Give the targets, which stand in the read from place ``at`` on."""
    ids = [target.token_id for target in prepared.targets]
    return tuple(entries.targets(slice(at, at + len(ids)), ids))


def _prompt_logprobs(prepared: Prepared, entries: Entries) -> tuple[PositionLogprobs | None, ...]:
    """Give one entry a prompt token; the first has nothing before it and is None."""
    later = unpacked(prepared.ids)[1:]
    tokens = entries.targets(slice(len(later)), later)
    return (
        None,
        *(
            PositionLogprobs(token=token, chosen=entries.chosen(row), top=entries.top(row))
            for row, token in enumerate(tokens)
        ),
    )
