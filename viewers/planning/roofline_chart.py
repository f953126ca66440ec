"""The communication roofline as a chart: what the GPU and each link allow, and the points of a plan or a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.core.units import byte_size, sanitize, share
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Line, log_axis, message

__all__ = ["plan_roofline_chart", "recorded_roofline_chart", "roofline_chart"]

_TITLE = "Communication roofline"
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#A8438A")
_SHAPES = ("circle", "square", "triangle", "diamond")
_HEIGHT = 380
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
