"""When a host that shows no event was blocked, and in what: the one definition for idle causes, delays and replays.

::

    host     a ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░ b       ▒ blocked until the collective ended · ░ its own time
    gloo       ├ all-reduce ────────┤

A pause is a wait for work that the process launched before it and that ended within it. On a CPU, collectives are
waited for by calls that are not recorded, so a pause in which the last one launched ends is a wait up to that end. On
a GPU, work ends all the time: the pause has to end with it, and the device has to be busy during most of it.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.arrays import unique
from dptrace.core.intervals import Int64, covered, union

__all__ = ["NEEDS_EVENTS", "Pauses", "Work", "awaited"]

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
_LATE_NS, _LATE_SHARE = 5_000_000, 0.1
"""On a CPU, the thread of a collective may record its end this much after the host went on: it has to get a core."""
_MIN_STEPS = 3
"""Number of pauses in one place from which their lengths tell a wait from a sleep."""
_STEADY, _MIN_SPREAD_NS = 3, 300_000
"""How many times as much as its length what follows a collective's end varies in a sleep; and how much at least."""
_CPU_SHARE, _GPU_SHARE = 0.3, 0.8
"""Smallest share of a pause during which the device was busy with what was waited for."""


class Pauses(msgspec.Struct, frozen=True):
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


class Work(msgspec.Struct, frozen=True):
    """What a host may have waited for: intervals of its device; of collectives on a CPU."""

    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """When each was launched; UNKNOWN, which is before all else, where the recording does not have it."""
    lane: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def awaited(pauses: Pauses, work: Work, *, on_cpu: bool) -> Int64:
    """Return the index of the work that each pause waited for, or -1."""
    found = np.full(len(pauses.since_ns), -1, np.int64)
    long = np.flatnonzero(pauses.length_ns > (_MIN_CPU_NS if on_cpu else _MIN_GPU_NS))
    if len(long) and len(work):
        kept = Pauses(*(getattr(pauses, name)[long] for name in Pauses.__struct_fields__))
        found[long] = _without_sleeps(kept, work, _on_cpu(kept, work)) if on_cpu else _on_gpu(kept, work)
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
            if np.std(after[own]) > max(_STEADY * np.std(length), _MIN_SPREAD_NS):
                result[waited[own]] = -1
    return result


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
    latest = pauses.until_ns + np.minimum(_LATE_NS, (_LATE_SHARE * pauses.length_ns).astype(np.int64))
    by_end = np.argsort(work.end_ns, kind="stable")
    last_ended = np.append(by_end, -1)[np.searchsorted(work.end_ns[by_end], latest, side="right") - 1]
    lanes = [np.flatnonzero(work.lane == lane) for lane in unique(work.lane).tolist()]
    for candidate, launched in [(last_ended, False), *((_last_launched(own, pauses, work), True) for own in lanes)]:
        end = work.end_ns[candidate]
        inside = end - np.maximum(work.start_ns[candidate], pauses.since_ns)
        much = inside > _CPU_SHARE * pauses.length_ns
        fits = (candidate >= 0) & (end > pauses.since_ns) & (end <= latest)
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
    pause = np.repeat(every, count)
    near = by_end[np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[pause]]
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
