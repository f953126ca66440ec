"""Align the ranks of a run for one trace: a common clock, and each rank's wait and transfer in matched collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.units import duration, signed_duration
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.clocks.estimate import Clocks
    from dptrace.analysis.cross_rank.transfers import Timing
    from dptrace.analysis.matching.match import Matches

__all__ = ["AlignedRun", "Members", "Shift", "align_run", "members_of", "shifts_of", "without_alignment"]

_MAX_LISTED = 8
"""Ranks that one line names."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The correction that moves one GPU's times onto the common clock."""

    rank: int
    by_ns: int = 0
    """Offset added in the middle of its recording."""
    uncertainty_ns: int = 0
    move: Callable[[Int64], Int64] | None = None
    """Maps times to the common clock; None where the correction is smaller than its uncertainty."""

    def __call__(self, times: Int64) -> Int64:
        """Move times, keeping their order."""
        return times if self.move is None else self.move(times)

    def __str__(self) -> str:
        return f"rank {self.rank} by {signed_duration(self.by_ns)} ± {duration(self.uncertainty_ns)}"


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
    aligned: bool = False
    """Whether the clocks were compared."""
    notes: tuple[str, ...] = ()
    """What could not be matched, a sentence each."""
    unconnected_ranks: tuple[int, ...] = ()
    """Ranks that share no collective with the first, so that their clocks may be off by any amount."""

    @property
    def clock_summary(self) -> str:
        """Which clocks are corrected and by how much, in one line."""
        if not self.aligned:
            return "clocks as recorded: no offset between ranks was corrected"
        moved = list(dict.fromkeys(str(shift) for shift in self.shifts if shift.move is not None))
        summary = (
            f"clocks aligned: {_list(moved)}" if moved else "clocks as recorded: no offset exceeds its uncertainty"
        )
        if self.unconnected_ranks:
            summary += f"; unknown offset, no shared collective: rank {_list(list(map(str, self.unconnected_ranks)))}"
        return summary


def _list(texts: list[str]) -> str:
    more = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def without_alignment(run: Run) -> AlignedRun:
    """Return an aligned run that leaves every rank as recorded, with no matched collectives."""
    return AlignedRun(
        tuple(Shift(timeline.rank) for timeline in run.timelines),
        tuple(_NO_MEMBERS for _ in run.timelines),
    )


_NONE = np.empty(0, np.int64)
_NO_MEMBERS = Members(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE.astype(np.float64))


def align_run(run: Run, align: bool = True) -> AlignedRun:
    """Put the ranks of *run* on one clock and list each rank's collectives, from the run's cross-rank analysis.

    Args:
        align: correct the clocks; otherwise all times stay as recorded.
    """
    if len(run.timelines) < 2:
        return without_alignment(run)
    across = run.cross_rank
    members = members_of(run, across.matches, across.timing)
    if not align:
        return replace(without_alignment(run), members=members, notes=across.matches.notes)
    first = across.clocks.reference[0]
    references = across.clocks.reference.tolist()
    unknown = [t.rank for t, other in zip(run.timelines, references, strict=True) if other != first]
    return AlignedRun(shifts_of(run, across.clocks), members, True, across.matches.notes, tuple(dict.fromkeys(unknown)))


def shifts_of(run: Run, clocks: Clocks) -> tuple[Shift, ...]:
    """Return the clock correction of each timeline: none where it is not larger than its uncertainty.

    A drift that changes the offset by less than the uncertainty is ignored too: then the clock is only shifted, and
    every duration stays as recorded.
    """
    return tuple(_shift(timeline, clocks, number) for number, timeline in enumerate(run.timelines))


def _shift(timeline: Timeline, clocks: Clocks, number: int) -> Shift:
    times = np.concatenate((timeline.start_ns, timeline.end_ns, timeline.windows.bounds))
    if not len(times):
        return Shift(timeline.rank)
    low, high = int(times.min()), int(times.max())
    moments = np.array([low, (low + high) // 2, high], np.int64)
    first, middle, last = (clocks.align(number, moments) - moments).tolist()
    uncertainty = int(clocks.uncertainty_ns[number])
    if max(map(abs, (first, middle, last))) <= uncertainty:
        return Shift(timeline.rank, middle, uncertainty)
    if abs(last - first) <= uncertainty:
        return Shift(timeline.rank, middle, uncertainty, lambda times: times + middle)
    return Shift(timeline.rank, middle, uncertainty, lambda times: clocks.align(number, times))


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
