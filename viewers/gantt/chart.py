"""Build the lanes of a run's Gantt chart: columns of intervals, relative to the run's first step.

Each GPU is a track of up to five rows. The intervals that fill a row come from ``per_gpu.split``, so that their times
add up to the split's figures; the intervals that the pointer finds are the recorded ones::

    phases          Role.PHASES       the partition: backward, forward, optimizer, other, exposed, waiting, memory
    compute         Role.COMPUTE      kernels, coloured by phase
    communication   Role.EXPOSURE     the exposed, waiting and overlapped pieces of collectives
                    Role.COLLECTIVES  the collectives that these pieces belong to
    memory          Role.MEMORY       copies and sets
    idle            Role.IDLE         idle time by cause

Role.PHASE_LABELS holds the labels of the phases row: spans of one phase without long interruptions, or the actions of a
pipeline schedule on a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Shift
from dptrace.analysis.cross_rank.ddp_buckets import call_names
from dptrace.analysis.cross_rank.transfers import CallWaits, ExposedWait, beside_waiting, sum_of_waits
from dptrace.analysis.matching.calls import coordinates
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import (
    EXPOSED_LABELS,
    Part,
    Segments,
    exposure,
    idle,
    part_intervals_of,
    partition,
    waiting_label,
)
from dptrace.core.array_file import let_go
from dptrace.core.intervals import Int64, IntervalSet, covered, cut_at, sums, union
from dptrace.run.run import Run
from dptrace.timeline.model import Action, Collective, Kind, Phase, Timeline

# What the labels of the phases row stand on: spans of one part, a pipeline's actions, waits for one rank.


_INTERRUPTIONS = (1 / 20_000, 1 / 2_000, 1 / 200)
"""Shares of a step up to which another part does not end a label; ascending, so that short pieces are joined first."""


@dataclass(frozen=True, slots=True)
class PhaseLabels:
    """The labels of one GPU's phases."""

    spans: Segments
    """What each label stands on; the source is an index into ``name``."""
    name: Int64
    """Index of each name plus 1, or 0 for a label that names only the part."""


def phase_labels(timeline: Timeline, busy: Segments, names: Mapping[str, int]) -> PhaseLabels:
    """Return the labels of a GPU's phases; a pipeline's forward and backward are its named actions.

    Args:
        busy: the partition without idle time.
        names: numbers the names, in the order of their first use.
    """
    plain, actions = _spans(busy, timeline.windows.wall_by_step), timeline.actions
    if not len(actions):
        unnamed = np.zeros(len(plain.part), np.int32)
        return PhaseLabels(Segments(plain.start_ns, plain.end_ns, plain.part, unnamed), np.zeros(1, np.int64))
    kept = ~np.isin(plain.part, (Part.FORWARD, Part.BACKWARD))
    several = len(set(actions.stage.tolist())) > 1
    texts = [
        f"{stage if several else ''}{Action(kind).name}{batch}"
        for stage, kind, batch in zip(actions.stage, actions.kind, actions.micro_batch, strict=True)
    ]
    part = np.where(actions.kind == Action.F, Part.FORWARD, Part.BACKWARD).astype(np.uint8)
    start = np.concatenate((plain.start_ns[kept], actions.start_ns))
    order = np.argsort(start, kind="stable")
    source = np.concatenate((np.zeros(int(kept.sum()), np.int32), np.arange(len(actions), dtype=np.int32) + 1))
    pieces = Segments(
        start[order],
        np.concatenate((plain.end_ns[kept], actions.end_ns))[order],
        np.concatenate((plain.part[kept], part))[order],
        source[order],
    )
    return PhaseLabels(pieces, np.array([0, *(names[text] + 1 for text in texts)], np.int64))


def _spans(busy: Segments, step_ns: Int64) -> Segments:
    """Join pieces of one part across idle time and across short pieces of other parts.

    ``F.F.F|B.B o B.B|X`` becomes ``F---F|B-----B|X``, with one label each.
    """
    start, end, part, step = busy.start_ns, busy.end_ns, busy.part, busy.source
    time = end - start
    for share in (0.0, *_INTERRUPTIONS):
        long = time >= share * step_ns[step]
        start, end, part, step, time = start[long], end[long], part[long], step[long], time[long]
        if not len(start):
            break
        changed = (part[1:] != part[:-1]) | (step[1:] != step[:-1])
        first = np.flatnonzero(np.concatenate(([True], changed)))
        last = np.concatenate((first[1:], [len(start)])) - 1
        time = np.add.reduceat(time, first)
        start, end, part, step = start[first], end[last], part[first], step[first]
    return Segments(start, end, part, step)


