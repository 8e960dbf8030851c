"""Packing: each read comes out once on its own rung, forwards are full, groups are a record's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.packing import Packer, share_prefixes
from scorer.shapes import Batch, BatchShape, Read, last_read

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)
shapes = st.builds(BatchShape, tokens=st.integers(1, 256), rows=st.integers(1, 40))

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=80)
"""Of two ids, so that beginnings are often the same."""

records = st.lists(
    st.builds(
        lambda start, ends: [[*start, *end] for end in ends],
        st.lists(st.integers(0, 1), max_size=60),
        st.lists(tokens, max_size=8),
    ),
    min_size=1,
    max_size=8,
)
"""The reads of records, each record's with a common beginning and more by chance."""


def a_read(length: int, first: int = 1) -> Read:
    return last_read(np.arange(first, first + length, dtype=np.int32))


def reads_of(record: Sequence[Sequence[int]]) -> list[Read]:
    return [last_read(np.array(ids, dtype=np.int32)) for ids in record]


def drain(packer: Packer) -> list[Batch]:
    batches = []
    while len(packer):
        batches.append(packer.pop())
    return batches


def filled(packer: Packer) -> list[Batch]:
    batches = []
    while packer.full:
        batches.append(packer.pop())
    return batches


@given(shape=shapes, sizes=lengths)
def test_every_read_comes_out_once_on_its_own_rung(shape: BatchShape, sizes: list[int]) -> None:
    packer = Packer(shape, alone=False, window=10**9, share=False)
    for key, size in enumerate(sizes):
        packer.add([key], [a_read(size)])
    assert packer.waiting_tokens == sum(sizes)
    batches = drain(packer)
    assert sorted(key for batch in batches for key in batch.keys) == list(range(len(sizes)))
    assert packer.waiting_tokens == 0
    for batch in batches:
        assert batch.real_tokens <= batch.tokens
        assert len(batch.reads) <= shape.rows
        for key, read in zip(batch.keys, batch.reads, strict=True):
            assert len(read) == sizes[key]
            assert batch.tokens == shape.rung(len(read))
        if batch.tokens > shape.tokens:
            assert len(batch.reads) == 1


@given(shape=shapes, sizes=lengths)
def test_alone_gives_each_read_a_forward_of_its_own_length(
    shape: BatchShape, sizes: list[int]
) -> None:
    packer = Packer(shape, alone=True, window=1, share=False)
    for key, size in enumerate(sizes):
        packer.add([key], [a_read(size)])
    for key, batch in enumerate(drain(packer)):
        assert batch.keys == (key,)
        assert batch.tokens == batch.real_tokens == sizes[key]


def test_half_a_batch_is_what_waited_longest_the_rest_what_fits_best() -> None:
    packer = Packer(BatchShape(tokens=20, rows=4), alone=False, window=1, share=False)
    for key, size in enumerate([4, 5, 6, 8, 8, 3]):
        packer.add([key], [a_read(size)])
    # 4 and 5 waited longest; of what fits beside them 8 is the longest, and of the two 8 the older.
    assert packer.pop().keys == (0, 1, 3, 5)
    assert packer.pop().keys == (2, 4)
    with pytest.raises(IndexError):
        packer.pop()


def test_no_read_waits_for_long_behind_better_fitting_ones() -> None:
    """Without a bound the rows behind a read that nothing chooses pile up with the file."""
    packer = Packer(BatchShape(tokens=512, rows=32), alone=False, window=1024, share=False)
    waited = 0
    taken: set[int] = set()
    for key in range(5000):
        packer.add([key], [a_read(3 if key % 50 == 0 else 15)])
        while packer.full:
            taken.update(packer.pop().keys)
            oldest = next(n for n in range(key + 2) if n not in taken)
            waited = max(waited, key - oldest)
    assert waited < 600


def test_the_window_is_full_by_tokens() -> None:
    packer = Packer(BatchShape(tokens=10, rows=1), alone=False, window=20, share=False)
    packer.add([0], [a_read(19)])
    assert not packer.full
    packer.add([1], [a_read(1)])
    assert packer.full


def test_the_window_is_full_by_reads() -> None:
    packer = Packer(BatchShape(tokens=1000, rows=1), alone=False, window=10**6, share=False)
    for key in range(8):
        assert not packer.full
        packer.add([key], [a_read(1)])
    assert packer.full


