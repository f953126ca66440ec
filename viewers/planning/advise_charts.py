"""Charts of advice: for each way to train, the parts of its step, and what a GPU holds against its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.units import byte_size, duration, sanitize, share
from dptrace.viewers.base.marks import Axis, Box, Drawing, Entry, Label, Line, linear_axis, time_axis
from dptrace.viewers.base.theme import IDLE, PART_COLORS

__all__ = ["memory_chart", "steps_chart"]

_STEP = (
    ("compute_ns", "computation", PART_COLORS[Part.BACKWARD]),
    ("bubble_ns", "bubble", IDLE),
    ("optimizer_ns", "optimizer", PART_COLORS[Part.OPTIMIZER]),
    ("exposed_ns", "exposed communication", PART_COLORS[Part.EXPOSED_COMM]),
)
_MEMORY = (
    ("parameters_bytes", "parameters", "#0072B2"),
    ("gradients_bytes", "gradients", "#D55E00"),
    ("optimizer_bytes", "optimizer", "#E69F00"),
    ("gathered_bytes", "gathered parameters", "#CC79A7"),
    ("activation_bytes", "activations", "#009E73"),
    ("recompute_bytes", "computed again", "#999999"),
)
_ROW, _BAR = 30.0, 18.0
_LIMIT = "#57606A"
_WIDEST = 2.0
"""GPU memories that the axis shows at most: a plan that needs twenty would make the others invisible."""


def steps_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the parts of a step of each kind of plan, fastest that fits first."""
    rows = content["candidates"]
    marks: list[Box | Label] = []
    for number, row in enumerate(rows):
        middle = _ROW * (number + 0.5)
        marks += _boxes(row["label"], row, _STEP, middle, float("inf"), duration)
        text = f"{duration(row['step_ns'])}, MFU {share(row['mfu'])}, {byte_size(row['per_gpu_bytes'])}"
        marks.append(Label(row["step_ns"], middle, text if row["fits"] else f"{text}: does not fit"))
    longest = max(row["step_ns"] for row in rows)
    legend = tuple(Entry(color, name) for _, name, color in _STEP)
    about = "Plans that do not fit are below those that do."
    return Drawing(
        "Step of each way to train", about, time_axis(longest * 1.02, "time of a step"), _rows(rows),
        _ROW * len(rows), tuple(marks), legend, right=330,
    )  # fmt: skip


def memory_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw what a GPU holds in each kind of plan, and what it can hold; longer bars are cut."""
    rows, usable = content["candidates"], content["usable_bytes"]
    most = min(max(row["per_gpu_bytes"] for row in rows), _WIDEST * content["gpu_memory_bytes"])
    most = max(most, usable)
    marks: list[Box | Label | Line] = []
    for number, row in enumerate(rows):
        middle = _ROW * (number + 0.5)
        marks += _boxes(row["label"], row["per_gpu"], _MEMORY, middle, most, byte_size)
        size = byte_size(row["per_gpu_bytes"])
        text = size if row["fits"] else f"{size} (+{byte_size(row['over_bytes'])})"
        marks.append(Label(min(row["per_gpu_bytes"], most), middle, text))
    height = _ROW * len(rows)
    marks.append(Line(((usable, 0.0), (usable, height)), _LIMIT, "dashed", 2.0))
    entries = (*((color, name) for _, name, color in _MEMORY), (_LIMIT, "limit"))
    about = f"Limit: {byte_size(usable)}, 90 % of the {content['gpu']}'s memory. In brackets: what is too much."
    axis = linear_axis(0, most * 1.02 / 1e9, " GB", "bytes on the fullest GPU", 6)
    ticks = tuple((1e9 * value, text) for value, text in axis.ticks)
    x = Axis(0, most * 1.02, ticks, axis.title)
    legend = tuple(Entry(color, name) for color, name in entries)
    return Drawing("Memory of a GPU", about, x, _rows(rows), height, tuple(marks), legend, right=240)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Axis:
    ticks = tuple((_ROW * (number + 0.5), row["label"]) for number, row in enumerate(rows))
    return Axis(0, _ROW * len(rows), ticks, grid=False)


def _boxes(
    label: str, row: Mapping[str, Any], parts: Sequence[tuple[str, str, str]], middle: float, most: float, text: Any
) -> list[Box]:
    """Return the boxes of a bar, one after the other, up to *most*."""
    boxes, left = [], 0.0
    for key, name, color in parts:
        right = min(left + row[key], most)
        if right > left:
            tip = sanitize(f"{label}: {name} {text(row[key])}")
            boxes.append(Box(left, right, middle - _BAR / 2, middle + _BAR / 2, color, tip))
        left = right
    return boxes