def wait_names(start: Int64, end: Int64, begun: Int64, ranks: Int64, names: Mapping[str, int]) -> Int64:
    """Return the index of ``Waiting for rank 2`` plus 1 for each span of waiting, or 0 where it is not for one rank.

    Args:
        start, end: of the spans.
        begun: starts of the waits that the spans hold, ascending.
        ranks: the rank that each of these is for, or -1.
    """
    low, high = np.searchsorted(begun, start).tolist(), np.searchsorted(begun, end).tolist()
    found = [set(ranks[first:last].tolist()) for first, last in zip(low, high, strict=True)]
    one = [rank.pop() if len(rank) == 1 else -1 for rank in found]
    return np.array([names[waiting_label(rank)] + 1 if rank >= 0 else 0 for rank in one], np.int64)


# Divide exposed communication in the rows of a Gantt chart into waiting for later ranks and transfer.


def why_unknown(run: Run) -> str:
    """Return why the waits of some of a run's collectives are not known; empty where all are."""
    if not sum_of_waits(run.cross_rank.exposed_waits)["exposed_unmatched_ns"]:
        return ""
    ranks = len({timeline.rank for timeline in run.timelines})
    if run.world_size > ranks:
        return f"only {ranks} of {run.world_size} ranks {'is' if ranks == 1 else 'are'} recorded"
    return "not all ranks of the collective are recorded, or they do not match"


def unknown_figures(run: Run, track: int, steps: Int64, starts: Int64, ends: Int64, waits: str) -> dict[str, Any]:
    """Return what is not known of the steps of a GPU, as the page has it.

    ``unknown`` are spans in which a figure is not: category, start, end, reason; ``bounded`` those in which some waits
    are not, so that waiting is at least, and transfer at most, what is known.

    Args:
        steps: indices of the drawn ones among the GPU's steps.
        starts, ends: of these, on the chart.
        waits: of the run, from :func:`why_unknown`.
    """
    reasons = run.splits[track].unknown.items() if len(starts) else ()
    # Compute whose phase is unknown is drawn as that.
    drawn = ((_category_of(name), why) for name, why in reasons if name != "other_ns")
    whole = [[category, int(starts[0]), int(ends[-1]), why] for category, why in drawn if category is not None]
    if not (run.timelines[track].collective >= 0).any():
        return {"unknown": whole, "bounded": []}
    own, reason = run.cross_rank.exposed_waits[track], waits or "no collective there is matched across ranks"
    unknown, bounded = (_spans_of(steps, starts, ends) for steps in (~own.known[steps], own.unmatched_ns[steps] > 0))
    return {"unknown": whole + [[WAITING, *span, reason] for span in unknown], "bounded": bounded}


def _spans_of(chosen: NDArray[np.bool_], starts: Int64, ends: Int64) -> list[list[int]]:
    """Return start and end of each series of chosen steps."""
    turns = np.flatnonzero(np.diff(np.concatenate(([0], chosen, [0])))).reshape(-1, 2)
    found: list[list[int]] = np.stack((starts[turns[:, 0]], ends[turns[:, 1] - 1]), axis=1).tolist()
    return found


def _category_of(name: str) -> int | None:
    """Return the category of a figure of a step or a cause of idle time; None for what the chart does not draw."""
    if name in CAUSES:
        return cause_category(name)
    if name == "overlapped_comm_ns":
        return OVERLAPPED
    return next((int(part) for part in Part if f"{part.name.lower()}_ns" == name), None)


def with_waiting_parts(parts: Segments, wait: ExposedWait, category: int) -> Segments:
    """Set *category* for the waiting in a partition's exposed communication."""
    exposed = parts.part == Part.EXPOSED_COMM
    index, begin, stop = cut_at(parts.start_ns[exposed], parts.end_ns[exposed], wait.intervals)
    waits = covered(wait.intervals, stop) > covered(wait.intervals, begin)
    part = np.where(waits, category, Part.EXPOSED_COMM)
    return _merged(parts, exposed, begin, stop, part, parts.source[exposed][index])


