"""The split: every nanosecond of a GPU's step counted once, plus the communication overlapped by compute.

::

    compute   ████████████ forward ████ backward ████████        ██ optimizer
    comm                          ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓
                                  └ overlapped ────────┘└exposed┘└ idle ┘

The parts of a window, first match wins: compute in backward, forward, optimizer, other; then communication with
no compute (exposed); then memory with neither; then idle. See docs/definitions.md.

:func:`by_kind` adds up the time of each kind of collective over the GPUs and steps of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache, cached_property, reduce

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.core.intervals import (
    EMPTY,
    Int64,
    IntervalSet,
    covered,
    cut_at,
    intersect,
    repeated,
    subtract,
    sums,
    union,
    union_all,
)
from dptrace.core.notes import (
    ALL_STEPS,
    COLLECTIVES,
    DEVICE,
    GPU_EVENTS,
    LAUNCHES,
    LENGTHS,
    PHASES_NEED,
    REASONS,
    RECORDS,
    SUMS,
)
from dptrace.timeline.launch_calls import LAUNCH_NS
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline, Windows

_WORDS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other compute",
    "exposed_comm_ns": "exposed communication",
    "overlapped_comm_ns": "overlapped communication",
    "exposed_memory_ns": "exposed memory",
    "idle_ns": "idle",
    "wall_ns": "wall",
}
FIGURES = tuple(_WORDS)
"""The nine figures of a step, in the order of every table."""
PHASES = FIGURES[:4]
"""Compute by phase."""
COMPUTE = "compute_ns"
"""Compute of all phases: known where they are not."""
SHOWN = (*FIGURES, COMPUTE)
"""The figures and compute."""

_CAUSES_NEED = (LAUNCHES, RECORDS, LENGTHS, DEVICE, GPU_EVENTS)
_COMM_NEEDS = (RECORDS, LENGTHS, COLLECTIVES, ALL_STEPS, DEVICE, GPU_EVENTS)
_NEEDS = dict.fromkeys(PHASES, PHASES_NEED) | {
    "exposed_comm_ns": _COMM_NEEDS,
    "overlapped_comm_ns": (LENGTHS, COLLECTIVES, ALL_STEPS, DEVICE, GPU_EVENTS),
    "exposed_memory_ns": (RECORDS, LENGTHS, DEVICE, GPU_EVENTS),
    "idle_ns": (COLLECTIVES, ALL_STEPS, DEVICE, GPU_EVENTS),
}
"""The premises of each figure; without one that fails, it is known (wall time, compute)."""
_BOUNDS = {
    LAUNCHES: dict.fromkeys(SHOWN, "about"),
    LENGTHS: dict.fromkeys((*PHASES, COMPUTE), "at most") | {"idle_ns": "at least", "wall_ns": "about"},
    RECORDS: dict.fromkeys((*PHASES, COMPUTE, "overlapped_comm_ns"), "at least")
    | {"idle_ns": "at most", "wall_ns": "about"},
}
"""What figures are where a premise fails. Steps then begin and end with other work, and without launches, work counts
for the step in which it begins."""


def unknown_figures(lacks: Sequence[str]) -> dict[str, str]:
    """Return why each figure and cause of idle time that needs a premise that fails is unknown, by its name."""
    return _unknown(tuple(lacks)).copy() if lacks else {}


@cache
def _unknown(lacks: tuple[str, ...]) -> dict[str, str]:
    needs = _NEEDS | dict.fromkeys(CAUSES, _CAUSES_NEED)
    failing = {name: [premise for premise in needed if premise in lacks] for name, needed in needs.items()}
    unknown = {name: REASONS[premises[0]] for name, premises in failing.items() if premises}
    if SUMS in lacks:
        unknown |= {name: REASONS[SUMS] for name in (*SHOWN, *CAUSES) if name != "wall_ns"}
    if RECORDS in lacks and LENGTHS in lacks:
        unknown |= {name: REASONS[RECORDS] for name in _BOUNDS[RECORDS] if name not in unknown}
    return unknown


def bounds_of(lacks: Sequence[str]) -> dict[str, str]:
    """Return ``at most``, ``at least`` or ``about`` by the name of each figure that is not exact."""
    unknown = unknown_figures(lacks)
    found: dict[str, str] = {}
    for premise in (LAUNCHES, LENGTHS, RECORDS):
        found |= _BOUNDS[premise] if premise in lacks else {}
    return {name: bound for name, bound in found.items() if name not in unknown}


class Part(IntEnum):
    """The parts of a step, in order of precedence."""

    BACKWARD = 0
    FORWARD = 1
    OPTIMIZER = 2
    OTHER = 3
    EXPOSED_COMM = 4
    EXPOSED_MEMORY = 5
    IDLE = 6


_PHASE_OF = {
    Part.BACKWARD: Phase.BACKWARD,
    Part.FORWARD: Phase.FORWARD,
    Part.OPTIMIZER: Phase.OPTIMIZER,
    Part.OTHER: Phase.OTHER,
}


class Segments(msgspec.Struct, frozen=True):
    """Segments of time on one device, sorted by start; one entry per segment in each column."""

    start_ns: Int64
    end_ns: Int64
    part: NDArray[np.uint8]
    """:class:`Part` values in a partition; 1 for exposed and 0 for overlapped in an exposure."""
    source: NDArray[np.int32]
    """Step index in a partition; index of the interval in the timeline in an exposure."""


class CommFigures(msgspec.Struct, frozen=True):
    """One kind of collective in each step: arrays of one entry per step."""

    count: Int64
    bytes: Int64
    """0 in a step that has one of unknown size."""
    exposed_ns: Int64
    overlapped_ns: Int64

    def has_unknown_size(self) -> bool:
        """Return whether the size of one of its collectives is unknown."""
        return bool(((self.count > 0) & (self.bytes == 0)).any())


class Split(msgspec.Struct, frozen=True, dict=True):
    """The nine figures of one device in int64 ns, one entry per step."""

    rank: int
    device: int
    names: tuple[str, ...]
    figures: dict[str, Int64]
    """By the names in FIGURES."""
    comm: dict[str, CommFigures]
    """By kind of collective."""
    lacks: tuple[str, ...] = ()
    """The premises that fail in the rank's recording."""

    @property
    def unknown(self) -> dict[str, str]:
        """Why each figure and cause of idle time that is not known is unknown, by its name."""
        return unknown_figures(self.lacks)

    @property
    def bounds(self) -> dict[str, str]:
        """``at most``, ``at least`` or ``about``, by the name of each figure that is not exact."""
        return bounds_of(self.lacks)

    def first(self, count: int) -> Split:
        """Keep the first *count* steps."""
        figures = {name: values[:count] for name, values in self.figures.items()}
        comm = {
            kind: CommFigures(c.count[:count], c.bytes[:count], c.exposed_ns[:count], c.overlapped_ns[:count])
            for kind, c in self.comm.items()
        }
        return Split(self.rank, self.device, self.names[:count], figures, comm, self.lacks)

    def of(self, name: str) -> Int64:
        """Return a figure of each step: one of FIGURES, or ``compute_ns``; also where it is not known."""
        return reduce(np.add, map(self.of, PHASES)) if name == COMPUTE else self.figures[name]

    def step(self, number: int) -> dict[str, int | None]:
        """Return the figures of one step and its ``compute_ns``; None where one is not known."""
        unknown = self.unknown
        return {name: None if name in unknown else int(self.of(name)[number]) for name in SHOWN}

    def total(self) -> dict[str, int | None]:
        """Return the sum of each figure, and of ``compute_ns``, over the steps; None where it is not known."""
        return self._total.copy()

    @cached_property
    def _total(self) -> dict[str, int | None]:
        unknown = self.unknown
        return {name: None if name in unknown else int(self.of(name).sum()) for name in SHOWN}

    def mean(self) -> dict[str, float | None]:
        """Return the mean step, whose parts add up to its wall time; zeros without steps, None where not known."""
        steps = max(len(self.names), 1)
        return {name: None if ns is None else ns / steps for name, ns in self._total.items()}


