"""What joins the ranks of one trace: a common clock, and the members of each collective with what each waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.clocks import Clocks
    from dptrace.analysis.cross_rank.transfers import Timing
    from dptrace.analysis.matching.match import Matches

__all__ = ["AlignedRun", "Members", "Shift", "align_run", "members_of", "shifts_of", "without_alignment"]


@dataclass(frozen=True, slots=True)
class Shift:
    """How the times of one GPU are moved onto the common clock."""

    rank: int
    by_ns: int = 0
    """What is added in the middle of its recording."""
    uncertainty_ns: int = 0
    move: Callable[[Int64], Int64] | None = None
    """Gives times on the common clock; nothing where the correction is smaller than its uncertainty."""

    def __call__(self, times: Int64) -> Int64:
        """Move times, keeping their order."""
        return times if self.move is None else self.move(times)

    def __str__(self) -> str:
        return f"rank {self.rank} by {_short(self.by_ns)} ± {_short(self.uncertainty_ns).lstrip('+')}"


@dataclass(frozen=True, slots=True)
class Members:
    """Of a timeline's matched communication, which collective each is a member of, and its share in it."""

    interval: Int64
    """Which intervals of the timeline; the other columns have an entry for each."""
    instance: Int64
    """Number of the collective instance, from 1, the same on every rank; 0 of what has no counterpart."""
    seq: Int64
    """Sequence number of the instance in its group; -1 where unknown, as in all that follow."""
    wait_ns: Int64
    transfer_ns: Int64
    busbw_gbps: NDArray[np.float64]
    is_upper_bound: NDArray[np.bool_]
    """Whether ranks are missing here: then it waited at least so long, and moved data at most so long."""

    def row_of_interval(self, count: int) -> Int64:
        """Give for each of the timeline's intervals its place in the columns, and their length for those without."""
        places = np.full(count, len(self.interval), np.int64)
        places[self.interval] = np.arange(len(self.interval))
        return places


@dataclass(frozen=True, slots=True)
class AlignedRun:
    """Of each timeline of a run, in the same order, how it stands to the others."""

    shifts: tuple[Shift, ...]
    members: tuple[Members, ...]
    aligned: bool = False
    """Whether the clocks were compared."""
    notes: tuple[str, ...] = ()
    """What could not be matched, a sentence each."""
    unconnected_ranks: tuple[int, ...] = ()
    """Ranks that share nothing with the first, so that their clocks may be off by any amount."""

    @property
    def clock_summary(self) -> str:
        """Say how the clocks stand, in one line."""
        if not self.aligned:
            return "clocks as recorded: no offset between ranks was corrected"
        moved = list(dict.fromkeys(str(shift) for shift in self.shifts if shift.move is not None))
        summary = (
            f"clocks aligned: {_list(moved)}" if moved else "clocks as recorded: no offset exceeds its uncertainty"
        )
        if self.unconnected_ranks:
            summary += (
                f"; no collective tells how far those of rank {_list(list(map(str, self.unconnected_ranks)))} are off"
            )
        return summary


def _list(texts: list[str]) -> str:
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


_LISTED = 8
"""Ranks that one line tells of."""


def without_alignment(run: Run) -> AlignedRun:
    """Leave each rank as it was recorded, by itself."""
    return AlignedRun(
        tuple(Shift(timeline.rank) for timeline in run.timelines),
        tuple(_NO_MEMBERS for _ in run.timelines),
    )


_NONE = np.empty(0, np.int64)
_NO_MEMBERS = Members(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE.astype(np.float64), _NONE.astype(np.bool_))


def align_run(run: Run, align: bool) -> AlignedRun:
    """Place the ranks of *run* on one clock, unless not *align*, and list each rank's collectives with their waits."""
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
    """Decide for each timeline whether its clock is corrected: only by more than the correction's uncertainty.

    A drift that moves the offset by less than that is left out too: then the clock is only shifted, and every length
    stays what it is in the recording.
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
    """Sort what is known of the matched collectives by timeline."""
    several = np.diff(matches.first) > 1
    number = np.where(several, np.arange(1, len(several) + 1), 0)
    seq = np.array([collective.seq for collective in matches.collectives], np.int64)
    # One that only one rank has shows nothing of waiting.
    transfer = np.where(several, timing.transfer_ns, -1)
    busbw = np.where(several & (timing.busbw >= 0), timing.busbw / 1e9, -1.0).round(6)
    found = []
    for place, timeline in enumerate(run.timelines):
        mine = np.flatnonzero(matches.device == place)
        interval = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)[matches.index[mine]]
        instance = matches.instance[mine]
        found.append(
            Members(
                interval=interval,
                instance=number[instance],
                seq=seq[instance],
                wait_ns=np.where(several[instance], timing.wait_ns[mine], -1),
                transfer_ns=transfer[instance],
                busbw_gbps=busbw[instance],
                is_upper_bound=timing.upper_bound[instance],
            )
        )
    return tuple(found)


def _short(ns: int) -> str:
    """Give a time with a sign, in a unit that suits it.

    >>> _short(-412_345), _short(9), _short(86_400_000_000_000)
    ('-412 µs', '+9 ns', '+86,400 s')
    """
    for size, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if abs(ns) >= size:
            digits = 0 if unit == "µs" else max(0, 2 - int(np.log10(abs(ns) / size)))
            return f"{ns / size:+,.{digits}f} {unit}"
    return f"{ns:+} ns"