def with_waiting_pieces(pieces: Segments, timeline: Timeline, calls: CallWaits, category: int) -> Segments:
    """Set *category* for the waiting in the exposed pieces of each collective.

    Args:
        pieces: the timeline's exposure, by category.
        calls: the waits of the timeline's collectives.
    """
    wait_ns = np.zeros(len(timeline), np.int64)
    wait_ns[timeline.collective >= 0] = np.maximum(calls.wait_ns, 0)
    exposed = pieces.part == Part.EXPOSED_COMM
    start, end, source = pieces.start_ns[exposed], pieces.end_ns[exposed], pieces.source[exposed]
    turn = np.clip(timeline.start_ns[source] + wait_ns[source], start, end)
    begin, stop = np.concatenate((start, turn)), np.concatenate((turn, end))
    part = np.repeat([category, int(Part.EXPOSED_COMM)], len(start))
    kept = stop > begin
    # An empty piece stays one.
    kept[len(start) :] |= start == end
    return _merged(pieces, exposed, begin[kept], stop[kept], part[kept], np.tile(source, 2)[kept])


def ranks_waited_for(times: Int64, timeline: Timeline, calls: CallWaits) -> Int64:
    """Return the rank that the device waits for at each of *times*, or -1: by the last collective that began."""
    waiting = calls.exposed_ns > 0
    start = timeline.start_ns[timeline.collective >= 0][waiting]
    call = np.searchsorted(start, times, side="right") - 1
    until = np.append(start + calls.wait_ns[waiting], np.iinfo(np.int64).min)[call]
    ranks = np.append(calls.waits_for[waiting].astype(np.int64), -1)[call]
    return np.where(times < until, ranks, -1)


def _merged(
    whole: Segments,
    replaced: NDArray[np.bool_],
    start: Int64,
    end: Int64,
    part: NDArray[np.integer],
    source: NDArray[np.integer],
) -> Segments:
    """Replace some segments by others, in order of their starts."""
    kept = ~replaced
    start = np.concatenate((whole.start_ns[kept], start))
    order = np.argsort(start, kind="stable")
    return Segments(
        start[order],
        np.concatenate((whole.end_ns[kept], end))[order],
        np.concatenate((whole.part[kept], part)).astype(np.uint8)[order],
        np.concatenate((whole.source[kept], source)).astype(np.int32)[order],
    )


_NamedCollective: TypeAlias = tuple[str, Collective, str]
"""A collective's kernel name, its metadata, and its short name or an empty string."""

OVERLAPPED = len(Part)
"""The category of overlapped communication. The parts are before it, the idle causes after it."""
WAITING = OVERLAPPED + 1 + len(CAUSES)
"""The category of exposed communication that is waiting for later ranks; that of the rest is Part.EXPOSED_COMM."""

_PART_OF = np.zeros(len(Phase), np.uint8)
for _phase, _part in {
    Phase.FORWARD: Part.FORWARD,
    Phase.BACKWARD: Part.BACKWARD,
    Phase.OPTIMIZER: Part.OPTIMIZER,
    Phase.OTHER: Part.OTHER,
}.items():
    _PART_OF[_phase] = _part

_SAME_STEPS = 0.25
"""Share of a step by which the steps of two GPUs may differ and still share a step strip."""


def _none() -> Int64:
    return np.zeros(0, np.int64)


class Role(str, Enum):
    """What a lane shows; the values are used in the page's data."""

    PHASES = "phases"
    COMPUTE = "compute"
    EXPOSURE = "exposure"
    COLLECTIVES = "collectives"
    MEMORY = "memory"
    IDLE = "idle"
    PHASE_LABELS = "stretches"


