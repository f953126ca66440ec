"""Reduce a trace's host events to what the threads that launched a device's work did.

::

    thread   ├─ # forward ─────────────────────────┤
               ├ aten::linear ┤      ├ cudaMalloc ┤
    pieces   P │ operator     │ P    │ allocator  │   P: Python code in the annotation

Events shorter than a threshold (20 µs, more in long recordings) have no piece of their own, so that a recording has at
most some ten thousand pieces, however many events it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, repeated, union, union_all, unique
from dptrace.readers.communication import C10D_PREFIX, GLOO_MESSAGES, GLOO_PREFIX
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import last_above, outermost
from dptrace.timeline.model import NO_ACTIVITY, HostActivity, HostCause, HostLabel
from dptrace.timeline.steps import CpuSteps

# When a host that shows no event was blocked, and in what: the one definition for idle causes, delays and replays.
#
# ::
#
#     host     a ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░ b       ▒ blocked until the collective ended · ░ its own time
#     gloo       ├ all-reduce ────────┤
#
# A pause is a wait for work that the process launched before it and that ended within it. On a CPU, collectives are
# waited for by calls that are not recorded, so a pause in which the last one launched ends is a wait up to that end. On
# a GPU, work ends all the time: the pause has to end with it, and the device has to be busy during most of it.

NEEDS_EVENTS = re.compile(r"(cuda|hip)EventElapsedTime$")
"""Calls that fail unless events have happened: the host waited for these before, in a recorded call or not."""

_MIN_CPU_NS, _MIN_GPU_NS = 50_000, 500_000
"""Shortest pause that counts."""
_AFTER_NS = 100_000
"""On a GPU, a pause that ends this soon after the device's work was a wait for it."""
_PER_PAUSE = 1_000
"""Share of a pause, as its inverse, up to which it may end later than that."""
_SKEW_NS = 20_000
"""By how much clocks of host and device may differ: work may seem to end after the pause that waited for it."""
_LATE_NS, _LATE_SHARE, _LATE_LONG = 5_000_000, 0.1, 0.01
"""On a CPU, the thread of a collective may record its end this much after the host went on: it has to get a core. It is
at most a share of the pause, and of a long pause a smaller one."""
_MIN_STEPS = 3
"""Number of pauses in one place from which their lengths tell a wait from a sleep."""
_STEADY, _MIN_SPREAD_NS = 3, 200_000
"""How many times as much as its length what follows a collective's end varies in a sleep; and how much at least."""
_CPU_SHARE, _GPU_SHARE = 0.3, 0.8
"""Smallest share of a pause during which the device was busy with what was waited for."""


class Pauses(Columns, frozen=True):
    """Pauses of threads that launch work; one entry per pause in each column."""

    since_ns: Int64
    until_ns: Int64
    certain: NDArray[np.bool_]
    """Whether the call after it needs events to have happened; counts on a GPU."""
    place: Int64
    """Number of its place in the program: between which two calls it is. It is there once a step, or several times."""

    @property
    def length_ns(self) -> Int64:
        return self.until_ns - self.since_ns


class Work(Columns, frozen=True):
    """What a host may have waited for: intervals of its device; of collectives on a CPU."""

    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """When each was launched; UNKNOWN, which is before all else, where the recording does not have it."""
    lane: Int64
    message: NDArray[np.bool_]
    """Whether it is a message of gloo's, which ends when the host has waited for it: never after the wait."""


def awaited(pauses: Pauses, work: Work, *, on_cpu: bool) -> Int64:
    """Return the index of the work that each pause waited for, or -1."""
    found = np.full(len(pauses.since_ns), -1, np.int64)
    long = np.flatnonzero(pauses.length_ns > (_MIN_CPU_NS if on_cpu else _MIN_GPU_NS))
    if len(long) and len(work):
        kept = pauses.take(long)
        interval = _without_sleeps(kept, work, _on_cpu(kept, work)) if on_cpu else _on_gpu(kept, work)
        found[long] = _with_late_ends(kept, work, interval) if on_cpu else interval
    return found


