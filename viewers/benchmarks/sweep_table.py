"""A sweep's table, for the terminal, as Markdown and for its page, and its charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console

from dptrace.core.units import byte_size, plural
from dptrace.core.units import number as format_number
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis, message
from dptrace.viewers.base.table import TextTable, fitting_table, markdown_page, plain

_NAMES = {"bucket-cap-mb": "bucket cap", "compress": "compression"}


def headline(content: Mapping[str, Any]) -> str:
    """Return what was swept."""
    gpus = plural(content["gpus"], "rank" if content["device"] == "CPU" else "GPU")
    names = " and ".join(_NAMES.get(name, name.replace("-", " ")) for name in content["swept"])
    return f"Sweep of {names}: {content['model']}, {content['mode']}, {gpus}"


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


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _written(name: str, text: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return what writes a figure of a point, or a dash where it was not measured."""
    return lambda point: "–" if point.get(name) is None else text(point[name])


def _percent(name: str) -> Callable[[Mapping[str, Any]], str]:
    return _written(name, lambda share: f"{100 * share:.1f}")


_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "step p50 ms": _written("step_p50_s", _ms),
    "p95 ms": _written("step_p95_s", _ms),
    "samples/s": _written("samples_per_s", "{:,.0f}".format),
    "TFLOP/s": _written("tflops", format_number),
    "MFU %": _percent("mfu"),
    "s %": _percent("communication_fraction"),
    "exposed ms": _written("exposed_s", _ms),
    "by the fit ms": _written("predicted_exposed_s", _ms),
    "collectives": _written("collectives", "{:.4g}".format),
    "bytes": _written("bytes", byte_size),
    "val. loss": _written("validation_loss", "{:.3f}".format),
    "accuracy": _percent("accuracy"),
    "ms/sample": lambda point: next((_ms(one["sample_p50_s"]) for one in point.get("inference", ())), "–"),
}


def cells(content: Mapping[str, Any]) -> TextTable:
    """Return the table, without columns that no point has."""
    points, rows = content["points"], []
    known = [name for name, cell in _COLUMNS.items() if any(cell(point) != "–" for point in points)]
    figures = {name: _COLUMNS[name] for name in known or ["step p50 ms"]}
    for point in points:
        mark = " ◀ best" if point["best"] else " ≈" if point["as_good"] else ""
        texts = [cell(point) for cell in figures.values()]
        rows.append((point["label"] + mark, *(["failed", *texts[1:]] if point["failed"] else texts)))
    note = "Steps: the last 20 of each timed run. s = communication / (computation + communication), of recorded steps."
    if any(point["as_good"] for point in points):
        note += " ≈: as good, within the spread of the steps."
    return TextTable(("", *figures), tuple(rows), 1, note)


def print_table(content: Mapping[str, Any], console: Console) -> None:
    """Print the table; the best run is bold, those that failed are dim."""
    styles = ["bold" if point["best"] else "dim" if point["failed"] else "" for point in content["points"]]
    console.print(plain(headline(content)), style="bold")
    console.print(fitting_table(cells(content), styles=styles))
    latencies = latency_cells(content)
    if latencies.rows:
        console.print(fitting_table(latencies))


