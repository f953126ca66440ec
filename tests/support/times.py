"""Unpack start times and durations of a page's lanes, as static/data/columns.js does, an interval at a time."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.viewers.gantt.packing import DELTAS, GAPS


def _unfolded(values: Int64) -> Int64:
    return np.where(values & 1, -(values + 1 >> 1), values >> 1)


def unpack_times(
    how: str, first: int, starts: Int64, durations: Int64, phases: tuple[Int64, Int64] | None = None
) -> tuple[Int64, Int64]:
    """Return starts and durations of a lane, as the page does.

    Args:
        first: the lane's first start.
        phases: starts and durations of the phases of its track.
    """
    if how == DELTAS:
        return first + np.cumsum(starts), durations
    if how == GAPS:
        ends = first + np.cumsum(_unfolded(starts) + durations)
        return ends - durations, durations
    assert phases is not None
    busy = [pair for pair in zip(*(column.tolist() for column in phases), strict=True) if pair[1]]
    found, end, place = [], first, 0
    for ahead, longer in zip(starts.tolist(), _unfolded(durations).tolist(), strict=True):
        while place < len(busy) and busy[place][0] <= end:
            end = max(end, sum(busy[place]))
            place += 1
        begin = end + ahead
        following = place
        while following < len(busy) and busy[following][0] < begin:
            following += 1
        length = longer + (busy[following][0] - begin if following < len(busy) else 0)
        found.append((begin, length))
        end = begin + length
    columns = np.array(found, np.int64).reshape(-1, 2).T
    return columns[0], columns[1]
