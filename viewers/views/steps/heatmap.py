"""A map of ranks by steps: wall time, exposed communication, waiting and idle time; more is darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures, StepGrid, step_grid
from dptrace.core.intervals import Int64
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Axis, Box, Drawing, Label, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.base.theme import dark_color
from dptrace.viewers.charts.bars import NO_STEP, rank_labels, step_waits, with_steps
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "heatmap", "heatmap_table"]

_Rgb: TypeAlias = tuple[int, int, int]
_Look: TypeAlias = tuple[str, str, tuple[str, str]]
"""Color and text color of a cell, on a light and on a dark page."""

TITLE = "Ranks by steps"
_PALE = (244, 246, 249)
_DARK = {"wall_ns": (27, 79, 156), "exposed_comm_ns": (190, 36, 24), "idle_ns": (55, 65, 81)}
_DARK["exposed_wait_ns"] = (92, 74, 110)
_DIM = (31, 38, 48)
_BRIGHT = {"wall_ns": (127, 178, 245), "exposed_comm_ns": (255, 122, 107), "idle_ns": (190, 199, 210)}
_BRIGHT["exposed_wait_ns"] = (196, 176, 220)
_MISSING: _Look = ("#FFFFFF", "#9CA3AF", (dark_color("#FFFFFF"), dark_color("#9CA3AF")))
_NAMES = {
    "wall_ns": "Wall time",
    "exposed_comm_ns": "Exposed communication",
    "exposed_wait_ns": "Waiting",
    "idle_ns": "Idle",
}
"""The maps; that of waiting only where any wait is known."""
_HEAD = 26.0
_GAP = 0.06
"""Space between two maps, as a share of the width of one."""
_LEAST_SPAN = 0.1
"""Least span of the colors, as a share of the median wall time: a thousandth must not look like a straggler."""
_LEAST_SHARE = 0.2
"""Least share of the step that the darkest color stands for."""
_MOST_NAMES = 12


def heatmap(run: Run) -> Drawing:
    """Draw the maps side by side, with a cell for each rank and step."""
    devices = with_steps(run)
    if not devices:
        return message(TITLE, NO_STEP)
    rank_step_grid, labels = step_grid(devices), rank_labels(run, devices)
    waits = _Waits.of(rank_step_grid, devices, step_waits(run))
    names = [name for name in _NAMES if name != "exposed_wait_ns" or waits.known.any()]
    if not rank_step_grid.total("wall_ns"):
        return message(TITLE, "The steps of this run have no length.")
    height = 24.0 if len(labels) <= 32 else 12.0 if len(labels) <= 128 else 6.0
    every = 1 if height >= 12 else 4
    ticks = [(_HEAD + (row + 0.5) * height, label) for row, label in enumerate(labels) if row % every == 0]
    bottom = _HEAD + height * len(labels)
    marks: list[Box | Label] = []
    for index, name in enumerate(names):
        marks += _map(rank_step_grid, waits, labels, name, index * (1 + _GAP), height)
    y = Axis(0, bottom, tuple(ticks), grid=False)
    text = "Each map has its own scale; darker is more. Shares are of the step's wall time."
    return Drawing(TITLE, text, _steps(rank_step_grid, len(names)), y, bottom, tuple(marks), right=16)


@dataclass(frozen=True, slots=True)
class _Waits:
    """Waiting of each GPU in each step, in the rows and columns of the grid."""

    wait_ns: Int64
    known: NDArray[np.bool_]
    waits_for: Int64
    """The rank that it waits for, or -1."""

    @classmethod
    def of(cls, rank_step_grid: StepGrid, devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> _Waits:
        shape = rank_step_grid.present.shape
        wait_ns, known, waits_for = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.full(shape, -1, np.int64)
        column = {name: index for index, name in enumerate(rank_step_grid.steps)}
        for row, (device, wait) in enumerate(zip(devices, waits, strict=True)):
            columns = [column[name] for name in device.split.names]
            np.add.at(wait_ns[row], columns, wait.wait_ns)
            known[row, columns], waits_for[row, columns] = wait.known, wait.waits_for
        return cls(wait_ns, known, waits_for)

    def share(self, rank_step_grid: StepGrid) -> NDArray[np.float64]:
        """Return waiting as a share of the step's wall time, from 0 to 1; NaN where it is not known."""
        wall = rank_step_grid.figures["wall_ns"]
        return np.where(self.known & (wall > 0), self.wait_ns / np.maximum(wall, 1), np.nan)