def _sets(timeline: Timeline) -> list[IntervalSet]:
    """Return the intervals of each part except idle, before precedence is applied."""
    start, end, kind = timeline.start_ns, timeline.end_ns, timeline.kind
    masks = [(kind == Kind.COMPUTE) & (timeline.phase == phase) for phase in _PHASE_OF.values()]
    masks += [kind == Kind.COMMUNICATION, kind == Kind.MEMORY]
    return [union(start[mask], end[mask]) for mask in masks]


def part_intervals_of(timeline: Timeline) -> list[IntervalSet]:
    """Return the disjoint intervals of each part except idle, over the whole timeline."""
    disjoint: list[IntervalSet] = []
    taken: IntervalSet | None = None
    for wanted in _sets(timeline):
        disjoint.append(wanted if taken is None else subtract(wanted, taken))
        taken = wanted if taken is None else union_all([taken, wanted])
    return disjoint


def compute_of(timeline: Timeline) -> IntervalSet:
    """Return when a device computes."""
    mask = timeline.kind == Kind.COMPUTE
    return union(timeline.start_ns[mask], timeline.end_ns[mask])


def split(
    timeline: Timeline, part_intervals: list[IntervalSet] | None = None, compute: IntervalSet | None = None
) -> Split:
    """Assign every nanosecond of every step to exactly one part.

    Args:
        part_intervals: the result of :func:`part_intervals_of`, if already computed.
        compute: the result of :func:`compute_of`, if already computed.
    """
    windows = timeline.windows
    per_part = [windows.per_step(claim) for claim in part_intervals or part_intervals_of(timeline)]
    wall = windows.wall_by_step
    figures = dict(zip(("backward_ns", "forward_ns", "optimizer_ns", "other_ns"), per_part[:4], strict=True))
    comm = timeline.kind == Kind.COMMUNICATION
    compute = compute_of(timeline) if compute is None else compute
    overlapped = intersect(union(timeline.start_ns[comm], timeline.end_ns[comm]), compute)
    figures |= {
        "exposed_comm_ns": per_part[4],
        "overlapped_comm_ns": windows.per_step(overlapped),
        "exposed_memory_ns": per_part[5],
        "idle_ns": wall - reduce(np.add, per_part),
        "wall_ns": wall,
    }
    ordered = {name: figures[name] for name in FIGURES}
    comm_figures = _by_kind(timeline, compute)
    return Split(timeline.rank, timeline.device, windows.names, ordered, comm_figures, timeline.lacks)


