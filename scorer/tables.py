"""Join and cut the ragged tables of the reduction, so that a batch can be reduced in pieces.

Rows of several reads become one table, the table is cut into pieces of R rows, the pieces' results
are joined again and cut read by read. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class ReadResult(msgspec.Struct, array_like=True, gc=False):
    """The reduced distributions of one read, m rows and t targets, as Python's own numbers.

    nonfinite: how many rows hold NaN or infinite logits. The rest as in ``Reduced``; a read has few
    rows, and of few values a list is many times as quick as an array.
    """

    nonfinite: int
    chosen_id: list[int]
    chosen_logprob: list[float]
    target_logprob: list[float]
    target_rank: list[int]
    top_id: list[int]
    top_logprob: list[float]
    top_offsets: list[int]


def split_results(
    table: Reduced, requests: RowRequests, counts: Sequence[int]
) -> Iterator[ReadResult]:
    """Yield what ``split_reduced`` does, as results."""
    nonfinite = table.nonfinite.tolist()
    chosen_id, chosen_logprob = table.chosen_id.tolist(), table.chosen_logprob.tolist()
    target_logprob, target_rank = table.target_logprob.tolist(), table.target_rank.tolist()
    top_id, top_logprob = table.top_id.tolist(), table.top_logprob.tolist()
    target_offsets, top_offsets = requests.target_offsets.tolist(), table.top_offsets.tolist()
    for start, end in pairwise(accumulate(counts, initial=0)):
        first, last = target_offsets[start], target_offsets[end]
        top, top_end = top_offsets[start], top_offsets[end]
        yield ReadResult(
            nonfinite=sum(nonfinite[start:end]),
            chosen_id=chosen_id[start:end],
            chosen_logprob=chosen_logprob[start:end],
            target_logprob=target_logprob[first:last],
            target_rank=target_rank[first:last],
            top_id=top_id[top:top_end],
            top_logprob=top_logprob[top:top_end],
            top_offsets=[offset - top for offset in top_offsets[start : end + 1]],
        )


def _join_offsets(offsets: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    counts = np.diff(np.concatenate(offsets))
    own = np.ones(len(counts), dtype=np.bool_)
    # Between two tables lies the step from one's end back to the other's start.
    own[np.cumsum([len(table) for table in offsets[:-1]], dtype=np.intp) - 1] = False
    joined = np.zeros(np.count_nonzero(own) + 1, dtype=np.int32)
    np.cumsum(counts[own], out=joined[1:])
    return joined
