"""Move the times of a run's GPUs onto one clock, for pictures and exports that show them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.core.intervals import Int64
from dptrace.core.units import duration, plural, signed_duration
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline

if TYPE_CHECKING:
    import pandas as pd


_SEEN = 2e-5
"""Share of a step from which a time that is off shows: a tenth of a pixel where the step fills a wide screen."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The correction that moves one GPU's times onto the shared clock."""

    rank: int
    by_ns: int = 0
    """Offset added in the middle of its recording."""
    uncertainty_ns: int = 0
    move: Callable[[Int64], Int64] | None = None
    """Maps times to the shared clock; None where the correction is smaller than its uncertainty."""

    def __call__(self, times: Int64) -> Int64:
        """Move times, keeping their order."""
        return times if self.move is None else self.move(times)

    def back(self, times: Int64) -> Int64:
        """Return times of the shared clock on the GPU's own, to far less than the uncertainty."""
        return 2 * times - self(times)

    def __str__(self) -> str:
        return f"rank {self.rank} by {signed_duration(self.by_ns)} ± {duration(self.uncertainty_ns)}"


def shifts_of(run: Run, clocks: Clocks) -> tuple[Shift, ...]:
    """Return the clock correction of each timeline: none where it is not larger than its uncertainty.

    A drift that changes the offset by less than the uncertainty, or by what no picture of a step shows, is ignored too:
    then the clock is only shifted, and every duration stays as recorded.
    """
    return tuple(_shift(timeline, clocks, number) for number, timeline in enumerate(run.timelines))


def _shift(timeline: Timeline, clocks: Clocks, number: int) -> Shift:
    # The columns of a large run are mapped from files: only their ends are touched.
    times = np.concatenate((timeline.start_ns[:1], timeline.end_ns[-1:], timeline.windows.bounds))
    if not len(times):
        return Shift(timeline.rank)
    low, high = int(times.min()), int(times.max())
    moments = np.array([low, (low + high) // 2, high], np.int64)
    first, middle, last = (clocks.align(number, moments) - moments).tolist()
    uncertainty = int(clocks.uncertainty_ns[number])
    if max(map(abs, (first, middle, last))) <= uncertainty:
        return Shift(timeline.rank, middle, uncertainty)
    step = np.median(np.diff(timeline.windows.bounds)) if len(timeline.windows) else 0
    if abs(last - first) <= max(uncertainty, _SEEN * step):
        return Shift(timeline.rank, middle, uncertainty, lambda times: times + middle)
    return Shift(timeline.rank, middle, uncertainty, lambda times: clocks.align(number, times))


def collectives_on_one_clock(run: Run) -> pd.DataFrame:
    """Return :meth:`Run.collectives` with times on the shared clock."""
    rows = run.collectives()
    own = [timeline.collective >= 0 for timeline in run.timelines]
    for column in ("start_ns", "end_ns"):
        times = zip(run.shifts, run.timelines, own, strict=True)
        rows[column] = np.concatenate([shift(getattr(one, column)[calls]) for shift, one, calls in times])
    return rows


def clocks_fact(run: Run) -> str:
    """Return how the clocks of the ranks of a picture were corrected, in a few words; empty where nothing is to say."""
    if len(run.timelines) < 2:
        return ""
    if not run.align:
        return "each rank on its own clock"
    moved = {shift.rank: abs(shift.by_ns) for shift in run.shifts if shift.move is not None}
    if not moved:
        return ""
    return f"one clock: {plural(len(moved), 'rank')} corrected by up to {duration(max(moved.values()))}"


def times_note(run: Run) -> tuple[str, ...]:
    """Return the same as a note below a table of times."""
    return tuple(f"Times: {fact}." for fact in [clocks_fact(run)] if fact)