@dataclass(frozen=True, slots=True)
class Lane:
    """Intervals of one role on one track, sorted by start; those of several streams may overlap."""

    track: int
    role: Role
    start_ns: Int64
    """Since the chart's origin."""
    duration_ns: Int64
    category: NDArray[np.uint8]
    """A :class:`~dptrace.analysis.per_gpu.split.Part`, OVERLAPPED, WAITING, or a result of cause_category()."""
    name: Int64
    """Index into the chart's names; for collectives and their pieces, into its collectives; for Role.PHASE_LABELS, the
    index of the label plus 1, or 0 without label; for Role.PHASES, the rank that is waited for plus 1, or 0."""
    stream: Int64
    """Stream id on a GPU, thread index on a CPU; 0 for pieces that belong to no single stream."""
    exposed_ns: Int64
    """Exposed time of each collective; empty for the other roles."""
    wait_ns: Int64 = field(default_factory=_none)
    """Wait of each collective plus 1, or 0 where it is not known; empty for the other roles."""
    waits_for: Int64 = field(default_factory=_none)
    """Rank that each collective's wait is for plus 1, or 0 where no rank stands out; empty for the other roles."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Track:
    """One GPU and its steps."""

    rank: int
    device: int
    device_name: str
    steps: tuple[str, ...]
    bounds_ns: Int64
    """Start of each step and end of the last one, since the chart's origin."""
    coordinates: Mapping[str, int]
    """Number of its rank in each dimension of the job's mesh: ``{"dp": 1, "tp": 0}``; empty where not known."""
    run: str = ""
    """Letter of its run, where a chart holds two."""
    ends_ns: Int64 = field(default_factory=_none)
    """End of each step, where the next does not begin there; else empty."""

    @property
    def step_ends_ns(self) -> Int64:
        """End of each step, whether or not the next begins there."""
        return self.ends_ns if len(self.ends_ns) else self.bounds_ns[1:]

    @property
    def label(self) -> str:
        """The GPU's name on the page."""
        run = f"{self.run} · " if self.run else ""
        return f"{run}rank {self.rank} · " + ("CPU" if self.device < 0 else f"GPU {self.device}")


@dataclass(frozen=True, slots=True)
class Strip:
    """Step names of tracks whose steps are nearly at the same times."""

    tracks: tuple[int, ...]
    steps: tuple[str, ...]
    run: str = ""
    """Letter of the run that the tracks belong to, where a chart holds two."""


_FAR = 1 << 51
"""Later than all times of a chart, in ns: 26 days, so that a float has each of them exactly."""
_BREAK_SHARE = 40
"""A break is drawn as long as this part of what is recorded; many, together as a quarter of it."""


@dataclass(frozen=True, slots=True)
class Breaks:
    """The time between the windows of a recording, which a chart draws short; times are since its origin, in ns."""

    start_ns: Int64 = field(default_factory=_none)
    end_ns: Int64 = field(default_factory=_none)
    """When each begins and ends, as recorded."""
    drawn_ns: int = 0
    """How long each is drawn."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def drawn(self, times: Int64) -> Int64:
        """Return where recorded times lie on the chart."""
        recorded, drawn = self._edges()
        return np.rint(np.interp(times, recorded, drawn)).astype(np.int64) if len(self) else times

    def recorded(self, places: Int64) -> Int64:
        """Return the recorded times of places on the chart."""
        recorded, drawn = self._edges()
        return np.rint(np.interp(places, drawn, recorded)).astype(np.int64) if len(self) else places

    def _edges(self) -> tuple[Int64, Int64]:
        """Return recorded times, and where they lie, between which both go on alike."""
        saved = np.cumsum(self.end_ns - self.start_ns - self.drawn_ns)
        start = self.start_ns - np.append(0, saved[:-1])
        recorded = np.stack((self.start_ns, self.end_ns), axis=1).ravel()
        drawn = np.stack((start, start + self.drawn_ns), axis=1).ravel()
        left = int(saved[-1]) if len(saved) else 0
        return np.append(np.append(-_FAR, recorded), _FAR), np.append(np.append(-_FAR, drawn), _FAR - left)

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """Where each begins and ends on the chart, and how long it is."""
        start = self.drawn(self.start_ns)
        columns = start, start + self.drawn_ns, self.end_ns - self.start_ns
        return [*zip(*(column.tolist() for column in columns), strict=True)]


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the times of one GPU's trace lie on a chart, which is on the clock that all GPUs share."""

    shift: Shift
    origin_ns: int
    """Start of the chart on the shared clock."""
    length_ns: int
    breaks: Breaks = field(default_factory=Breaks)

    def since(self, times: Int64) -> Int64:
        """Return times of the trace since the chart's origin."""
        return self.breaks.drawn(self.shift(times) - self.origin_ns)

    def recorded(self, *times: int) -> list[int]:
        """Return times since the chart's origin as the trace has them."""
        drawn = self.breaks.recorded(np.array(times, np.int64))
        own: list[int] = self.shift.back(drawn + self.origin_ns).tolist()
        return own

    def inside(self, start: Int64, end: Int64) -> NDArray[np.bool_]:
        """Return which intervals of the trace lie at least partly inside the chart, and not between two windows."""
        first, last = self.recorded(0, self.length_ns)
        found: NDArray[np.bool_] = (start < last) & (end > first)
        for begin, until in zip(
            *(self.shift.back(side + self.origin_ns) for side in (self.breaks.start_ns, self.breaks.end_ns)),
            strict=True,
        ):
            found &= (start < begin) | (end > until)
        return found

    def drawn(self, timeline: Timeline) -> dict[Kind, NDArray[np.intp]]:
        """Return the indices of a timeline's intervals of each kind that the chart shows."""
        inside = self.inside(timeline.start_ns, timeline.end_ns)
        return {kind: np.flatnonzero(inside & (timeline.kind == kind)) for kind in Kind}


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that the Gantt chart of a run shows."""

    origin_ns: int
    """Start of the run's first step, on the clock that its GPUs share."""
    end_ns: int
    """End of its last step, since the origin."""
    tracks: tuple[Track, ...]
    strips: tuple[Strip, ...]
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    collectives: tuple[_NamedCollective, ...]
    """Kernel name, metadata and short name (``AR bucket 0``) of the collectives, without duplicates."""
    axes: tuple[Axis, ...] = ()
    """Where the times of each track's trace lie."""
    exposed: str = EXPOSED_LABELS["exposed_comm_ns"]
    """What exposed communication is called that is not drawn as waiting."""
    breaks: Breaks = field(default_factory=Breaks)
    """The time between windows, which is drawn short."""

    def place(self, times: Int64) -> Int64:
        """Return where times of the clock that the GPUs share lie on the chart."""
        return self.breaks.drawn(times - self.origin_ns)

    def __len__(self) -> int:
        return sum(len(lane) for lane in self.lanes)

    def has(self, role: Role) -> bool:
        """Whether any GPU has intervals of a role."""
        return any(len(lane) for lane in self.lanes if lane.role is role)


