"""Charts of plans: steps and memory, efficiency from 1 to 1,024 GPUs, all-reduces by size, and the roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.units import byte_size, duration, sanitize, share
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import (
    Axis,
    Box,
    Dot,
    Drawing,
    Entry,
    Label,
    Line,
    linear_axis,
    log_axis,
    message,
    time_axis,
)
from dptrace.viewers.base.theme import IDLE, PART_COLORS
from dptrace.viewers.planning.cells import HELD

_STEP = (
    ("compute_s", "computation", PART_COLORS[Part.BACKWARD]),
    ("bubble_s", "bubble", IDLE),
    ("optimizer_s", "optimizer", PART_COLORS[Part.OPTIMIZER]),
    ("exposed_s", "exposed communication", PART_COLORS[Part.EXPOSED_COMM]),
)
_HELD_COLORS = ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#999999")
_MEMORY = tuple((*held, color) for held, color in zip(HELD.items(), _HELD_COLORS, strict=True))
_ROW, _BAR = 30.0, 18.0
"""Heights of a row and of the bar in it, in pixels."""
_LIMIT = "#57606A"
_WIDEST = 2.0
"""GPU memories, or steps of the slowest plan that fits, on an axis: one of twenty would make the others invisible."""
_CUT = " Bars that reach the right edge are cut: the figures beside them are whole."
_WEAK, _STRONG, _AMDAHL = "#0072B2", "#D55E00", "#57606A"


# For each plan, the parts of its step, and what a GPU holds against its memory.


def steps_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the parts of a step of each plan of a prediction or of advice, fastest that fits first."""
    rows = content["candidates"]
    steps = [_nanoseconds(row, "step_s") for row in rows]
    fitting = [step for step, row in zip(steps, rows, strict=True) if row["fits"]]
    most = min(max(steps), _WIDEST * max(fitting, default=max(steps)))
    marks: list[Box | Label] = []
    for number, (row, step) in enumerate(zip(rows, steps, strict=True)):
        middle = _ROW * (number + 0.5)
        parts = [(name, _nanoseconds(row, key), color) for key, name, color in _STEP]
        marks += _boxes(row["layout"], parts, middle, most, duration)
        text = f"{duration(step)}, MFU {share(row['mfu'])}, {byte_size(row['per_gpu_bytes'])}"
        marks.append(Label(min(step, most), middle, text if row["fits"] else f"{text}: does not fit"))
    axis = time_axis(most * 1.02, "time of a step")
    legend = tuple(Entry(color, name) for _, name, color in _STEP)
    below = "Plans that do not fit are below those that do." if 0 < len(fitting) < len(rows) else "Fastest first."
    about = below + _CUT * (max(steps) > most)
    height = _ROW * len(rows)
    return Drawing("Step of each plan", about, axis, _rows(rows), height, tuple(marks), legend, right=330)


def _nanoseconds(row: Mapping[str, Any], key: str) -> float:
    """Return a time of a plan: a prediction has seconds, advice whole nanoseconds."""
    return float(1e9 * row[key] if key in row else row[f"{key.removesuffix('_s')}_ns"])


