"""The figures of a run as a grid of GPUs × steps, where some GPUs may lack steps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.intervals import Int64, median

__all__ = ["StepGrid", "middle_step", "step_grid"]


class StepGrid(msgspec.Struct, frozen=True):
    """The nine figures of every GPU in every step."""

    device_ids: tuple[tuple[int, int], ...]
    """Rank and device of each row."""
    steps: tuple[str, ...]
    """The steps of all GPUs, each once, in the order of their times."""
    present: NDArray[np.bool_]
    """GPUs × steps: whether the GPU has the step."""
    figures: dict[str, Int64]
    """By the names in ``split.FIGURES``: GPUs × steps, in ns; 0 where a GPU lacks the step."""

    def share(self, name: str) -> NDArray[np.float64]:
        """Return a figure as a share of the step's wall time, from 0 to 1; NaN if the wall time is 0."""
        wall = self.figures["wall_ns"]
        return np.where(wall > 0, self.figures[name] / np.maximum(wall, 1), np.nan)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return each GPU's mean over its steps, in ns; 0 without steps."""
        means: NDArray[np.float64] = self.figures[name].sum(axis=1) / np.maximum(self.present.sum(axis=1), 1)
        return means

    def total(self, name: str) -> int:
        """Return the sum of a figure over all GPUs and steps."""
        return int(self.figures[name].sum())


def step_grid(devices: Sequence[DeviceFigures]) -> StepGrid:
    """Arrange the figures of all GPUs by step; steps of the same name are the same step."""
    kept = [device for device in devices if len(device.timeline.windows)]
    steps = _in_order([device.split.names for device in kept])
    column = {name: index for index, name in enumerate(steps)}
    shape = len(kept), len(steps)
    present = np.zeros(shape, np.bool_)
    figures = {name: np.zeros(shape, np.int64) for name in FIGURES}
    for row, device in enumerate(kept):
        columns = [column[name] for name in device.split.names]
        present[row, columns] = True
        for name in FIGURES:
            # Steps of one GPU with the same name count as one.
            np.add.at(figures[name][row], columns, device.split.figures[name])
    device_ids = tuple((device.timeline.rank, device.timeline.device) for device in kept)
    return StepGrid(device_ids, steps, present, figures)


def middle_step(devices: Sequence[DeviceFigures]) -> str | None:
    """Return the step with the wall time nearest to the median, among those that most GPUs have; None without steps."""
    grid = step_grid(devices)
    if not grid.steps:
        return None
    count = grid.present.sum(axis=0)
    common = np.flatnonzero(count == count.max())
    wall = grid.figures["wall_ns"].sum(axis=0)[common] / count.max()
    return grid.steps[int(common[np.abs(wall - median(wall)).argmin()])]


def _in_order(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Merge the GPUs' steps into one order: by number if all have one, otherwise by each GPU's own order."""
    every = list(dict.fromkeys(name for steps in names for name in steps))
    found = [re.fullmatch(r"(.*?)(\d{1,18})", name) for name in every]
    numbers = {name: int(match[2]) for name, match in zip(every, found, strict=True) if match}
    if len(numbers) == len(every) and len({match[1] for match in found if match}) <= 1:
        return tuple(sorted(every, key=numbers.__getitem__))
    merged: list[str] = []
    for steps in names:
        place = 0
        for name in dict.fromkeys(steps):
            if name in merged:
                place = merged.index(name) + 1
            else:
                merged.insert(place, name)
                place += 1
    return tuple(merged)