Value = TypeVar("Value")


class _Table(dict[Value, int]):
    """A dictionary that numbers values in the order of their first use."""

    def __missing__(self, value: Value) -> int:
        self[value] = len(self)
        return self[value]


def cause_category(cause: str) -> int:
    """Return the category of an idle cause, one of ``causes.CAUSES``."""
    return OVERLAPPED + 1 + CAUSES.index(cause)


def axes_of(run: Run) -> tuple[Axis, ...]:
    """Return where the times of each GPU's trace lie on the chart of a run."""
    spans = [shift(one.windows.bounds[[0, -1]]) for shift, one in zip(run.shifts, run.timelines, strict=True)]
    origin, end = int(min(span[0] for span in spans)), int(max(span[1] for span in spans))
    breaks = _breaks(run, origin)
    length = int(breaks.drawn(np.array([end - origin]))[0])
    return tuple(Axis(shift, origin, length, breaks) for shift in run.shifts)


def _breaks(run: Run, origin: int) -> Breaks:
    """Return the time in which no GPU has a step, between two in which some have."""
    if not any(timeline.windows.gaps for timeline in run.timelines):
        return Breaks()
    own = [
        [shift(side) - origin for side in timeline.windows.recorded]
        for shift, timeline in zip(run.shifts, run.timelines, strict=True)
    ]
    start, end = union(*map(np.concatenate, zip(*own, strict=True)))
    longest = int((end - start).sum()) // max(_BREAK_SHARE, 4 * (len(start) - 1))
    begin, stop = end[:-1], start[1:]
    long = stop - begin > longest
    return Breaks(begin[long], stop[long], longest)