def test_forwards_fill_on_a_lognormal_mix() -> None:
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(np.log(170), 1.0, size=4000), 20, 1500).astype(int)
    shape = BatchShape(tokens=8192, rows=128)
    packer = Packer(shape, alone=False, window=8 * shape.tokens, share=False)
    real = whole = 0
    for key, size in enumerate(sizes.tolist()):
        packer.add([key], [a_read(size)])
        while packer.full:
            batch = packer.pop()
            real += batch.real_tokens
            whole += batch.tokens
    assert whole >= 50 * shape.tokens
    assert real / whole >= 0.97


@given(shape=shapes, records=records)
def test_groups_are_what_their_reads_say(shape: BatchShape, records: list[list[list[int]]]) -> None:
    for record in records:
        reads = reads_of(record)
        groups = share_prefixes(range(len(reads)), reads, shape)
        assert sorted(key for group in groups for key in group.keys) == list(range(len(reads)))
        for group in groups:
            assert group.reads == tuple(reads[key] for key in group.keys)
            assert len(group.reads) <= shape.rows
            if len(group.reads) == 1:
                assert group.prefix == 0
                continue
            assert all(len(read) <= shape.tokens for read in group.reads)
            assert group.tokens <= shape.tokens
            assert group.tokens < group.read_tokens
            common = group.reads[0].tokens[: group.prefix].tolist()
            assert all(read.tokens[: group.prefix].tolist() == common for read in group.reads)
            following = {
                tuple(read.tokens[group.prefix : group.prefix + 1].tolist()) for read in group.reads
            }
            assert len(following) > 1 or following == {()}, "the prefix is the longest"


@given(shape=shapes, records=records)
def test_a_record_is_grouped_alike_in_any_company(
    shape: BatchShape, records: list[list[list[int]]]
) -> None:
    def groups_by_record(order: Sequence[int]) -> dict[int, list[tuple[tuple[int, ...], int]]]:
        packer = Packer(shape, alone=False, window=200, share=True)
        batches = []
        for at in order:
            reads = reads_of(records[at])
            packer.add(range(1000 * at, 1000 * at + len(reads)), reads)
            batches += filled(packer)
        batches += drain(packer)
        assert packer.waiting_tokens == 0
        found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for batch in batches:
            assert batch.real_tokens <= batch.tokens
            assert len(batch.reads) <= shape.rows
            for group in batch.groups:
                for read in group.reads:
                    assert shape.rung(len(read)) == batch.tokens
                at = group.keys[0] // 1000
                found.setdefault(at, []).append((group.keys, group.prefix))
        return {at: sorted(groups) for at, groups in found.items()}

    together = groups_by_record(range(len(records)))
    assert groups_by_record(range(len(records))[::-1]) == together
    for at in range(len(records)):
        assert groups_by_record([at]) == {key: together[key] for key in together if key == at}


@given(records=records)
def test_alone_and_without_sharing_nothing_is_grouped(records: list[list[list[int]]]) -> None:
    shape = BatchShape(128, 16)
    for alone, share in ((True, True), (False, False)):
        packer = Packer(shape, alone=alone, window=1, share=share)
        key = 0
        for record in records:
            packer.add(range(key, key + len(record)), reads_of(record))
            key += len(record)
        groups = [group for batch in drain(packer) for group in batch.groups]
        assert all(len(group.reads) == 1 and group.prefix == 0 for group in groups)
        assert sorted(group.keys[0] for group in groups) == list(range(key))


def shared(shape: BatchShape, *record: str) -> list[tuple[tuple[int, ...], int]]:
    """Group reads whose tokens are the characters of strings."""
    reads = reads_of([[ord(character) for character in text] for text in record])
    return [(group.keys, group.prefix) for group in share_prefixes(range(len(reads)), reads, shape)]


def test_orderings_share_what_stands_before_their_options() -> None:
    assert shared(BatchShape(100, 8), "which? a b", "which? b a") == [((0, 1), 7)]


def test_an_option_and_its_prompt_share_the_prompt() -> None:
    reads = "the sky is", "the sky is blue", "the sky is black", "the sky is"
    assert shared(BatchShape(100, 8), *reads) == [((0, 1, 2, 3), 10)]


