"""The charts of quality in a sweep: validation loss and accuracy over the communication fraction s, with its onset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis, message

__all__ = ["accuracy", "has_quality", "loss"]

_MEASURED, _TRAINING, _ONSET = "#1B4F9C", "#57606A", theme.EXPOSED
_HEIGHT = 300
_APART = 0.05
"""Distance of two names, as a share of the axis, below which they would overlap."""
_MARGIN = 0.12
"""Room around the points, as a share of what they span."""


def has_quality(content: Mapping[str, Any]) -> bool:
    """Return whether a point of a sweep has s and a validation loss."""
    return bool(_known(content, "validation_loss"))


def loss(content: Mapping[str, Any]) -> Drawing:
    """Draw the validation loss over s, from the most communication to the least."""
    return _drawing(content, "Communication and validation loss", ("validation_loss", "training_loss"), 1, "loss")


def accuracy(content: Mapping[str, Any]) -> Drawing:
    """Draw the accuracy on the validation data over s."""
    names = ("accuracy", "training_accuracy")
    return _drawing(content, "Communication and accuracy", names, 100, "accuracy, %")


def _known(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the points with s and a figure, in the order of the onset."""
    known = [point for point in content["points"] if point["communication_fraction"] and point.get(name) is not None]
    order = (content.get("onset") or {}).get("order", [])
    return sorted(known, key=lambda point: order.index(point["label"]) if point["label"] in order else len(order))


def _drawing(content: Mapping[str, Any], title: str, names: tuple[str, str], unit: float, what: str) -> Drawing:
    points = _known(content, names[0])
    if not points:
        return message(title, "No run of this sweep has both a recorded step and validation data.")
    heights = [unit * point[name] for point in points for name in names if point.get(name) is not None]
    x = _around(
        [100 * point["communication_fraction"] for point in points],
        "s: communication as a share of compute and communication, %",
    )
    y = _upward(_around(heights, what))
    marks: list[Dot | Line | Label] = [
        *_curve(points, names[1], unit, _TRAINING, hollow=True),
        *_curve(points, names[0], unit, _MEASURED, hollow=False),
    ]
    looks = [
        Entry(_MEASURED, "validation", "circle"),
        Entry(_TRAINING, "as much of the training data (ring)", "circle"),
    ]
    marks += _names(points, names[0], unit, x, y)
    onset = _marked(content, points, names[0], unit, x, y)
    marks += onset
    looks += [Entry(_ONSET, "onset", "diamond")] if onset else []
    return Drawing(title, _about(content), x, y, _HEIGHT, tuple(marks), tuple(looks))


def _curve(
    points: Sequence[Mapping[str, Any]], name: str, unit: float, color: str, hollow: bool
) -> list[Dot | Line | Label]:
    known = [point for point in points if point.get(name) is not None]
    places = [(100 * point["communication_fraction"], unit * point[name]) for point in known]
    marks: list[Dot | Line | Label] = []
    if len(places) > 1:
        marks.append(Line(tuple(places), color, "5 4" if hollow else ""))
    for point, (x, y) in zip(known, places, strict=True):
        marks.append(Dot(x, y, color, f"{point['label']}: s {x:.3g} %, {name.replace('_', ' ')} {y:.4g}", hollow))
    return marks


def _names(points: Sequence[Mapping[str, Any]], name: str, unit: float, x: Axis, y: Axis) -> list[Dot | Line | Label]:
    """Return the names of the points, below them; of those that are close to each other only the first."""
    marks: list[Dot | Line | Label] = []
    last = math.inf
    for point in sorted(points, key=lambda point: point["communication_fraction"]):
        at = 100 * point["communication_fraction"]
        if abs(x.place(at) - last) > _APART:
            marks.append(Label(at, unit * point[name] - 0.06 * abs(y.low - y.high), point["label"], side="center"))
            last = x.place(at)
    return marks


def _marked(
    content: Mapping[str, Any], points: Sequence[Mapping[str, Any]], name: str, unit: float, x: Axis, y: Axis
) -> list[Dot | Line | Label]:
    """Return the marks of the onsets: a diamond and an upright line each, with what begins there."""
    onset = content.get("onset") or {}
    begins: dict[str, list[str]] = {}
    for key, text in (("diminishing", "s hardly falls from here on"), ("harmful", "loss grows from here on")):
        if onset.get(key) is not None:
            begins.setdefault(onset[key], []).append(text)
    marks: list[Dot | Line | Label] = []
    room = 0.07 * abs(y.low - y.high)
    rightmost = 100 * max((p["communication_fraction"] for p in points if p["label"] in begins), default=0.0)
    side = "left" if x.place(rightmost) > 0.6 else "right"
    for number, (label, texts) in enumerate(begins.items()):
        point = next((point for point in points if point["label"] == label), None)
        if point is not None:
            at = 100 * point["communication_fraction"]
            said = f"{label}: {', '.join(texts)}"
            marks.append(Line(((at, y.high), (at, y.low)), _ONSET, "2 4"))
            marks.append(Dot(at, unit * point[name], _ONSET, said, shape="diamond", size=12))
            marks.append(Label(rightmost, y.low - (number + 0.6) * room, said, _ONSET, side, True))
    return marks


def _around(values: Sequence[float], title: str) -> Axis:
    """Return an axis around values, which does not begin at 0 but where they are close to it."""
    low, high = min(values), max(values)
    room = _MARGIN * (high - low) or 0.1 * abs(high) or 1.0
    return linear_axis(max(0.0, low - room), high + 2 * room, "", title, 6)


def _upward(axis: Axis) -> Axis:
    return Axis(axis.high, axis.low, axis.ticks, axis.title)


def _about(content: Mapping[str, Any]) -> str:
    steps = "each point after its last epoch, joined from the most communication to the least."
    why = "Onset: from there on, no doubling lowers s by a tenth, or the loss stays more than 1 % above the least."
    return f"s of the recorded steps; {steps} {why if content.get('onset') else ''}".strip()