def memory_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw what a GPU holds in each kind of plan, and what it can hold; longer bars are cut."""
    rows, usable = content["candidates"], content["usable_bytes"]
    most = min(max(row["per_gpu_bytes"] for row in rows), _WIDEST * content["gpu_memory_bytes"])
    most = max(most, usable)
    marks: list[Box | Label | Line] = []
    for number, row in enumerate(rows):
        middle = _ROW * (number + 0.5)
        parts = [(name, row["per_gpu"][key], color) for key, name, color in _MEMORY]
        marks += _boxes(row["layout"], parts, middle, most, byte_size)
        size = byte_size(row["per_gpu_bytes"])
        text = size if row["fits"] else f"{size} (+{byte_size(row['over_bytes'])})"
        marks.append(Label(min(row["per_gpu_bytes"], most), middle, text))
    height = _ROW * len(rows)
    marks.append(Line(((usable, 0.0), (usable, height)), _LIMIT, "dashed", 2.0))
    about = f"Limit: {byte_size(usable)}, 90 % of the {content['gpu']}'s memory." + (
        "" if all(row["fits"] for row in rows) else " In brackets: what is too much."
    )
    about += _CUT * (max(row["per_gpu_bytes"] for row in rows) > most)
    axis = linear_axis(0, most * 1.02 / 1e9, " GB", "bytes on the fullest GPU", 6)
    x = Axis(0, most * 1.02, tuple((1e9 * value, text) for value, text in axis.ticks), axis.title)
    legend = (*(Entry(color, name) for _, name, color in _MEMORY), Entry(_LIMIT, "limit"))
    return Drawing("Memory of a GPU", about, x, _rows(rows), height, tuple(marks), legend, right=240)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Axis:
    ticks = tuple((_ROW * (number + 0.5), row["layout"]) for number, row in enumerate(rows))
    return Axis(0, _ROW * len(rows), ticks, grid=False)


def _boxes(
    label: str, parts: Sequence[tuple[str, float, str]], middle: float, most: float, text: Callable[[float], str]
) -> list[Box]:
    """Return the boxes of a bar, one after the other, up to *most*.

    Args:
        parts: name, length and color of each.
    """
    boxes, left = [], 0.0
    for name, length, color in parts:
        right = min(left + length, most)
        if right > left:
            tip = sanitize(f"{label}: {name} {text(length)}")
            boxes.append(Box(left, right, middle - _BAR / 2, middle + _BAR / 2, color, tip))
        left = right
    return boxes


# Efficiency over the number of GPUs.


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


# The cost of an all-reduce over the size of its message, by algorithm, with the sizes at which the ring overtakes.


_STYLE = {**theme.ALGORITHM_STYLES, "hierarchical-sharded": ("#4B5563", "square")}
_STYLE |= {"double-tree": ("#56B4E9", "diamond"), "servers": ("#111827", "triangle")}
_HEIGHT = 380
"""Of a chart, in pixels."""
_POINTS_PER_DECADE = 8
"""Of a curve."""


def message_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the time of each all-reduce algorithm from a kilobyte up, past the asked size and all crossovers."""
    size, crossings = float(content["size_bytes"]), content["crossovers"]
    edges = [1e3, size, 10 * size, *(one["bytes"] * factor for one in crossings for factor in (0.1, 10))]
    x = log_axis([min(edges), max(edges)], byte_size, "size of the tensor")
    rows = {row["algorithm"]: row for row in content["all_reduce"]}
    sizes = _sizes(x)
    y = log_axis([1e9 * _seconds(row, at, size) for row in rows.values() for at in (x.low, x.high)], duration,
                 "time of one all-reduce", upwards=True)  # fmt: skip
    marks: list[Line | Dot] = []
    for name, row in rows.items():
        color, shape = _STYLE[name]
        marks.append(Line(tuple((at, 1e9 * _seconds(row, at, size)) for at in sizes), color))
        tip = f"{name}, {byte_size(size)}: {duration(1e9 * row['seconds'])}, {row['regime']}"
        marks.append(Dot(size, 1e9 * row["seconds"], color, tip, shape=shape))
    for one in crossings:
        place = 1e9 * _seconds(rows[one["above"]], one["bytes"], size)
        tip = f"from {byte_size(one['bytes'])} on, {one['above']} is faster than {one['below']}"
        marks.append(Dot(one["bytes"], place, _STYLE[one["below"]][0], tip, hollow=True))
    text = "Points: the asked size. Rings: where the ring overtakes another algorithm."
    legend = tuple(Entry(_STYLE[name][0], name, _STYLE[name][1]) for name in rows)
    title = sanitize(f"All-reduce among {content['ranks']:,} ranks over {content['slowest_link']}")
    return Drawing(title, text, x, y, _HEIGHT, tuple(marks), legend)


def _seconds(row: Mapping[str, Any], at: float, size: float) -> float:
    """Return the time for another size: its messages cost as much, its bytes in proportion."""
    return float(row["latency_s"] + (row["transfer_s"] + row["adding_s"]) * at / size)


def _sizes(axis: Axis) -> list[float]:
    """Return sizes close enough together that lines are curves on log axes."""
    count = int(_POINTS_PER_DECADE * len(axis.ticks)) + 1
    step = (axis.high / axis.low) ** (1 / count)
    return [axis.low * step**number for number in range(count + 1)]


# The communication roofline as a chart: what the GPU and each link allow, and the points of a plan or a recording.


_TITLE = "Communication roofline"
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#A8438A")
_SHAPES = ("circle", "square", "triangle", "diamond")
_DECADES = 1e3
"""The lowest rate on the axis is this many times below the peak, unless a point is lower."""


