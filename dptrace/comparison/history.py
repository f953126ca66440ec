"""Runs side by side: where each loses time, the worst first; and over time, from which run on a job has another level.

A change point is the run that begins a new level. The statistic is the largest difference of the means before and
after a run, over its standard error (Hawkins, JASA 1977), of values whose odd ones are clipped. Its p-value is by
permutation: if nothing changed, every order of the runs is as likely. The place is that with the least absolute
distances from the medians of both sides. Each part is searched in the same way (binary segmentation, Vostrikova 1981).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.analysis.per_gpu.split import FIGURES, overlap_percent
from dptrace.comparison.sides import (
    RunSample,
    StoredRun,
    devices_by_id,
    differing_facts,
    ideal_ns,
    refuse_copies,
    sample_run,
)
from dptrace.comparison.significance import Float
from dptrace.core.table import with_strings
from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.run.cross_rank import mean_step
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the JSON that :meth:`History.to_dict` returns: the meaning of a name in it never changes."""
ALPHA = 0.02
"""Rate at which a change is found in runs that are alike: half of it for the wall time, half for all other figures."""
MIN_LEVEL = 3
"""Runs that a level needs: one or two that differ are odd runs."""
MIN_RUNS = 10
"""Runs that a change needs: of fewer, more than a hundredth of all orders look as if they had one."""
MIN_CHANGE = 0.01
"""Share of the step below which a change does not matter."""
_ORDERS = 4_999
"""Random orders of the runs that a permutation test draws."""
_NEAR, _CLIPPED = 2, 4.0
"""Runs on each side whose median a run is compared with, and robust standard deviations (from the median difference of
neighbors, which levels hardly change) beyond which an odd one counts no more."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The change of one figure: the means of the levels before and after it, in ns."""

    figure: str
    before: float
    after: float
    p: float

    @property
    def delta(self) -> float:
        """The new level minus the old one."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A run from which on figures have another level."""

    index: int
    """Of the run, in its series."""
    shifts: tuple[Shift, ...]
    """The wall time first if it moved, then the others, largest change first."""
    differs: tuple[str, ...]
    """How the run's setup differs from that of the run before, a sentence each."""


