"""Pages of benchmarks, of measured links and of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dptrace.bench.conclusions import ChartText
from dptrace.bench.table import BenchResult
from dptrace.core.units import duration, plural
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, log_axis, message
from dptrace.viewers.base.page import Markup, Section, chart_sections, pictures, section_page, sections
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

# The page of a benchmark: conclusions, six charts and the table.


def bench_document(result: BenchResult, charts: Sequence[tuple[ChartText, Drawing]]) -> str:
    """Draw a benchmark as one HTML page."""
    parts = []
    for chart, drawing in charts:
        text = Markup("").join(Markup("<li>{}</li>").format(sentence) for sentence in chart.sentences)
        sentences = Markup('<ul class="sentences">{}</ul>').format(text) if chart.sentences else Markup("")
        parts.append(Section(chart.name, chart.title, sentences + pictures(drawing), None, chart.missing))
    parts.append(Section("table", "All runs", cells=bench_table.text_table(result.rows, _TABLE_NOTE), open=True))
    answer = next((chart.sentences[0] for chart, _ in charts if chart.sentences), "")
    versions = result.machine.get("versions", {})
    of_versions = [f"{name} {versions[name]}" for name in ("torch", "cuda", "nccl") if versions.get(name)]
    about = (plural(len(result.rows), "row"), *result.machine.get("devices", []), *of_versions)
    head = Headline(result.title, "", about, (*result.notes, *bench_table.failures(result.rows)))
    above = Markup('<p class="answer">{}</p>').format(answer) if answer else Markup("")
    return section_page(head, above + sections(parts))


_TABLE_NOTE = (
    "Epoch: the median of all timed epochs, without the profiler; ± spread: half the distance between its quartiles. "
    "Communication, overlap and exposed share: from a separate, recorded run. Speedup: T₁ / T(N). "
    "Efficiency: T₁ / (N·T(N)). Amdahl: f = T₁ / (T₁ + communication) of the naive run, ceiling 1 / ((1 − f) + f/N)."
)


# The page of measured links, and its charts over the size of a message, on log axes.


_ALGORITHMS_STYLE = {**theme.ALGORITHM_STYLES, LIBRARY: ("#4B5563", "square")}
_KIND_STYLE = {
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
"""Of a chart, in pixels."""
_NOTHING = "No collective was measured."

_Row: TypeAlias = Mapping[str, Any]


def _over_size(
    frame: tuple[str, str, str],
    rows: Mapping[str, Sequence[_Row]],
    y: Axis,
    value: Callable[[_Row], float],
    line: Callable[[_Row], float | None],
    extra: Callable[[str, str], Iterable[Dot | Line | Label]] = lambda name, color: (),
    dash: str = "",
) -> Drawing:
    """Draw a point for each size of what was measured, and a line.

    Args:
        frame: the title, what is drawn, and the title of the x axis.
        rows: by kind of collective or algorithm.
        extra: further marks of a kind, in its color, below its points.
    """
    title, text, across = frame
    marks: list[Dot | Line | Label] = []
    legend = []
    for name, measured in rows.items():
        color, shape = {**_KIND_STYLE, **_ALGORITHMS_STYLE}.get(name, _OTHER)
        placed = ((float(row["bytes"]), line(row)) for row in measured)
        points = tuple((x, at) for x, at in placed if at is not None)
        marks += [*extra(name, color), *([Line(points, color, dash)] if len(points) > 1 else [])]
        marks += (Dot(row["bytes"], value(row), color, _tip(name, row), shape=shape) for row in measured)
        legend.append(Entry(color, label(name), shape))
    sizes = [row["bytes"] for measured in rows.values() for row in measured]
    low, high = min(sizes), max(sizes)
    ticks = [1 << power for power in range(0, 64, 4) if low / 2 <= 1 << power <= high * 2]
    x = Axis(low / 1.5, high * 1.5, tuple((float(tick), size(tick)) for tick in ticks), across, log=True)
    return Drawing(title, text, x, y, _HEIGHT, tuple(marks), tuple(legend))


def _tip(name: str, row: _Row) -> str:
    middle = f"{duration(1e9 * row['quarter_s'])} to {duration(1e9 * row['three_quarters_s'])}"
    text = f"{label(name)}, {size(row['bytes'])}: median {duration(1e9 * row['median_s'])} (middle half {middle})"
    for word in ("fitted", "predicted"):
        text += f", {word} {duration(1e9 * row[f'{word}_s'])}" if row.get(f"{word}_s") else ""
    text += f", busbw {row['busbw_gbps']:.3g} GB/s" if "busbw_gbps" in row else ""
    return f"{text}, {row['count']} timings"


def _ns(name: str) -> Callable[[_Row], float | None]:
    return lambda row: 1e9 * row[name] if row.get(name) else None


def _measured(content: Mapping[str, Any]) -> dict[str, list[_Row]]:
    return {kind: found["measured"] for kind, found in content["collectives"].items()}


def time_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the median time of a call over the message size, with the middle half of the timings and the fit."""
    title, rows = "Time of a message by its size", _measured(content)
    if not rows:
        return message(title, _NOTHING)
    names = ("quarter_s", "median_s", "three_quarters_s")
    times = [1e9 * row[name] for measured in rows.values() for row in measured for name in names]

    def middle_halves(kind: str, color: str) -> Iterator[Dot | Line]:
        for row in rows[kind]:
            yield Line(tuple((float(row["bytes"]), 1e9 * row[name]) for name in names[::2]), color, width=3)
        fit = content["collectives"][kind]["fit"]
        if fit is not None and (crossover := fit["crossover_bytes"]):
            yield Dot(crossover, 1e9 * fit["crossover_s"], color, f"crossover n* = {size(crossover)}", hollow=True)

    text = (
        "Points: medians. Bars: the middle half of the timings. Lines: the fit. Rings: the crossover n*, below which "
        "latency is most of the time."
    )
    y = log_axis(times, duration, "time of one call", upwards=True)
    frame = (title, text, "message size")
    return _over_size(frame, rows, y, lambda row: 1e9 * float(row["median_s"]), _ns("fitted_s"), middle_halves)


