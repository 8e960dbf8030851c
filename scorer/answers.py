"""From a prepared record to its reads, and from the reads' distributions to its row.

Pure: no model, no device. An option's value is a function of the prompt's token ids and its own
alone: a one-token option is a target of the prompt's read, a longer one has a read of prompt and
option to itself, so no option can move another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from msgspec import UNSET, UnsetType

from scorer.errors import ErrorCode, RowError
from scorer.labels import PreparedOption
from scorer.numeric import prob_mass, softmax
from scorer.prompts import Prepared, Prompter
from scorer.records import BadLine, Record
from scorer.reduction import RowRequests
from scorer.rows import (
    Failure,
    OptionScore,
    PositionLogprobs,
    ReadLogprobs,
    Score,
    TokenScore,
)
from scorer.shapes import IntArray, Read
from scorer.tables import ReadResult

LOW_LABEL_MASS = 0.5
"""Label mass below which a row warns that the labels are not what the model wants to answer."""

MAX_ENTRIES = 2_000_000
"""The most alternatives of one row, some 200 MB of JSON."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The reads of one record.

    prepared: the record, rendered and tokenised. logprobs, prompt_logprobs: as asked, None for
    none. reads: the prompt's read first where there is one, then one for each option of several
    tokens, in order.
    """

    prepared: Prepared
    logprobs: int | None
    prompt_logprobs: int | None
    reads: tuple[Read, ...]

    @property
    def most_entries(self) -> int:
        """The longest list of entries that any one distribution is asked for."""
        return max(self.logprobs or 0, self.prompt_logprobs or 0)

    @property
    def has_prompt_read(self) -> bool:
        """Whether the first read is of the prompt alone."""
        return len(self.reads) > sum(len(option.token_ids) > 1 for option in self.prepared.options)


def plan(prepared: Prepared, *, logprobs: int | None, prompt_logprobs: int | None) -> Plan:
    """Return the reads that a record needs.

    logprobs, prompt_logprobs: what is asked where the record itself says nothing. Raises
    RowError when a row of that many entries could not be held.
    """
    record = prepared.record
    logprobs = record.logprobs if record.logprobs is not None else logprobs
    if record.prompt_logprobs is not None:
        prompt_logprobs = record.prompt_logprobs
    tokens = prepared.token_ids
    if (prompt_logprobs or 0) * len(tokens) > MAX_ENTRIES:
        raise RowError(
            ErrorCode.LOGPROBS_LIMIT,
            f"prompt_logprobs {prompt_logprobs} at each of {len(tokens)} prompt tokens are more "
            f"than the {MAX_ENTRIES} entries of one row; ask for fewer, or shorten the prompt",
        )
    last_targets = [option.token_ids[0] for option in prepared.options if _is_short(option)]
    last_targets += [target.token_id for target in prepared.targets]
    reads = []
    if last_targets or logprobs is not None or prompt_logprobs is not None:
        reads.append(_prompt_read(tokens, last_targets, logprobs or 0, prompt_logprobs))
    reads += [
        _option_read(tokens, option.token_ids)
        for option in prepared.options
        if not _is_short(option)
    ]
    return Plan(prepared, logprobs, prompt_logprobs, tuple(reads))


def _is_short(option: PreparedOption) -> bool:
    return len(option.token_ids) == 1


def _prompt_read(
    tokens: IntArray, last_targets: list[int], top_k: int, prompt_logprobs: int | None
) -> Read:
    """Read the distribution after the prompt and, if asked, before each of its tokens but one."""
    n = len(tokens)
    if prompt_logprobs is None:
        positions = _position(n - 1)
        requests = _one_row(tuple(last_targets), top_k)
    else:
        positions = np.arange(n, dtype=np.int32)
        offsets = np.arange(n + 1, dtype=np.int32)
        offsets[n] += len(last_targets) - 1
        requests = RowRequests(
            target_ids=np.concatenate([tokens[1:], np.array(last_targets, dtype=np.int32)]),
            target_offsets=offsets,
            top_k=np.array([*[prompt_logprobs] * (n - 1), top_k], dtype=np.int32),
        )
    return Read(tokens, positions, requests)


@lru_cache(maxsize=4096)
def _position(at: int) -> IntArray:
    return np.array([at], dtype=np.int32)


@lru_cache(maxsize=4096)
def _one_row(targets: tuple[int, ...], top_k: int) -> RowRequests:
    """One row's requests; most records of a file ask for the same, and arrays take time to make."""
    return RowRequests.of([targets], [top_k])


