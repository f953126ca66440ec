"""The tracks of a merged trace, as columns for any format: each rank's steps, parts, communication and streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.exposed_wait import CallWaits, ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.labels import PART_LABELS
from dptrace.analysis.per_gpu.split import FIGURES, Part, Segments, Split, exposure, partition
from dptrace.core.intervals import Int64, unique
from dptrace.core.units import encodable
from dptrace.export.aligned_run import AlignedRun, Members, Shift
from dptrace.export.counters import Counter, counters
from dptrace.export.lane_packing import assign_lanes
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

__all__ = ["Argument", "Process", "Track", "earliest", "processes"]

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
    if timeline.on_cpu:
        return timeline.label
    return encodable(f"{timeline.label} ({timeline.device_name})")


def _steps(timeline: Timeline, split: Split, wait: ExposedWait) -> Track:
    """Return the track of steps, each with its nine figures and the parts of exposed communication."""
    bounds = timeline.windows.bounds
    names = tuple(map(encodable, timeline.windows.names))
    figures = tuple(Argument(name, split.figures[name]) for name in FIGURES)
    waits = (
        Argument("exposed_wait_ns", np.where(wait.known, wait.wait_ns, -1)),
        Argument("exposed_unmatched_ns", wait.unmatched_ns),
    )
    return Track("steps", bounds[:-1], bounds[1:], np.arange(len(names), dtype=np.int32), names, (*figures, *waits))


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
