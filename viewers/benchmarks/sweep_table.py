"""The table of a sweep, for the terminal, as Markdown, and for its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from dptrace.core.units import byte_size, plural
from dptrace.core.units import number as format_number
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis, message
from dptrace.viewers.base.table import TextTable, escape_markdown, markdown_lines, plain, rich_table

__all__ = [
    "accuracy",
    "best_label",
    "cells",
    "has_quality",
    "headline",
    "latency_cells",
    "loss",
    "markdown",
    "print_table",
]


_COLUMNS = (
    *("", "step p50 ms", "p95 ms", "samples/s", "TFLOP/s", "MFU %", "s %", "exposed ms", "by the fit ms"),
    *("collectives", "bytes", "val. loss", "accuracy", "ms/sample"),
)
_NAMES = {"bucket-cap-mb": "bucket cap", "compress": "compression"}
_LEFT_OUT = ("TFLOP/s", "MFU %", "by the fit ms", "val. loss", "accuracy", "ms/sample")
"""Columns that are left out where no point has them."""


def headline(content: Mapping[str, Any]) -> str:
    """Return what was swept."""
    gpus = plural(content["gpus"], "rank" if content["device"] == "CPU" else "GPU")
    names = " and ".join(_NAMES.get(name, name.replace("-", " ")) for name in content["swept"])
    return f"Sweep of {names}: {content['model']}, {content['mode']}, {gpus}"


def _rows(content: Mapping[str, Any]) -> Iterator[list[str]]:
    first = best_label(content)
    for point in content["points"]:
        if point["failed"]:
            yield [point["label"], "failed", *["–"] * (len(_COLUMNS) - 2)]
            continue
        mark = f" ◀ {first}" if point["best"] else " ≈" if point["as_good"] else ""
        yield [
            point["label"] + mark,
            _ms(point["step_p50_s"]),
            _ms(point["step_p95_s"]),
            f"{point['samples_per_s']:,.0f}",
            "–" if point.get("tflops") is None else format_number(point["tflops"]),
            _percent(point.get("mfu")),
            _percent(point["communication_fraction"]),
            _ms(point["exposed_s"]),
            _ms(point["predicted_exposed_s"]),
            "–" if point["collectives"] is None else f"{point['collectives']:.4g}",
            "–" if point["bytes"] is None else byte_size(point["bytes"]),
            "–" if point.get("validation_loss") is None else f"{point['validation_loss']:.3f}",
            _percent(point["accuracy"]),
            _ms(next((one["sample_p50_s"] for one in point.get("inference", ())), None)),
        ]


def best_label(content: Mapping[str, Any]) -> str:
    """Return "best" only where the spread of the steps separates the first from the others."""
    return "fastest" if any(point["as_good"] for point in content["points"]) else "best"


def latency_cells(content: Mapping[str, Any]) -> TextTable:
    """Return the latencies of the trained models: a row for each point and batch size."""
    rows = [
        (
            point["label"],
            str(one["batch_size"]),
            *(f"{1e3 * one[name]:.3g}" for name in ("p50_s", "p95_s", "sample_p50_s", "sample_p95_s")),
            f"{one['samples_per_s']:,.0f}",
        )
        for point in content["points"]
        for one in point.get("inference", ())
    ]
    what = "sample" if content["model"].startswith("gpt") else "image"
    columns = ("", "batch", "ms", "p95 ms", f"ms/{what}", f"p95 ms/{what}", f"{what}s/s")
    return TextTable(columns, tuple(rows), 1, "Forward alone on one rank, after the last epoch: medians.")


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.2f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def cells(content: Mapping[str, Any]) -> TextTable:
    """Return the table, without columns that no point has."""
    rows = list(_rows(content))
    empty = {at for at in map(_COLUMNS.index, _LEFT_OUT) if all(row[at] == "–" for row in rows)}
    kept = [at for at in range(len(_COLUMNS)) if at not in empty]
    note = "Steps: the last 20 of each timed run. s = communication / (computation + communication), of recorded steps."
    if any(point["as_good"] for point in content["points"]):
        note += " ≈: within the spread of the fastest."
    return TextTable(tuple(_COLUMNS[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows), 1, note)


def print_table(content: Mapping[str, Any], console: Console) -> None:
    """Print the table; the best run is bold, those that failed are dim."""
    styles = ["bold" if point["best"] else "dim" if point["failed"] else "" for point in content["points"]]
    console.print(plain(headline(content)), style="bold")
    console.print(rich_table(cells(content), styles))
    latencies = latency_cells(content)
    if latencies.rows:
        console.print(rich_table(latencies))


def markdown(content: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with its conclusions above and its notes below."""
    cells_table = cells(content)
    sentences = (escape_markdown(sentence) + "\n" for sentence in content["reading"])
    lines = [f"# {escape_markdown(headline(content))}", "", *sentences]
    lines += [*markdown_lines(cells_table), "", escape_markdown(cells_table.note)]
    latencies = latency_cells(content)
    if latencies.rows:
        lines += ["", *markdown_lines(latencies), "", escape_markdown(latencies.note)]
    notes = [f"- {escape_markdown(note)}" for note in content["notes"]]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


# The charts of quality in a sweep: validation loss and accuracy over the communication fraction s, with its onset.


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
