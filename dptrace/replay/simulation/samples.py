"""Figures of the same steps on all ranks, as recorded and replayed, and the range of their median."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import FIGURES, Split, split
from dptrace.core.intervals import median
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.simulation.simulate import Schedule, Times
from dptrace.replay.simulation.timelines import parts_by_end, timeline_at
from dptrace.run.run import Run

__all__ = [
    "WALL",
    "Outcome",
    "StepSelection",
    "choose",
    "mean_range",
    "median_range",
    "outcome",
    "recorded_figures",
    "simulated_figures",
]

WALL = FIGURES.index("wall_ns")
_CUT_OFF = 0.1
"""A last step shorter than this share of the median was cut off by the end of the recording."""
_RESAMPLES = 400
_RANGE = (5, 95)
"""Percentiles of the median over resampled steps."""


class StepSelection(msgspec.Struct, frozen=True):
    """The steps and timelines that an answer is about."""

    timelines: tuple[int, ...]
    """Their numbers in the whole run."""
    steps: tuple[str, ...]
    places: tuple[NDArray[np.int64], ...]
    """Index of each step in each timeline."""


class Outcome(msgspec.Struct, frozen=True):
    """A model that was simulated."""

    model: Model
    times: Times
    by_end: NDArray[np.int64]
    """Figures of each step, from the end of one to the end of the next: timelines × steps × figures."""
    ended_ns: NDArray[np.int64]
    """When the last of these steps ends, on each timeline's clock."""


def choose(run: Run, whole: Run) -> StepSelection:
    """Choose the steps that all selected ranks have, without one that was cut off.

    Args:
        run: the run with the ranks and steps that were selected.
        whole: the run that they were selected from.

    Raises:
        DptraceError: no step is on all ranks.
    """
    numbers = {(t.rank, t.device): i for i, t in enumerate(whole.timelines)}
    own = [timeline.windows.names for timeline in run.timelines]
    steps = [name for name in own[0] if all(name in names for names in own)]
    if not steps:
        raise DptraceError(f"{run.path}: no step is on all ranks, so their steps can't be compared.")
    timelines = tuple(numbers[t.rank, t.device] for t in run.timelines)
    walls = recorded_figures(whole, _chosen(whole, timelines, steps))[:, :, WALL].mean(axis=0)
    if len(steps) > 1 and walls[-1] < _CUT_OFF * median(walls[:-1]):
        del steps[-1]
    return _chosen(whole, timelines, steps)


def _chosen(whole: Run, timelines: tuple[int, ...], steps: Sequence[str]) -> StepSelection:
    names = [whole.timelines[number].windows.names for number in timelines]
    return StepSelection(timelines, tuple(steps), tuple(np.array([own.index(name) for name in steps]) for own in names))


def _table(chosen: StepSelection, splits: Sequence[Split]) -> NDArray[np.int64]:
    rows = [
        np.stack([figures.figures[name][places] for name in FIGURES], axis=1)
        for figures, places in zip(splits, chosen.places, strict=True)
    ]
    return np.stack(rows).astype(np.int64)


def recorded_figures(whole: Run, chosen: StepSelection) -> NDArray[np.int64]:
    """Return the figures as recorded: timelines × steps × figures, in ns."""
    return _table(chosen, [whole.devices[number].split for number in chosen.timelines])


def simulated_figures(outcome: Outcome, chosen: StepSelection) -> NDArray[np.int64]:
    """Return the figures by their definitions at simulated times: timelines × steps × figures, in ns."""
    return _table(chosen, [split(timeline_at(outcome.model, number, outcome.times)) for number in chosen.timelines])


def outcome(model: Model, chosen: StepSelection) -> Outcome:
    """Simulate a model."""
    times = Schedule(model.graph).run()
    by_end, ended = [], []
    for number, places in zip(chosen.timelines, chosen.places, strict=True):
        bounds, parts = parts_by_end(model, number, times)
        by_end.append(parts[places])
        ended.append(bounds[places[-1] + 1])
    return Outcome(model, times, np.stack(by_end), np.array(ended, np.int64))


def median_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of the median if other steps of the same kind had been recorded: 5th to 95th percentile."""
    return _range(median(_resampled(values), axis=1))


def mean_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the same range of the mean."""
    return _range(_resampled(values).mean(axis=1))


def _resampled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    return values[drawn]


def _range(figures: NDArray[np.float64]) -> tuple[float, float]:
    ordered = np.sort(figures)
    low, high = (ordered[round(percent / 100 * (_RESAMPLES - 1))] for percent in _RANGE)
    return float(low), float(high)
