"""Pages of benchmarks, of measured links and of sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dptrace.bench.conclusions import ChartText
from dptrace.bench.table import Row
from dptrace.core.units import duration, plural, sanitize
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis, log_axis, message
from dptrace.viewers.base.page import Markup, Section, pictures, section_page, sections
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.benchmarks import bench_table
from dptrace.viewers.benchmarks.links_table import (
    LIBRARY,
    algorithm_tables,
    facts,
    fits_table,
    label,
    nearest_link_sentence,
    size,
    topology,
)
from dptrace.viewers.benchmarks.sweep_table import (
    accuracy,
    best_label,
    cells,
    has_quality,
    headline,
    latency_cells,
    loss,
)

__all__ = [
    "Content",
    "algorithms_chart",
    "bench_document",
    "exposed",
    "links_document",
    "rate_chart",
    "steps",
    "sweep_document",
    "time_chart",
]


# The page of a benchmark: conclusions, six charts and the table, in one file without network::
#
# from dptrace.viewers.benchmarks import bench_page
# page = bench_page.document(content)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of the page."""

    title: str
    facts: Sequence[str]
    notes: Sequence[str]
    rows: Sequence[Row]
    """From ``table.rows``."""
    charts: Sequence[tuple[ChartText, Drawing]]
    """Each chart of ``conclusions``, with its drawing."""


def bench_document(content: Content) -> str:
    """Draw a benchmark as one HTML page."""
    parts = []
    for chart, drawing in content.charts:
        text = Markup("").join(Markup("<li>{}</li>").format(sentence) for sentence in chart.sentences)
        sentences = Markup('<ul class="sentences">{}</ul>').format(text) if chart.sentences else Markup("")
        parts.append(Section(chart.name, chart.title, sentences + pictures(drawing), None, chart.missing))
    parts.append(Section("table", "All runs", cells=bench_table.text_table(content.rows, _TABLE_NOTE), open=True))
    answer = next((chart.sentences[0] for chart, _ in content.charts if chart.sentences), "")
    head = Headline(content.title, "", tuple(content.facts), (*content.notes, *bench_table.failures(content.rows)))
    above = Markup('<p class="answer">{}</p>').format(answer) if answer else Markup("")
    return section_page(head, above + sections(parts))


_TABLE_NOTE = (
    "Epoch: the median of all timed epochs, without the profiler; ± spread: half the distance between its quartiles. "
    "Communication, overlap and exposed share: from a separate, recorded run. Speedup: T₁ / T(N). "
    "Efficiency: T₁ / (N·T(N)). Amdahl: f = T₁ / (T₁ + communication) of the naive run, ceiling 1 / ((1 − f) + f/N)."
)


# The chart of timed all-reduce algorithms: measured points, and the lines that alpha, beta and gamma predict.


_ALGORITHMS_STYLE = {**theme.ALGORITHM_STYLES, LIBRARY: ("#4B5563", "square")}
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
        color, shape = _ALGORITHMS_STYLE.get(name, _OTHER)
        line = tuple((float(row["bytes"]), 1e9 * row["predicted_s"]) for row in measured if row.get("predicted_s"))
        marks += [Line(line, color, "5 4")] if len(line) > 1 else []
        marks += (
            Dot(row["bytes"], 1e9 * row["median_s"], color, _algorithm_tip(name, row), shape=shape) for row in measured
        )
    every = [row for measured in rows.values() for row in measured]
    times = [1e9 * value for row in every for value in (row["median_s"], row.get("predicted_s")) if value]
    text = (
        "Points: medians. Dashed: predicted from one point-to-point message. The library's all-reduce chooses its "
        "own algorithm."
    )
    y = log_axis(times, duration, "time of one all-reduce", upwards=True)
    legend = tuple(
        Entry(_ALGORITHMS_STYLE.get(name, _OTHER)[0], sanitize(name), _ALGORITHMS_STYLE.get(name, _OTHER)[1])
        for name in rows
    )
    axis = size_axis([row["bytes"] for row in every], "size of the tensor")
    return Drawing("All-reduce algorithms by size", text, axis, y, _HEIGHT, tuple(marks), legend)


def size_axis(sizes: list[int], title: str) -> Axis:
    """Make an axis of message sizes, with a tick at every fourth power of 2."""
    low, high = min(sizes), max(sizes)
    ticks = [1 << power for power in range(0, 64, 4) if low / 2 <= 1 << power <= high * 2]
    return Axis(low / 1.5, high * 1.5, tuple((float(tick), size(tick)) for tick in ticks), title, log=True)


def _algorithm_tip(name: str, row: Mapping[str, Any]) -> str:
    predicted = row.get("predicted_s")
    beside = "" if not predicted else f", predicted {duration(1e9 * predicted)}"
    middle = f"{duration(1e9 * row['quarter_s'])} to {duration(1e9 * row['three_quarters_s'])}"
    return sanitize(
        f"{name}, {size(row['bytes'])}: median {duration(1e9 * row['median_s'])} (middle half {middle}){beside}"
    )