def _option_read(tokens: IntArray, option: Sequence[int]) -> Read:
    """Read prompt and option, each option token's distribution where it is predicted."""
    n, m = len(tokens), len(option)
    ids = np.array(option, dtype=np.int32)
    return Read(
        tokens=np.concatenate([tokens, ids]),
        positions=np.arange(n - 1, n - 1 + m, dtype=np.int32),
        requests=RowRequests(
            target_ids=ids,
            target_offsets=np.arange(m + 1, dtype=np.int32),
            top_k=np.zeros(m, dtype=np.int32),
        ),
    )


def failed(source: BadLine | Prepared | Record, error: RowError) -> Score:
    """Return the row of a record that can't be scored."""
    failure = Failure(code=error.code, message=str(error))
    if isinstance(source, Prepared):
        record = source.record
        return Score(
            id=record.id,
            line=record.line,
            prompt_tokens=len(source.token_ids),
            prompt_sha256=prompt_sha256(source.token_ids),
            extra=record.extra or UNSET,
            error=failure,
        )
    extra = dict(source.extra)
    return Score(id=source.id, line=source.line, extra=extra or UNSET, error=failure)


def prompt_sha256(tokens: IntArray) -> str:
    """Return the hex SHA-256 over token ids as little-endian uint32."""
    return hashlib.sha256(tokens.astype("<u4").tobytes()).hexdigest()


def answer(
    plan: Plan, results: Sequence[ReadResult], prompter: Prompter, notes: Sequence[str] = ()
) -> Score:
    """Return a record's row from the reduced distributions of its reads, in the plan's order.

    notes: what else the row has to say, behind the record's own warnings.

    Raises RowError for logits that are not finite, and for a token asked for by name whose
    probability is zero: no number is ever put in the place of a missing one.
    """
    for reduced in results:
        if reduced.nonfinite:
            raise RowError(
                ErrorCode.NONFINITE_LOGITS,
                f"{reduced.nonfinite} of the read's distributions hold NaN or infinite "
                "logits; the model or its dtype overflows on this prompt",
            )
    prepared = plan.prepared
    prompt = results[0] if plan.has_prompt_read else None
    longer = iter(results[1:] if plan.has_prompt_read else results)
    shorts = sum(_is_short(option) for option in prepared.options)
    values: list[float] = []
    greedy: list[bool] = []
    # The prompt's last row: its options' tokens in order, then its targets.
    at = 0 if prompt is None else len(prompt.target_logprob) - shorts - len(prepared.targets)
    for option in prepared.options:
        if _is_short(option):
            assert prompt is not None
            logprobs = [prompt.target_logprob[at]]
            greedy.append(prompt.target_rank[at] == 1)
            at += 1
        else:
            read = next(longer)
            logprobs = read.target_logprob
            greedy.append(all(rank == 1 for rank in read.target_rank))
        values.append(math.fsum(logprobs))
        if -math.inf in logprobs:
            raise _zero_probability(f"option {option.text!r}")
    record = prepared.record
    options = _options(prepared, values, greedy)
    gold = UNSET if record.gold_index is None else record.gold_index
    best = _best(values) if values else ()
    entries = None if prompt is None else _Entries(prompt, prompter)
    mass = _label_mass(prepared, values)
    return Score(
        id=record.id,
        line=record.line,
        prompt_tokens=len(prepared.token_ids),
        prompt_sha256=prompt_sha256(prepared.token_ids),
        answer=UNSET if not best else prepared.options[best[0]].text if len(best) == 1 else None,
        answer_index=UNSET if not best else best[0] if len(best) == 1 else None,
        tied=best if len(best) > 1 else UNSET,
        answer_per_token=_answer_by(options, "logprob_per_token"),
        answer_per_byte=_answer_by(options, "logprob_per_byte"),
        label_mass=mass,
        margin=_margin(values),
        gold_index=gold,
        correct=UNSET if gold is UNSET else best == (gold,),
        options=options or UNSET,
        targets=_targets(prepared, entries, at),
        logprobs=_read_logprobs(plan, entries),
        prompt_logprobs=_prompt_logprobs(plan, entries),
        warnings=(*prepared.warnings, *_nothing(plan), *_low_mass(prepared, mass), *notes) or UNSET,
        truncated_tokens=prepared.truncated_tokens or UNSET,
        extra=record.extra or UNSET,
    )


def _options(
    prepared: Prepared, values: Sequence[float], greedy: Sequence[bool]
) -> tuple[OptionScore, ...]:
    if not values:
        return ()
    several = not all(map(_is_short, prepared.options))
    return tuple(
        OptionScore(
            text=option.text,
            label=UNSET if option.label is None else option.label,
            token_ids=option.token_ids,
            logprob=value,
            probability=probability,
            rank=1 + sum(other > value for other in values),
            is_greedy=is_greedy,
            logprob_per_token=value / len(option.token_ids) if several else UNSET,
            logprob_per_byte=(
                value / (prepared.moved_spaces + len(option.text.encode())) if several else UNSET
            ),
            seam_changed=option.seam_changed or UNSET,
        )
        for option, value, probability, is_greedy in zip(
            prepared.options, values, softmax(values), greedy, strict=True
        )
    )


