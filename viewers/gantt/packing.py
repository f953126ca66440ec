"""Pack columns of integers for a page as compact text."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, union
from dptrace.viewers.gantt.chart import Lane, Role

_TYPES: tuple[tuple[str, type[np.unsignedinteger[Any]]], ...] = (
    ("Uint8", np.uint8),
    ("Uint16", np.uint16),
    ("Uint32", np.uint32),
)
_ESCAPE = 2**32 - 1
"""Values from here on, such as a duration of 4.29 s in ns, do not fit in 32 bits and are listed separately."""


def differences(values: Int64) -> Int64:
    """Return the differences of successive values as numbers from 0: even ones are increases, odd ones decreases."""
    steps = np.diff(values, prepend=0)
    return np.where(steps < 0, -2 * steps - 1, 2 * steps)


def pack(values: Int64) -> dict[str, Any]:
    """Pack non-negative integers into the narrowest unsigned type, as byte planes, gzipped, in base64.

    Returns:
        ``type`` (JavaScript's typed array without "Array"), ``data``, and ``escapes``: index and value of each integer
        that does not fit in 32 bits.
    """
    name, narrow, escapes = _narrow([values])
    # The upper bytes of times vary less than the lower ones; separate planes compress to a fifth less.
    # Level 1 compresses to 0.61 of the size, level 6 to 0.59 at a sixth of the speed. No time stamp, so that the same
    # run produces the same page.
    planes = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, narrow.itemsize).T)
    packed = gzip.compress(planes.tobytes(), 1, mtime=0)
    return {"type": name, "data": base64.b64encode(packed).decode("ascii"), "escapes": escapes}


def _narrow(parts: Sequence[NDArray[Any]]) -> tuple[str, NDArray[np.unsignedinteger[Any]], list[list[int]]]:
    """Concatenate the parts in the narrowest little-endian type that fits; also return its name and the escapes."""
    top = min(max((int(part.max(initial=0)) for part in parts), default=0), _ESCAPE)
    name, dtype = next((name, dtype) for name, dtype in _TYPES if top <= np.iinfo(dtype).max)
    narrow = np.empty(sum(map(len, parts)), np.dtype(dtype).newbyteorder("<"))
    escapes, offset = [], 0
    for part in parts:
        if top == _ESCAPE:
            escapes += [[offset + int(index), int(part[index])] for index in np.flatnonzero(part >= _ESCAPE)]
            part = np.minimum(part, _ESCAPE)
        narrow[offset : offset + len(part)] = part
        offset += len(part)
    return name, narrow, escapes


def unpack(column: dict[str, Any]) -> Int64:
    """Unpack a column of :func:`pack`, as columns.js does in the page."""
    dtype = np.dtype(dict(_TYPES)[column["type"]]).newbyteorder("<")
    planes = np.frombuffer(gzip.decompress(base64.b64decode(column["data"])), np.uint8).reshape(dtype.itemsize, -1)
    values = np.ascontiguousarray(planes.T).view(dtype).ravel().astype(np.int64)
    for index, value in column["escapes"]:
        values[index] = value
    return values


# Start times and durations of lanes as small numbers: what follows from other intervals is not stored again.
#
# Most lanes store the differences of successive starts. Intervals of phases and of communication begin where the one
# before ends, or nearly so: they store that gap. Idle time is what the phases leave: it stores how far it is not.


DELTAS, GAPS, REST = "deltas", "gaps", "rest"
"""How a lane stores its times: differences of starts; gaps; differences from what the phases of its track leave."""


def pack_times(lanes: Sequence[Lane]) -> list[tuple[str, Int64, Int64]]:
    """Return for each lane how it stores its times, its starts and its durations, as non-negative numbers."""
    packed = []
    phases: Lane | None = None
    for lane in lanes:
        if lane.role is Role.PHASES:
            phases = lane
        packed.append(_packed(lane, phases if phases is not None and phases.track == lane.track else None))
    return packed


def _packed(lane: Lane, phases: Lane | None) -> tuple[str, Int64, Int64]:
    start, duration = lane.start_ns, lane.duration_ns
    if lane.role is Role.IDLE and phases is not None and len(lane):
        begin, length = _left_by(phases, start, np.append(start[:1], (start + duration)[:-1]))
        if (start >= begin).all():
            return REST, start - begin, _folded(duration - length)
    if lane.role in (Role.PHASES, Role.EXPOSURE, Role.IDLE):
        return GAPS, _folded(start - np.append(start[:1], (start + duration)[:-1])), duration
    return DELTAS, np.diff(start, prepend=start[:1]), duration


def _left_by(phases: Lane, start: Int64, previous: Int64) -> tuple[Int64, Int64]:
    """Return where idle time begins at or after each *previous* time, and how long it would last from each *start*."""
    busy = phases.duration_ns > 0
    begins = phases.start_ns[busy]
    run_begin, run_end = union(begins, begins + phases.duration_ns[busy])
    run = np.searchsorted(run_begin, previous, "right") - 1
    begin = np.where(run >= 0, np.maximum(previous, np.append(run_end, 0)[run]), previous)
    following = np.searchsorted(begins, start, "left")
    until = np.append(begins, 0)[following]
    return begin, np.where(following < len(begins), until - start, 0)


def _folded(values: Int64) -> Int64:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)
