"""Join and cut the ragged tables of the reduction, so that a batch can be reduced in pieces.

Rows of several reads become one table, the table is cut into pieces of R rows, the pieces' results
are joined again and cut read by read. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from scorer.reduction import RawReduction, Reduced, RowRequests


def join_requests(tables: Sequence[RowRequests]) -> RowRequests:
    """Return the rows of several tables as one, in order."""
    return RowRequests(
        target_ids=np.concatenate([table.target_ids for table in tables]),
        target_offsets=_join_offsets([table.target_offsets for table in tables]),
        top_k=np.concatenate([table.top_k for table in tables]),
    )


def cut_requests(table: RowRequests, start: int, end: int) -> RowRequests:
    """Return rows ``start`` to ``end`` (excluded) as a table of their own."""
    offsets = table.target_offsets[start : end + 1]
    return RowRequests(
        target_ids=table.target_ids[offsets[0] : offsets[-1]],
        target_offsets=offsets - offsets[0],
        top_k=table.top_k[start:end],
    )


def join_raw(tables: Sequence[RawReduction]) -> RawReduction:
    """Return the results of several pieces as one, in order."""
    if len(tables) == 1:
        return tables[0]

    def joined(name: str) -> npt.NDArray[np.generic]:
        return np.concatenate([getattr(table, name) for table in tables])

    columns = {name: joined(name) for name in RawReduction.__slots__ if name != "top_offsets"}
    offsets = _join_offsets([table.top_offsets for table in tables])
    return RawReduction(**columns, top_offsets=offsets)  # type: ignore[arg-type]


def split_reduced(
    table: Reduced, requests: RowRequests, counts: Sequence[int]
) -> Iterator[Reduced]:
    """Yield the next ``count`` rows as a table of their own, for each of ``counts``."""
    for start, end in pairwise(np.cumsum([0, *counts]).tolist()):
        rows = slice(start, end)
        targets = slice(requests.target_offsets[start], requests.target_offsets[end])
        tops = slice(table.top_offsets[start], table.top_offsets[end])
        yield Reduced(
            nonfinite=table.nonfinite[rows],
            log_sum=table.log_sum[rows],
            chosen_id=table.chosen_id[rows],
            chosen_logprob=table.chosen_logprob[rows],
            target_logprob=table.target_logprob[targets],
            target_rank=table.target_rank[targets],
            top_id=table.top_id[tops],
            top_logprob=table.top_logprob[tops],
            top_offsets=table.top_offsets[start : end + 1] - table.top_offsets[start],
        )


class Results(msgspec.Struct, array_like=True):
    """The reduced distributions of several reads end to end, as Python's own numbers.

    As in ``Reduced``: a read has few rows, and of few values a list is many times as quick as an
    array.
    """

    nonfinite: list[bool]
    chosen_id: list[int]
    chosen_logprob: list[float]
    target_logprob: list[float]
    target_rank: list[int]
    top_id: list[int]
    top_logprob: list[float]
    top_offsets: list[int]


class ReadResult(msgspec.Struct, frozen=True, gc=False):
    """One read's part of the results of several: rows and targets from where to where."""

    whole: Results
    row: int
    end_row: int
    target: int
    end_target: int

    @property
    def nonfinite(self) -> int:
        """How many rows hold NaN or infinite logits."""
        return self.whole.nonfinite[self.row : self.end_row].count(True)

    @property
    def rows(self) -> int:
        """How many distributions there are."""
        return self.end_row - self.row

    @property
    def target_logprob(self) -> list[float]:
        """Of each target of each row."""
        return self.whole.target_logprob[self.target : self.end_target]

    @property
    def target_rank(self) -> list[int]:
        """Of each target of each row."""
        return self.whole.target_rank[self.target : self.end_target]

    def chosen(self, row: int) -> tuple[int, float]:
        """The token of rank 1 and its log-probability."""
        place = self.row + row
        return self.whole.chosen_id[place], self.whole.chosen_logprob[place]

    def top(self, row: int) -> list[tuple[int, float]]:
        """The tokens that are listed of a row and their log-probabilities, the first first."""
        whole, place = self.whole, self.row + row
        entries = slice(whole.top_offsets[place], whole.top_offsets[place + 1])
        return list(zip(whole.top_id[entries], whole.top_logprob[entries], strict=True))


def split_results(table: Reduced, requests: RowRequests, counts: Sequence[int]) -> list[ReadResult]:
    """Return what ``split_reduced`` yields, as results."""
    whole = Results(
        nonfinite=table.nonfinite.tolist(),
        chosen_id=table.chosen_id.tolist(),
        chosen_logprob=table.chosen_logprob.tolist(),
        target_logprob=table.target_logprob.tolist(),
        target_rank=table.target_rank.tolist(),
        top_id=table.top_id.tolist(),
        top_logprob=table.top_logprob.tolist(),
        top_offsets=table.top_offsets.tolist(),
    )
    offsets = requests.target_offsets.tolist()
    ends = accumulate(counts, initial=0)
    return [ReadResult(whole, row, end, offsets[row], offsets[end]) for row, end in pairwise(ends)]


def gather(parts: Iterable[ReadResult]) -> Results:
    """Return the results of reads end to end, and nothing else that they are part of."""
    joined = Results([], [], [], [], [], [], [], [0])
    for part in _runs(parts):
        whole = part.whole
        rows, targets = slice(part.row, part.end_row), slice(part.target, part.end_target)
        joined.nonfinite += whole.nonfinite[rows]
        joined.chosen_id += whole.chosen_id[rows]
        joined.chosen_logprob += whole.chosen_logprob[rows]
        joined.target_logprob += whole.target_logprob[targets]
        joined.target_rank += whole.target_rank[targets]
        first, last = whole.top_offsets[part.row], whole.top_offsets[part.end_row]
        at = len(joined.top_id) - first
        ends = whole.top_offsets[part.row + 1 : part.end_row + 1]
        joined.top_offsets += [at + end for end in ends]
        joined.top_id += whole.top_id[first:last]
        joined.top_logprob += whole.top_logprob[first:last]
    return joined


def _runs(parts: Iterable[ReadResult]) -> Iterator[ReadResult]:
    """Yield parts that follow one another in the same results as one."""
    run: ReadResult | None = None
    end = end_target = 0
    for part in parts:
        if run is not None:
            if part.row == end and part.whole is run.whole:
                end, end_target = part.end_row, part.end_target
                continue
            yield ReadResult(run.whole, run.row, end, run.target, end_target)
        run, end, end_target = part, part.end_row, part.end_target
    if run is not None:
        yield ReadResult(run.whole, run.row, end, run.target, end_target)


def parts_of(whole: Results, counts: Iterable[tuple[int, int]]) -> list[ReadResult]:
    """Return the parts of results that were gathered. counts: the rows and targets of each."""
    parts = []
    row = target = 0
    for rows, targets in counts:
        parts.append(ReadResult(whole, row, row + rows, target, target + targets))
        row += rows
        target += targets
    return parts


def _join_offsets(offsets: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    counts = np.diff(np.concatenate(offsets))
    own = np.ones(len(counts), dtype=np.bool_)
    # Between two tables lies the step from one's end back to the other's start.
    own[np.cumsum([len(table) for table in offsets[:-1]], dtype=np.intp) - 1] = False
    joined = np.zeros(np.count_nonzero(own) + 1, dtype=np.int32)
    np.cumsum(counts[own], out=joined[1:])
    return joined
