"""What a check works on: a loaded scorer, records, victims, and strangers to put around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET

from scorer.answers import Plan
from scorer.errors import InputError
from scorer.records.record import BadLine, Record
from scorer.reduction import Reduced, RowRequests
from scorer.rows import Score
from scorer.shapes import Batch, IntArray, Read, last_read

if TYPE_CHECKING:
    from scorer.reader import Reader
    from scorer.scoring import Scorer

_SEED = 20_260_317
_TOP = 20


class NotRunError(Exception):
    """A scenario can't apply here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Level:
    """How much is done.

    records: how many of the input are scored. victims: reads that are put among strangers.
    tail: positions that are compared of each victim, from its end. repeats: runs after the first.
    every_length, every_rung: all lengths and rungs, or those where something changes.
    """

    name: str
    records: int
    victims: int
    tail: int
    repeats: int
    every_length: bool
    every_rung: bool


QUICK = Level("quick", 12, 2, 16, 1, every_length=False, every_rung=False)
NORMAL = Level("normal", 48, 6, 32, 3, every_length=True, every_rung=False)
FULL = Level("full", 256, 16, 256, 5, every_length=True, every_rung=True)


@dataclass(slots=True, eq=False)
class Subject:
    """One scorer and the material for its check.

    records: those that can be scored, in order. reasons: why others could not, and how many each.
    victims: reads of different lengths, each at most half a forward long, distributions at their
    last positions.
    program: what starts ``scorer`` in a new interpreter; None for the one that runs.
    """

    scorer: Scorer
    level: Level
    records: tuple[Record, ...]
    reasons: Mapping[str, int]
    victims: tuple[Read, ...]
    program: tuple[str, ...] | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    @property
    def skipped(self) -> int:
        """How many records could not be scored."""
        return sum(self.reasons.values())

    @property
    def reader(self) -> Reader:
        """The scorer's reader."""
        return self.scorer.reader

    @property
    def max_tokens(self) -> int:
        """The longest read that the model allows."""
        return self.scorer.checkpoint.max_tokens

    def read_in(
        self, reads: Sequence[Read], place: int = 0, reader: Reader | None = None
    ) -> Reduced:
        """Compute reads in one forward, in this order; return the one at ``place``."""
        return self.read_all(reads, reader)[place]

    def read_all(self, reads: Sequence[Read], reader: Reader | None = None) -> list[Reduced]:
        """Compute reads in one forward, in this order."""
        reader = reader or self.reader
        longest = max(len(read) for read in reads)
        tokens = longest if reader.alone else reader.shape.rung(longest)
        return reader.collect(reader.launch(Batch.apart(reads, tokens)))

    def most_partners(self) -> int:
        """How many strangers fit beside a victim by R. Raises NotRunError where none do."""
        if self.reader.alone:
            raise NotRunError("--isolation alone: a read has no partners")
        if self.reader.shape.rows < 2:
            raise NotRunError("--rows-per-forward 1: a read has no partners")
        if self.reader.shape.tokens < 16:
            raise NotRunError("--tokens-per-forward below 16: no room for partners")
        return self.reader.shape.rows - 1

    def stranger(self, length: int) -> Read:
        """Return a read of random tokens, its last distribution asked for."""
        ids = self.rng.integers(0, self.reader.n_ids, size=length, dtype=np.int32)
        return last_read(ids)

    def strangers(self, lengths: Iterable[int]) -> list[Read]:
        """Return one stranger of each length."""
        return [self.stranger(length) for length in lengths]

    def some_lengths(self, room: int, count: int) -> list[int]:
        """Return ``count`` lengths of very different size that sum to ``room`` at most.

        Fewer where there is not one token for each.
        """
        lengths: list[int] = []
        for left in range(min(count, room), 0, -1):
            lengths.append(self._length(room - left + 1))
            room -= lengths[-1]
        return lengths

    def filling(self, room: int, most: int) -> list[int]:
        """Return at most ``most`` lengths of very different size that sum to exactly ``room``."""
        lengths: list[int] = []
        while room > 0:
            lengths.append(room if len(lengths) == most - 1 else self._length(room))
            room -= lengths[-1]
        return lengths

    def _length(self, most: int) -> int:
        return int(2 ** self.rng.uniform(0, np.log2(most)))

    def material(self, length: int) -> Read:
        """Return a read of that length, of the records' own tokens end to end, as a victim."""
        joined = np.concatenate([read.tokens for read in self.victims])
        return victim(np.resize(joined, length), (), self.level.tail)


