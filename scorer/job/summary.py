"""The counts of a job: errors, accuracy where there is gold, label mass."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

if TYPE_CHECKING:
    from scorer.manifest import Json
    from scorer.records.record import Record
    from scorer.rows import Score


_MOST_TEXTS = 1000
"""Different gold texts that are counted: bounds the memory whatever the length of the file."""


_FEW_RECORDS = 8
"""Records that ask different things and may have the same scores without a word."""

CONSTANT_SCORES = (
    "warning: every row has the same scores though the prompts differ: the scores do not depend on "
    "what is asked. Usually the weights are not those of a trained model (zeros, or a conversion "
    "that went wrong), or the template drops the prompt's text (see `scorer show`)"
)
ONE_PROMPT = (
    "warning: every row has the same prompt, and so the same scores, though the records ask "
    "different things: the template, or --truncate-prompt, drops their text (see `scorer show`)"
)


class Counted(msgspec.Struct, array_like=True):
    """What the rows of one stretch come to, so that it can be sent and added to what was before.

    errors: how many by code. label_masses: of the rows that have one, in order. gold_texts,
    gold_places: how often each was the gold option's. first_values: the numbers of the first row
    that has any; differing: whether another row's are not these. alike: rows until then that ask
    something else than the row before; first_asked, last_asked: hashes of that at either end.
    first_prompt: that row's prompt_sha256; prompts_differ: whether another row's until then is not
    the same.
    """

    records: int = 0
    errors: dict[str, int] = {}
    warned: int = 0
    tied: int = 0
    correct: int = 0
    label_masses: list[float] = []
    prompt_tokens: int = 0
    longest_prompt: int = 0
    gold_texts: dict[str, int] = {}
    gold_places: dict[int, int] = {}
    first_values: tuple[float, ...] | None = None
    differing: bool = False
    alike: int = 0
    first_asked: str | None = None
    last_asked: str | None = None
    first_prompt: str | None = None
    prompts_differ: bool = False

    def add(self, row: Score, record: Record | None = None) -> None:
        """Count one row. record: its record where it is known; else the prompt stands for it."""
        self.records += 1
        if row.prompt_tokens is not UNSET:
            self.prompt_tokens += row.prompt_tokens
            self.longest_prompt = max(self.longest_prompt, row.prompt_tokens)
        if row.error is not UNSET:
            self.errors[row.error.code] = self.errors.get(row.error.code, 0) + 1
            return
        if not self.differing:
            self._compare(row, record)
        if row.warnings is not UNSET:
            self.warned += 1
        if row.tied is not UNSET:
            self.tied += 1
        if isinstance(row.label_mass, float):
            self.label_masses.append(row.label_mass)
        if row.gold_index is not UNSET and row.options is not UNSET:
            place, text = row.gold_index, row.options[row.gold_index].text
            self.correct += row.correct is True
            self.gold_places[place] = self.gold_places.get(place, 0) + 1
            self.gold_texts[text] = self.gold_texts.get(text, 0) + 1

    def _compare(self, row: Score, record: Record | None) -> None:
        """See whether this row's numbers are those of the rows before."""
        options = () if row.options is UNSET else row.options
        targets = () if row.targets is UNSET else row.targets
        values = [*(option.logprob for option in options), *(target.logprob for target in targets)]
        if row.logprobs is not UNSET:
            values.append(row.logprobs.chosen.logprob)
        if not values:
            return
        prompt = None if row.prompt_sha256 is UNSET else row.prompt_sha256
        asked = prompt if record is None else _asked(record)
        if self.first_values is None:
            self.first_values, self.first_prompt = tuple(values), prompt
            self.first_asked, self.alike = asked, 1
        else:
            self.differing = tuple(values) != self.first_values
            self.alike += asked != self.last_asked
            self.prompts_differ |= prompt != self.first_prompt
        self.last_asked = asked


def _asked(record: Record) -> str:
    """Return a hash of all that a record's prompt should depend on."""
    own = (record.prompt, record.prompt_token_ids, record.messages, record.question, record.state)
    options = None if record.question is None else record.options
    return hashlib.sha256(msgspec.json.encode((*own, options))).hexdigest()


