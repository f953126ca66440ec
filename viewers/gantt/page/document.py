"""The Gantt page: one self-contained HTML file of a run, or a page that a server feeds if the run is very large.

Bokeh provides the figures, their ranges, drag and the minimap's window. static/drawing/raster.js draws the intervals
between Bokeh's canvases, from the exact sums of static/data/lod.js, and static/drawing/axis.js the axis::

    from dptrace.viewers.gantt.page.document import document
    html = document(dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.model import Model
from bokeh.models import PanTool, Range1d, RangeTool
from bokeh.plotting import figure
from bokeh.resources import Resources

from dptrace.analysis.per_gpu.split import UNKNOWN_PHASE, Part
from dptrace.core.units import duration
from dptrace.errors import DptraceError
from dptrace.replay.critical_path import CriticalPath
from dptrace.run.notable_ranks import MANY, ranks_first
from dptrace.run.run import Run
from dptrace.viewers.base.headline import Headline, drawn_headline
from dptrace.viewers.base.page import Markup, bundle, page, static
from dptrace.viewers.gantt.chart import Chart, chart, unknown_figures, why_unknown
from dptrace.viewers.gantt.finding_places import finding_places
from dptrace.viewers.gantt.gaps import named_gaps
from dptrace.viewers.gantt.host import host_data, host_notes, kind_looks
from dptrace.viewers.gantt.page.data import (
    collective_entries,
    details,
    few_ranks,
    layout,
    rank_reasons,
    row_orders,
    scene,
    with_memory,
)
from dptrace.viewers.gantt.tiles.answers import first_view
from dptrace.viewers.gantt.tiles.merged import MergedChart, merge_intervals
from dptrace.viewers.gantt.tiles.store import Files, TileStore, kept_store

MAX_INTERVALS = 3_000_000
"""Intervals of a page in one file at most: about 30 MB, which a browser opens in about a second. Of a run with more,
the short ones are merged, to a third as many: a file that can be sent around."""

_IN_FILE = 2 * MANY
"""GPUs in a file of a run that is too large for one: as many as make a page open with the notable ones."""
_LANES = 3
"""Intervals of a chart for each of the run's, about."""

_NOTHING = Markup("")
_RIGHT = 44
"""Right margin in pixels, for half of the last tick's label."""
_MAX_SPAN = 3
"""Multiple of the longest rank's time that the chart may span before a note says that the clocks differ."""
_SHORTEST_VIEW = 200
"""In ns; below the resolution of any trace."""
_MERGED_VIEW = 1_000
"""Least number of merged cells in a view, so that none is wider than a pixel or two."""
_OTHERWISE = "To view all of it, omit -o or add --serve."
_NO_PATH = "Larger pages, and served ones, do not draw critical paths."
_MAX_HEIGHT = 640
"""Height of the frame in pixels until the page has measured its window."""
_MINIMAP_ROW, _MINIMAP_MIN, _MINIMAP_MAX = 6, 24, 64
"""Height in pixels of a row of the minimap, and of the whole minimap."""


