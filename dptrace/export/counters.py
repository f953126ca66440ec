"""Counters over time next to the slices: bytes in flight, overlap, and the launch queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dptrace.analysis.per_gpu.split import Segments
from dptrace.core.intervals import Int64, IntervalSet, union
from dptrace.export.aligned_run import Shift
from dptrace.timeline.model import UNKNOWN, Kind, Timeline

__all__ = ["Counter", "counters"]

CHUNK = 1 << 16
"""Points that a writer converts to Python objects at once."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A value that changes at certain times."""

    name: str
    unit: str
    """The unit; ``bytes`` are formatted as sizes."""
    time_ns: Int64
    """Ascending and unique."""
    value: Int64
    """The value from that time on; neighbors differ."""

    def __len__(self) -> int:
        return len(self.time_ns)

    def chunks(self) -> Iterator[Counter]:
        """Split the counter into parts of at most CHUNK points."""
        for first in range(0, len(self), CHUNK):
            part = slice(first, first + CHUNK)
            yield Counter(self.name, self.unit, self.time_ns[part], self.value[part])

    def shifted(self, shift: Shift) -> Counter:
        """Return the counter on the common clock."""
        return Counter(self.name, self.unit, shift(self.time_ns), self.value)


def counters(timeline: Timeline, pieces: Segments) -> Iterator[Counter]:
    """Yield the counters of a GPU; one for which the file has no data is left out, not drawn as zero.

    Args:
        pieces: its communication, cut into exposed and overlapped pieces.
    """
    comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    size = np.array([*(known.bytes for known in timeline.collectives), 0], np.int64)[timeline.collective[comm]]
    if np.any(size):
        yield _line("bytes in flight", "bytes", timeline.start_ns[comm], timeline.end_ns[comm], size)
    if len(comm):
        hidden = pieces.part == 0
        yield _overlap(int(timeline.start_ns[comm[0]]), union(pieces.start_ns[hidden], pieces.end_ns[hidden]))
    known = np.flatnonzero((timeline.launch_ns != UNKNOWN) & (timeline.launch_ns <= timeline.start_ns))
    if len(known):
        one = np.ones(len(known), np.int64)
        yield _line("launch queue", "launched", timeline.launch_ns[known], timeline.start_ns[known], one)


def _line(name: str, unit: str, start_ns: Int64, end_ns: Int64, weight: Int64) -> Counter:
    """Sum the weights of the intervals that are running."""
    time, step = np.concatenate((start_ns, end_ns)), np.concatenate((weight, -weight))
    order = np.argsort(time, kind="stable")
    time, height = time[order], np.cumsum(step[order])
    # Keep the last value of each time, and of those the ones that differ from the value before.
    last = np.append(time[1:] != time[:-1], True)[: len(time)]
    time, height = time[last], height[last]
    new = np.diff(height, prepend=0) != 0
    return Counter(name, unit, time[new], height[new])


def _overlap(first: int, hidden: IntervalSet) -> Counter:
    """Return whether communication runs under compute, 1 or 0, from the first communication on."""
    time = np.stack(hidden, axis=1).ravel()
    value = np.arange(1, len(time) + 1, dtype=np.int64) % 2
    before = [] if len(time) and time[0] == first else [first]
    return Counter(
        "communication overlapped",
        "of 1",
        np.concatenate((np.array(before, np.int64), time)),
        np.concatenate((np.zeros(len(before), np.int64), value)),
    )
