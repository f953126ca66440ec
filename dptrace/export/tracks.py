"""The tracks of a merged trace, as columns for any format: each rank's steps, parts, communication and streams."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Shift
from dptrace.analysis.cross_rank.transfers import CallWaits, ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import FIGURES, PART_LABELS, Part, Segments, Split, exposure, partition
from dptrace.core.intervals import Int64, IntervalSet, union, unique
from dptrace.core.units import encodable, listed
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.transfers import Timing
    from dptrace.analysis.matching.match import Matches


# Assign overlapping slices to lanes, for formats in which the slices of a track must not overlap.


def assign_lanes(start_ns: Int64, end_ns: Int64) -> NDArray[np.int32]:
    """Assign each slice to the lowest lane on which nothing else is running.

    The slices are sorted by start. Perfetto and Chrome require the slices of one thread to nest, so a kernel that
    starts before the previous one on its stream has ended needs another lane::

        slice   A  0..10   B  4..6   C  5..12   D  6..8   E  12..20   F  20..30

        lane 0  A  0..10                                  E  12..20   F  20..30
        lane 1             B  4..6              D  6..8
        lane 2                       C  5..12

    A takes lane 0, which is busy for B and C; D follows B, which ends at 6; when E starts, all lanes are free and it
    takes the lowest. E and F overlap nothing (a slice may start where another ends). Only clusters like A to D enter
    the loop, so a stream without overlap costs one comparison per slice; the worst case is O(n log n).
    """
    lane = np.zeros(len(start_ns), np.int32)
    if not len(start_ns):
        return lane
    reach = np.maximum.accumulate(end_ns)
    begins = np.concatenate(([True], start_ns[1:] >= reach[:-1]))
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(start_ns))
    crowded = lasts - firsts > 1
    for first, last in zip(firsts[crowded].tolist(), lasts[crowded].tolist(), strict=True):
        lane[first:last] = _pack(start_ns[first:last].tolist(), end_ns[first:last].tolist())
    return lane


def _pack(starts: list[int], ends: list[int]) -> list[int]:
    """Assign lanes within one cluster, with the running slices in a heap by end."""
    running: list[tuple[int, int]] = []
    free: list[int] = []
    lanes: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        # Every lane is either running or free, so without a free lane the number of running ones is the next.
        lane = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (end, lane))
        lanes.append(lane)
    return lanes


# Align the ranks of a run for one trace: a common clock, and each rank's wait and transfer in matched collectives.

_MAX_LISTED = 8
"""Ranks that one line names."""


@dataclass(frozen=True, slots=True)
class Members:
    """A timeline's matched communication intervals: the collective of each, and its wait and transfer."""

    interval: Int64
    """Indices of the intervals in the timeline; the other columns have one entry for each."""
    instance: Int64
    """Number of the collective instance, from 1, the same on every rank; 0 without a counterpart on another rank."""
    seq: Int64
    """Sequence number of the instance in its group; -1 where unknown, as in the columns below."""
    wait_ns: Int64
    transfer_ns: Int64
    busbw_gbps: NDArray[np.float64]

    def row_of_interval(self, count: int) -> Int64:
        """Return, for each of the timeline's *count* intervals, its row in the columns; their length for no row."""
        rows = np.full(count, len(self.interval), np.int64)
        rows[self.interval] = np.arange(len(self.interval))
        return rows


@dataclass(frozen=True, slots=True)
class AlignedRun:
    """The shift and the matched collectives of each timeline of a run, in the same order."""

    shifts: tuple[Shift, ...]
    members: tuple[Members, ...]
    align: bool = True
    """Whether clocks that are off are corrected."""
    notes: tuple[str, ...] = ()
    """What could not be matched, a sentence each."""
    unconnected_ranks: tuple[int, ...] = ()
    """Ranks that share no collective with the first, so that their clocks may be off by any amount."""

    @property
    def clock_summary(self) -> str:
        """Which clocks are corrected and by how much, in one line."""
        if not self.align:
            return "clocks as recorded: no offset between ranks was corrected"
        moved = list(dict.fromkeys(str(shift) for shift in self.shifts if shift.move is not None))
        summary = "clocks as recorded: no offset exceeds its uncertainty"
        if moved:
            summary = f"clocks aligned: {listed(moved, _MAX_LISTED)}"
        if ranks := [*map(str, self.unconnected_ranks)]:
            summary += f"; unknown offset, no shared collective: rank {listed(ranks, _MAX_LISTED)}"
        return summary