def _without_sleeps(pauses: Pauses, work: Work, interval: Int64) -> Int64:
    """Drop the waits of places where the host sleeps, and a collective only happens to end meanwhile.

    ::

        wait     ├─ E ────┤·     ├─ E ──────────┤·     ends a constant time after E
        sleep    ├─ E ───┤····   ├─ E ─────────┤·      has a constant length
    """
    waited = np.flatnonzero(interval >= 0)
    after = pauses.until_ns[waited] - work.end_ns[interval[waited]]
    result = interval.copy()
    for place in unique(pauses.place[waited]).tolist():
        own = pauses.place[waited] == place
        if int(own.sum()) >= _MIN_STEPS:
            length = pauses.length_ns[waited[own]]
            if _spread(after[own]) > max(_STEADY * _spread(length), _MIN_SPREAD_NS):
                result[waited[own]] = -1
    return result


def _with_late_ends(pauses: Pauses, work: Work, interval: Int64) -> Int64:
    """Add the waits of places where the host waits as a rule, and a thread recorded the end far too late::

    wait     ├─ E ────┤·     ├─ E ─────────┤·  E    the collective was in flight throughout
    """
    result, lanes = interval.copy(), [np.flatnonzero(work.lane == lane) for lane in unique(work.lane).tolist()]
    place, waits = np.unique(pauses.place, return_inverse=True)[1].reshape(-1), interval >= 0
    number, waited = np.bincount(place), np.bincount(place, waits)
    usual = (waited >= _MIN_STEPS) & (2 * waited > number)
    open_ = np.flatnonzero(usual[place] & ~waits)
    left, best = pauses.take(open_), _Best(len(open_))
    for own in lanes:
        last = _last_launched(own, left, work)
        start, end = work.start_ns[last], work.end_ns[last]
        inside = np.minimum(end, left.until_ns) - np.maximum(start, left.since_ns)
        fits = (last >= 0) & ~work.message[last] & (2 * inside > left.length_ns) & (end > left.until_ns)
        best.offer(np.arange(len(open_)), last, inside, fits & (end - left.until_ns < left.length_ns))
    result[open_] = best.interval
    return result


def _spread(values: Int64) -> float:
    """Return how far values are from their median as a rule: one that a thread got its core late for counts no more."""
    return float(np.median(np.abs(values - np.median(values))))


class _Best:
    """The interval that covers most of each pause, of those that fit."""

    def __init__(self, pauses: int) -> None:
        self.interval = np.full(pauses, -1, np.int64)
        self._inside_ns = np.full(pauses, -1, np.int64)

    def offer(self, pause: Int64, interval: Int64, inside_ns: Int64, fits: NDArray[np.bool_]) -> None:
        """Take an interval for each of these pauses, where it fits and covers more than the one before."""
        pause, interval, inside_ns = pause[fits], interval[fits], inside_ns[fits]
        # The one that covers most comes last, and stays.
        order = np.argsort(inside_ns, kind="stable")
        order = order[inside_ns[order] > self._inside_ns[pause[order]]]
        self.interval[pause[order]], self._inside_ns[pause[order]] = interval[order], inside_ns[order]


def _on_cpu(pauses: Pauses, work: Work) -> Int64:
    """The last collective launched, or one that covers much of the pause; its thread may record its end late."""
    best, every = _Best(len(pauses.since_ns)), np.arange(len(pauses.since_ns))
    late = np.minimum(_LATE_SHARE * pauses.length_ns, np.maximum(_LATE_NS, _LATE_LONG * pauses.length_ns))
    latest = pauses.until_ns + late.astype(np.int64)
    by_end = np.argsort(work.end_ns, kind="stable")
    last_ended, ended = (
        np.append(by_end, -1)[np.searchsorted(work.end_ns[by_end], until, side="right") - 1]
        for until in (latest, pauses.until_ns)
    )
    lanes = [np.flatnonzero(work.lane == lane) for lane in unique(work.lane).tolist()]
    candidates = [(last_ended, False), (ended, False), *((_last_launched(own, pauses, work), True) for own in lanes)]
    for candidate, launched in candidates:
        end = work.end_ns[candidate]
        inside = end - np.maximum(work.start_ns[candidate], pauses.since_ns)
        much = inside > _CPU_SHARE * pauses.length_ns
        until = np.where(work.message[candidate], pauses.until_ns, latest)
        fits = (candidate >= 0) & (end > pauses.since_ns) & (end <= until)
        best.offer(every, candidate, inside, fits & (much | (launched & (end <= pauses.until_ns))))
    return best.interval