def _by_kind(timeline: Timeline, compute: IntervalSet) -> dict[str, CommFigures]:
    """Split each kind of collective on its own; a collective counts in the step that launched it."""
    names = np.array([collective.kind for collective in timeline.collectives], dtype=object)
    sizes = np.array([collective.bytes for collective in timeline.collectives], dtype=np.int64)
    # An empty message has a type.
    unsized = np.array([not collective.bytes and not collective.dtype for collective in timeline.collectives], np.bool_)
    kinds, code = np.unique(names, return_inverse=True)
    comm = np.flatnonzero(timeline.collective >= 0)
    which = timeline.collective[comm]
    code, sizes, unknown = code[which], sizes[which], unsized[which]
    start, end, step = timeline.start_ns[comm], timeline.end_ns[comm], timeline.step[comm]
    windows, steps = timeline.windows, len(timeline.windows)
    figures = {}
    for number, kind in enumerate(kinds):
        of_kind = code == number
        inside = of_kind & (step >= 0)
        count, moved = sums(step[inside], 1, steps), sums(step[inside], sizes[inside], steps)
        moved[step[inside & unknown]] = 0
        busy = union(start[of_kind], end[of_kind])
        hidden = windows.per_step(intersect(busy, compute))
        figures[str(kind)] = CommFigures(count, moved, windows.per_step(busy) - hidden, hidden)
    return figures