_NONE = np.empty(0, np.int64)
_NO_MEMBERS = Members(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE.astype(np.float64))


def align_run(run: Run) -> AlignedRun:
    """Put the ranks of *run* on one clock and list each rank's collectives, from the run's cross-rank analysis."""
    if len(run.timelines) < 2:
        return AlignedRun(run.shifts, tuple(_NO_MEMBERS for _ in run.timelines))
    across = run.cross_rank
    members = members_of(run, across.matches, across.timing)
    if not run.align:
        return AlignedRun(run.shifts, members, False, across.matches.notes)
    first = across.clocks.reference[0]
    references = across.clocks.reference.tolist()
    unknown = [t.rank for t, other in zip(run.timelines, references, strict=True) if other != first]
    return AlignedRun(run.shifts, members, True, across.matches.notes, tuple(dict.fromkeys(unknown)))


def members_of(run: Run, matches: Matches, timing: Timing) -> tuple[Members, ...]:
    """Return the matched collectives of each timeline."""
    several = np.diff(matches.first) > 1
    number = np.where(several, np.arange(1, len(several) + 1), 0)
    seq = np.array([collective.seq for collective in matches.collectives], np.int64)
    # A collective seen on one rank only says nothing about waiting.
    transfer = np.where(several, timing.transfer_ns, -1)
    busbw = np.where(several & (timing.busbw >= 0), timing.busbw / 1e9, -1.0).round(6)
    members = []
    for device, timeline in enumerate(run.timelines):
        rows = np.flatnonzero(matches.device == device)
        interval = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)[matches.index[rows]]
        instance = matches.instance[rows]
        members.append(
            Members(
                interval=interval,
                instance=number[instance],
                seq=seq[instance],
                wait_ns=np.where(several[instance], timing.wait_ns[rows], -1),
                transfer_ns=transfer[instance],
                busbw_gbps=busbw[instance],
            )
        )
    return tuple(members)


# Counters over time next to the slices: bytes in flight, overlap, and the launch queue.

COUNTER_CHUNK = 1 << 16
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
        for first in range(0, len(self), COUNTER_CHUNK):
            part = slice(first, first + COUNTER_CHUNK)
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


CHUNK = 1 << 15
"""Slices that a writer converts to Python objects at once."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One detail of every slice of a track."""

    name: str
    values: Int64 | NDArray[np.float64]
    """Numbers, or indices into ``texts``; -1 where a slice does not have this detail."""
    texts: tuple[str, ...] | None = None

    @property
    def empty(self) -> bool:
        """Whether no slice has this detail."""
        return not np.any(self.values >= 0)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> Argument:
        return Argument(self.name, self.values[index], self.texts)