def victim(tokens: IntArray, targets: Sequence[int], tail: int) -> Read:
    """Return a read whose last ``tail`` distributions are looked at.

    At the last place ``targets`` and the first entries, before that the next token's value.
    """
    n = len(tokens)
    positions = np.arange(max(0, n - tail), n, dtype=np.int32)
    following = [[int(token)] for token in tokens[positions[:-1] + 1]]
    requests = RowRequests.of([*following, list(targets)], [*[0] * len(following), _TOP])
    return Read(tokens, positions, requests)


def make_subject(
    scorer: Scorer, records: Iterable[Record | BadLine], level: Level, limit: int | None
) -> Subject:
    """Load the model, score the records once, choose victims.

    A record whose row is an error, of whatever kind, is left out: it has no values to compare.
    Raises InputError when no record can be scored, DeviceError.
    """
    count = level.records if limit is None else limit
    chosen = list(islice(records, count))
    planned: list[tuple[Record, Plan]] = []
    reasons: Counter[str] = Counter()
    for record, item in zip(chosen, scorer.prepare(chosen), strict=True):
        if isinstance(item, Plan) and isinstance(record, Record) and item.reads:
            planned.append((record, item))
        else:
            reasons[_reason(item)] += 1
    reader = scorer.reader
    set_selftest_aside(reader)
    good: list[Record] = []
    plans: list[Plan] = []
    rows = scorer.score(record for record, _ in planned)
    for (record, plan), row in zip(planned, rows, strict=True):
        if row.error is UNSET:
            good.append(record)
            plans.append(plan)
        else:
            reasons[row.error.code] += 1
    subject = Subject(scorer, level, tuple(good), reasons, ())
    subject.victims = _victims(subject, plans)
    if not subject.victims:
        why = ", ".join(f"{reason}: {number}" for reason, number in reasons.items())
        raise InputError(
            f"none of the {len(chosen)} records that were looked at can be scored with this model"
            f"{why and f' ({why})'}; `scorer score` says more"
        )
    return subject


def _reason(item: Plan | Score) -> str:
    if isinstance(item, Plan) or item.error is UNSET:
        return "nothing is asked"
    return item.error.code


def set_selftest_aside(reader: Reader) -> None:
    """Let every rung pass unproven.

    The self-test at load would end a check at the first difference that it is there to count.
    """
    from scorer.probes import Outcome

    for rung in (0, *reader.shape.rungs(reader.model.checkpoint.max_tokens)):
        reader.selftests.outcomes[rung] = Outcome(comparisons=0, packings=0)


def _victims(subject: Subject, plans: Sequence[Plan]) -> tuple[Read, ...]:
    """Choose reads by length, from the shortest to the longest; cut what is too long.

    What is cut may have a last distribution that is not finite, and then is none.
    """
    longest, level = max(1, subject.reader.shape.tokens // 2), subject.level
    by_tokens: dict[bytes, Read] = {}
    for plan in plans:
        for read in plan.reads:
            last = read.requests.target_ids[read.requests.target_offsets[-2] :]
            cut = read.tokens[-longest:]
            by_tokens.setdefault(cut.tobytes(), victim(cut, last.tolist(), level.tail))
    reads = sorted(by_tokens.values(), key=lambda read: (len(read), read.tokens.tobytes()))
    while reads:
        places = np.unique(np.linspace(0, len(reads) - 1, min(level.victims, len(reads))).round())
        chosen = [reads[int(place)] for place in places]
        rows = subject.scorer.score(
            {"prompt_token_ids": read.tokens.tolist(), "logprobs": 0} for read in chosen
        )
        bad = {
            int(place) for place, row in zip(places, rows, strict=True) if row.error is not UNSET
        }
        if not bad:
            return tuple(chosen)
        reads = [read for place, read in enumerate(reads) if place not in bad]
    return ()