def collective_exposure(timeline: Timeline, compute: IntervalSet) -> tuple[Int64, Int64]:
    """Return exposed and overlapped ns of each interval on its own; both 0 for non-communication.

    With concurrent collectives the sum may exceed the step's.

    Args:
        compute: the result of :func:`compute_of`.
    """
    comm = timeline.kind == Kind.COMMUNICATION
    hidden = np.where(comm, covered(compute, timeline.end_ns) - covered(compute, timeline.start_ns), 0)
    return np.where(comm, timeline.end_ns - timeline.start_ns - hidden, 0), hidden


def partition(timeline: Timeline, part_intervals: list[IntervalSet] | None = None) -> Segments:
    """Cut the steps into segments of one part each, without gaps: the Gantt row whose sums are the split.

    Args:
        part_intervals: the result of :func:`part_intervals_of`, if already computed.
    """
    window = timeline.windows.recorded
    if not len(window[0]):
        return _segments([], [], [], [])
    sets = [intersect(claim, window) for claim in part_intervals or part_intervals_of(timeline)]
    sets.append(subtract(window, union_all(sets)))
    starts = np.concatenate([s for s, _ in sets])
    ends = np.concatenate([e for _, e in sets])
    parts = np.repeat(np.arange(len(sets)), [len(s) for s, _ in sets])
    return _cut(starts, ends, parts, timeline.windows)


def _cut(starts: Int64, ends: Int64, parts: NDArray[np.int64], windows: Windows) -> Segments:
    """Cut segments at the bounds of steps, and assign each to its step."""
    bounds = windows.bounds
    first = np.searchsorted(bounds, starts, side="right") - 1
    last = np.searchsorted(bounds, ends, side="left") - 1
    index, nth = repeated(last - first + 1)
    step = first[index] + nth
    begin, end = np.maximum(starts[index], bounds[step]), np.minimum(ends[index], bounds[step + 1])
    return _segments(begin, end, parts[index], windows.step_of_span[step])


def exposure(timeline: Timeline) -> Segments:
    """Cut every communication interval into exposed and overlapped segments."""
    mask = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    compute = compute_of(timeline)
    index, begin, stop = cut_at(timeline.start_ns[mask], timeline.end_ns[mask], compute)
    hidden = covered(compute, stop) - covered(compute, begin)
    return _segments(begin, stop, (hidden == 0), mask[index])


def _segments(start: object, end: object, part: object, source: object) -> Segments:
    order = np.argsort(np.asarray(start, np.int64), kind="stable")
    return Segments(
        np.asarray(start, np.int64)[order],
        np.asarray(end, np.int64)[order],
        np.asarray(part, np.uint8)[order],
        np.asarray(source, np.int32)[order],
    )


class KindFigures(msgspec.Struct, frozen=True):
    """One kind of collective: the mean per GPU and step."""

    kind: str
    count: float
    bytes: float
    """0 where the size of one is unknown."""
    exposed_ns: float | None
    """None where exposed communication is not known, as the next two."""
    overlapped_ns: float | None
    overlap_percent: float | None
    """Of its time in the whole run; None if it took no time."""


def overlap_percent(overlapped_ns: float | None, exposed_ns: float | None) -> float | None:
    """Return the share of communication that compute overlaps, in percent; None without communication, or unknown."""
    if overlapped_ns is None or exposed_ns is None:
        return None
    whole = overlapped_ns + exposed_ns
    return 100 * overlapped_ns / whole if whole else None