def _on_gpu(pauses: Pauses, work: Work) -> Int64:
    """Work that alone covers the pause, the last of a stream that was busy, or what a call needs to have happened."""
    best, every = _Best(len(pauses.since_ns)), np.arange(len(pauses.since_ns))
    after = np.maximum(_AFTER_NS, pauses.length_ns // _PER_PAUSE)
    for lane in unique(work.lane).tolist():
        own = np.flatnonzero(work.lane == lane)
        last = _last_launched(own, pauses, work)
        busy, end = union(work.start_ns[own], work.end_ns[own]), work.end_ns[last]
        inside = covered(busy, end) - covered(busy, pauses.since_ns)
        fits = (last >= 0) & (end > pauses.since_ns) & (end <= pauses.until_ns + _SKEW_NS)
        fits &= (pauses.until_ns - end <= after) & (inside > _GPU_SHARE * pauses.length_ns)
        best.offer(every, last, inside, fits)
    by_end = np.argsort(work.end_ns, kind="stable")
    low = np.searchsorted(work.end_ns[by_end], pauses.until_ns - after)
    count = np.searchsorted(work.end_ns[by_end], pauses.until_ns + _SKEW_NS, side="right") - low
    # Each pause with each interval that ends just before it does: low 3, count 2 → 3, 4.
    pause, nth = repeated(count)
    near = by_end[low[pause] + nth]
    since = pauses.since_ns[pause]
    inside = work.end_ns[near] - np.maximum(work.start_ns[near], since)
    known = work.launch_ns[near] <= since
    best.offer(pause, near, inside, known & (inside > _GPU_SHARE * pauses.length_ns[pause]))
    # Whatever ended last before a call that needs it.
    needed = known & pauses.certain[pause] & (best.interval[pause] < 0)
    best.offer(pause, near, work.end_ns[near] - since, needed)
    return best.interval


def _last_launched(own: Int64, pauses: Pauses, work: Work) -> Int64:
    """Return which of these intervals was launched last before the end of each pause, or -1."""
    by_launch = own[np.argsort(work.launch_ns[own], kind="stable")]
    return np.append(by_launch, -1)[np.searchsorted(work.launch_ns[by_launch], pauses.until_ns) - 1]


DATA_LOADER = ("enumerate(DataLoader)",)
"""Starts of the names of events in which the host waits for a DataLoader's next batch."""
ALLOCATOR = re.compile(
    r"(cuda|hip)(Host|Mem)?(Malloc|Free|Alloc)|cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess)|hipMem(Alloc|Free|Create|Map)"
)
"""Calls of the CUDA and HIP runtimes and drivers that allocate or free memory; they may wait for the device."""
SYNCHRONIZING = re.compile(r"\w*Synchronize(_ptsz)?$|(cuda|hip)Memcpy(2D|3D)?$|cuMemcpy(DtoH|HtoD)?(_v2)?$")
"""Calls that return when the device has reached a point: the synchronizing ones and the blocking copies."""
_HASH = re.compile(r"\b(?=\w*\d)[a-z0-9]{16,}\b|0x[0-9a-f]+")
"""Hashes and addresses in names: the same code has others on another rank."""
_MIN_NS = 20_000
"""Shortest event that has a piece of its own."""
_RESOLUTION = 20_000
"""Least ratio of the recording's length to the shortest event that has a piece of its own."""
_STANDS_STILL_NS = 500_000
"""An operator without an inner event for longer than this is blocked."""
_OTHERS_SHARE = 0.1
"""A pause during more of which other threads are active is a wait for them."""


def host_activity(
    trace: Trace,
    steps: CpuSteps,
    launch: Int64,
    communicating: IntervalSet,
    ends: Int64,
    work: DeviceWork,
    *,
    on_cpu: bool,
) -> HostActivity:
    """Reduce a trace's host events to what the launching threads did.

    Args:
        trace: the events of a rank.
        steps: its steps on the host.
        launch: indices of the calls that launched the device's work; -1 where unknown.
        communicating: when the device communicated without computing, in ns.
        ends: ends of the device's collectives, ascending, in ns.
        work: what hosts may have waited for in pauses.
        on_cpu: whether collectives run on the CPU.
    """
    host = (trace.category != Category.KERNEL) & (trace.category != Category.MEMORY)
    if not host.any():
        return NO_ACTIVITY
    shortest = max(_MIN_NS, int(trace.end_ns[host].max() - trace.start_ns[host].min()) // _RESOLUTION)
    kinds = _NameKinds.of(trace)
    threads = _launching_threads(trace, launch)
    events = [_ThreadEvents.of(trace, thread, shortest, kinds) for thread in threads]
    if not events:
        return NO_ACTIVITY
    waits = _waits([_Active.of(trace, thread) for thread in threads], work, on_cpu)
    edges = [*(thread.edges for thread in events), *communicating, waits.start_ns, waits.end_ns]
    times = unique(np.concatenate(edges))
    if not len(times):
        return NO_ACTIVITY  # only events too short for pieces of their own
    columns = _first_of([thread.at(times, kinds) for thread in events])
    labels, label = _labels(trace.names, columns)
    label = _mark_passive(labels, label, times, communicating)
    labels, label = _mark_standing_still(labels, label, times, ends)
    for communication, cause in ((True, HostCause.PASSIVE), (False, HostCause.SYNCHRONIZING)):
        chosen = waits.communication == communication
        waited = union(waits.start_ns[chosen], waits.end_ns[chosen])
        label = _relabel(labels, label, _within(waited, times), cause)
    kept = np.append(True, label[1:] != label[:-1])
    returned = np.sort(np.concatenate([*(thread.returned for thread in events), waits.end_ns]))
    return HostActivity(
        times[kept], int(times[-1]), label[kept].astype(np.int32), tuple(labels), returned, steps.start_ns
    )


class DeviceWork(Work, frozen=True):
    """What a host may have waited for, and which of it are collectives."""

    communication: NDArray[np.bool_]


class _Active(msgspec.Struct, frozen=True):
    """When a thread was in calls or operators, and the starts of calls that need events to have happened."""

    when: IntervalSet
    needs_events_ns: Int64
    place: Int64
    """Of each pause between two of these times: number of the pair of names around it."""

    @classmethod
    def of(cls, trace: Trace, thread: int) -> _Active:
        own = np.flatnonzero(
            (trace.thread == thread)
            & ((trace.category == Category.LAUNCH) | (trace.category == Category.CPU_OP))
            & ~trace.named("ProfilerStep#", *DATA_LOADER, "Optimizer.", "autograd::engine::evaluate_function")
        )
        needs = np.array([NEEDS_EVENTS.match(name) is not None for name in trace.names], np.bool_)
        when = union(trace.start_ns[own], trace.end_ns[own])
        by_end = own[np.argsort(trace.end_ns[own], kind="stable")]
        last = by_end[np.searchsorted(trace.end_ns[by_end], when[1][:-1], side="right") - 1]
        by_start = own[np.argsort(trace.start_ns[own], kind="stable")]
        following = by_start[np.searchsorted(trace.start_ns[by_start], when[0][1:])]
        place = trace.name[last].astype(np.int64) * len(trace.names) + trace.name[following]
        return cls(when, trace.start_ns[own[needs[trace.name[own]]]], place)


class _Waits(Columns, frozen=True):
    """Pauses in which a thread waited for its device: starts, ends, and whether for a collective."""

    start_ns: Int64
    end_ns: Int64
    communication: NDArray[np.bool_]


def _waits(active: Sequence[_Active], work: DeviceWork, on_cpu: bool) -> _Waits:
    """Return the pauses in which threads waited; while another thread is active, a pause is a wait for that thread."""
    found = [_Waits.empty()]
    for own in active:
        since, until = own.when[1][:-1], own.when[0][1:]
        others = union_all([EMPTY, *(other.when for other in active if other is not own)])
        free = covered(others, until) - covered(others, since) <= _OTHERS_SHARE * (until - since)
        pauses = Pauses(since[free], until[free], np.isin(until[free], own.needs_events_ns), own.place[free])
        interval = awaited(pauses, work, on_cpu=on_cpu)
        waited = np.flatnonzero(interval >= 0)
        end = pauses.until_ns[waited]
        # What the host does after the end of a collective is its own.
        end = np.minimum(end, work.end_ns[interval[waited]]) if on_cpu else end
        found.append(_Waits(pauses.since_ns[waited], end, work.communication[interval[waited]]))
    return _Waits.concat(found)


def _launching_threads(trace: Trace, launch: Int64) -> list[int]:
    """Return the threads that launched work or run the loop; NCCL's watchdog, which only queries, is not among them."""
    marks = trace.named("ProfilerStep#") & (trace.category <= Category.ANNOTATION)
    threads = unique(np.append(trace.thread[launch[launch >= 0]], trace.thread[marks]))
    # Gloo's threads copy within a collective and request none; messages are sent on the program's own threads.
    gloo = unique(trace.thread[(trace.category == Category.ANNOTATION) & trace.named(GLOO_PREFIX)])
    requesting = unique(trace.thread[trace.named(C10D_PREFIX) & (trace.category == Category.CPU_OP)])
    own: list[int] = threads[~np.isin(threads, gloo) | np.isin(threads, requesting)].tolist()
    return own


class _NameKinds(msgspec.Struct, frozen=True):
    """Masks over a trace's string table."""

    allocator: NDArray[np.bool_]
    synchronizing: NDArray[np.bool_]
    loading: NDArray[np.bool_]
    step: NDArray[np.bool_]
    message: NDArray[np.bool_]
    """gloo's messages, which are no part of the program around them."""

    @classmethod
    def of(cls, trace: Trace) -> _NameKinds:
        def named(test: re.Pattern[str]) -> NDArray[np.bool_]:
            return np.fromiter((test.match(name) is not None for name in trace.names), np.bool_, len(trace.names))

        loading = re.compile("|".join(map(re.escape, DATA_LOADER)))
        message = re.compile("|".join(map(re.escape, GLOO_MESSAGES)))
        return cls(
            allocator=named(ALLOCATOR),
            synchronizing=named(SYNCHRONIZING),
            loading=named(loading),
            step=named(re.compile("ProfilerStep#")),
            message=named(message),
        )


class _Nested(msgspec.Struct, frozen=True):
    """Events of one thread, sorted by start."""

    start: Int64
    end: Int64
    name: NDArray[np.int32]

    @classmethod
    def of(cls, trace: Trace, events: Int64) -> _Nested:
        return cls(trace.start_ns[events], trace.end_ns[events], trace.name[events])

    def at(self, times: Int64) -> NDArray[np.int32]:
        """Return the name of the innermost event at each time, -1 outside all; where events overlap, the later one."""
        if not len(self.start):
            return np.full(len(times), -1, np.int32)
        place = np.searchsorted(self.start, times, side="right") - 1
        found = last_above(self.end, place, times)
        inside = (place >= 0) & (self.start[found] <= times) & (times < self.end[found])
        return np.where(inside, self.name[found], -1).astype(np.int32)


_WHAT, _WHERE, _CAUSE, _RANK = range(4)


class _ThreadEvents(msgspec.Struct, frozen=True):
    """The host events of one thread that have pieces of their own."""

    nested: tuple[_Nested, ...]
    """Blocking calls; operators and other calls; outermost operators; annotations; Python functions."""
    short: IntervalSet
    """When operators or calls ran, of any length; gaps below the threshold are closed."""
    returned: Int64
    edges: Int64

    @classmethod
    def of(cls, trace: Trace, thread: int, shortest: int, kinds: _NameKinds) -> _ThreadEvents:
        own = np.flatnonzero(trace.thread == thread)
        category, long = trace.category[own], trace.end_ns[own] - trace.start_ns[own] >= shortest
        calls, ops = category == Category.LAUNCH, category == Category.CPU_OP
        name = trace.name[own]
        is_step = kinds.step[name]
        waits = calls & (kinds.allocator | kinds.synchronizing)[name]
        operators = ops & ~is_step & ~kinds.loading[name]
        work = own[(calls | operators) & (trace.end_ns[own] > trace.start_ns[own])]
        # Closing short gaps: intervals that reach to the next one's start count as one.
        short = union(trace.start_ns[work], trace.end_ns[work] + shortest)
        short = short[0], np.maximum(short[1] - shortest, short[0])
        kept = long | (waits & (trace.end_ns[own] - trace.start_ns[own] >= min(shortest, 5_000)))
        notes = own[((category == Category.ANNOTATION) & ~kinds.message[name] | (ops & kinds.loading[name])) & long]
        groups = (
            own[waits & kept],
            own[(calls | operators) & long & ~waits],
            outermost(trace, own[operators & long]),
            notes[~_around_steps(trace, notes, kinds.step[trace.name[notes]], work)],
            own[(category == Category.PYTHON) & long],
        )
        edges = np.concatenate([*(trace.start_ns[g] for g in groups), *(trace.end_ns[g] for g in groups), *short])
        returned = trace.end_ns[own[calls & kinds.synchronizing[name]]]
        return cls(tuple(_Nested.of(trace, group) for group in groups), short, returned, edges)

    def at(self, times: Int64, kinds: _NameKinds) -> NDArray[np.int64]:
        """Return for each time: name of what, name of where, cause, and how informative it is (0: not at all)."""
        call, op, outer, note, function = (nested.at(times) for nested in self.nested)
        in_step = (note >= 0) & kinds.step[note]
        loading = (note >= 0) & kinds.loading[note]
        around = np.where((note >= 0) & ~in_step, note, outer)
        many = _within(self.short, times)
        python = np.where(function >= 0, function, np.where(in_step, -1, note))
        choices = [
            (loading, note, -1, HostCause.DATA_LOADING, 6),
            ((call >= 0) & kinds.allocator[call], call, around, HostCause.ALLOCATOR, 5),
            (call >= 0, call, around, HostCause.SYNCHRONIZING, 5),
            (op >= 0, op, around, HostCause.OPERATOR, 4),
            (many, -1, around, HostCause.OPERATOR, 3),
            (python >= 0, python, np.where(function >= 0, around, -1), HostCause.PYTHON, 2),
            (in_step, -1, -1, HostCause.NOTHING_RECORDED, 1),
        ]
        table = np.full((4, len(times)), -1, np.int64)
        table[_CAUSE], table[_RANK] = HostCause.NOTHING_RECORDED, 0
        for mask, *row in reversed(choices):
            if mask.any():
                for column, value in zip(table, row, strict=True):
                    np.copyto(column, value, where=mask)
        return table.T


def _around_steps(trace: Trace, notes: Int64, is_step: NDArray[np.bool_], work: Int64) -> NDArray[np.bool_]:
    """Return which annotations hold all *work* of the step that they lie in: they say no more of its place than it."""
    steps = notes[is_step]
    if not len(steps):
        return np.zeros(len(notes), np.bool_)
    # The last step that began before each annotation.
    step = steps[np.searchsorted(trace.start_ns[steps], trace.start_ns[notes], side="right") - 1]
    inside = (trace.start_ns[notes] >= trace.start_ns[step]) & (trace.end_ns[notes] <= trace.end_ns[step])
    begun = trace.start_ns[work]
    held, all_ = (
        np.searchsorted(begun, trace.end_ns[events]) - np.searchsorted(begun, trace.start_ns[events])
        for events in (notes, step)
    )
    around: NDArray[np.bool_] = inside & (held == all_) & (held > 0) & ~is_step
    return around


def _first_of(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Choose at each time the thread whose activity is the most informative; the first among equals."""
    best = tables[0]
    for table in tables[1:]:
        better = table[:, _RANK] > best[:, _RANK]
        best = np.where(better[:, None], table, best)
    return best


def _labels(names: tuple[str, ...], columns: NDArray[np.int64]) -> tuple[list[HostLabel], NDArray[np.int64]]:
    # One number per row, so that rows are sorted as numbers: cause, what and where, each counted from 0.
    size = len(names) + 1
    codes = (columns[:, _CAUSE] * size + columns[:, _WHAT] + 1) * size + columns[:, _WHERE] + 1
    distinct, label = np.unique(codes, return_inverse=True)
    labels = [
        HostLabel(cause, _common_name(names, what), _common_name(names, where))
        for cause, what, where in zip(
            (distinct // size**2).tolist(),
            (distinct // size % size - 1).tolist(),
            (distinct % size - 1).tolist(),
            strict=True,
        )
    ]
    return labels, label


def _common_name(names: tuple[str, ...], name: int) -> str:
    """Return a name without what differs between ranks, such as the hash of a compiled graph."""
    return _HASH.sub("…", names[name]) if name >= 0 else ""


def _mark_passive(
    labels: list[HostLabel], label: NDArray[np.int64], times: Int64, communicating: IntervalSet
) -> NDArray[np.int64]:
    """Relabel blocking calls while the device communicates: they wait for it, and it for other ranks."""
    blocks = np.array([own.cause in (HostCause.ALLOCATOR, HostCause.SYNCHRONIZING) for own in labels], np.bool_)
    return _relabel(labels, label, blocks[label] & _within(communicating, times), HostCause.PASSIVE)


def _within(intervals: IntervalSet, times: Int64) -> NDArray[np.bool_]:
    return covered(intervals, times + 1) > covered(intervals, times)


def _relabel(
    labels: list[HostLabel], label: NDArray[np.int64], chosen: NDArray[np.bool_], cause: HostCause
) -> NDArray[np.int64]:
    """Set another cause for the chosen pieces; new labels are appended to *labels*."""
    moved = np.arange(len(labels))
    for old in unique(label[chosen]).tolist():
        labels.append(HostLabel(cause, labels[old].what, labels[old].where))
        moved[old] = len(labels) - 1
    return np.where(chosen, moved[label], label)


def _mark_standing_still(
    labels: list[HostLabel], label: NDArray[np.int64], times: Int64, ends: Int64
) -> tuple[list[HostLabel], NDArray[np.int64]]:
    """Relabel operators that stand still until a collective ends, or before an allocator call in the same place."""
    first = np.flatnonzero(np.append(True, label[1:] != label[:-1]))
    starts, own = times[first], label[first]
    stops = np.append(starts[1:], times[-1])
    causes = np.array([own.cause for own in labels])
    still = (causes[own] == HostCause.OPERATOR) & (stops - starts > _STANDS_STILL_NS)
    still &= np.array([own.what != "" for own in labels])[own]
    place = np.searchsorted(ends, stops - _AFTER_NS)
    awaited = still & (np.append(ends, np.iinfo(np.int64).max)[place] <= stops)
    following = np.append(own[1:], own[-1:])
    where = np.array([own.where for own in labels], object)
    allocates = still & ~awaited & (causes[following] == HostCause.ALLOCATOR) & (where[following] == where[own])
    own = _relabel(labels, own, awaited, HostCause.PASSIVE)
    moved = own.copy()
    moved[allocates] = following[allocates]
    return labels, np.repeat(moved, np.diff(np.append(first, len(label))))
