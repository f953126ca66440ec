"""Exposed communication that is waiting for later ranks, and that of collectives whose waiting is unknown.

::

    rank 0   compute ███░░░░░░░░▒▒▒▒   all-reduce: waits, then transfers
    rank 1   compute ███████████▒▒▒▒   arrives last: only transfers
                        └ wait ┘└ transfer: the shortest duration among the ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, subtract, union

__all__ = ["WAIT_FIGURES", "ExposedWait", "exposed_waits"]

WAIT_FIGURES = ("exposed_wait_ns", "exposed_unmatched_ns")
"""The figures that stand beside ``exposed_comm_ns`` in every table."""


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """Parts of the exposed communication of each step; arrays of one entry per step."""

    wait_ns: Int64
    """Waiting for later ranks; 0 where it is not known."""
    known: NDArray[np.bool_]
    """Whether any collective of the step shows how long it waited."""
    unmatched_ns: Int64
    """Exposed time of collectives that do not have all ranks of their group, so that their waiting is unknown."""

    def step(self, number: int) -> dict[str, int | None]:
        """Return the figures of one step by the names in WAIT_FIGURES; the wait is None where it is not known."""
        wait = int(self.wait_ns[number]) if self.known[number] else None
        return {"exposed_wait_ns": wait, "exposed_unmatched_ns": int(self.unmatched_ns[number])}

    def median(self) -> dict[str, int | None]:
        """Return the medians over the steps; the wait's is that of the steps in which it is known."""
        wait = int(np.median(self.wait_ns[self.known])) if self.known.any() else None
        return {"exposed_wait_ns": wait, "exposed_unmatched_ns": int(np.median(self.unmatched_ns))}

    def total(self) -> dict[str, int | None]:
        """Return the sums over the steps; the wait is None if it is not known in any step."""
        wait = int(self.wait_ns.sum()) if self.known.any() else None
        return {"exposed_wait_ns": wait, "exposed_unmatched_ns": int(self.unmatched_ns.sum())}


@dataclass(frozen=True, slots=True)
class ExposedWait(WaitFigures):
    """Waiting in the exposed communication of one device."""

    intervals: IntervalSet
    """When the device waited without computing, on its own clock, in ns."""
    by_kind: dict[str, WaitFigures]
    """By kind of collective; concurrent kinds may wait at the same time."""


def exposed_waits(matches: Matches, timing: Timing, devices: Sequence[DeviceFigures]) -> tuple[ExposedWait, ...]:
    """Separate waiting from transfer in each device's exposed communication.

    The wait of a rank in a matched, synchronizing collective is its duration minus the transfer, and lies at the start
    of its interval; no common clock is needed.

    Args:
        matches: the collectives across ranks, with one device per entry of *devices*.
        timing: their transfer times.
        devices: the figures of each GPU.
    """
    order = np.argsort(matches.device, kind="stable")
    bounds = np.searchsorted(matches.device[order], np.arange(len(devices) + 1))
    return tuple(
        _of_device(matches, timing, device, order[bounds[number] : bounds[number + 1]])
        for number, device in enumerate(devices)
    )


def _of_device(matches: Matches, timing: Timing, device: DeviceFigures, members: Int64) -> ExposedWait:
    start, end = matches.start_ns[members], matches.end_ns[members]
    instance = matches.instance[members]
    known = _wait_is_known(matches)[instance]
    wait = np.where(known, timing.wait_ns[members], 0)
    kinds, step = _kinds_and_steps(device, matches.index[members])

    def of(rows: NDArray[np.bool_]) -> tuple[IntervalSet, WaitFigures]:
        waiting = intersect(union(start[rows], (start + wait)[rows]), device.exposed)
        lone = rows & ~known & ~matches.complete[instance]
        unmatched = subtract(intersect(union(start[lone], end[lone]), device.exposed), waiting)
        count = len(device.timeline.windows)
        has_known = np.zeros(count, np.bool_)
        has_known[step[rows & known & (step >= 0)]] = True
        per_step = [np.diff(covered(part, device.timeline.windows.bounds)) for part in (waiting, unmatched)]
        # A collective that was launched in the step before may wait in this one.
        return waiting, WaitFigures(per_step[0], has_known | (per_step[0] > 0), per_step[1])

    waiting, whole = of(np.ones(len(members), np.bool_))
    by_kind = {kind: of(kinds == kind)[1] for kind in sorted(set(kinds.tolist()))}
    return ExposedWait(whole.wait_ns, whole.known, whole.unmatched_ns, waiting, by_kind)


def _wait_is_known(matches: Matches) -> NDArray[np.bool_]:
    """Return for each instance whether it shows its ranks' waits: it synchronizes, and all its ranks are recorded."""
    alone = np.diff(matches.first) < 2
    declared = np.array([collective.group_size for collective in matches.collectives], np.int64)
    known: NDArray[np.bool_] = matches.synchronizing & matches.complete & (~alone | (declared == 1))
    return known


def _kinds_and_steps(device: DeviceFigures, index: NDArray[np.int32]) -> tuple[NDArray[np.object_], NDArray[np.int32]]:
    """Return kind and step of a device's collectives; *index* counts its communication intervals."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)[index]
    kinds = np.array([timeline.collectives[i].kind for i in timeline.collective[comm].tolist()], object)
    return kinds, timeline.step[comm]