def chart(run: Run) -> Chart:
    """Build the chart of a run, on one clock; a run without timelines has a chart without tracks."""
    timelines = run.timelines
    if not timelines:
        return Chart(0, 0, (), (), (), (), ())
    axes = axes_of(run)
    names: _Table[str] = _Table()
    collectives: _Table[_NamedCollective] = _Table()
    tracks, lanes = [], []
    waits, calls = run.cross_rank.exposed_waits, call_names(timelines, run.cross_rank.matches, run.cross_rank.names)
    mesh = coordinates(run.cross_rank.matches.groups, run.metadata, run.world_size)
    for index, timeline in enumerate(timelines):
        windows = timeline.windows
        tracks.append(
            Track(
                timeline.rank,
                timeline.device,
                timeline.device_name,
                windows.names,
                axes[index].since(np.append(windows.start_ns, windows.bounds[-1:])),
                mesh.get(timeline.rank, {}),
                ends_ns=axes[index].since(windows.end_ns if windows.gaps else windows.end_ns[:0]),
            )
        )
        lanes += _lanes(timeline, waits[index], calls[index], index, axes[index], names, collectives)
        let_go(timeline.start_ns)
    drawn = tuple(tracks), _strips(tracks), tuple(lanes), tuple(names), tuple(collectives)
    exposed = beside_waiting(sum_of_waits(waits))
    return Chart(axes[0].origin_ns, axes[0].length_ns, *drawn, axes, exposed, axes[0].breaks)


def _lanes(
    timeline: Timeline,
    wait: ExposedWait,
    calls: tuple[str, ...],
    track: int,
    axis: Axis,
    names: _Table[str],
    collectives: _Table[_NamedCollective],
) -> list[Lane]:
    """Build one GPU's lanes; adds new entries to *names* and *collectives*."""
    name_of = np.array([names[name] for name in timeline.names], np.int64)
    part_intervals = part_intervals_of(timeline)
    parts, exposed = with_waiting_parts(partition(timeline, part_intervals), wait, WAITING), exposure(timeline)
    pieces = with_waiting_pieces(_as_categories(exposed), timeline, wait.calls, WAITING)
    kinds, busy = axis.drawn(timeline), _busy(parts)

    def recorded(role: Role, kind: Kind, category: NDArray[np.uint8]) -> Lane:
        index = kinds[kind]
        starts, ends = axis.since(timeline.start_ns[index]), axis.since(timeline.end_ns[index])
        name = name_of[timeline.name[index]] if len(name_of) else np.zeros(0, np.int64)
        return Lane(track, role, starts, ends - starts, category[index], name, timeline.lane[index], _none())

    memory = np.full(len(timeline), Part.EXPOSED_MEMORY, np.uint8)
    entry = _entries(timeline, calls, kinds[Kind.COMMUNICATION], collectives)
    phases = _phases(track, busy, timeline, wait.calls, axis)
    labels = phase_labels(timeline, busy, names)
    stretches = _drawn(track, Role.PHASE_LABELS, labels.spans, axis, labels.name)
    return [
        phases,
        _named_waits(stretches, phases, names),
        recorded(Role.COMPUTE, Kind.COMPUTE, _PART_OF[timeline.phase]),
        _drawn(track, Role.EXPOSURE, pieces, axis, entry),
        _collectives(timeline, wait.calls, track, kinds[Kind.COMMUNICATION], exposed, axis, entry),
        recorded(Role.MEMORY, Kind.MEMORY, memory),
        _drawn(track, Role.IDLE, _idle(timeline, part_intervals), axis),
    ]


def _phases(track: int, busy: Segments, timeline: Timeline, calls: CallWaits, axis: Axis) -> Lane:
    """Build the lane of parts, each waiting with the rank that it is for."""
    lane = _drawn(track, Role.PHASES, busy, axis)
    ranks = ranks_waited_for(busy.start_ns[axis.inside(busy.start_ns, busy.end_ns)], timeline, calls)
    return replace(lane, name=np.where(lane.category == WAITING, ranks + 1, 0))


def _named_waits(labels: Lane, phases: Lane, names: _Table[str]) -> Lane:
    """Name the rank that is waited for in the labels of waiting, where it is one."""
    spans, waits = labels.category == WAITING, phases.category == WAITING
    start = labels.start_ns[spans]
    name = labels.name.copy()
    ends, ranks = start + labels.duration_ns[spans], phases.name[waits] - 1
    name[spans] = wait_names(start, ends, phases.start_ns[waits], ranks, names)
    return replace(labels, name=name)


def _drawn(track: int, role: Role, pieces: Segments, axis: Axis, entry: Int64 | None = None) -> Lane:
    """Build a lane of pieces of intervals; *entry* holds the name of each interval, as an index."""
    inside = axis.inside(pieces.start_ns, pieces.end_ns)
    starts, ends = axis.since(pieces.start_ns[inside]), axis.since(pieces.end_ns[inside])
    zeros = np.zeros(len(starts), np.int64)
    name = zeros if entry is None else entry[pieces.source[inside]]
    return Lane(track, role, starts, ends - starts, pieces.part[inside], name, zeros, zeros[:0])


