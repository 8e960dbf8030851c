"""What the reduction kernels read and write, as bytes (``kernels/reduction.cu`` has the structs).

Pure: from requests to the words that are uploaded, from the bytes that come back to results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.reduction import Int32s, RawReduction, RowRequests

MAX_DEVICE_K: Final = 2048
"""The most top entries of a row that the kernels give; a row of more goes the host path."""

DIRECT: Final = 8
"""The most targets of a row that are ranked on the first read of the logits."""

TILE: Final = 1024
"""Targets of a row with more than that which are ranked together."""

MAX_CANDIDATES: Final = 4096
"""The most ids of a row that are sorted; a row with more goes through a radix selection."""

HEADER_WORDS: Final = 8
ROW_RESULT: Final = np.dtype(
    [
        ("sum_hi", "<u8"),
        ("sum_lo", "<u8"),
        ("max", "<f4"),
        ("chosen_id", "<i4"),
        ("chosen_logit", "<f4"),
        ("nonfinite", "<i4"),
    ]
)
TARGET_RESULT: Final = np.dtype([("logit", "<f4"), ("rank", "<i4")])
ENTRY_RESULT: Final = np.dtype([("id", "<i4"), ("logit", "<f4")])

_MAX_SLICES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a batch is asked for, as the kernels read it.

    words: int32, the header, one (first target, first entry, first candidate, k) a row and one
    behind the last, the target ids, then (row, first target, count) of each tile of targets in rows
    of many. device_k: int32 [rows], 0 for the rows of host_rows. targets, entries, candidates:
    totals of all rows. host_rows: rows whose top entries the kernels don't give, host_k: how many
    each of them wants.
    """

    words: Int32s
    device_k: Int32s
    targets: int
    entries: int
    candidates: int
    host_rows: tuple[int, ...]
    host_k: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows asked for."""
        return self.device_k.size

    @property
    def result_bytes(self) -> int:
        """How much comes back to the host."""
        return (
            self.rows * ROW_RESULT.itemsize
            + self.targets * TARGET_RESULT.itemsize
            + self.entries * ENTRY_RESULT.itemsize
        )


def make_plan(requests: RowRequests, n_ids: int, multiprocessors: int) -> Plan:
    """Lay out checked requests for the kernels.

    multiprocessors: of the device; decides over how many blocks rows of many targets are spread.
    """
    k = np.minimum(requests.top_k, n_ids)
    on_host = k > MAX_DEVICE_K
    k = np.where(on_host, 0, k).astype(np.int32)
    # Room for the ids that reach a threshold which at least k of them reach (see row_thresholds).
    room = np.minimum(2 * k + 256, MAX_CANDIDATES)
    rows = np.zeros((k.size + 1, 4), dtype=np.int64)
    rows[:, 0] = requests.target_offsets
    rows[1:, 1] = np.cumsum(k, dtype=np.int64)
    rows[1:, 2] = np.cumsum(room, dtype=np.int64)
    rows[:-1, 3] = k
    if rows[-1].max() > np.iinfo(np.int32).max:
        raise ValueError(f"a batch of {rows[-1, 1]} top entries is too large: use fewer rows")
    counts = np.diff(requests.target_offsets)
    tiles = [
        (row, requests.target_offsets[row] + start, min(TILE, counts[row] - start))
        for row in np.flatnonzero(counts > DIRECT)
        for start in range(0, counts[row], TILE)
    ]
    slices = min(_MAX_SLICES, -(-2 * multiprocessors // len(tiles))) if tiles else 1
    header = np.zeros(HEADER_WORDS, dtype=np.int32)
    header[:4] = (k.size, requests.target_ids.size, len(tiles), slices)
    return Plan(
        words=np.concatenate(
            (
                header,
                rows.astype(np.int32).reshape(-1),
                requests.target_ids,
                np.array(tiles, dtype=np.int32).reshape(-1),
            )
        ),
        device_k=k,
        targets=requests.target_ids.size,
        entries=int(rows[-1, 1]),
        candidates=int(rows[-1, 2]),
        host_rows=tuple(np.flatnonzero(on_host).tolist()),
        host_k=tuple(requests.top_k[on_host].tolist()),
    )


def read_results(plan: Plan, results: npt.NDArray[np.uint8]) -> RawReduction:
    """Take the kernels' ``plan.result_bytes`` bytes apart; host rows have no top entries yet."""
    targets_at = plan.rows * ROW_RESULT.itemsize
    entries_at = targets_at + plan.targets * TARGET_RESULT.itemsize
    rows = results[:targets_at].view(ROW_RESULT)
    targets = results[targets_at:entries_at].view(TARGET_RESULT)
    entries = results[entries_at : plan.result_bytes].view(ENTRY_RESULT)
    top_offsets = np.zeros(plan.rows + 1, dtype=np.int32)
    np.cumsum(plan.device_k, out=top_offsets[1:])
    return RawReduction(
        nonfinite=rows["nonfinite"] != 0,
        max=rows["max"].copy(),
        sum_hi=rows["sum_hi"].copy(),
        sum_lo=rows["sum_lo"].copy(),
        chosen_id=rows["chosen_id"].copy(),
        chosen_logit=rows["chosen_logit"].copy(),
        target_logit=targets["logit"].copy(),
        target_rank=targets["rank"].copy(),
        top_id=entries["id"].copy(),
        top_logit=entries["logit"].copy(),
        top_offsets=top_offsets,
    )


def insert_host_rows(
    raw: RawReduction, host: RawReduction, host_rows: tuple[int, ...]
) -> RawReduction:
    """Give ``raw`` the top entries of ``host``, whose rows are ``host_rows`` of ``raw``."""
    ids, logits, counts = [], [], []
    places = {row: place for place, row in enumerate(host_rows)}
    for row in range(raw.max.size):
        part, at = (host, places[row]) if row in places else (raw, row)
        start, end = part.top_offsets[at], part.top_offsets[at + 1]
        ids.append(part.top_id[start:end])
        logits.append(part.top_logit[start:end])
        counts.append(end - start)
    return RawReduction(
        nonfinite=raw.nonfinite,
        max=raw.max,
        sum_hi=raw.sum_hi,
        sum_lo=raw.sum_lo,
        chosen_id=raw.chosen_id,
        chosen_logit=raw.chosen_logit,
        target_logit=raw.target_logit,
        target_rank=raw.target_rank,
        top_id=np.concatenate(ids),
        top_logit=np.concatenate(logits),
        top_offsets=np.cumsum([0, *counts]).astype(np.int32),
    )