@dataclass(frozen=True)
class Series:
    """Runs of one job in the order of time."""

    title: str
    runs: tuple[Run, ...]
    rows: tuple[dict[str, Any], ...]
    """What JSON has of each run: means over ranks and steps, without outlier steps."""

    @property
    def guessed(self) -> int:
        """How many of its runs are where their files were written, since neither run.json nor a trace says when."""
        return sum(row["recorded_by"] == FILE_TIME for row in self.rows)

    def values(self, figure: str) -> Float:
        """Return a figure of each run, in ns; NaN where it is not known."""
        return np.array([np.nan if row[figure] is None else row[figure] for row in self.rows], np.float64)

    def with_usual(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with what a run takes beyond the median run, and what it loses in all; None where unknown."""
        walls = self.values("wall_ns")
        usual = float(np.median(walls))
        idle = [row["no_compute_share"] for row in self.rows]
        compute = [
            None if share is None else wall * (1 - share) for wall, share in zip(walls.tolist(), idle, strict=True)
        ]
        known = [one for one in compute if one is not None]
        least = float(np.median(known)) if len(known) >= MIN_LEVEL else np.inf
        for row, wall, share, own in zip(self.rows, walls.tolist(), idle, compute, strict=True):
            beyond = None if len(self.rows) < MIN_LEVEL else round(wall / usual - 1, 6)
            lost = None if share is None or own is None else round(share + max(0.0, own - least) / wall, 6)
            yield {**row, "over_usual": beyond, "lost_share": lost}

    @cached_property
    def changes(self) -> tuple[ChangePoint, ...]:
        """From which runs on the job was slower or faster, or its parts were; those of neighboring runs are one."""
        found: dict[int, list[Shift]] = {}
        least = MIN_CHANGE * float(self.values("wall_ns").mean())
        for figure in sorted(FIGURES, key=lambda name: name != "wall_ns"):
            values = self.values(figure)
            if np.isnan(values).any():
                continue
            alpha = ALPHA / 2 if figure == "wall_ns" else ALPHA / 2 / (len(FIGURES) - 1)
            places = change_points(values, alpha, least)
            means = [float(values[a:b].mean()) for a, b in pairwise([0, *places, len(values)])]
            for (at, p), (before, after) in zip(places.items(), pairwise(means), strict=True):
                near = next((known for known in found if abs(known - at) <= 1), at)
                found.setdefault(near, []).append(Shift(figure, before, after, p))
        return tuple(self._change(at, found[at]) for at in sorted(found))

    def _change(self, at: int, shifts: list[Shift]) -> ChangePoint:
        shifts.sort(key=lambda one: (one.figure != "wall_ns", -abs(one.delta)))
        differs = differing_facts(self.runs[at - 1], self.runs[at], ("before", "from then on"))
        return ChangePoint(at, tuple(shifts), tuple(differs))

    def levels(self) -> list[tuple[int, int, float]]:
        """Return the first run of each level of the wall time, its last, and its mean in ns."""
        moved = [one.index for one in self.changes if one.shifts[0].figure == "wall_ns"]
        values = self.values("wall_ns")
        return [(a, b - 1, float(values[a:b].mean())) for a, b in pairwise([0, *moved, len(values)])]

    def to_dict(self) -> dict[str, Any]:
        """Return the series as plain data."""
        return {
            "series": self.title,
            "runs": list(self.with_usual()),
            "changes": [*map(self._change_dict, self.changes)],
        }

    def _change_dict(self, change: ChangePoint) -> dict[str, Any]:
        figures = [
            {"figure": one.figure, "before_ns": round(one.before), "after_ns": round(one.after), "p": one.p}
            for one in change.shifts
        ]
        run = self.rows[change.index]["run"]
        return {"run": run, "index": change.index, "figures": figures, "differs": list(change.differs)}


@dataclass(frozen=True, repr=False)
class History:
    """The result of :func:`dptrace.history`."""

    series: tuple[Series, ...]
    """One for each kind of job: script or mode, model, number of ranks and device; the longest first."""

    @cached_property
    def worst_first(self) -> tuple[dict[str, Any], ...]:
        """The rows of all series, with the name of theirs: the run that loses the largest share of its step first.

        Lost is the time without compute, and compute beyond that of the median run of its series. Runs of which that
        is unknown are last.
        """
        rows = [{"series": one.title, **row} for one in self.series for row in one.with_usual()]
        return tuple(
            sorted(rows, key=lambda row: -1.0 if row["lost_share"] is None else row["lost_share"], reverse=True)
        )

    def frame(self) -> pd.DataFrame:
        """Return a row for each run: its series, and what JSON has of it."""
        import pandas as pd

        rows = [{"series": one.title, **row} for one in self.series for row in one.with_usual()]
        return with_strings(pd.DataFrame(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, as ``dptrace history --json`` prints it."""
        worst = [row["run"] for row in self.worst_first]
        return {"schema": SCHEMA, "series": [one.to_dict() for one in self.series], "worst_first": worst}

    def __repr__(self) -> str:
        parts = [f"{one.title}: {plural(len(one.rows), 'run')}, {len(one.changes)} changes" for one in self.series]
        return f"<dptrace.History: {'; '.join(parts)}>"


def history(runs: Sequence[Run], written: Sequence[str] = ()) -> History:
    """Put runs in the order of time; see :func:`dptrace.history`.

    Args:
        written: when the files of each run were written, for runs of which neither ``run.json`` nor a trace says when
            they were recorded.
    """
    if not runs:
        raise UsageError("A history needs at least one run.")
    refuse_copies(runs)
    rows = [_row(run, other) for run, other in zip(runs, written or [""] * len(runs), strict=True)]
    groups: dict[str, list[int]] = {}
    for index in sorted(range(len(runs)), key=lambda at: str(rows[at]["recorded"])):
        groups.setdefault(_title(runs[index]), []).append(index)
    series = (
        Series(title, tuple(runs[k] for k in group), tuple(rows[k] for k in group)) for title, group in groups.items()
    )
    return History(tuple(sorted(series, key=lambda one: -len(one.rows))))


def _title(run: Run) -> str:
    """Return what job it is, in words: runs with the same are comparable over time."""
    devices = sorted({timeline.device_name for timeline in run.timelines if timeline.device_name})
    what = [run.metadata.get(key) for key in ("script", "mode", "model")]
    words = dict.fromkeys(one for one in what if isinstance(one, str))
    return " · ".join((*words, plural(run.world_size, "rank"), *devices))


def _row(run: Run, written: str) -> dict[str, Any]:
    sample, ideal = sample_run(run, devices_by_id(run)), ideal_ns(run)
    figures = {name: float(sample.figures[name].mean()) if name in sample.figures else None for name in FIGURES}
    recorded, by = recorded_time(run)
    return {
        "run": run.path,
        "recorded": recorded or written,
        "recorded_by": by or FILE_TIME * bool(written),
        "ranks": run.world_size,
        "steps": len(sample.steps),
        **{name: None if value is None else round(value) for name, value in figures.items()},
        "step_spread_ns": round(float(sample.wall.std(ddof=1))) if len(sample.steps) > 1 else None,
        "overlap_percent": overlap_percent(figures["overlapped_comm_ns"], figures["exposed_comm_ns"]),
        "mfu": None if ideal is None else ideal / float(sample.wall.mean()),
        **_shares(run, sample, figures),
        "culprit": None if isinstance(run, StoredRun) else _culprit(run),
    }


_LOST = ("exposed_comm_ns", "exposed_memory_ns", "idle_ns")
"""The parts of a step in which its device does not compute."""


def _shares(run: Run, sample: RunSample, figures: dict[str, float | None]) -> dict[str, float | None]:
    """Return what share of the step is exposed communication, waiting, and without compute; None where unknown."""
    wall = figures["wall_ns"]
    lost = [figures[name] for name in _LOST]
    waiting = None if sample.exposed_wait is None else float(sample.exposed_wait.mean())
    if figures["exposed_comm_ns"] == 0:
        waiting = 0.0

    def share(ns: float | None) -> float | None:
        return None if ns is None or not wall else round(ns / wall, 6)

    return {
        "exposed_share": share(figures["exposed_comm_ns"]),
        "waiting_share": share(waiting),
        "no_compute_share": None if None in lost else share(sum(ns for ns in lost if ns is not None)),
    }


def _culprit(run: Run) -> dict[str, Any] | None:
    """Return the ranks that most of the waiting is for, and how long the mean rank waits; None where nobody does."""
    mean = mean_step(run.cross_rank)
    if mean is None or not mean.waits_for:
        return None
    waited = mean.waits_ns["exposed_wait_ns"]
    return {"ranks": list(mean.waits_for), "waited_ns": None if waited is None else round(waited)}


RUN_FILE_TIME, TRACE_TIME, FILE_TIME = "run.json", "trace", "file"
"""What says when a run was recorded: run.json, its earliest step, or nothing but when its files were written."""
_FIRST_NS = 10**18
"""Times below this, of the year 2001, do not count from the epoch."""


def recorded_time(run: Run) -> tuple[str, str]:
    """Return when a run was recorded, in UTC, and what says so: run.json or the trace; empty where neither does."""
    if created := _time(run.metadata.get("created")):
        return created, RUN_FILE_TIME
    begins = [int(timeline.windows.bounds[0]) for timeline in run.timelines if len(timeline.windows.bounds)]
    if not begins or not _FIRST_NS < min(begins) < time.time_ns() + 86_400 * 10**9:
        return "", ""
    return _in_utc(min(begins) / 1e9), TRACE_TIME


def _time(created: object) -> str:
    """Return a time in UTC; empty for what is none."""
    try:
        when = datetime.fromisoformat(str(created).replace("Z", "+00:00"))
    except ValueError:
        return ""
    return when.astimezone(timezone.utc).isoformat(timespec="seconds")


def _in_utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def file_time(paths: Sequence[str]) -> str:
    """Return when the last of some files was written, in UTC; empty where that is unknown."""
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(Path(path).stat().st_mtime)
    return _in_utc(max(times)) if times else ""


# Change points of a series of numbers.


def change_points(values: Float, alpha: float = ALPHA, least: float = 0.0) -> dict[int, float]:
    """Return where a new level begins, and the p-value of each: binary segmentation.

    Args:
        alpha: rate at which a change is found in values in random order.
        least: difference of two levels that does not matter.

    >>> list(change_points(np.array([5.0, 5.1, 4.9, 5.0, 5.1, 4.9, 7.0, 7.1, 6.9, 7.0, 7.1, 6.9])))
    [6]
    """
    found: dict[int, float] = {}
    parts = [(0, len(values))]
    while parts:
        first, last = parts.pop()
        split = _split(values[first:last])
        if split is None or split[1] > alpha:
            continue
        at = first + split[0]
        if abs(values[first:at].mean() - values[at:last].mean()) > least:
            found[at] = split[1]
            parts += [(first, at), (at, last)]
    return dict(sorted(found.items()))


def _split(values: Float) -> tuple[int, float] | None:
    """Return the best place for a change and its p-value; None for too few values, or equal ones."""
    n = len(values)
    if n < 2 * MIN_LEVEL or np.ptp(values) == 0:
        return None
    places = np.arange(MIN_LEVEL, n - MIN_LEVEL + 1)
    scale = np.sqrt(places * (n - places) / n)
    near = np.array([np.median(values[max(at - _NEAR, 0) : at + _NEAR + 1]) for at in range(n)])
    far = _CLIPPED * 1.4826 / np.sqrt(2) * float(np.median(np.abs(np.diff(values))))
    clipped = np.clip(values, near - far, near + far)
    clipped = clipped - clipped.mean()

    def statistic(rows: Float) -> Float:
        most: Float = (np.abs(rows.cumsum(axis=-1)[..., places - 1]) / scale).max(axis=-1)
        return most

    # Seeded, so that a history says the same each time.
    orders = np.random.default_rng(n).permuted(np.tile(clipped, (_ORDERS, 1)), axis=1)
    as_large = int((statistic(orders) >= statistic(clipped) * (1 - 1e-9)).sum())
    cost = [sum(np.abs(side - np.median(side)).sum() for side in (values[:k], values[k:])) for k in places]
    return int(places[np.argmin(cost)]), (1 + as_large) / (1 + _ORDERS)