# The page of measured links: time and bus bandwidth over message size, both on log axes, one file without network::
#
# from dptrace.viewers.benchmarks import links_page
#
# page = links_page.document(json.load(open("links.json")))


_STYLE = {
    "all_reduce": ("#0072B2", "circle"),
    "all_gather": ("#009E73", "square"),
    "reduce_scatter": ("#D55E00", "triangle"),
    "all_to_all": ("#A8438A", "diamond"),
    "broadcast": ("#B58900", "circle"),
    "reduce": ("#5B4B9E", "triangle"),
    "gather": ("#2F7F86", "diamond"),
    "scatter": ("#8C564B", "square"),
    "send_recv": ("#4B5563", "square"),
}
"""A color for each collective that readers with any kind of color vision can tell apart (after Okabe and Ito)."""
_KNOWN_LINK = "#57606A"
_TIME_TITLE, _RATE_TITLE = "Time of a message by its size", "Bus bandwidth by size"
_NOTHING = "No collective was measured."


def time_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the median time of a call over the message size, with the middle half of the timings and the fit."""
    measured = [row for found in content["collectives"].values() for row in found["measured"]]
    if not measured:
        return message(_TIME_TITLE, _NOTHING)
    times = [1e9 * row[name] for row in measured for name in ("quarter_s", "median_s", "three_quarters_s")]
    marks: list[Dot | Line] = []
    for kind, found in content["collectives"].items():
        color, shape = _STYLE.get(kind, _OTHER)
        marks += _middle_halves(found["measured"], color)
        if found["fit"] is not None:
            marks += _fit_marks(found, color)
        marks += (
            Dot(row["bytes"], 1e9 * row["median_s"], color, _tip(kind, row), shape=shape) for row in found["measured"]
        )
    text = (
        "Points: medians. Bars: the middle half of the timings. Lines: the fit. Rings: the crossover n*, below which "
        "latency is most of the time."
    )
    y = log_axis(times, duration, "time of one call", upwards=True)
    return Drawing(_TIME_TITLE, text, _size_axis(measured), y, _HEIGHT, tuple(marks), _legend(content))


def rate_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the bus bandwidth over the message size, and the nominal rate of the most similar known interconnect."""
    measured = [row for found in content["collectives"].values() for row in found["measured"]]
    if not measured:
        return message(_RATE_TITLE, _NOTHING)
    near = content["nearest"]
    rates = [row["busbw_gbps"] for row in measured] + ([near["bytes_per_s"] / 1e9] if near else [])
    x = _size_axis(measured)
    marks: list[Dot | Line | Label] = []
    for kind, found in content["collectives"].items():
        color, shape = _STYLE.get(kind, _OTHER)
        points = tuple((row["bytes"], row["busbw_gbps"]) for row in found["measured"])
        marks += [Line(points, color)] if len(points) > 1 else []
        marks += (
            Dot(*point, color, _tip(kind, row), shape=shape)
            for point, row in zip(points, found["measured"], strict=True)
        )
    if near:
        rate = near["bytes_per_s"] / 1e9
        marks.append(Line(((x.low, rate), (x.high, rate)), _KNOWN_LINK, "5 4"))
        marks.append(Label(x.low, rate * 1.1, near["name"], _KNOWN_LINK))
    text = (
        "Bytes over time, times the factor of nccl-tests, so that kinds and numbers of ranks compare with the rate "
        "of a link. Dashed: the most similar known interconnect."
    )
    y = log_axis(rates, lambda value: f"{value:g}", "bus bandwidth, GB/s", upwards=True)
    return Drawing(_RATE_TITLE, text, x, y, _HEIGHT, tuple(marks), _legend(content))


def _size_axis(measured: Sequence[Mapping[str, Any]]) -> Axis:
    return size_axis([row["bytes"] for row in measured], "message size")


def _middle_halves(measured: Sequence[Mapping[str, Any]], color: str) -> Iterator[Line]:
    for row in measured:
        ends = tuple((float(row["bytes"]), 1e9 * row[name]) for name in ("quarter_s", "three_quarters_s"))
        yield Line(ends, color, width=3)


def _fit_marks(found: Mapping[str, Any], color: str) -> Iterator[Line | Dot]:
    """Draw the fitted line, and a ring on it at the crossover n*."""
    line = tuple((row["bytes"], 1e9 * row["fitted_s"]) for row in found["measured"] if "fitted_s" in row)
    if len(line) > 1:
        yield Line(line, color)
    if crossover := found["fit"]["crossover_bytes"]:
        tip = f"crossover n* = {size(crossover)}"
        yield Dot(crossover, 1e9 * found["fit"]["crossover_s"], color, tip, hollow=True)


