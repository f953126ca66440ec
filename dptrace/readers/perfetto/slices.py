"""What Perfetto's packets mean together: slices from begins and ends, tracks' threads, and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["PerfettoClocks", "Slices", "TrackDescriptors"]

CompleteSlice = tuple[bytes, int, int]
"""A slice: what was said at its begin, when it begins, and when it ends."""

_REALTIME, _BOOTTIME = 1, 6
_OWN = range(64, 128)
"""Clocks whose numbers mean something within one sequence of packets only."""


class Slices:
    """The begins and ends of one sequence, paired.

    Perfetto pairs them by time: an end closes what began last on its track. torch writes them in columns, a block of
    begins and then as many ends, the first with the first; that also pairs slices that touch or overlap.
    """

    def __init__(self) -> None:
        self._begins: list[tuple[int, int, bytes]] = []
        self._ends: list[tuple[int, int]] = []
        self._open: list[tuple[int, int, int, bytes | None]] = []
        """Begins and ends that no block settled: time, place in the file, track, what was said."""
        self.unended = 0
        """Slices that begin and do not end; known once the rest is given."""

    def begin(self, time: int, track: int, body: bytes) -> list[CompleteSlice]:
        """Take a begin; give the slices of the block that it closes."""
        settled = self._settled(last=False) if self._ends else []
        self._begins.append((time, track, body))
        return settled

    def end(self, time: int, track: int) -> None:
        """Take an end."""
        self._ends.append((time, track))

    def _settled(self, last: bool) -> list[CompleteSlice]:
        begins, ends = self._begins, self._ends
        self._begins, self._ends = [], []
        times = [begin[0] for begin in begins] + [end[0] for end in ends]
        in_order = len(begins) > 1 and all(map(int.__le__, times, times[1:]))
        # A file that was cut off lacks some ends of its last block.
        whole = len(begins) == len(ends) or (last and len(begins) > len(ends) and not in_order)
        if whole and (found := _nested(begins, ends) if in_order else _in_columns(begins[: len(ends)], ends)):
            self.unended += len(begins) - len(ends)
            return found
        self._open += [(time, len(self._open) + i, track, body) for i, (time, track, body) in enumerate(begins)]
        self._open += [(time, len(self._open) + i, track, None) for i, (time, track) in enumerate(ends)]
        return []

    def flush(self) -> Iterator[CompleteSlice]:
        """Give the slices of the last block and those that no block settled."""
        yield from self._settled(last=True)
        stacks: dict[int, list[tuple[int, bytes]]] = {}
        for time, _, track, body in sorted(self._open, key=lambda entry: entry[:2]):
            stack = stacks.setdefault(track, [])
            if body is not None:
                stack.append((time, body))
            elif stack:
                start, said = stack.pop()
                yield said, start, time
        self._open.clear()
        self.unended += sum(map(len, stacks.values()))


def _in_columns(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair the first begin with the first end and so on; nothing where that can't be meant."""
    pairs = zip(begins, ends, strict=True)
    if not all(track == end_track and start <= end for (start, track, _), (end, end_track) in pairs):
        return []
    return [(body, start, end) for (start, _, body), (end, _) in zip(begins, ends, strict=True)]


def _nested(begins: list[tuple[int, int, bytes]], ends: list[tuple[int, int]]) -> list[CompleteSlice]:
    """Pair each end with what began last on its track; nothing if a begin is left over."""
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
    """What the descriptors say of where slices stand."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[int, int]] = {}
        self._parents: dict[int, int] = {}

    def update(self, descriptor: Any) -> None:
        """Take a descriptor."""
        uuid = descriptor.uuid
        if descriptor.HasField("thread"):
            self._threads[uuid] = descriptor.thread.pid, descriptor.thread.tid
        elif descriptor.HasField("process"):
            self._threads[uuid] = descriptor.process.pid, uuid
        if descriptor.parent_uuid:
            self._parents[uuid] = descriptor.parent_uuid

    def thread(self, uuid: int) -> tuple[int, int]:
        """Give process and thread of a track; one that is no thread's stands for a thread of its process."""
        if uuid in self._threads:
            return self._threads[uuid]
        above, seen = uuid, {uuid}
        while (above := self._parents.get(above, 0)) and above not in seen:
            seen.add(above)
            if above in self._threads:
                return self._threads[above][0], uuid
        return 0, uuid


class PerfettoClocks:
    """Times of any clock as ns since the epoch, or of the machine's own clock where nothing ties it to that."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, int], int] = {}
        self._units: dict[tuple[int, int], int] = {}
        self._counted: dict[tuple[int, int], int] = {}
        """Of clocks whose times are told as differences: the last time."""

    def update(self, snapshot: Any, sequence: int) -> None:
        """Take what several clocks showed at one moment."""
        shown = {clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1) for clock in snapshot.clocks}
        target = shown.get(_REALTIME, shown.get(_BOOTTIME))
        for clock in snapshot.clocks:
            key = _key(clock.clock_id, sequence)
            self._units[key] = clock.unit_multiplier_ns or 1
            if clock.is_incremental:
                self._counted[key] = shown[clock.clock_id]
            if target is not None:
                # The first stays: clocks drift apart, and durations must not jump with each comparison.
                self._offsets.setdefault(key, target - shown[clock.clock_id])

    def time(self, timestamp: int, clock: int, sequence: int) -> int:
        """Give the ns of a packet's timestamp."""
        key = _key(clock or _BOOTTIME, sequence)
        time = timestamp * self._units.get(key, 1)
        if key in self._counted:
            time = self._counted[key] = self._counted[key] + time
        return time + self._offsets.get(key, 0)


def _key(clock: int, sequence: int) -> tuple[int, int]:
    return (clock, sequence if clock in _OWN else 0)