def _best(values: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of the largest value, all of them where several are equal."""
    largest = max(values)
    return tuple(index for index, value in enumerate(values) if value == largest)


def _answer_by(options: Sequence[OptionScore], field: str) -> str | UnsetType | None:
    if not options or getattr(options[0], field) is UNSET:
        return UNSET
    best = _best([getattr(option, field) for option in options])
    return options[best[0]].text if len(best) == 1 else None


def _label_mass(prepared: Prepared, values: Sequence[float]) -> float | UnsetType | None:
    """Sum the labels' probabilities; None where they are not disjoint single tokens."""
    if not values:
        return UNSET
    if prepared.prefix_clash or not all(map(_is_short, prepared.options)):
        return None
    return prob_mass(values)


def _nothing(plan: Plan) -> tuple[str, ...]:
    """Say when a record asks for no number at all."""
    if plan.reads:
        return ()
    return ("nothing is asked: add options, targets, logprobs or prompt_logprobs",)


def _low_mass(prepared: Prepared, mass: float | UnsetType | None) -> tuple[str, ...]:
    """Say when a lettered question's labels are not what the model wants to answer."""
    if prepared.record.question is None or not isinstance(mass, float) or mass >= LOW_LABEL_MASS:
        return ()
    warning = f"label mass {mass:.3g}: most of the probability is on other tokens than the labels"
    return (warning,)


def _margin(values: Sequence[float]) -> float | UnsetType | None:
    if not values:
        return UNSET
    if len(values) == 1:
        return None
    first, second = sorted(values, reverse=True)[:2]
    return first - second


def _zero_probability(what: str) -> RowError:
    return RowError(
        ErrorCode.ZERO_PROBABILITY,
        f"{what} has probability zero (its logit is -inf), which has no log-probability; leave it "
        "out of the request",
    )


class _Entries:
    """The prompt read's distributions as entries with the tokens' text."""

    def __init__(self, reduced: ReadResult, prompter: Prompter) -> None:
        self._reduced = reduced
        self._prompter = prompter

    def target(self, index: int, token_id: int) -> TokenScore:
        reduced = self._reduced
        return self._entry(
            token_id, reduced.target_logprob[index], reduced.target_rank[index], by_name=True
        )

    def chosen(self, row: int) -> TokenScore:
        reduced = self._reduced
        return self._entry(reduced.chosen_id[row], reduced.chosen_logprob[row], 1)

    def top(self, row: int) -> tuple[TokenScore, ...]:
        reduced = self._reduced
        start, end = reduced.top_offsets[row], reduced.top_offsets[row + 1]
        return tuple(
            self._entry(reduced.top_id[i], reduced.top_logprob[i], i - start + 1)
            for i in range(start, end)
        )

    def _entry(
        self, token_id: int, logprob: float, rank: int, *, by_name: bool = False
    ) -> TokenScore:
        (text,) = self._prompter.token_text([token_id])
        if logprob == -math.inf:
            what = f"token {token_id} ({text.text!r})"
            raise _zero_probability(what if by_name else f"{what}, of rank {rank},")
        return TokenScore(
            token_id=token_id,
            text=text.text,
            bytes=tuple(text.raw),
            logprob=logprob,
            rank=rank,
        )


def _targets(
    prepared: Prepared, entries: _Entries | None, at: int
) -> tuple[TokenScore, ...] | UnsetType:
    if entries is None or not prepared.targets:
        return UNSET
    return tuple(
        entries.target(at + i, target.token_id) for i, target in enumerate(prepared.targets)
    )


def _read_logprobs(plan: Plan, entries: _Entries | None) -> ReadLogprobs | UnsetType:
    """Give the prompt read's last row, when it was asked for."""
    if plan.logprobs is None or entries is None:
        return UNSET
    last = len(plan.reads[0].positions) - 1
    return ReadLogprobs(chosen=entries.chosen(last), top=entries.top(last))


def _prompt_logprobs(
    plan: Plan, entries: _Entries | None
) -> tuple[PositionLogprobs | None, ...] | UnsetType:
    """Give one entry a prompt token; the first has nothing before it and is None."""
    if plan.prompt_logprobs is None or entries is None:
        return UNSET
    later = plan.prepared.token_ids[1:]
    return (
        None,
        *(
            PositionLogprobs(
                token=entries.target(row, int(token)),
                chosen=entries.chosen(row),
                top=entries.top(row),
            )
            for row, token in enumerate(later)
        ),
    )
