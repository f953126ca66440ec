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
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, log_axis, message
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
    cells,
    exposed,
    has_quality,
    headline,
    latency_cells,
    loss,
    steps,
)

__all__ = [
    "Content",
    "algorithms_chart",
    "bench_document",
    "links_document",
    "rate_chart",
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