@dataclass(slots=True)
class Summary:
    """Counts over rows; label_masses is their sum."""

    records: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    warned: int = 0
    tied: int = 0
    with_gold: int = 0
    correct: int = 0
    labelled: int = 0
    label_masses: float = 0.0
    prompt_tokens: int = 0
    longest_prompt: int = 0
    _gold_texts: Counter[str] = field(default_factory=Counter)
    _gold_places: Counter[int] = field(default_factory=Counter)
    _first_values: tuple[float, ...] | None = None
    _last_asked: str | None = None
    _first_prompt: str | None = None
    _prompts_differ: bool = False
    _alike: int = 0
    _differing: bool = False

    @property
    def constant_scores(self) -> bool:
        """Whether all rows have the same numbers though the records ask different things."""
        return self._alike >= _FEW_RECORDS and not self._differing

    @property
    def warning(self) -> str | None:
        """What to say of constant scores; None where there is nothing to say."""
        if not self.constant_scores:
            return None
        return CONSTANT_SCORES if self._prompts_differ else ONE_PROMPT

    @property
    def accuracy(self) -> float | None:
        """Share of the scored rows with gold whose answer is the gold one; a tie is not."""
        return self.correct / self.with_gold if self.with_gold else None

    @property
    def majority_baseline(self) -> float | None:
        """The accuracy of the best constant answer: one text, or one place in the list.

        With more than ``_MOST_TEXTS`` different gold texts only places count.
        """
        if not self.with_gold:
            return None
        texts = self._gold_texts.values() if len(self._gold_texts) <= _MOST_TEXTS else ()
        return max(*texts, *self._gold_places.values(), 0) / self.with_gold

    @property
    def mean_label_mass(self) -> float | None:
        """Mean of label_mass over the rows that have one."""
        return self.label_masses / self.labelled if self.labelled else None

    def add(self, row: Score) -> None:
        """Count one row."""
        counted = Counted()
        counted.add(row)
        self.take(counted)

    def take(self, counted: Counted) -> None:
        """Count the rows that come next."""
        self.records += counted.records
        self.errors.update(counted.errors)
        self.warned += counted.warned
        self.tied += counted.tied
        self.correct += counted.correct
        self.labelled += len(counted.label_masses)
        for mass in counted.label_masses:  # one by one: the same sum however the rows are cut up
            self.label_masses += mass
        self.prompt_tokens += counted.prompt_tokens
        self.longest_prompt = max(self.longest_prompt, counted.longest_prompt)
        self.with_gold += sum(counted.gold_places.values())
        self._gold_places.update(counted.gold_places)
        if len(self._gold_texts) <= _MOST_TEXTS:
            self._gold_texts.update(counted.gold_texts)
        if counted.first_values is None:
            return
        if self._first_values is None:
            self._first_values, self._first_prompt = counted.first_values, counted.first_prompt
        self._prompts_differ |= counted.prompts_differ or counted.first_prompt != self._first_prompt
        self._differing |= counted.differing or counted.first_values != self._first_values
        same = self._alike > 0 and counted.first_asked == self._last_asked
        self._alike += counted.alike - same
        self._last_asked = counted.last_asked

    def add_prompt(self, tokens: int) -> None:
        """Count one prompt's tokens."""
        self.prompt_tokens += tokens
        self.longest_prompt = max(self.longest_prompt, tokens)

    def fields(self) -> dict[str, Json]:
        """Return what the manifest and ``--json`` give."""
        return {
            "records": self.records,
            "scored": self.records - self.errors.total(),
            "errors": {code: self.errors[code] for code in sorted(self.errors)},
            "warned": self.warned,
            "tied": self.tied,
            "prompt_tokens": self.prompt_tokens,
            "longest_prompt": self.longest_prompt,
            "with_gold": self.with_gold,
            "accuracy": self.accuracy,
            "majority_baseline": self.majority_baseline,
            "mean_label_mass": self.mean_label_mass,
            "constant_scores": self.constant_scores,
        }

    def table(self, *, rehearsed: bool = False) -> list[tuple[str, str]]:
        """Return what a person reads at the end. rehearsed: of a job that wrote no rows."""
        failed = self.errors.total()
        done = "can be scored" if rehearsed else "scored"
        rows = [("records", f"{self.records:,} ({self.records - failed:,} {done})")]
        if failed:
            kinds = ", ".join(f"{code} {count:,}" for code, count in self.errors.most_common())
            rows.append(("errors", f"{failed:,}: {kinds}"))
        if self.warned:
            where = "`scorer show` tells them" if rehearsed else "see their `warnings`"
            rows.append(("warnings", f"in {self.warned:,} rows, {where}"))
        if self.tied:
            rows.append(("ties", f"{self.tied:,} rows without one best option"))
        if self.accuracy is not None and self.majority_baseline is not None:
            constant = f"best constant answer: {self.majority_baseline:.1%}"
            of = f"{self.with_gold:,} with a gold label"
            if failed:
                of += f", the {failed:,} failed rows left out"
            rows.append(("accuracy", f"{self.accuracy:.1%} of {of} ({constant})"))
        if self.mean_label_mass is not None:
            rows.append(("label mass", f"{self.mean_label_mass:.3f} on average"))
        return rows