def markdown(content: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with its conclusions above and its notes below."""
    tables = [one for one in (cells(content), latency_cells(content)) if one.rows]
    return markdown_page(headline(content), content["reading"], tables, content["notes"])


# The charts of a sweep: a figure of each point over the swept value, or over the communication fraction s.


_TITLES = {
    "bucket-cap-mb": "bucket cap, MiB",
    "micro-batches": "micro-batches",
    "batch-size": "samples in a step",
    "compress": "compression",
}
_COLORS = ("#1B4F9C", "#009E73", "#A8438A", "#B58900", "#4B5563", "#D55E00", "#332288")
_SHAPES = ("circle", "square", "triangle")
_MARKED, _SECOND = theme.EXPOSED, "#57606A"
"""Colors of the best point and of the onset, and of the second figure of each point."""
_HEIGHT = 300
"""Of a chart, in pixels."""
_MIN_LOG_RATIO = 4
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""
_APART = 0.05
"""Distance of two names, as a share of the axis, below which they would overlap."""

_Point: TypeAlias = Mapping[str, Any]
_Value: TypeAlias = Callable[[_Point], float | None]


def _of(name: str, unit: float = 1.0) -> _Value:
    """Return what reads a figure of a point in a unit; None where it was not measured."""
    return lambda point: None if point.get(name) is None else unit * float(point[name])


def steps(content: Mapping[str, Any]) -> Drawing:
    """Draw the step time over the swept value, up to its 95th percentile; per sample where batch sizes differ."""
    per_sample = "batch-size" in content["swept"]
    what = "time of a sample, µs" if per_sample else "time of a step, ms"

    def scaled(name: str) -> _Value:
        read = _of(name, 1e6 if per_sample else 1e3)
        return lambda point: (read(point) or 0.0) / (point["batch_size"] if per_sample else 1)

    def tip(point: _Point) -> str:
        p50, p95 = 1e3 * point["step_p50_s"], 1e3 * point["step_p95_s"]
        return f"{p50:.4g} ms a step (p95 {p95:.4g}), {point['samples_per_s']:,.0f} samples/s"

    good = [point for point in content["points"] if point["step_p50_s"] is not None]
    title = what.split(",")[0].capitalize()
    if not good:
        return message(title, "No run of this sweep succeeded.")
    middle, late = scaled("step_p50_s"), scaled("step_p95_s")
    low, top = min(middle(point) or 0.0 for point in good), max(late(point) or 0.0 for point in good)
    chart = _Chart(content, good, _up(low - 0.3 * (top - low), top, what))
    for point in good:
        x = chart.x(point)
        chart.marks.append(Line(((x, middle(point) or 0.0), (x, late(point) or 0.0)), chart.colors[point["series"]]))
    chart.points_at(middle, tip)
    about = "Medians of the last 20 steps of each timed run, without the profiler; bars go up to the 95th percentile."
    return chart.drawing(title, about + " The axis does not begin at 0." * (chart.y.high > 0))


def exposed(content: Mapping[str, Any]) -> Drawing:
    """Draw the exposed communication of the recorded steps, and the prediction of the alpha-beta fit."""
    measured, predicted = _of("exposed_s", 1e3), _of("predicted_exposed_s", 1e3)

    def tip(point: _Point) -> str:
        sent = f"{point['collectives']:.4g} collectives of {point['bytes'] / 1e6:.4g} MB in all"
        return f"{1e3 * point['exposed_s']:.3g} ms exposed, {sent}"

    def by_the_fit(point: _Point) -> str:
        return (
            f"{1e3 * point['predicted_exposed_s']:.3g} ms by the fit, in {point['predicted_collectives']} all-reduces"
        )

    good = [point for point in content["points"] if measured(point) is not None]
    title = "Exposed communication"
    if not good:
        return message(title, "No recorded run of this sweep can be read.")
    heights = [height for point in good for height in (measured(point), predicted(point)) if height is not None]
    chart = _Chart(content, good, _up(0, max([*heights, 1e-3]), "exposed in a step, ms"))
    fitted = chart.second(predicted, by_the_fit, "by the fit")
    chart.points_at(measured, tip)
    about = "Means over ranks and recorded steps."
    if fitted:
        about += " Dashed: the prediction of alpha + beta·n for these caps, with buckets sent one after the other."
    return chart.drawing(title, about)


def has_quality(content: Mapping[str, Any]) -> bool:
    """Return whether a point of a sweep has s and a validation loss."""
    return any(point["communication_fraction"] and _of("validation_loss")(point) for point in content["points"])


def loss(content: Mapping[str, Any]) -> Drawing:
    """Draw the validation loss over s, from the most communication to the least."""
    return _quality(content, "Communication and validation loss", ("validation_loss", "training_loss"), 1, "loss")


def accuracy(content: Mapping[str, Any]) -> Drawing:
    """Draw the accuracy on the validation data over s."""
    names = ("accuracy", "training_accuracy")
    return _quality(content, "Communication and accuracy", names, 100, "accuracy, %")


def _quality(content: Mapping[str, Any], title: str, names: tuple[str, str], unit: float, what: str) -> Drawing:
    validation, training = (_of(name, unit) for name in names)
    known = [point for point in content["points"] if point["communication_fraction"] and validation(point) is not None]
    if not known:
        return message(title, "No run of this sweep has both a recorded step and validation data.")
    order = (content.get("onset") or {}).get("order", [])
    known.sort(key=lambda point: order.index(point["label"]) if point["label"] in order else len(order))
    heights = [height for point in known for height in (validation(point), training(point)) if height is not None]
    low, high = min(heights), max(heights)
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    chart = _Chart(content, known, _up(low - room, high + room, what), over_s=True)

    def tip(name: str, value: _Value) -> Callable[[_Point], str]:
        return lambda point: f"s {chart.x(point):.3g} %, {name.replace('_', ' ')} {value(point):.4g}"

    chart.second(training, tip(names[1], training), "as much of the training data")
    chart.points_at(validation, tip(names[0], validation))
    chart.names(validation)
    onset = chart.onset(validation)
    about = "s of the recorded steps; each point after its last epoch, joined from the most communication to the least."
    if onset:
        about += (
            " Onset: from there on, no doubling lowers s by a tenth, or the loss stays more than 1 % above the least."
        )
    return chart.drawing(title, about)


def _up(low: float, high: float, title: str) -> Axis:
    """Return an upward axis, with room above for labels."""
    axis = linear_axis(max(low, 0.0), high + 0.15 * (high - max(low, 0.0)), "", title, 6)
    return Axis(axis.high, axis.low, axis.ticks, title)


class _Chart:
    """One chart, with a curve for each combination of the swept options but the first, which is the x axis.

    Args:
        over_s: the x axis is s instead, which joins all points in their order.
    """

    def __init__(self, content: Mapping[str, Any], points: Sequence[_Point], y: Axis, over_s: bool = False) -> None:
        self.content, self.known, self.y, self.over_s = content, points, y, over_s
        self.option: str = content["swept"][0]
        self.values: list[str] = list(content["values"][self.option])
        self.words = self.option == "compress" and not over_s
        self.series: list[str] = [""] if over_s else list(dict.fromkeys(point["series"] for point in points))
        self.colors = {name: _COLORS[at % len(_COLORS)] for at, name in enumerate(self.series)}
        self.shapes = {name: _SHAPES[at % len(_SHAPES)] for at, name in enumerate(self.series)}
        self.marks: list[Dot | Line | Label] = []
        self.entries = [Entry(self.colors[name], name or "measured", self.shapes[name]) for name in self.series]
        if over_s:
            self.entries = [Entry(_COLORS[0], "validation", "circle")]

    def x(self, point: _Point) -> float:
        """Return the place of a point on the x axis."""
        if self.over_s:
            return 100 * float(point["communication_fraction"])
        return float(self.values.index(point["x"])) if self.words else float(point["x"])

    def _curves(self, value: _Value) -> Iterator[tuple[str, list[tuple[_Point, tuple[float, float]]]]]:
        for name in self.series:
            mine = [point for point in self.known if value(point) is not None and name in ("", point["series"])]
            mine = mine if self.over_s else sorted(mine, key=self.x)
            yield name, [(point, (self.x(point), value(point) or 0.0)) for point in mine]

    def second(self, value: _Value, tip: Callable[[_Point], str], name: str) -> bool:
        """Draw a further figure of the points as rings and dashed lines; return whether there is any."""
        found = False
        for series, curve in self._curves(value):
            if len(curve) > 1:
                color = self.colors[series] if len(self.series) > 1 else _SECOND
                self.marks.append(Line(tuple(place for _, place in curve), color, "5 4"))
            for point, place in curve:
                self.marks.append(Dot(*place, _SECOND, f"{point['label']}: {tip(point)}", hollow=True))
                found = True
        self.entries += [Entry(_SECOND, name, "ring")] if found else []
        return found

    def points_at(self, value: _Value, tip: Callable[[_Point], str]) -> None:
        """Draw the measured points, joined where their values are numbers, the best and the fit's choice."""
        for series, curve in self._curves(value):
            if len(curve) > 1 and not self.words:
                self.marks.append(Line(tuple(place for _, place in curve), self.colors[series]))
            for point, (x, y) in curve:
                best = point["best"] and not self.over_s
                color, shape = (_MARKED, "diamond") if best else (self.colors[series], self.shapes[series])
                self.marks.append(Dot(x, y, color, f"{point['label']}: {tip(point)}", shape=shape))
                if best:
                    below, text = y - 0.06 * self._height, f"best: {point['label']}"
                    self.marks.append(Label(x, below, text, _MARKED, "center", True))
                    self.entries.append(Entry(_MARKED, "the best", "diamond"))
        caps = {one["tried_mb"] for one in self.content["chosen"]}
        if self.option == "bucket-cap-mb" and len(caps) == 1 and not self.over_s:
            cap = caps.pop()
            self.marks.insert(0, Line(((cap, self.y.high), (cap, self.y.low)), _SECOND, "2 4"))
            side = "left" if self._across().place(cap) > 0.5 else "right"
            text = f"the fit's choice: {cap:g} MiB"
            self.marks.append(Label(cap, self.y.low - 0.04 * self._height, text, _SECOND, side))

    @property
    def _height(self) -> float:
        return abs(self.y.low - self.y.high)

    def names(self, value: _Value) -> None:
        """Write the names of the points below them; of those that are close to each other only the first."""
        last, axis = math.inf, self._across()
        for point in sorted(self.known, key=self.x):
            if abs(axis.place(self.x(point)) - last) > _APART:
                y = (value(point) or 0.0) - 0.06 * self._height
                self.marks.append(Label(self.x(point), y, point["label"], side="center"))
                last = axis.place(self.x(point))

    def onset(self, value: _Value) -> bool:
        """Mark where returns diminish and where harm begins: a diamond, an upright line and a text each."""
        onset, begins = self.content.get("onset") or {}, dict[str, list[str]]()
        for key, text in (("diminishing", "s hardly falls from here on"), ("harmful", "loss grows from here on")):
            begins.setdefault(str(onset.get(key)), []).append(text)
        marked = [point for point in self.known if point["label"] in begins]
        rightmost = max(map(self.x, marked), default=0.0)
        side = "left" if self._across().place(rightmost) > 0.6 else "right"
        for number, point in enumerate(marked):
            x, said = self.x(point), f"{point['label']}: {', '.join(begins[point['label']])}"
            self.marks.append(Line(((x, self.y.high), (x, self.y.low)), _MARKED, "2 4"))
            self.marks.append(Dot(x, value(point) or 0.0, _MARKED, said, shape="diamond", size=12))
            down = self.y.low - (number + 0.6) * 0.07 * self._height
            self.marks.append(Label(rightmost, down, said, _MARKED, side, True))
        self.entries += [Entry(_MARKED, "onset", "diamond")] if marked else []
        return bool(marked)

    def drawing(self, title: str, about: str) -> Drawing:
        """Return the chart."""
        return Drawing(title, about, self._across(), self.y, _HEIGHT, tuple(self.marks), tuple(self.entries))

    def _across(self) -> Axis:
        places = sorted(map(self.x, self.known))
        room = 0.06 * (places[-1] - places[0])
        if self.over_s:
            title = "s: communication as a share of compute and communication, %"
            return linear_axis(max(0.0, places[0] - 2 * room), places[-1] + (4 * room or 1.0), "", title, 6)
        if self.words:
            ticks = tuple((float(at), name) for at, name in enumerate(self.values))
            return Axis(-0.5, len(self.values) - 0.5, ticks, _TITLES[self.option])
        numbers = sorted(map(float, self.values))
        ticks = tuple((number, f"{number:g}") for number in numbers)
        if numbers[-1] >= _MIN_LOG_RATIO * numbers[0]:
            edge = (numbers[-1] / numbers[0]) ** 0.06
            return Axis(numbers[0] / edge, numbers[-1] * edge, ticks, _TITLES[self.option], log=True)
        room = 0.06 * (numbers[-1] - numbers[0])
        return Axis(numbers[0] - room, numbers[-1] + room, ticks, _TITLES[self.option])