def _idle(timeline: Timeline, part_intervals: list[IntervalSet]) -> Segments:
    """Return the idle intervals with their causes as categories."""
    sets = list(idle(timeline, part_intervals).sets.values())
    causes = [cause_category(cause) for cause in CAUSES]
    start, end = (np.concatenate([intervals[side] for intervals in sets]) for side in (0, 1))
    cause = np.repeat(np.array(causes, np.uint8), [len(intervals[0]) for intervals in sets])
    order = np.argsort(start, kind="stable")
    return Segments(start[order], end[order], cause[order], np.zeros(len(order), np.int32))


def _busy(parts: Segments) -> Segments:
    """Return the parts without idle, which is the background of the phases row."""
    kept = parts.part != Part.IDLE
    return Segments(parts.start_ns[kept], parts.end_ns[kept], parts.part[kept], parts.source[kept])


def _as_categories(exposed: Segments) -> Segments:
    """Convert the exposure's flags to categories."""
    category = np.where(exposed.part == 1, Part.EXPOSED_COMM, OVERLAPPED).astype(np.uint8)
    return Segments(exposed.start_ns, exposed.end_ns, category, exposed.source)


def _entries(
    timeline: Timeline, calls: tuple[str, ...], index: NDArray[np.intp], table: _Table[_NamedCollective]
) -> Int64:
    """Return each collective's entry in *table*, by interval; *index* are the collectives, new ones are added."""
    unknown = Collective("")
    number = (np.cumsum(timeline.collective >= 0) - 1)[index].tolist()
    rows = zip(timeline.name[index].tolist(), timeline.collective[index].tolist(), number, strict=True)
    known = [
        (timeline.names[name], timeline.collectives[c] if c >= 0 else unknown, calls[n] if c >= 0 else "")
        for name, c, n in rows
    ]
    entry = np.zeros(len(timeline), np.int64)
    entry[index] = [table[pair] for pair in known]
    return entry


def _collectives(
    timeline: Timeline,
    calls: CallWaits,
    track: int,
    index: NDArray[np.intp],
    exposed: Segments,
    axis: Axis,
    entry: Int64,
) -> Lane:
    """Build the lane of whole collectives, each with its exposed time and its wait."""
    call = np.cumsum(timeline.collective >= 0) - 1
    shown = np.where(exposed.part == 1, exposed.end_ns - exposed.start_ns, 0)
    per_interval = sums(exposed.source, shown, len(timeline))
    starts, ends = axis.since(timeline.start_ns[index]), axis.since(timeline.end_ns[index])
    hidden = per_interval[index] * 2 < ends - starts
    category = np.where(hidden, OVERLAPPED, Part.EXPOSED_COMM).astype(np.uint8)
    return Lane(
        track,
        Role.COLLECTIVES,
        starts,
        ends - starts,
        category,
        entry[index],
        timeline.lane[index],
        per_interval[index],
        calls.wait_ns[call[index]] + 1,
        calls.waits_for[call[index]].astype(np.int64) + 1,
    )


def _strips(tracks: list[Track]) -> tuple[Strip, ...]:
    """Return the step strips: one for all tracks, unless their clocks or steps differ."""
    groups: dict[tuple[str, ...], list[list[int]]] = {}
    for index, track in enumerate(tracks):
        alike = groups.setdefault(track.steps, [])
        group = _same_steps([tracks[first].bounds_ns for first, *_ in alike], track.bounds_ns)
        if group is None:
            alike.append([index])
        else:
            alike[group].append(index)
    found = sorted(group for alike in groups.values() for group in alike)
    return tuple(Strip(tuple(group), tracks[group[0]].steps) for group in found)


def _same_steps(leads: list[Int64], bounds: Int64) -> int | None:
    """Return the first of some tracks' bounds that are nearly at the same times as others, or None."""
    if not leads:
        return None
    stacked = np.stack(leads)
    allowed = _SAME_STEPS * np.median(np.diff(stacked, axis=1), axis=1)
    near = np.flatnonzero(np.abs(stacked - bounds).max(axis=1) <= allowed)
    return int(near[0]) if len(near) else None
