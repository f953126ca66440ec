"""Single intervals: the one under the pointer, and those that the page knows by number."""

from __future__ import annotations

import numpy as np

from dptrace.viewers.gantt.tiles.answers import add_rows, lane_of, texts_of
from dptrace.viewers.gantt.tiles.encoding import Message
from dptrace.viewers.gantt.tiles.requests import BadRequest, IntervalAtRequest, RowsRequest
from dptrace.viewers.gantt.tiles.store import TileStore

__all__ = ["interval_at", "rows_at"]


def interval_at(store: TileStore, asked: IntervalAtRequest) -> bytes:
    """Return the interval at a time of a lane, if any, and how many lie within half of the slack of it."""
    lane = lane_of(store, asked.lane).lane
    found = lane.at(asked.time, asked.slack)
    message = Message()
    head = add_rows(message, store, asked.lane, found, False)
    under = lane.touching(asked.time - asked.slack / 4, asked.time + asked.slack / 4)
    return message.encode({"rows": [head], "under": under, **texts_of(store, [asked.lane], [found])})


def rows_at(store: TileStore, asked: RowsRequest) -> bytes:
    """Return intervals by lane and position, a lane at a time; ``places`` must list the lanes one after the other."""
    message, heads, lanes, found = Message(), [], [], []
    for number in dict.fromkeys(lane for lane, _ in asked.places):
        lane = lane_of(store, number).lane
        positions = np.array(sorted({place for owner, place in asked.places if owner == number}), np.int64)
        if positions[-1] >= lane.count:
            raise BadRequest(f"lane {number} has no interval {positions[-1]}")
        lanes.append(number)
        found.append(lane.rows_at(positions))
        heads.append(add_rows(message, store, number, found[-1], False))
    return message.encode({"rows": heads, **texts_of(store, lanes, found)})
