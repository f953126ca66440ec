"""The cost of an all-reduce over the size of its message, by algorithm, with the sizes at which the ring overtakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.core.units import byte_size, duration, sanitize
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Line, log_axis

__all__ = ["message_chart"]

_STYLE = {**theme.ALGORITHM_STYLES, "hierarchical-sharded": ("#4B5563", "square")}
_HEIGHT = 380
_POINTS_PER_DECADE = 8


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