def test_a_read_joins_when_more_is_saved_with_it() -> None:
    # Two that share 6 save 6; with a third that shares 4 the three save 8, with one of 3 only 6.
    assert shared(BatchShape(100, 8), "abcdef1", "abcdef2", "abcd3") == [((0, 1, 2), 4)]
    assert shared(BatchShape(100, 8), "abcdef1", "abcdef2", "abc3", "abc4") == [
        ((0, 1), 6),
        ((2, 3), 3),
    ]


def test_nothing_in_common_is_not_grouped() -> None:
    assert shared(BatchShape(100, 8), "ab", "cd", "ef") == [((0,), 0), ((1,), 0), ((2,), 0)]


def test_a_group_that_does_not_fit_is_split_in_order() -> None:
    reads = [f"question {letter}..." for letter in "abcdefg"]
    assert shared(BatchShape(tokens=21, rows=8), *reads) == [
        ((0, 1, 2), 9),
        ((3, 4, 5), 9),
        ((6,), 0),
    ]
    assert shared(BatchShape(tokens=99, rows=3), *reads) == [
        ((0, 1, 2), 9),
        ((3, 4, 5), 9),
        ((6,), 0),
    ]
    assert shared(BatchShape(tokens=99, rows=1), *reads[:2]) == [((0,), 0), ((1,), 0)]


def test_a_read_on_another_rung_shares_nothing() -> None:
    reads = "prompt a", "prompt and a long, long end", "prompt b"
    assert shared(BatchShape(tokens=20, rows=8), *reads) == [((1,), 0), ((0, 2), 7)]


def records_of(sizes: Sequence[int], count: int, own: int) -> list[list[Read]]:
    """Records of ``count`` reads: a prefix of each size, and ``own`` tokens behind it."""
    ends = [np.arange(own, dtype=np.int32) + 10 * (place + 1) for place in range(count)]
    return [
        [last_read(np.concatenate([np.full(size, 7, dtype=np.int32), end])) for end in ends]
        for size in sizes
    ]


@pytest.mark.parametrize("count", [2, 4, 10])
def test_forwards_fill_on_groups_of_a_lognormal_mix(count: int) -> None:
    rng = np.random.default_rng(1)
    sizes = np.clip(rng.lognormal(np.log(170), 1.0, size=2500), 20, 1500).astype(int)
    shape = BatchShape(tokens=8192, rows=1024)
    packer = Packer(shape, alone=False, window=8 * shape.tokens, share=True)
    real = whole = key = 0
    for reads in records_of(sizes.tolist(), count, own=48):
        packer.add(range(key, key + count), reads)
        key += count
        for batch in filled(packer):
            real += batch.real_tokens
            whole += batch.tokens
    assert whole >= 50 * shape.tokens
    assert real / whole >= 0.97


def test_a_group_waits_until_its_reads_fit() -> None:
    """Its tokens would fit at once; the rows of an lm_head call decide."""
    packer = Packer(BatchShape(tokens=100, rows=4), alone=False, window=1, share=True)
    packer.add([0, 1, 2], reads_of([[5, 5, 1], [5, 5, 2], [5, 5, 3]]))
    packer.add([3, 4], reads_of([[6, 6, 1], [6, 6, 2]]))
    packer.add([5], reads_of([[7]]))
    assert len(packer) == 6
    assert packer.pop().keys == (0, 1, 2, 5)
    assert packer.pop().keys == (3, 4)
    assert len(packer) == 0


@pytest.mark.parametrize(
    ("count", "prefix", "own"),
    [(4, 30, 1100), (3, 30, 1500), (2, 20, 2100), (10, 30, 600), (4, 256, 48), (4, 1000, 200)],
)
def test_sharing_never_takes_more_forwards_than_reads_apart(
    count: int, prefix: int, own: int
) -> None:
    """A group can't be divided: a large one that saves little would leave half a forward empty."""
    shape = BatchShape(8192, 256)
    forwards = {}
    for share in (True, False):
        packer = Packer(shape, alone=False, window=8 * shape.tokens, share=share)
        for record, reads in enumerate(records_of([prefix] * 200, count, own)):
            packer.add(range(record * count, (record + 1) * count), reads)
        forwards[share] = len(drain(packer))
    assert forwards[True] <= forwards[False]
    if prefix > own:
        assert forwards[True] < 0.5 * forwards[False]