def by_kind(splits: Sequence[Split]) -> tuple[KindFigures, ...]:
    """Average each kind over GPUs and steps, sorted by name; empty without steps or communication."""
    steps = sum(len(figures.names) for figures in splits)
    kinds = sorted({kind for figures in splits for kind in figures.comm}) if steps else []
    found = []
    for kind in kinds:
        parts = [figures.comm[kind] for figures in splits if kind in figures.comm]
        count, size, exposed, overlapped = (
            sum(int(getattr(part, name).sum()) for part in parts)
            for name in ("count", "bytes", "exposed_ns", "overlapped_ns")
        )
        size = 0 if any(part.has_unknown_size() for part in parts) else size
        times = exposed / steps, overlapped / steps, overlap_percent(overlapped, exposed)
        known = all("exposed_comm_ns" not in figures.unknown for figures in splits)
        found.append(KindFigures(kind, count / steps, size / steps, *(times if known else (None, None, None))))
    return tuple(found)


# Why a GPU was idle: the cause of each gap, from the launch of the work that ended it.
#
# ::
#
#     host      ░░░ DataLoader ░░░ launch b         launch c ▒▒▒▒▒▒▒▒    wait, launch d
#     GPU     a ██                          ██ b                     ██ c                          ██ d
#                 └── host late ───┘└ late ┘  └────┘└── launching ──┘  └──────┘└──── waiting ─────┘
#               data loading, then host-bound

_LONG_NS = 50_000
"""Shortest gap that is kept to be named."""


class Idle(msgspec.Struct, frozen=True):
    """Idle time of one device by cause."""

    windows: Windows
    """The steps."""
    idle: IntervalSet
    """All idle time from the first step to the last."""
    sets: dict[str, IntervalSet]
    """The idle time of each cause, by the names in CAUSES."""
    host_gaps: IntervalSet
    """The gaps that ended with work which the host launched late, as far as they are long enough to look at."""

    @property
    def causes(self) -> dict[str, Int64]:
        """By the names in CAUSES: ns in each step; the causes add up to the step's idle time exactly."""
        return {name: self.windows.per_step(part) for name, part in self.sets.items()}


def idle(timeline: Timeline, part_intervals: list[IntervalSet] | None = None) -> Idle:
    """Assign a cause to every nanosecond of idle time.

    Args:
        part_intervals: the result of ``split.part_intervals_of``, if already computed.
    """
    part_intervals = part_intervals_of(timeline) if part_intervals is None else part_intervals
    windows = timeline.windows
    gaps = subtract(windows.recorded, union_all(part_intervals))
    if CAUSES[0] in unknown_figures(timeline.lacks):
        sets = dict.fromkeys(CAUSES, EMPTY) | {"unexplained_ns": gaps}
        return Idle(windows, gaps, sets, EMPTY)
    launched = _launched(timeline, gaps)
    host_gaps = _select((gaps[0], launched), launched > gaps[0])
    after = _select((launched, gaps[1]), launched < gaps[1])
    launching = intersect(after, timeline.launching)
    after = subtract(after, launching)
    short = after[1] - after[0] <= LAUNCH_NS
    latency, late = _select(after, short), _select(after, ~short)
    loading = intersect(host_gaps, timeline.data_loading)
    rest = subtract(host_gaps, loading)
    bubble = _bubble(timeline, rest, late)
    rest, late = subtract(rest, bubble), subtract(late, bubble)
    waiting = intersect(late, timeline.depending)
    sets = {
        "data_loading_ns": loading,
        "launching_ns": launching,
        "launch_latency_ns": latency,
        "waiting_ns": waiting,
        "bubble_ns": bubble,
        "unexplained_ns": subtract(late, waiting),
    }
    # What is left of the host's time is told by what the host did, and the rest of that is host-bound.
    told = [cause for cause in IDLE_CAUSES if cause.name not in (*sets, "host_bound_ns")]
    sets |= {cause.name: intersect(rest, timeline.host.intervals(*cause.host_causes)) for cause in told}
    sets["host_bound_ns"] = subtract(rest, union_all([sets[cause.name] for cause in told]))
    sets = {name: sets[name] for name in CAUSES}
    return Idle(windows, gaps, sets, _select(host_gaps, host_gaps[1] - host_gaps[0] >= _LONG_NS))


