"""What tables and pictures say of the one clock on which they show the GPUs of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dptrace.core.units import duration, plural
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


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