def plan_roofline_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw where a predicted step lies for each link that it uses."""
    levels = content["roofline"]
    if not levels:
        return message(_TITLE, "The plan communicates nothing.")
    achieved = content["model_flops"] / content["gpus"] / content["step_s"]
    return roofline_chart(levels, levels[0]["ridge"] * levels[0]["bytes_per_s"], [("predicted step", achieved)])


def recorded_roofline_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw where the steps of a recording lie for each link that they use."""
    found = content["roofline"]
    if found is None:
        return message(_TITLE, "The FLOPs of a step, or the bytes that it sends, are not known.")
    points = [(step["step"], step["flops_per_s"]) for step in found["steps"]]
    return roofline_chart(found["levels"], found["peak_flops"], points)


def roofline_chart(
    levels: Sequence[Mapping[str, Any]], peak_flops: float, points: Sequence[tuple[str, float]]
) -> Drawing:
    """Draw FLOP/s over FLOPs for each byte sent, both on log axes.

    Args:
        levels: links, each with what the training computes for each byte over it; see ``RooflineLevel``.
        points: name and FLOP/s of a GPU in a step; each is drawn once for each link.
    """
    at = [level[name] for level in levels for name in ("ccr", "ridge")]
    x = log_axis(
        [min(at) / 2, max(at) * 2],
        lambda value: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}",
        "FLOPs for each byte sent",
    )
    entering = min(x.low * level["bytes_per_s"] for level in levels)
    rates = [rate for _, rate in points]
    lowest = max(min(entering, peak_flops), peak_flops / _DECADES)
    y = log_axis([peak_flops * 1.1, lowest, *rates], flop_rate, "FLOP/s of a rank", upwards=True)
    marks: list[Line | Dot] = []
    legend = []
    for number, level in enumerate(levels):
        color, shape = _COLORS[number % len(_COLORS)], _SHAPES[number % len(_SHAPES)]
        marks += _roof(level, peak_flops, color, x, y)
        marks += (
            Dot(level["ccr"], rate, color, _tip(name, rate, level, peak_flops), shape=shape) for name, rate in points
        )
        legend.append(Entry(color, sanitize(f"{level['link']}, {level['bytes_per_s'] / 1e9:,.3g} GB/s"), shape))
    text = (
        "Lines: what the link allows, up to the peak of the GPU. Rings: the ridge, from which the GPU limits. Points: "
        "steps, by what they compute for each byte over that link."
    )
    return Drawing(_TITLE, text, x, y, _HEIGHT, tuple(marks), tuple(legend))


def flop_rate(value: float) -> str:
    """Write a rate of computation.

    >>> flop_rate(989e12), flop_rate(2.5e10)
    ('989 TFLOP/s', '25 GFLOP/s')
    """
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if value >= size:
            return f"{value / size:,.3g} {unit}FLOP/s"
    return f"{value / 1e6:,.3g} MFLOP/s"


def _roof(level: Mapping[str, Any], peak: float, color: str, x: Axis, y: Axis) -> list[Line | Dot]:
    """Return the roof of a link, from where it enters the picture, and a ring on its ridge."""
    left = max(x.low, min(y.low, y.high) / level["bytes_per_s"])
    roof = ((left, left * level["bytes_per_s"]), (level["ridge"], peak), (x.high, peak))
    tip = (
        f"ridge of {level['link']}: {level['ridge']:,.0f} FLOPs for each byte; reached with "
        f"{level['critical_batch']:,.3g} samples of a GPU"
    )
    return [Line(roof, color), Dot(level["ridge"], peak, color, sanitize(tip), hollow=True)]


def _tip(name: str, rate: float, level: Mapping[str, Any], peak: float) -> str:
    allowed = min(peak, level["ccr"] * level["bytes_per_s"])
    return sanitize(
        f"{name}: {flop_rate(rate)}, {level['ccr']:,.0f} FLOPs for each byte over {level['link']} "
        f"({byte_size(level['sent_bytes'])} in a step): {level['regime']}; {share(rate / allowed)} of what the link "
        "and the GPU allow"
    )


# Which charts an answer has.


def charts(content: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return the charts of an answer by the names of their places on its page."""
    if content["kind"] == "advise":
        return {"steps": steps_chart(content), "memory": memory_chart(content)}
    if content["kind"] == "message_costs":
        return {"message": message_chart(content)}
    if "recorded" in content:
        return {"roofline": recorded_roofline_chart(content)}
    roofline = {"roofline": plan_roofline_chart(content)} if content["roofline"] else {}
    return {"steps": steps_chart(content), "scaling": scaling_chart(content), **roofline}


def chart_of(content: Mapping[str, Any]) -> Drawing:
    """Return the chart of an answer that is a file: of a single plan, its efficiency by number of GPUs."""
    found = charts(content)
    alone = content["kind"] == "predict" and len(content.get("candidates", "")) == 1
    return found["scaling"] if alone else next(iter(found.values()))