@dataclass(frozen=True, slots=True)
class Track:
    """One row of slices, sorted by start and without overlap."""

    name: str
    start_ns: Int64
    end_ns: Int64
    label: NDArray[np.int32]
    """Index into ``labels``: the text on the slice, from which Perfetto derives its color."""
    labels: tuple[str, ...]
    arguments: tuple[Argument, ...]
    lane: int = 0
    """Number of the track's lane; lanes after 0 contain overlapping slices."""
    link: Int64 | None = None
    """Number of each slice's collective: slices with equal numbers are linked across tracks; 0 for no link."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> Track:
        return replace(
            self,
            start_ns=self.start_ns[index],
            end_ns=self.end_ns[index],
            label=self.label[index],
            arguments=tuple(argument[index] for argument in self.arguments),
            link=None if self.link is None else self.link[index],
        )

    def chunks(self) -> Iterator[Track]:
        """Split the track into parts of at most CHUNK slices."""
        for first in range(0, len(self), CHUNK):
            yield self[first : first + CHUNK]

    def lanes(self) -> Iterator[Track]:
        """Split the track into lanes without overlap."""
        lane = assign_lanes(self.start_ns, self.end_ns)
        for number in range(int(lane.max(initial=-1)) + 1):
            yield replace(self[np.flatnonzero(lane == number)], lane=number)

    def shifted(self, shift: Shift) -> Track:
        """Return the track on the common clock."""
        return self if shift.move is None else replace(self, start_ns=shift(self.start_ns), end_ns=shift(self.end_ns))


@dataclass(frozen=True, slots=True)
class Process:
    """One GPU of one rank, in the order of the run."""

    name: str
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.tracks))


def processes(run: Run, aligned_run: AlignedRun) -> Iterator[Process]:
    """Yield the tracks of each timeline of *run*; times in ns, on the clocks of *aligned_run*."""
    waits = run.cross_rank.exposed_waits
    for device, wait, members, shift in zip(run.devices, waits, aligned_run.members, aligned_run.shifts, strict=True):
        timeline, pieces = device.timeline, exposure(device.timeline)
        rows = [
            *(_steps(timeline, device.split, wait), _parts(timeline)),
            *_communication(timeline, pieces),
            *_streams(device, wait.calls, members),
        ]
        yield Process(
            _name(timeline),
            tuple(lane.shifted(shift) for row in rows for lane in row.lanes()),
            tuple(counter.shifted(shift) for counter in counters(timeline, pieces)),
        )


def earliest(run: Run, aligned_run: AlignedRun) -> int:
    """Return the earliest time in ns, on the clocks of *aligned_run*; 0 for an empty run."""
    firsts = []
    for timeline, shift in zip(run.timelines, aligned_run.shifts, strict=True):
        launched = timeline.launch_ns[timeline.launch_ns != UNKNOWN]
        first = launched.min(keepdims=True) if len(launched) else launched
        times = np.concatenate((timeline.start_ns[:1], timeline.windows.bounds[:1], first))
        firsts += shift(times).tolist()
    return min(firsts, default=0)


def _name(timeline: Timeline) -> str:
    return encodable(timeline.label_with_model)


def _steps(timeline: Timeline, split: Split, wait: ExposedWait) -> Track:
    """Return the track of steps, each with its nine figures and the parts of exposed communication."""
    windows = timeline.windows
    names = tuple(map(encodable, windows.names))
    figures = tuple(Argument(name, split.figures[name]) for name in FIGURES if name not in split.unknown)
    waits = (
        Argument("exposed_wait_ns", np.where(wait.known, wait.wait_ns, -1)),
        Argument("exposed_unmatched_ns", wait.unmatched_ns),
    )
    name = np.arange(len(names), dtype=np.int32)
    return Track("steps", windows.start_ns, windows.end_ns, name, names, (*figures, *waits))


def _parts(timeline: Timeline) -> Track:
    """Return the track of parts: the sums of its slices by name are the split."""
    pieces = partition(timeline)
    labels = tuple(PART_LABELS[part] for part in Part)
    step = Argument("step", pieces.source.astype(np.int64), tuple(map(encodable, timeline.windows.names)))
    return Track("phases", pieces.start_ns, pieces.end_ns, pieces.part.astype(np.int32), labels, (step,))


def _communication(timeline: Timeline, pieces: Segments) -> Iterator[Track]:
    """Yield the tracks of exposed and of overlapped communication."""
    kinds = tuple(encodable(collective.kind) for collective in timeline.collectives)
    for exposed, word in ((1, "exposed"), (0, "overlapped")):
        index = np.flatnonzero(pieces.part == exposed)
        source = pieces.source[index]
        yield Track(
            f"{word} communication",
            pieces.start_ns[index],
            pieces.end_ns[index],
            timeline.collective[source] + np.int32(1),
            (word, *(f"{word} {kind}" for kind in kinds)),
            (_step_argument(timeline, source), *_collective_arguments(timeline, source)),
        )


def _streams(device: DeviceFigures, calls: CallWaits, members: Members) -> Iterator[Track]:
    """Yield a track per stream of a GPU, or per thread of a CPU."""
    timeline = device.timeline
    rows = members.row_of_interval(len(timeline))
    # -1 means "no value" for intervals that are not communication.
    is_comm = timeline.kind == Kind.COMMUNICATION
    exposed, overlapped = (np.where(is_comm, values, -1) for values in (device.exposed_ns, device.overlapped_ns))
    waiting, waits_for = np.full((2, len(timeline)), -1, np.int64)
    waiting[is_comm], waits_for[is_comm] = calls.exposed_ns, calls.waits_for
    names = tuple(map(encodable, timeline.names))
    phases = tuple(phase.name.lower() for phase in Phase)
    for lane in unique(timeline.lane).tolist():
        index = np.flatnonzero(timeline.lane == lane)
        kinds = [kind.name.lower() for kind in Kind if np.any(timeline.kind[index] == kind)]
        word = "thread" if timeline.on_cpu else "stream"
        arguments = (
            Argument("phase", timeline.phase[index].astype(np.int64), phases),
            _step_argument(timeline, index),
            *_collective_arguments(timeline, index, np.append(members.seq, -1)[rows[index]]),
            Argument("exposed_ns", exposed[index]),
            Argument("exposed_wait_ns", waiting[index]),
            Argument("overlapped_ns", overlapped[index]),
            Argument("waits_for_rank", waits_for[index]),
            *_member_arguments(members, rows[index]),
        )
        yield Track(
            f"{word} {lane} ({', '.join(kinds)})",
            timeline.start_ns[index],
            timeline.end_ns[index],
            timeline.name[index],
            names,
            # Most streams have no communication, and an empty column takes as much memory as any.
            tuple(argument for argument in arguments if not argument.empty),
            link=np.append(members.instance, 0)[rows[index]],
        )


def _member_arguments(members: Members, row: Int64) -> Iterator[Argument]:
    """Yield what matching across ranks shows about a collective: its number, wait, transfer and bandwidth."""
    yield Argument("instance", np.append(np.where(members.instance > 0, members.instance, -1), -1)[row])
    columns = ("wait_ns", members.wait_ns), ("transfer_ns", members.transfer_ns), ("busbw_gbps", members.busbw_gbps)
    for name, values in columns:
        yield Argument(name, np.append(values, -1)[row])


def _step_argument(timeline: Timeline, index: NDArray[np.integer]) -> Argument:
    names = timeline.windows.names
    texts = (*map(encodable, names), "before the first", "after the last")
    step = timeline.step[index].astype(np.int64)
    return Argument("step", np.where(step < 0, len(names) - 1 - step, step), texts)


def _collective_arguments(
    timeline: Timeline, index: NDArray[np.integer], matched_seq: Int64 | None = None
) -> Iterator[Argument]:
    """Yield the metadata of each collective; unknown values are left out, not shown as zero.

    Args:
        matched_seq: the sequence numbers from matching, for files that have none.
    """
    collectives, which = timeline.collectives, timeline.collective[index]
    for name, field in (("collective", "kind"), ("dtype", "dtype"), ("group", "group"), ("label", "label")):
        texts = [getattr(collective, field) for collective in collectives]
        table = tuple(dict.fromkeys(filter(None, texts)))
        code = {text: number for number, text in enumerate(table)}
        values = np.array([*(code.get(text, -1) for text in texts), -1], np.int64)
        yield Argument(name, values[which], tuple(map(encodable, table)))
    for name in ("bytes", "group_size"):
        numbers = [getattr(collective, name) or -1 for collective in collectives]
        yield Argument(name, np.array([*numbers, -1], np.int64)[which])
    seq = np.array([*(collective.seq for collective in collectives), -1], np.int64)[which]
    yield Argument("seq", seq if matched_seq is None else np.where(seq < 0, matched_seq, seq))