def rate_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the bus bandwidth over the message size, and the nominal rate of the most similar known interconnect."""
    title, rows, near = "Bus bandwidth by size", _measured(content), content["nearest"]
    if not rows:
        return message(title, _NOTHING)
    rates = [row["busbw_gbps"] for measured in rows.values() for row in measured]
    rates += [near["bytes_per_s"] / 1e9] if near else []
    text = (
        "Bytes over time, times the factor of nccl-tests, so that kinds and numbers of ranks compare with the rate "
        "of a link. Dashed: the most similar known interconnect."
    )
    y = log_axis(rates, lambda value: f"{value:g}", "bus bandwidth, GB/s", upwards=True)

    def rate(row: _Row) -> float:
        return float(row["busbw_gbps"])

    drawing = _over_size((title, text, "message size"), rows, y, rate, rate)
    if not near:
        return drawing
    known, x = near["bytes_per_s"] / 1e9, drawing.x
    marks = (
        Line(((x.low, known), (x.high, known)), _KNOWN_LINK, "5 4"),
        Label(x.low, known * 1.1, near["name"], _KNOWN_LINK),
    )
    return replace(drawing, marks=(*drawing.marks, *marks))


def algorithms_chart(content: Mapping[str, Any]) -> Drawing:
    """Draw the median time of each algorithm over the size of the tensor, with its prediction as a dashed line."""
    rows = {name: one["measured"] for name, one in content["algorithms"]["all_reduce"].items()}
    if "all_reduce" in content["collectives"]:
        rows[LIBRARY] = content["collectives"]["all_reduce"]["measured"]
    values = [row.get(name) for measured in rows.values() for row in measured for name in ("median_s", "predicted_s")]
    text = (
        "Points: medians. Dashed: predicted from one point-to-point message. The library's all-reduce chooses its "
        "own algorithm."
    )
    y = log_axis([1e9 * value for value in values if value], duration, "time of one all-reduce", upwards=True)
    frame = ("All-reduce algorithms by size", text, "size of the tensor")
    return _over_size(frame, rows, y, lambda row: 1e9 * float(row["median_s"]), _ns("predicted_s"), dash="5 4")


def links_document(content: Mapping[str, Any]) -> str:
    """Draw measured links, as ``dptrace links -o`` writes them, as one HTML page."""
    charts = {"time": time_chart(content), "rate": rate_chart(content)}
    tables = list(algorithm_tables(content))
    if tables:
        charts["algorithms"] = algorithms_chart(content)
    parts = chart_sections(charts)
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


# The page of a sweep.


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
