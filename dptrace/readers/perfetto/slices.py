"""State across Perfetto's packets: slices from begins and ends, threads of tracks, and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["PerfettoClocks", "Slices", "TrackDescriptors"]

CompleteSlice = tuple[bytes, int, int]
"""A slice: its text without times, start and end in ns."""

_REALTIME, _BOOTTIME = 1, 6
_OWN = range(64, 128)
"""Ids of clocks that are local to one packet sequence."""


class Slices:
    """Pairs of begins and ends of one packet sequence.

    Perfetto pairs them by time: an end closes the slice that started last on its track. torch writes them in columns,
    a block of begins and then as many ends in the same order, which also pairs slices that touch or overlap.
    """

    def __init__(self) -> None:
        self._begins: list[tuple[int, int, bytes]] = []
        self._ends: list[tuple[int, int]] = []
        self._open: list[tuple[int, int, int, bytes | None]] = []
        """Begins and ends not paired within a block: time, position in the file, track, text."""
        self.unended = 0
        """Slices without an end; known after :meth:`flush`."""

    def begin(self, time: int, track: int, body: bytes) -> list[CompleteSlice]:
        """Add a begin; return the slices of the block that it closes."""
        paired = self._paired(last=False) if self._ends else []
        self._begins.append((time, track, body))
        return paired

    def end(self, time: int, track: int) -> None:
        """Add an end."""
        self._ends.append((time, track))

    def _paired(self, last: bool) -> list[CompleteSlice]:
        begins, ends = self._begins, self._ends
        self._begins, self._ends = [], []
        times = [begin[0] for begin in begins] + [end[0] for end in ends]
        in_order = len(begins) > 1 and all(map(int.__le__, times, times[1:]))
        # A truncated file lacks some ends of its last block.
        whole = len(begins) == len(ends) or (last and len(begins) > len(ends) and not in_order)
        if whole and (found := _nested(begins, ends) if in_order else _in_columns(begins[: len(ends)], ends)):
            self.unended += len(begins) - len(ends)
            return found
        self._open += [(time, len(self._open) + i, track, body) for i, (time, track, body) in enumerate(begins)]
        self._open += [(time, len(self._open) + i, track, None) for i, (time, track) in enumerate(ends)]
        return []

    def flush(self) -> Iterator[CompleteSlice]:
        """Yield the slices of the last block, and those not paired within a block."""
        yield from self._paired(last=True)
        stacks: dict[int, list[tuple[int, bytes]]] = {}
        for time, _, track, body in sorted(self._open, key=lambda entry: entry[:2]):
            stack = stacks.setdefault(track, [])
            if body is not None:
                stack.append((time, body))
            elif stack:
                start, text = stack.pop()
                yield text, start, time
        self._open.clear()
        self.unended += sum(map(len, stacks.values()))


def _in_columns(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair the n-th begin with the n-th end; empty where tracks or times contradict that."""
    pairs = zip(begins, ends, strict=True)
    if not all(track == end_track and start <= end for (start, track, _), (end, end_track) in pairs):
        return []
    return [(body, start, end) for (start, _, body), (end, _) in zip(begins, ends, strict=True)]


def _nested(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair each end with the last begin on its track; empty if an end has none."""
    stacks: dict[int, list[tuple[int, bytes]]] = {}
    for time, track, body in begins:
        stacks.setdefault(track, []).append((time, body))
    found: list[CompleteSlice] = []
    for time, track in ends:
        if not stacks.get(track):
            return []
        start, body = stacks[track].pop()
        found.append((body, start, time))
    return found


class TrackDescriptors:
    """Processes and threads of tracks, from the track descriptors."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[int, int]] = {}
        self._parents: dict[int, int] = {}

    def update(self, descriptor: Any) -> None:
        """Add a descriptor."""
        uuid = descriptor.uuid
        if descriptor.HasField("thread"):
            self._threads[uuid] = descriptor.thread.pid, descriptor.thread.tid
        elif descriptor.HasField("process"):
            self._threads[uuid] = descriptor.process.pid, uuid
        if descriptor.parent_uuid:
            self._parents[uuid] = descriptor.parent_uuid

    def thread(self, uuid: int) -> tuple[int, int]:
        """Return process and thread of a track; a track without a thread counts as a thread of its process."""
        if uuid in self._threads:
            return self._threads[uuid]
        above, seen = uuid, {uuid}
        while (above := self._parents.get(above, 0)) and above not in seen:
            seen.add(above)
            if above in self._threads:
                return self._threads[above][0], uuid
        return 0, uuid


class PerfettoClocks:
    """Conversion of any clock to ns since the epoch, or to its own ns if no snapshot relates it to the epoch."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, int], int] = {}
        self._units: dict[tuple[int, int], int] = {}
        self._counted: dict[tuple[int, int], int] = {}
        """Last time of each clock whose timestamps are differences."""

    def update(self, snapshot: Any, sequence: int) -> None:
        """Add the simultaneous readings of several clocks."""
        readings = {clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1) for clock in snapshot.clocks}
        target = readings.get(_REALTIME, readings.get(_BOOTTIME))
        for clock in snapshot.clocks:
            key = _key(clock.clock_id, sequence)
            self._units[key] = clock.unit_multiplier_ns or 1
            if clock.is_incremental:
                self._counted[key] = readings[clock.clock_id]
            if target is not None:
                # The first offset is kept: clocks drift, and durations must not jump at each snapshot.
                self._offsets.setdefault(key, target - readings[clock.clock_id])

    def time(self, timestamp: int, clock: int, sequence: int) -> int:
        """Return the time of a packet in ns."""
        key = _key(clock or _BOOTTIME, sequence)
        time = timestamp * self._units.get(key, 1)
        if key in self._counted:
            time = self._counted[key] = self._counted[key] + time
        return time + self._offsets.get(key, 0)


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return (clock, sequence if clock in _OWN else 0)
