"""Charts of a prediction: the parts of a step by strategy, and efficiency from 1 to 1,024 GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.units import duration, sanitize, share
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Entry, Label, Line, linear_axis, time_axis
from dptrace.viewers.base.theme import IDLE, PART_COLORS

__all__ = ["scaling_chart", "strategies_chart"]

_PARTS = (
    ("compute_s", "computation", PART_COLORS[Part.BACKWARD]),
    ("bubble_s", "bubble", IDLE),
    ("optimizer_s", "optimizer", PART_COLORS[Part.OPTIMIZER]),
    ("exposed_s", "exposed communication", PART_COLORS[Part.EXPOSED_COMM]),
)
_ROW, _BAR = 34.0, 20.0
_WEAK, _STRONG, _AMDAHL = "#0072B2", "#D55E00", "#57606A"


def strategies_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the parts of a step for each strategy, one bar each, those that fit first."""
    rows = content["candidates"]
    marks: list[Box | Label] = []
    ticks = []
    for number, row in enumerate(rows):
        middle = _ROW * (number + 0.5)
        fits = "" if row["fits"] else " (does not fit)"
        ticks.append((middle, f"{row['layout']}{fits}"))
        marks += _bar(row, middle)
        marks.append(Label(1e9 * row["step_s"], middle, f"{duration(1e9 * row['step_s'])}, MFU {share(row['mfu'])}"))
    height = _ROW * len(rows)
    longest = 1e9 * max(row["step_s"] for row in rows)
    legend = tuple(Entry(color, name) for _, name, color in _PARTS)
    about = "Plans that do not fit are drawn too, below those that do."
    y = Axis(0, height, tuple(ticks), grid=False)
    return Drawing(
        "The step by strategy", about, time_axis(longest * 1.02, "time of a step"), y, height, tuple(marks), legend,
        right=190,
    )  # fmt: skip


def _bar(row: Mapping[str, Any], middle: float) -> list[Box]:
    boxes, left = [], 0.0
    for key, name, color in _PARTS:
        right = left + 1e9 * row[key]
        if right > left:
            tip = sanitize(f"{row['layout']}: {name} {duration(right - left)}, {share(row[key] / row['step_s'])}")
            boxes.append(Box(left, right, middle - _BAR / 2, middle + _BAR / 2, color, tip))
        left = right
    return boxes


def scaling_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the efficiency over the number of GPUs: with a fixed batch for each, and a fixed batch for all."""
    rows = content["scaling"]
    lines = {
        "fixed batch of each GPU": (_WEAK, "circle", [(row["gpus"], row["weak_efficiency"]) for row in rows]),
        "fixed batch of all": (
            _STRONG,
            "square",
            [(row["gpus"], row["strong_efficiency"]) for row in rows if row["strong_efficiency"] is not None],
        ),
        "Amdahl's ceiling": (_AMDAHL, "triangle", [(row["gpus"], row["amdahl_ceiling"] / row["gpus"]) for row in rows]),
    }
    marks: list[Line | Dot] = []
    for name, (color, shape, points) in lines.items():
        places = tuple((float(gpus), 100 * efficiency) for gpus, efficiency in points)
        marks += [Line(places, color)] if len(places) > 1 else []
        marks += (Dot(x, y, color, f"{name}: {x:,.0f} GPUs, {y:.3g} %", shape=shape) for x, y in places)
    counts = [row["gpus"] for row in rows]
    ticks = tuple((float(gpus), f"{gpus:,}") for gpus in counts)
    x = Axis(counts[0] / 1.3, counts[-1] * 1.3, ticks, "GPUs", log=True)
    percent = linear_axis(0, 105, " %", "efficiency", 6)
    y = Axis(105, 0, percent.ticks, "efficiency")
    about = f"{content['layout']}: throughput of a GPU, relative to the fewest GPUs."
    legend = tuple(Entry(color, name, shape) for name, (color, shape, _) in lines.items())
    return Drawing("Efficiency by number of GPUs", about, x, y, 320, tuple(marks), legend)
