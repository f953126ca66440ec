"""The chart of timed all-reduce algorithms: measured points, and the lines that alpha, beta and gamma predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.core.units import duration, sanitize
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Line, log_axis
from dptrace.viewers.benchmarks.algorithms_table import LIBRARY
from dptrace.viewers.benchmarks.links_table import size

__all__ = ["algorithms_chart", "size_axis"]

_STYLE = {**theme.ALGORITHM_STYLES, LIBRARY: ("#4B5563", "square")}
_OTHER = ("#374151", "triangle")
_HEIGHT = 380


def algorithms_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the median time of each algorithm over the size of the tensor, with its prediction as a dashed line."""
    found = content["algorithms"]["all_reduce"]
    rows = {name: one["measured"] for name, one in found.items()}
    if "all_reduce" in content["collectives"]:
        rows[LIBRARY] = content["collectives"]["all_reduce"]["measured"]
    marks: list[Dot | Line] = []
    for name, measured in rows.items():
        color, shape = _STYLE.get(name, _OTHER)
        line = tuple((float(row["bytes"]), 1e9 * row["predicted_s"]) for row in measured if row.get("predicted_s"))
        marks += [Line(line, color, "5 4")] if len(line) > 1 else []
        marks += (Dot(row["bytes"], 1e9 * row["median_s"], color, _tip(name, row), shape=shape) for row in measured)
    every = [row for measured in rows.values() for row in measured]
    times = [1e9 * value for row in every for value in (row["median_s"], row.get("predicted_s")) if value]
    text = (
        "Points: medians. Dashed: predicted from one point-to-point message. The library's all-reduce chooses its "
        "own algorithm."
    )
    y = log_axis(times, duration, "time of one all-reduce", upwards=True)
    legend = tuple(Entry(_STYLE.get(name, _OTHER)[0], sanitize(name), _STYLE.get(name, _OTHER)[1]) for name in rows)
    axis = size_axis([row["bytes"] for row in every], "size of the tensor")
    return Drawing("All-reduce algorithms by size", text, axis, y, _HEIGHT, tuple(marks), legend)


def size_axis(sizes: list[int], title: str) -> Axis:
    """Make an axis of message sizes, with a tick at every fourth power of 2."""
    low, high = min(sizes), max(sizes)
    ticks = [1 << power for power in range(0, 64, 4) if low / 2 <= 1 << power <= high * 2]
    return Axis(low / 1.5, high * 1.5, tuple((float(tick), size(tick)) for tick in ticks), title, log=True)


def _tip(name: str, row: Mapping[str, Any]) -> str:
    predicted = row.get("predicted_s")
    beside = "" if not predicted else f", predicted {duration(1e9 * predicted)}"
    middle = f"{duration(1e9 * row['quarter_s'])} to {duration(1e9 * row['three_quarters_s'])}"
    return sanitize(
        f"{name}, {size(row['bytes'])}: median {duration(1e9 * row['median_s'])} (middle half {middle}){beside}"
    )
