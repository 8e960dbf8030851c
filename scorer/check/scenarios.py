"""The scenarios in which reads are put among other reads, or asked for other things.

Each computes some reads in one way, then in others that must not matter, and compares the bits.
Each changes as little else as it can, so that its name says what a difference depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import UNSET

from scorer.check.row_values import Name, compare_shared, compare_values, values_of
from scorer.check.subject import NotRunError, Subject, set_selftest_aside
from scorer.check.tally import Tally
from scorer.errors import IsolationError
from scorer.reduction import Reduced, RowRequests
from scorer.rows import Score
from scorer.shapes import Read, last_read

if TYPE_CHECKING:
    from scorer.reader import Reader, ReductionPlace

LENGTHS: Final = (
    *(1, 2, 17, 33, 127, 128, 129, 255, 256, 257, 300, 512, 513, 819, 820, 1024, 4096),
)
_FEW_LENGTHS: Final = (1, 129)
_PARTNERS: Final = (9, 10, 300)
_OPTIONS: Final = (" yes", " no", " perhaps not today")
_MORE_OPTIONS: Final = (" of course", " never in my life", " 7")
_OF_ALL_OPTIONS: Final = frozenset(
    {
        "answer",
        "answer_index",
        "answer_per_token",
        "answer_per_byte",
        "tied",
        "label_mass",
        "margin",
    }
)


def repeat(subject: Subject, tally: Tally) -> None:
    """The same forward again and again, others in between."""
    for victim in subject.victims:
        base = subject.read_in([victim])
        for run in range(subject.level.repeats):
            subject.read_in([subject.stranger(1 + run)])
            tally.reads(base, subject.read_in([victim]), f"{_named(victim)}, run {run + 2}")


def company(subject: Subject, tally: Tally) -> None:
    """Alone, with 2 others, with 7, in a full forward; always in the first place."""
    most = subject.most_partners()
    for victim in subject.victims:
        room = subject.reader.shape.tokens - len(victim)
        base = subject.read_in([victim])
        companies = [subject.some_lengths(room, count) for count in (2, 7) if count <= most]
        companies.append(subject.filling(room, most))
        for lengths in companies:
            got = subject.read_in([victim, *subject.strangers(lengths)])
            tally.reads(base, got, f"{_named(victim)} with {len(lengths)} others")


def position(subject: Subject, tally: Tally) -> None:
    """First, in the middle and last among the same others, to the forward's last token."""
    most = min(subject.most_partners(), 7)
    for victim in subject.victims:
        lengths = subject.filling(subject.reader.shape.tokens - len(victim), most)
        others = subject.strangers(lengths)
        base = subject.read_in([victim, *others])
        for place in sorted({len(others) // 2, len(others)} - {0}):
            got = subject.read_in([*others[:place], victim, *others[place:]], place)
            tally.reads(base, got, f"{_named(victim)} in place {place + 1} of {len(others) + 1}")


def contents(subject: Subject, tally: Tally) -> None:
    """Others of the same lengths and other tokens: random, all zero, the read's own."""
    most = min(subject.most_partners(), 4)
    for victim in subject.victims:
        lengths = subject.some_lengths(subject.reader.shape.tokens - len(victim), most)
        place = 1 if len(lengths) > 1 else 0

        def among(others: Sequence[Read], victim: Read = victim, place: int = place) -> Reduced:
            return subject.read_in([*others[:place], victim, *others[place:]], place)

        base = among(subject.strangers(lengths))
        zeros = [last_read(np.zeros(length, np.int32)) for length in lengths]
        own = [last_read(np.resize(victim.tokens, length)) for length in lengths]
        for name, others in (
            ("random", subject.strangers(lengths)),
            ("zero", zeros),
            ("its own", own),
        ):
            tally.reads(base, among(others), f"{_named(victim)} among {name} tokens")


def partner_lengths(subject: Subject, tally: Tally) -> None:
    """A partner grows from 9 to 10 tokens, to 1, to hundreds; before the read and after it."""
    subject.most_partners()
    for victim in subject.victims:
        room = subject.reader.shape.tokens - len(victim)
        sizes = [*_PARTNERS, 1, room // 2, room] if subject.level.every_length else _PARTNERS
        sizes = [size for size in dict.fromkeys(sizes) if 0 < size <= room]
        if len(sizes) < 2:  # one alone is compared with nothing
            sizes = list(dict.fromkeys([*sizes, room, 1]))
        tokens = subject.stranger(room).tokens
        partners = [last_read(tokens[:size]) for size in sizes]
        for side in ("before", "after"):
            base: Reduced | None = None
            for partner in partners:
                pair = [partner, victim] if side == "before" else [victim, partner]
                got = subject.read_in(pair, pair.index(victim))
                if base is not None:
                    where = f"{_named(victim)}, a partner of {len(partner)} tokens {side} it"
                    tally.reads(base, got, where)
                base = got if base is None else base


def lengths(subject: Subject, tally: Tally) -> None:
    """Reads of many lengths, around every boundary, in their own forward and in crowded ones."""
    shape, limit = subject.reader.shape, subject.max_tokens
    few = not subject.level.every_length
    chosen = {*(_FEW_LENGTHS if few else LENGTHS), *range(shape.tokens - 1, shape.tokens + 2)}
    if not few:
        chosen |= {2 * shape.tokens, 2 * shape.tokens + 1}
    for length in sorted(chosen - {0}):
        if length > limit:
            tally.left_out.append(f"length {length}: the model's limit is {limit} tokens")
            continue
        read = subject.material(length)
        where = f"read of {length} tokens"
        base = subject.read_in([read])
        tally.reads(base, subject.read_in([read]), f"{where}, again")
        room = shape.tokens - length
        if room <= 0 or subject.reader.alone or shape.rows < 2:
            continue
        before = subject.strangers(subject.filling(room, shape.rows - 1))
        got = subject.read_in([*before, read], len(before))
        tally.reads(base, got, f"{where} after {len(before)} others")
        half = len(before) // 2
        got = subject.read_in([*before[:half], read, *before[half:]], half)
        tally.reads(base, got, f"{where} between {len(before)} others")


def shuffled(subject: Subject, tally: Tally) -> None:
    """The records in file order, backwards, in random order with strangers, and one by one."""
    records = list(subject.records)
    base = []
    for number, row in enumerate(subject.scorer.score(records), 1):
        if row.error is not UNSET:
            tally.differs(f"record {number}: scored before, now {row.error.code}")
        base.append(values_of(row))
    count, tokens, limit = len(records), subject.reader.shape.tokens, subject.max_tokens
    sizes = [size for size in (1, 9, tokens - 1, tokens, tokens + 1) if 0 < size <= limit]
    strangers = [
        {"prompt_token_ids": subject.stranger(size).tokens.tolist(), "logprobs": 0}
        for size in sizes
    ]
    mixed: list[object] = [*records, *strangers]
    for name, items, order in (
        ("backwards", records, list(range(count))[::-1]),
        ("in random order", mixed, subject.rng.permutation(len(mixed)).tolist()),
    ):
        rows = subject.scorer.score(items[index] for index in order)  # type: ignore[misc]
        for index, row in zip(order, rows, strict=True):
            if index < count:
                compare_values(tally, base[index], values_of(row), f"record {index + 1} {name}")
    for index in range(min(count, subject.level.victims)):
        (row,) = subject.scorer.score([records[index]])
        compare_values(tally, base[index], values_of(row), f"record {index + 1} by itself")


def requests(subject: Subject, tally: Tally) -> None:
    """More and fewer targets, entries and positions of one read; other options of one prompt."""
    n_ids = subject.reader.n_ids
    for victim in subject.victims:
        named = _named(victim)
        base = _last_values(tally, victim, subject.read_in([victim]), named)
        ids = victim.requests.target_ids[victim.requests.target_offsets[-2] :].tolist()
        for k, targets in (
            (0, ids),
            (1, ids[::-1]),
            (50, [*range(min(5, n_ids)), *ids, n_ids - 1]),
            (200, []),
        ):
            for tail in (1, len(victim)):
                read = _asked(victim, tail, targets, k)
                where = f"{named}: {len(targets)} targets, {k} entries, {tail} positions"
                got = _last_values(tally, read, subject.read_in([read]), where)
                compare_shared(tally, base, got, where)
        _options(subject, tally, victim)


def _options(subject: Subject, tally: Tally, victim: Read) -> None:
    """Score one prompt with other lists of options.

    The first asks for all that the others ask for, so that what fails one of them fails it too.
    """
    prompt = {"prompt_token_ids": victim.tokens.tolist()}
    asked: list[dict[str, object]] = [
        {**prompt, "options": [*_MORE_OPTIONS, *_OPTIONS], "prompt_logprobs": 1, "logprobs": 9},
        {**prompt, "options": list(_OPTIONS), "logprobs": 2},
        {**prompt, "options": list(_OPTIONS[::-1]), "prompt_logprobs": 0},
        {**prompt, "options": list(_OPTIONS[1:]), "prompt_logprobs": 1, "logprobs": 0},
    ]
    (base,) = subject.scorer.score(asked[:1])
    if base.error is not UNSET:
        tally.left_out.append(f"{_named(victim)}, other options: {base.error.code}")
        return
    for number, row in enumerate(subject.scorer.score(asked[1:]), 1):
        where = f"{_named(victim)}, other options {number}"
        compare_shared(tally, _own_values(base), _own_values(row), where)


def _own_values(row: Score) -> dict[Name, object]:
    """Return the values that are no function of what else was asked; whether there are any too."""
    own: dict[Name, object] = {("error", "code"): None}
    own.update((name, value) for name, value in values_of(row).items() if _is_own(name))
    return own


def _is_own(name: Name) -> bool:
    if name[0] == "options":
        return name[-1] not in ("options", "probability", "rank")
    return name[0] not in _OF_ALL_OPTIONS and name[-1] != "top"


def _asked(read: Read, tail: int, targets: Sequence[int], k: int) -> Read:
    """Return a read of the same tokens that asks for other things."""
    n = len(read)
    requests = RowRequests.of([*[[]] * (tail - 1), targets], [*[1] * (tail - 1), k])
    return Read(read.tokens, np.arange(n - tail, n, dtype=np.int32), requests)


def _last_values(tally: Tally, read: Read, reduced: Reduced, where: str) -> dict[Name, object]:
    """Return what is known of the last distribution, by token.

    A token has one value, whether it is chosen, a target or an entry: several are compared.
    """
    values: dict[Name, object] = {
        ("sum", "logprob"): float(reduced.log_sum[-1]),
        ("chosen",): int(reduced.chosen_id[-1]),
    }

    def known(token: int, logprob: float, rank: int) -> None:
        own: dict[Name, object] = {
            ("token", token, "logprob"): logprob,
            ("token", token, "rank"): rank,
        }
        compare_shared(tally, own, values, f"{where}, within it")
        values.update(own)

    if not reduced.nonfinite[-1]:  # else no entry has an id
        known(int(reduced.chosen_id[-1]), float(reduced.chosen_logprob[-1]), 1)
        start = int(reduced.top_offsets[-2])
        entries = zip(reduced.top_id[start:], reduced.top_logprob[start:], strict=True)
        for rank, (token, logprob) in enumerate(entries, 1):
            known(int(token), float(logprob), rank)
    start = int(read.requests.target_offsets[-2])
    for token, logprob, rank in zip(
        read.requests.target_ids[start:],
        reduced.target_logprob[start:],
        reduced.target_rank[start:],
        strict=True,
    ):
        known(int(token), float(logprob), int(rank))
    return values


def hidden_states(subject: Subject, tally: Tally) -> None:
    """The self-test in full: hidden states of all T tokens, all lm_head slots, rung by rung."""
    from scorer.selftest import SelfTests

    reader = subject.reader
    tests = SelfTests(
        reader.numerics_key,
        reader.n_ids,
        alone=reader.alone,
        max_tokens=subject.max_tokens,
        cache=None,
        share=reader.share,
    )
    rungs = [0] if reader.alone else reader.shape.rungs(subject.max_tokens)
    tested = rungs if subject.level.every_rung else rungs[: 1 + subject.level.every_length]
    tally.left_out += [f"rung of {rung} tokens: in --full only" for rung in rungs[len(tested) :]]
    for rung in tested:
        try:
            tests.require(reader.model, reader.shape, rung)
        except IsolationError as error:
            tally.differs(str(error))
    tally.comparisons += tests.comparisons


def alone(subject: Subject, tally: Tally) -> None:
    """Packed against alone: other shapes, so other last bits; how far they are apart."""
    if subject.reader.alone:
        raise NotRunError("--isolation alone: nothing is packed")
    single = _another(subject.reader, alone=True)
    for victim in subject.victims:
        named = _named(victim)
        packed = _last_values(tally, victim, subject.read_in([victim]), named)
        by_itself = _last_values(tally, victim, subject.read_in([victim], reader=single), named)
        compare_shared(tally, _nats_only(packed), by_itself, named)


def _nats_only(values: Mapping[Name, object]) -> dict[Name, object]:
    return {name: value for name, value in values.items() if name[-1] == "logprob"}


def reduction(subject: Subject, tally: Tally) -> None:
    """The kernels against the host reference, on the same hidden states' logits."""
    reader = subject.reader
    if reader.max_device_k is None:
        raise NotRunError("the host reference is what reduces here; kernels need CUDA")
    host = _another(reader, alone=reader.alone)
    for victim in subject.victims:
        expected = subject.read_in([victim], reader=host)
        tally.reads(expected, subject.read_in([victim]), _named(victim))
    for first, second in pairwise(subject.victims):
        if reader.alone or len(first) + len(second) > reader.shape.tokens:
            continue
        for expected, got in zip(
            subject.read_all([first, second], reader=host),
            subject.read_all([first, second]),
            strict=True,
        ):
            tally.reads(expected, got, "two reads of one forward")


def graph(subject: Subject, tally: Tally) -> None:
    """A replayed graph against eager launches."""
    reader = subject.reader
    if reader.model.device.type != "cuda":
        raise NotRunError("graphs need CUDA")
    if reader.alone:
        raise NotRunError("--isolation alone: every length would need a graph of its own")
    place: ReductionPlace = "host" if reader.max_device_k is None else "device"
    eager = _another(reader, reduction=place, graphs=False)
    for victim in subject.victims:
        expected = subject.read_in([victim], reader=eager)
        tally.reads(expected, subject.read_in([victim]), _named(victim))


def _another(
    reader: Reader,
    *,
    alone: bool = False,
    reduction: ReductionPlace = "host",
    graphs: bool = True,
) -> Reader:
    """Return a second reader of the same model and shape, its self-test set aside."""
    from scorer.reader import Reader

    another = Reader(
        reader.model,
        reader.shape,
        alone=alone,
        n_ids=reader.n_ids,
        numerics=reader.numerics,
        cache=None,
        reduction=reduction,
        graphs=graphs,
    )
    set_selftest_aside(another)
    return another


def _named(read: Read) -> str:
    return f"read of {len(read)} tokens"
