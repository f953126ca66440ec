"""Choose the ranks to look at first in a run with many: stragglers, the slowest, and those that differ most."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import middle_step
from dptrace.core.intervals import median
from dptrace.run.run import Run
from dptrace.run.select import cut_to_steps

_NOTABLE = 0.01
"""Share of the run's wall time, or of a typical rank's figure, above which a difference is notable."""


class NotableRank(msgspec.Struct, frozen=True):
    """One of a run's devices, and why it is notable."""

    index: int
    """Index into the run's timelines."""
    why: str
    """The reason in a word or two; empty for a device like all others."""


def notable_ranks(run: Run) -> tuple[NotableRank, ...]:
    """Return the devices that have steps, the most notable first.

    First come stragglers, the most expensive first; then the slowest, the one with the most exposed communication and
    the one with the most idle time; then the most typical one, for comparison; then the others by rank.
    """
    with_steps = [index for index, device in enumerate(run.devices) if len(device.timeline.windows)]
    if not with_steps:
        return ()
    why: dict[int, list[str]] = {}
    for index in _late(run):
        why.setdefault(index, []).append("held others up")
    figures = _figures(run, with_steps)
    for word, values in figures.items():
        if np.ptp(values) > _NOTABLE * max(float(median(values)), 1.0):
            why.setdefault(with_steps[int(values.argmax())], []).append(word)
    # The typical one is nearest to the median in all figures.
    typical = with_steps[int(sum(abs(values - median(values)) for values in figures.values()).argmin())]
    if len(with_steps) > len(why) and typical not in why:
        why[typical] = ["typical"]
    order = [*why, *(index for index in with_steps if index not in why)]
    return tuple(NotableRank(index, ", ".join(why.get(index, []))) for index in order)


def _late(run: Run) -> list[int]:
    """Return the devices whose lateness cost others a notable part of the run, most expensive first."""
    late = run.cross_rank.stragglers
    cost = np.bincount(late.device, late.cost_ns, len(run.devices))
    wall = max(split.total()["wall_ns"] for split in run.splits)
    return [int(i) for i in np.argsort(-cost, kind="stable") if cost[i] > _NOTABLE * wall]


def _figures(run: Run, with_steps: list[int]) -> dict[str, NDArray[np.float64]]:
    """Return the figures that can make a device notable: means over its steps, in ns."""
    words = {"slowest": "wall_ns", "most exposed": "exposed_comm_ns", "most idle": "idle_ns"}
    figures = [run.splits[index].figures for index in with_steps]
    return {
        word: np.array([float(of_device[name].mean()) if len(of_device[name]) else 0.0 for of_device in figures])
        for word, name in words.items()
    }


# The part of a run that is one typical step.


def middle_step_of(run: Run) -> Run:
    """Return the part of a run with its step of median length, on the devices that have it; none if it has no steps.

    As with :meth:`Run.select`, who waits for whom is known from the whole run.
    """
    name = middle_step(run.devices)
    kept = [
        cut_to_steps(number, device, place, place)
        for number, device in enumerate(run.devices)
        if name is not None and name in device.timeline.windows.names
        for place in [device.timeline.windows.names.index(name)]
    ]
    devices = tuple(part.device for part in kept)
    timelines = tuple(device.timeline for device in devices)
    return replace(run, timelines=timelines, devices=devices, selected_from=(run, tuple(kept)))