def _steps(rank_step_grid: StepGrid, maps: int) -> Axis:
    count = len(rank_step_grid.steps)
    every = -(-count // _MOST_NAMES)
    ticks = [
        (index * (1 + _GAP) + (step + 0.5) / count, step_label(name))
        for index in range(maps)
        for step, name in enumerate(rank_step_grid.steps)
        if step % every == 0
    ]
    return Axis(0, maps + (maps - 1) * _GAP, tuple(ticks), "step", grid=False)


def _values(rank_step_grid: StepGrid, waits: _Waits, name: str) -> NDArray[np.float64]:
    """Return what a map shows: ns of wall time, or a share of it; NaN where there is nothing to show."""
    if name == "exposed_wait_ns":
        return waits.share(rank_step_grid)
    values = rank_step_grid.figures["wall_ns"].astype(np.float64) if name == "wall_ns" else rank_step_grid.share(name)
    return np.where(rank_step_grid.present, values, np.nan)


def _map(
    rank_step_grid: StepGrid, waits: _Waits, labels: list[str], name: str, left: float, height: float
) -> list[Box | Label]:
    values = _values(rank_step_grid, waits, name)
    low, high = _span(name, values)
    ends = _words(name, float(np.nanmin(values))), _words(name, float(np.nanmax(values)))
    heading = f"{_NAMES[name]}: {ends[0]}" + (f" to {ends[1]}" if ends[0] != ends[1] else "")
    marks: list[Box | Label] = [Label(left - 0.005, 12, heading, "#111827", bold=True)]
    width = 1 / len(rank_step_grid.steps)
    for row, label in enumerate(labels):
        top = _HEAD + row * height
        for step, step_name in enumerate(rank_step_grid.steps):
            at, value = left + step * width, values[row, step]
            missing = bool(np.isnan(value))
            look = _MISSING if missing else _color(name, (value - low) / (high - low))
            word = "–" if missing else _words(name, float(value))
            known = f"{_NAMES[name]} {'unknown' if missing else word}"
            what = known if rank_step_grid.present[row, step] else "not there"
            tip = f"{label}, step {step_label(step_name)}: {what}"
            if name == "exposed_wait_ns" and value > 0 and (rank := waits.waits_for[row, step]) >= 0:
                tip += f", for rank {rank}"
            edge = width * 0.02
            texts = word, word.split(" ")[0]
            marks.append(Box(at + edge, at + width - edge, top + 1, top + height, look[0], tip, texts, *look[1:]))
    return marks


def _span(name: str, values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if name != "wall_ns":
        return 0.0, max(high, _LEAST_SHARE)
    return low, max(high, low + _LEAST_SPAN * float(np.nanmedian(values)), low + 1)


def _words(name: str, value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{milliseconds(value)} ms" if name == "wall_ns" else f"{100 * value:.1f} %"


def _color(name: str, share: float) -> _Look:
    """Return the color for a share of the span and of text on it, then both on a dark page, where more is brighter."""
    return *_mixed(_PALE, _DARK[name], share, 140), _mixed(_DIM, _BRIGHT[name], share, 122)


def _mixed(none: _Rgb, all_: _Rgb, share: float, light_from: int) -> tuple[str, str]:
    mixed = [round(start + (end - start) * share) for start, end in zip(none, all_, strict=True)]
    light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]
    return "#" + "".join(f"{channel:02X}" for channel in mixed), "#111827" if light > light_from else "#FFFFFF"


def heatmap_table(run: Run) -> TextTable:
    """Return a row for each rank: its wall time in each step, and its shares over all steps."""
    devices = with_steps(run)
    rank_step_grid = step_grid(devices)
    waits = step_waits(run)
    known = any(wait.known.any() for wait in waits)
    rows = []
    for row, label in enumerate(rank_labels(run, devices)):
        steps = zip(rank_step_grid.figures["wall_ns"][row].tolist(), rank_step_grid.present[row].tolist(), strict=True)
        walls = (milliseconds(wall) if there else "–" for wall, there in steps)
        exposed, idle = (_words(name, _of_all(rank_step_grid, name, row)) for name in ("exposed_comm_ns", "idle_ns"))
        waiting = [_waiting(waits[row], rank_step_grid.figures["wall_ns"][row])] if known else []
        rows.append((label, *walls, exposed, *waiting, idle))
    shares = ("exposed", *(("waiting",) if known else ()), "idle")
    columns = ("rank", *map(step_label, rank_step_grid.steps), *shares)
    return TextTable(
        columns, tuple(rows), 1, "Wall time of each step in ms; shares are of all steps." if rows else NO_STEP
    )


def _waiting(wait: ExposedWait, wall_ns: Int64) -> str:
    """Return waiting as a share of all of a GPU's steps; a dash where none is known."""
    ns, wall = wait.total()["exposed_wait_ns"], int(wall_ns.sum())
    return "–" if ns is None or not wall else _words("exposed_wait_ns", ns / wall)


def _of_all(rank_step_grid: StepGrid, name: str, row: int) -> float:
    wall = rank_step_grid.mean("wall_ns")[row]
    return float(rank_step_grid.mean(name)[row] / wall) if wall else float("nan")


VIEW = View("heatmap", TITLE, heatmap_table, heatmap, in_report=True)
