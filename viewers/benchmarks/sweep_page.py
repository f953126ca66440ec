"""The page of a sweep: step time and exposed communication over the swept value, in one file without network::

from dptrace.viewers.benchmarks import sweep_page
page = sweep_page.document(json.load(open("sweep/sweep.json")))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.core.units import plural
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis, message
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.benchmarks.sweep_loss import accuracy, has_quality, loss
from dptrace.viewers.benchmarks.sweep_table import best_label, cells, headline, latency_cells

__all__ = ["document", "exposed", "steps"]

_TITLES = {
    "bucket-cap-mb": "bucket cap, MiB",
    "micro-batches": "micro-batches",
    "batch-size": "samples in a step",
    "compress": "compression",
}
_COLORS = ("#1B4F9C", "#009E73", "#A8438A", "#B58900", "#4B5563", "#D55E00", "#332288")
_SHAPES = ("circle", "square", "triangle")
_BEST, _FIT = theme.EXPOSED, "#57606A"
_HEIGHT = 300
_LOG_FROM = 4
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""
_HEADROOM = 0.15


def steps(content: Mapping[str, Any]) -> Drawing:
    """Draw the step time over the swept value, up to its 95th percentile; per sample where batch sizes differ."""
    per_sample = "batch-size" in content["swept"]
    unit, what = (1e6, "time of a sample, µs") if per_sample else (1e3, "time of a step, ms")
    scale = {
        id(point): unit / point["batch_size"] if per_sample else unit for point in content["points"] if _ran(point)
    }
    good = [point for point in content["points"] if _ran(point)]
    title = what.split(",")[0].capitalize()
    if not good:
        return message(title, "No run of this sweep succeeded.")
    top = max(point["step_p95_s"] * scale[id(point)] for point in good)
    low = min(point["step_p50_s"] * scale[id(point)] for point in good)
    chart = _Chart(content, good, _upward(low - (top - low) * 0.3, top, what))
    for point in good:
        x, middle = chart.x(point), point["step_p50_s"] * scale[id(point)]
        chart.marks.append(Line(((x, middle), (x, point["step_p95_s"] * scale[id(point)])), chart.color(point)))
    tips = "{:.4g} ms a step (p95 {:.4g}), {:,.0f} samples/s"
    tip_texts = [tips.format(1e3 * p["step_p50_s"], 1e3 * p["step_p95_s"], p["samples_per_s"]) for p in good]
    chart.curves([point["step_p50_s"] * scale[id(point)] for point in good], tip_texts)
    chart.fit()
    about = "Medians of the last 20 steps of each timed run, without the profiler; bars go up to the 95th percentile."
    about += " The axis does not begin at 0." if chart.y.high > 0 else ""
    return chart.drawing(title, about)


def exposed(content: Mapping[str, Any]) -> Drawing:
    """Draw the exposed communication of the recorded steps, and the prediction of the alpha-beta fit."""
    good = [point for point in content["points"] if _ran(point) and point["exposed_s"] is not None]
    title = "Exposed communication"
    if not good:
        return message(title, "No recorded run of this sweep can be read.")
    said = [point for point in good if point["predicted_exposed_s"] is not None]
    highest = [point["exposed_s"] for point in good] + [point["predicted_exposed_s"] for point in said]
    chart = _Chart(content, good, _upward(0, 1e3 * max([*highest, 1e-6]), "exposed in a step, ms"))
    for name in chart.series:
        mine = [point for point in chart.ordered(name) if point in said]
        places = tuple((chart.x(point), 1e3 * point["predicted_exposed_s"]) for point in mine)
        if len(places) > 1:
            chart.marks.append(Line(places, chart.colors[name] if len(chart.series) > 1 else _FIT, "5 4"))
        for point, place in zip(mine, places, strict=True):
            tip = f"{point['label']}: {place[1]:.3g} ms by the fit, in {point['predicted_collectives']} all-reduces"
            chart.marks.append(Dot(*place, _FIT, tip, hollow=True))
    tip_texts = [
        f"{1e3 * p['exposed_s']:.3g} ms exposed, {p['collectives']:.4g} collectives of {p['bytes'] / 1e6:.4g} MB in all"
        for p in good
    ]
    chart.curves([1e3 * point["exposed_s"] for point in good], tip_texts)
    chart.fit()
    about = "Means over ranks and recorded steps."
    about += (
        " Dashed: the prediction of alpha + beta·n for these caps, with buckets sent one after the other."
        if said
        else ""
    )
    return chart.drawing(title, about)


def _ran(point: Mapping[str, Any]) -> bool:
    return point["step_p50_s"] is not None


def _upward(low: float, high: float, title: str) -> Axis:
    low = max(low, 0.0)
    high += (high - low) * _HEADROOM
    axis = linear_axis(low, high, "", title, 6)
    return Axis(axis.high, axis.low, axis.ticks, title)


class _Chart:
    """One chart over the first swept option, with a curve for each combination of the others."""

    def __init__(self, content: Mapping[str, Any], points: Sequence[Mapping[str, Any]], y: Axis) -> None:
        self.content, self.points, self.y = content, points, y
        self.option: str = content["swept"][0]
        self.series: list[str] = list(dict.fromkeys(point["series"] for point in points))
        self.colors = {name: _COLORS[at % len(_COLORS)] for at, name in enumerate(self.series)}
        self.shapes = {name: _SHAPES[at % len(_SHAPES)] for at, name in enumerate(self.series)}
        self.values: list[str] = list(content["values"][self.option])
        self.first = best_label(content)
        self.words = self.option == "compress"
        self.marks: list[Dot | Line | Label] = []

    def x(self, point: Mapping[str, Any]) -> float:
        return float(self.values.index(point["x"])) if self.words else float(point["x"])

    def color(self, point: Mapping[str, Any]) -> str:
        return self.colors[point["series"]]

    def ordered(self, series: str) -> list[Mapping[str, Any]]:
        return sorted((point for point in self.points if point["series"] == series), key=self.x)

    def curves(self, heights: Sequence[float], tips: Sequence[str]) -> None:
        """Draw the measured points, joined where the values are numbers, and highlight the best."""
        at = {id(point): height for point, height in zip(self.points, heights, strict=True)}
        tip = {id(point): text for point, text in zip(self.points, tips, strict=True)}
        for name in self.series:
            mine = self.ordered(name)
            places = [(self.x(point), at[id(point)]) for point in mine]
            if len(places) > 1 and not self.words:
                self.marks.append(Line(tuple(places), self.colors[name]))
            for point, (x, y) in zip(mine, places, strict=True):
                color, shape = (_BEST, "diamond") if point["best"] else (self.colors[name], self.shapes[name])
                self.marks.append(Dot(x, y, color, f"{point['label']}: {tip[id(point)]}", shape=shape))
                if point["best"]:
                    height = abs(self.y.low - self.y.high)
                    self.marks.append(
                        Label(x, y - 0.06 * height, f"{self.first}: {point['label']}", _BEST, "center", True)
                    )

    def fit(self) -> None:
        """Mark the cap that the fit would choose, where it is the same for all curves."""
        caps = {one["tried_mb"] for one in self.content["chosen"]}
        if self.option != "bucket-cap-mb" or len(caps) != 1:
            return
        cap = caps.pop()
        self.marks.insert(0, Line(((cap, self.y.high), (cap, self.y.low)), _FIT, "2 4"))
        height = abs(self.y.low - self.y.high)
        side = "left" if self._across().place(cap) > 0.5 else "right"
        self.marks.append(Label(cap, self.y.low - 0.04 * height, f"the fit's choice: {cap:g} MiB", _FIT, side))

    def drawing(self, title: str, about: str) -> Drawing:
        looks = [Entry(self.colors[name], name or "measured", self.shapes[name]) for name in self.series]
        looks += [Entry(_BEST, f"the {self.first}", "diamond")]
        if any(isinstance(mark, Dot) and mark.hollow for mark in self.marks):
            looks += [Entry(_FIT, "by the fit (ring)", "circle")]
        return Drawing(title, about, self._across(), self.y, _HEIGHT, tuple(self.marks), tuple(looks))

    def _across(self) -> Axis:
        title = _TITLES[self.option]
        if self.words:
            ticks = tuple((float(at), name) for at, name in enumerate(self.values))
            return Axis(-0.5, len(self.values) - 0.5, ticks, title)
        numbers = sorted(map(float, self.values))
        ticks = tuple((number, f"{number:g}") for number in numbers)
        if numbers[-1] >= _LOG_FROM * numbers[0]:
            edge = (numbers[-1] / numbers[0]) ** 0.06
            return Axis(numbers[0] / edge, numbers[-1] * edge, ticks, title, log=True)
        room = 0.06 * (numbers[-1] - numbers[0])
        return Axis(numbers[0] - room, numbers[-1] + room, ticks, title)


def document(content: Mapping[str, Any]) -> str:
    """Draw a sweep, the content of sweep.json, as one HTML page."""
    drawn = [steps(content), exposed(content)]
    quality = [loss(content), accuracy(content)] if has_quality(content) else []
    about = " ".join(drawing.message or f"{drawing.title}: {drawing.subtitle}" for drawing in drawn)
    parts = [
        Section("charts", " · ".join(drawing.title for drawing in drawn), live_charts(drawn), None, about),
        Section("table", "The numbers", cells=cells(content), open=True),
    ]
    if quality:
        title = " · ".join(drawing.title for drawing in quality)
        parts.insert(1, Section("quality", title, live_charts(quality, "losses"), None, quality[0].subtitle))
    if any(point.get("inference") for point in content["points"]):
        parts.append(Section("inference", "Inference of the trained model", cells=latency_cells(content), open=True))
    facts = [plural(content["epochs"], "epoch"), f"{plural(content['repeat'], 'run')} of each", content["device"] or ""]
    said = Markup("").join(Markup("<p><strong>{}</strong></p>").format(text) for text in content["reading"])
    head = Headline(headline(content), "sweep", tuple(filter(None, facts)), tuple(content["notes"]))
    above = Markup('<section class="part">{}</section>').format(said)
    return section_page(head, above + sections(parts), chart_plots({"figure": drawn, "losses": quality}))