def _tip(kind: str, row: Mapping[str, Any]) -> str:
    middle = f"{duration(1e9 * row['quarter_s'])} to {duration(1e9 * row['three_quarters_s'])}"
    fitted = f", fit {duration(1e9 * row['fitted_s'])}" if "fitted_s" in row else ""
    return (
        f"{label(kind)}, {size(row['bytes'])}: median {duration(1e9 * row['median_s'])} (middle half {middle})"
        f"{fitted}, busbw {row['busbw_gbps']:.3g} GB/s, {row['count']} timings"
    )


def _legend(content: Mapping[str, Any]) -> tuple[Entry, ...]:
    looks = ((kind, *_STYLE.get(kind, _OTHER)) for kind in content["collectives"])
    return tuple(Entry(color, label(kind), shape) for kind, color, shape in looks)


def links_document(content: Mapping[str, Any]) -> str:
    """Draw measured links, as ``dptrace links -o`` writes them, as one HTML page."""
    charts = {"time": time_chart(content), "rate": rate_chart(content)}
    tables = list(algorithm_tables(content))
    if tables:
        charts["algorithms"] = algorithms_chart(content)
    parts = [
        Section(f"chart-{name}", chart.title, pictures(chart), None, chart.message or chart.subtitle)
        for name, chart in charts.items()
    ]
    parts += [
        Section(f"algorithms-{number}", title, cells=cells, open=True) for number, (title, cells) in enumerate(tables)
    ]
    parts += [
        Section("fits", "Fits", cells=fits_table(content), open=True),
        Section("formulas", "How the alpha and beta of one link follow", cells=_formulas(content), open=True),
        Section("machines", "Machines", about=" ".join(topology(content))),
    ]
    head = Headline("Measured links", "links", tuple(facts(content)), tuple(content["notes"]))
    answer = Markup('<section class="part"><p><strong>{}</strong></p></section>').format(nearest_link_sentence(content))
    return section_page(head, answer + sections(parts))


def _formulas(content: Mapping[str, Any]) -> TextTable:
    """List for each collective with a fit what n counts, the algorithm, and its time by alpha and beta."""
    lines = []
    for kind, found in content["collectives"].items():
        if link := found["link"]:
            assumed = " (assumed: NCCL chooses the algorithm)" if link["assumed"] else ""
            lines.append((label(kind), str(found["counted"]), f"{link['algorithm']}{assumed}", str(link["formula"])))
    return TextTable(("collective", "n is", "algorithm", "time"), tuple(lines), 4)


# The page of a sweep: step time and exposed communication over the swept value, in one file without network::
#
# from dptrace.viewers.benchmarks import sweep_page
# page = sweep_page.document(json.load(open("sweep/sweep.json")))


_TITLES = {
    "bucket-cap-mb": "bucket cap, MiB",
    "micro-batches": "micro-batches",
    "batch-size": "samples in a step",
    "compress": "compression",
}
_COLORS = ("#1B4F9C", "#009E73", "#A8438A", "#B58900", "#4B5563", "#D55E00", "#332288")
_SHAPES = ("circle", "square", "triangle")
_BEST, _FIT = theme.EXPOSED, "#57606A"
_SWEEP_HEIGHT = 300
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
        return Drawing(title, about, self._across(), self.y, _SWEEP_HEIGHT, tuple(self.marks), tuple(looks))

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


def sweep_document(content: Mapping[str, Any]) -> str:
    """Draw a sweep, the content of sweep.json, as one HTML page."""
    drawn = [steps(content), exposed(content)]
    quality = [loss(content), accuracy(content)] if has_quality(content) else []
    about = " ".join(drawing.message or f"{drawing.title}: {drawing.subtitle}" for drawing in drawn)
    parts = [
        Section("charts", " · ".join(drawing.title for drawing in drawn), pictures(drawn), None, about),
        Section("table", "The numbers", cells=cells(content), open=True),
    ]
    if quality:
        title = " · ".join(drawing.title for drawing in quality)
        parts.insert(1, Section("quality", title, pictures(quality), None, quality[0].subtitle))
    if any(point.get("inference") for point in content["points"]):
        parts.append(Section("inference", "Inference of the trained model", cells=latency_cells(content), open=True))
    facts = [plural(content["epochs"], "epoch"), f"{plural(content['repeat'], 'run')} of each", content["device"] or ""]
    said = Markup("").join(Markup("<p><strong>{}</strong></p>").format(text) for text in content["reading"])
    head = Headline(headline(content), "sweep", tuple(filter(None, facts)), tuple(content["notes"]))
    above = Markup('<section class="part">{}</section>').format(said)
    return section_page(head, above + sections(parts))