def document(
    run: Run, gantt_chart: Chart | None = None, embedded: bool = False, path: CriticalPath | None = None
) -> str:
    """Draw a run as one HTML page.

    Args:
        gantt_chart: the run's chart, if it already exists.
        path: the critical path of a step to draw over the rows.
        embedded: for a frame in another page: the chart fits the frame, and the wheel zooms with Ctrl only.

    Raises:
        DptraceError: the run has no step, or more collectives than a page can hold.
    """
    everyone, run = run, run if path is not None or gantt_chart is not None else fitting(run)
    whole = _checked(run, gantt_chart)
    if path is not None and len(whole) > MAX_INTERVALS:
        raise DptraceError(_too_many(run, whole, MAX_INTERVALS, _NO_PATH))
    drawn = merge_intervals(whole, MAX_INTERVALS if len(whole) <= MAX_INTERVALS else MAX_INTERVALS // 3)
    if len(drawn.chart) > MAX_INTERVALS:
        raise DptraceError(_too_many(run, drawn.chart, MAX_INTERVALS))
    page_data = scene(drawn.chart, details(run, whole)) | run_data(run, whole) | {"merged": drawn.resolution_ns}
    add_unknown(page_data, run, whole)
    page_data |= with_memory(run, whole)
    head, host = _headline(run, whole), host_data(run, whole)
    notes = (*_part_notes(everyone, run), *_merged_notes(run, drawn), *head.notes, *host_notes(run, host))
    if path is not None:
        page_data["path"], path_notes = _of_path(run, whole, path)
        notes = (*notes, *path_notes)
    embedding = {"embedded": True} if embedded else {}
    zoom_key = "ctrl" if embedded else ""
    return gantt_page(replace(head, notes=notes), page_data | {"host": host} | embedding, zoom_key=zoom_key)


def _of_path(run: Run, gantt_chart: Chart, path: CriticalPath) -> tuple[dict[str, Any], list[str]]:
    """Return the data of a critical path, and what to say of it."""
    # Only pages with a path need replays.
    from dptrace.viewers.gantt.critical_path import path_data, path_notes

    return path_data(run, gantt_chart, path), path_notes(run, path)


def fitting(run: Run, most: int = 0) -> Run:
    """Return the part of a run that a file holds: of many ranks with too many intervals, the notable and typical ones.

    Merging would fit all of them, to pieces as long as a tenth of a step, whose gaps look like idle time.

    Args:
        most: GPUs above which it is a part, however few intervals there are; 0 for any number.
    """
    is_small = sum(map(len, run.timelines)) <= MAX_INTERVALS // _LANES and len(run.timelines) <= (most or math.inf)
    if len(run.timelines) <= _IN_FILE or is_small:
        return run
    return run.select(ranks=[run.timelines[one.index].rank for one in ranks_first(run)[:_IN_FILE]])


def _part_notes(run: Run, part: Run) -> list[str]:
    """Say which ranks a page holds, where it does not hold all."""
    if part is run:
        return []
    ranks = ", ".join(map(str, part.ranks))
    note = f"This file holds {len(part.ranks)} of {len(run.ranks):,} ranks, the notable and typical ones: {ranks}."
    return [f"{note} All of them: dptrace view {run.path} --serve; others: --ranks."]


def _merged_notes(run: Run, drawn: MergedChart) -> list[str]:
    """Describe what a page with merged short intervals leaves out."""
    if not drawn.left_out:
        return []
    longest = duration(drawn.resolution_ns)
    note = (
        f"{drawn.left_out:,} kernels, operators and copies of up to {longest} are left out of this file, which holds "
        f"their sums for every {longest} instead, and zooms in to {duration(_MERGED_VIEW * drawn.resolution_ns)}. "
        f"Figures of steps are exact, and so are the shares of pixel columns to {longest}. To see each of them: "
        f"dptrace view {run.path} --serve"
    )
    return [note]


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page that asks its server for what it shows."""

    page: str
    files: dict[str, bytes]
    """What it fetches as a whole, by name: details of clicked intervals, in JSON."""
    store: TileStore
    """Answers the rest."""


def served(run: Run, gantt_chart: Chart | None = None, entry: Path | None = None, host: bool = False) -> ServedPage:
    """Draw a run of any size as a page that asks a server for what is on its screen.

    Args:
        gantt_chart: the run's chart, if it already exists.
        entry: the file that keeps the index of the chart, written if it does not exist; without, memory holds it.
        host: show what the host did; the server then has to answer requests for it with ``HostAnswers``.

    Raises:
        DptraceError: the run has no step.
    """

    def contents() -> tuple[Chart, list[Any], Files]:
        whole = _checked(run, gantt_chart)
        return whole, collective_entries(whole), partial(_kept, run, whole)

    store = kept_store(entry, contents)
    head, page_data = json.loads(store.files["page"].tobytes())
    if host:
        page_data["host"] = {"kinds": kind_looks(), "served": True}
    page = gantt_page(Headline(**head), page_data)
    return ServedPage(page, {"details": store.files["details"].tobytes()}, store)


def _kept(run: Run, gantt_chart: Chart, store: TileStore) -> dict[str, bytes]:
    """Return what a served page holds and fetches as a whole, which is kept with its lanes: a run is compared once."""
    page_data = scene(gantt_chart, served=True) | run_data(run, gantt_chart)
    add_unknown(page_data, run, gantt_chart)
    opening = next(iter(page_data["orders"]), None) if page_data["layout"]["collapsed"] else None
    page_data["first"] = first_view(store, page_data["layout"], *_whole(page_data), opening)
    kept = {"page": (asdict(_headline(run, gantt_chart)), page_data), "details": details(run, gantt_chart)}
    return {name: json.dumps(value, separators=(",", ":")).encode() for name, value in kept.items()}


def add_unknown(page_data: dict[str, Any], run: Run, gantt_chart: Chart) -> None:
    """Add to each GPU of a page where its figures are unknown, and why."""
    waits = why_unknown(run)
    for number, (data, track) in enumerate(zip(page_data["tracks"], gantt_chart.tracks, strict=True)):
        starts, ends = track.bounds_ns[:-1], track.step_ends_ns
        data |= unknown_figures(run, number, np.arange(len(starts)), starts, ends, waits)
    if all("forward_ns" in split.unknown for split in run.splits):
        page_data["categories"][Part.OTHER] |= {"label": UNKNOWN_PHASE, "short": "Compute"}
    bounds = {split.bounds.get("idle_ns", "about") for split in run.splits}
    page_data["idleBound"] = bounds.pop() if len(bounds) == 1 and "about" not in bounds else ""


def run_data(run: Run, gantt_chart: Chart) -> dict[str, Any]:
    """Return what a page says of a whole run: its findings, and why waits are unknown, orders of its GPUs."""
    ranks: dict[str, Any] = {"orders": row_orders(run, gantt_chart), "few": few_ranks(run, gantt_chart)}
    ranks["why"] = rank_reasons(run, gantt_chart) if len(gantt_chart.tracks) > 1 else {}
    findings = finding_places(run, gantt_chart)
    ranks["gaps"] = named_gaps(run, gantt_chart, [finding["place"] for finding in findings])
    return {"findings": findings, "unknownWaits": why_unknown(run), **ranks}


def rows_height(run: Run) -> int:
    """Return the height of the rows of a run's chart in pixels, without those of the host."""
    return int(layout(chart(run))["height"])


def gantt_page(
    head: Headline,
    page_data: dict[str, Any],
    above: Markup = _NOTHING,
    below: Markup = _NOTHING,
    styles: str = "",
    zoom_key: str = "",
) -> str:
    """Render the page of a scene.

    Args:
        above, below: content over and under the picture; HTML, escaped already.
        styles: a style sheet for it.
        zoom_key: key to hold while the wheel zooms; without, it always does.
    """
    plot = json_item(_figures(page_data), ID("figure"))
    page_data = page_data | ({"zoomKey": zoom_key} if zoom_key else {})
    low, high = _whole(page_data)
    first = {"from": low, "to": high, "mini": _minimap_height(page_data)}
    return page(
        head,
        static("gantt", "gantt.css") + styles,
        [bundle("gantt", "gantt.js")],
        "gantt/gantt.html",
        page_data.get("served", False),
        {"bokeh": bokeh_script()},
        scene=page_data | {"first": page_data.get("first", {}) | first},
        plot=plot,
        above=above,
        below=below,
    )


def bokeh_script() -> str:
    """Return Bokeh's scripts, joined."""
    return "\n".join(Resources(mode="inline", components=["bokeh"], minified=True, log_level="error").js_raw)


def _headline(run: Run, gantt_chart: Chart) -> Headline:
    """Return the run's headline, with a note where ranks are far apart, which leaves the chart mostly empty."""
    head = drawn_headline(run)
    longest = max(int(track.bounds_ns[-1] - track.bounds_ns[0]) for track in gantt_chart.tracks)
    if gantt_chart.end_ns < _MAX_SPAN * longest:
        return head
    note = "The ranks' times are far apart and drawn as recorded; press [ and ] to go from step to step."
    return replace(head, notes=(*head.notes, note))


def _checked(run: Run, gantt_chart: Chart | None) -> Chart:
    """Return the chart of a run; an empty one is an error."""
    gantt_chart = gantt_chart or chart(run)
    if not gantt_chart.tracks:
        raise DptraceError(f"{run.path}: there is no step to draw.")
    return gantt_chart


def _too_many(run: Run, gantt_chart: Chart, limit: int, otherwise: str = _OTHERWISE) -> str:
    steps = max(len(track.steps) for track in gantt_chart.tracks)
    ranks = len({track.rank for track in gantt_chart.tracks})
    return (
        f"{run.path}: {len(gantt_chart):,} intervals to draw ({ranks} ranks, {steps} steps); one page holds at "
        f"most {limit:,}. Select fewer ranks or steps, for example with --ranks 0,1 or --steps A:B. {otherwise}"
    )


def _whole(page_data: dict[str, Any]) -> tuple[int, int]:
    """Return the range that the page shows first: the whole run and a margin."""
    pad = max(page_data["end"] // 250, _SHORTEST_VIEW)
    return -pad, page_data["end"] + pad


def _minimap_height(page_data: dict[str, Any]) -> int:
    return min(max(_MINIMAP_ROW * len(page_data["tracks"]), _MINIMAP_MIN), _MINIMAP_MAX)


def _figures(page_data: dict[str, Any]) -> Model:
    """Build the Bokeh figures for a scene: the chart's frame, and the minimap above it."""
    low, high = _whole(page_data)
    # Closer, the gaps between the sums of merged intervals would look like idle time.
    shortest = min(max(_SHORTEST_VIEW, _MERGED_VIEW * page_data.get("merged", 0)), high - low)
    shared = Range1d(start=low, end=high, bounds=(low, high), min_interval=shortest)
    main = _main(page_data, shared)
    return column(_minimap(page_data, shared, low, high), main, sizing_mode="stretch_width", spacing=2)


def _frame(name: str, height: int, left: int, x_range: Range1d) -> figure:
    plot = figure(
        name=name,
        frame_height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=Range1d(start=height, end=0),
        tools="",
        toolbar_location=None,
        lod_threshold=None,
        min_border_left=left,
        min_border_right=_RIGHT,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        x_axis_type=None,
        y_axis_type=None,
    )
    # Bokeh warns about a figure without glyphs; the raster is drawn without Bokeh.
    plot.segment([], [], [], [])
    return plot


def _main(page_data: dict[str, Any], shared: Range1d) -> figure:
    layout = page_data["layout"]
    height = min(layout["height"], _MAX_HEIGHT)
    plot = _frame("main", height, layout["left"], shared)
    pan = PanTool(dimensions="width")
    plot.add_tools(pan)
    plot.toolbar.active_drag = pan
    return plot


def _minimap(page_data: dict[str, Any], shared: Range1d, low: int, high: int) -> figure:
    whole, height = Range1d(start=low, end=high), _minimap_height(page_data)
    mini = _frame("mini", height, page_data["layout"]["left"], whole)
    window = RangeTool(x_range=shared)
    # The page draws the window, in each frame; Bokeh moves it.
    window.overlay.update(inverted=True, fill_alpha=0, line_alpha=0)
    mini.add_tools(window)
    return mini


# The Gantt page of the step whose critical path it shows.


def step_document(run: Run, path: CriticalPath) -> str:
    """Draw the path on the chart of its step, or of the whole run where steps have no numbers.

    Raises:
        DptraceError: there are more intervals than a page can hold.
    """
    number = re.search(r"(\d+)$", path.step)
    part = run.select(steps=(int(number[1]), int(number[1]))) if number else run
    return document(part, path=path)
