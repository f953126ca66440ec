"""The page of measured links: time and bus bandwidth over message size, both on log axes, one file without network::

from dptrace.viewers.benchmarks import links_page

page = links_page.document(json.load(open("links.json")))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dptrace.core.units import duration
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, log_axis, message
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.benchmarks.algorithms_chart import algorithms_chart, size_axis
from dptrace.viewers.benchmarks.algorithms_table import algorithm_tables
from dptrace.viewers.benchmarks.links_table import facts, fits_table, label, nearest_link_sentence, size, topology

__all__ = ["document", "rate_chart", "time_chart"]

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
_OTHER = ("#374151", "triangle")
_KNOWN_LINK = "#57606A"
_HEIGHT = 380
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


def document(content: Mapping[str, Any]) -> str:
    """Draw measured links, as ``dptrace links -o`` writes them, as one HTML page."""
    charts = {"time": time_chart(content), "rate": rate_chart(content)}
    tables = list(algorithm_tables(content))
    if tables:
        charts["algorithms"] = algorithms_chart(content)
    parts = [
        Section(f"chart-{name}", chart.title, live_charts(chart, name), None, chart.message or chart.subtitle)
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
    return section_page(head, answer + sections(parts), chart_plots(charts))


def _formulas(content: Mapping[str, Any]) -> TextTable:
    """List for each collective with a fit what n counts, the algorithm, and its time by alpha and beta."""
    lines = []
    for kind, found in content["collectives"].items():
        if link := found["link"]:
            assumed = " (assumed: NCCL chooses the algorithm)" if link["assumed"] else ""
            lines.append((label(kind), str(found["counted"]), f"{link['algorithm']}{assumed}", str(link["formula"])))
    return TextTable(("collective", "n is", "algorithm", "time"), tuple(lines), 4)