def _bubble(timeline: Timeline, host: IntervalSet, late: IntervalSet) -> IntervalSet:
    """Return the idle time caused by the pipeline's schedule.

    This is host lateness spent in a receive, and late starts between the actions of a step: after the first was called
    and outside all of them.
    """
    actions = timeline.actions
    if not len(actions):
        return EMPTY
    order = np.argsort(actions.step, kind="stable")
    _, starts = np.unique(actions.step[order], return_index=True)
    schedule = union(
        np.minimum.reduceat(actions.called_ns[order], starts), np.maximum.reduceat(actions.end_ns[order], starts)
    )
    between = subtract(schedule, union(actions.start_ns, actions.end_ns))
    return union_all([intersect(host, timeline.receiving), intersect(late, between)])


def _select(intervals: IntervalSet, chosen: NDArray[np.bool_]) -> IntervalSet:
    return intervals[0][chosen], intervals[1][chosen]


def _launched(timeline: Timeline, gaps: IntervalSet) -> Int64:
    """Return until when each gap is the host's: the launch of what ends it, or its start where that was earlier."""
    start, end = gaps
    first = np.searchsorted(timeline.start_ns, end, side="left")
    last = np.searchsorted(timeline.start_ns, end, side="right")
    ended = last > first  # otherwise the end of the last step ends the gap, and the host launched nothing more
    # The earliest launch of the work that starts at the gap's end: a pair of bounds each, padded for reduceat.
    launch = np.append(timeline.launch_ns, UNKNOWN)
    bounds = np.stack((first, last), axis=1).reshape(-1)
    earliest = np.minimum.reduceat(launch, bounds)[::2] if len(bounds) else np.empty(0, np.int64)
    return np.where(ended, np.clip(earliest, start, end), end)


# Labels of the parts of a step and of the causes of idle time, for tables and charts.

FIGURE_WORDS = _WORDS | {COMPUTE: "compute"} | {cause.name: cause.label for cause in IDLE_CAUSES}
"""The figures of a step and the causes of idle time in words."""
PART_LABELS: dict[Part, str] = {
    Part[name.removesuffix("_ns").upper()]: _WORDS[name].capitalize()
    for name in FIGURES
    if name not in ("overlapped_comm_ns", "wall_ns")
}
UNKNOWN_PHASE = "Compute, phase unknown"
"""The label of all compute where its phases are unknown."""
OVERLAPPED_LABEL = _WORDS["overlapped_comm_ns"].capitalize()

EXPOSED_LABELS: dict[str, str] = {
    "exposed_wait_ns": "Waiting for other ranks",
    "exposed_transfer_ns": "Exposed transfer",
    "exposed_unmatched_ns": "Exposed in incomplete collectives",
    "exposed_comm_ns": PART_LABELS[Part.EXPOSED_COMM],
}
"""Parts of exposed communication by the names in ``exposed_wait.exposed_parts``."""


def waiting_label(rank: int | Sequence[int] | None) -> str:
    """Return the label of waiting for a rank, or a few; None and no rank stand for many or unknown ranks.

    >>> waiting_label(2), waiting_label((2, 1, 3)), waiting_label(())
    ('Waiting for rank 2', 'Waiting for ranks 2, 1 and 3', 'Waiting for other ranks')
    """
    ranks = () if rank is None else [one for one in ([rank] if isinstance(rank, int) else rank) if one >= 0]
    if len(ranks) < 2:
        return f"Waiting for rank {ranks[0]}" if ranks else EXPOSED_LABELS["exposed_wait_ns"]
    return f"Waiting for ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
