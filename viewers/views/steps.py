"""Views of steps: their parts, idle time, ranks by steps, findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import ExposedWait, exposed_parts
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.kernels.attribution import launch_figures
from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures, StepGrid, step_grid
from dptrace.analysis.per_gpu.split import (
    COMPUTE,
    EXPOSED_LABELS,
    PART_LABELS,
    UNKNOWN_PHASE,
    Part,
    overlap_percent,
    waiting_label,
)
from dptrace.core.intervals import Int64
from dptrace.core.units import milliseconds, sanitize
from dptrace.replay.findings import findings_of
from dptrace.run.columns import HEADINGS, shown_figures
from dptrace.run.nodes import Node, nodes_first
from dptrace.run.notable_ranks import HELD_UP, MANY, ranks_first
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import (
    DENSE,
    FLAT,
    NO_STEP,
    TALL,
    Bar,
    RowLayout,
    bar_chart,
    rank_labels,
    share,
    step_waits,
    with_steps,
)
from dptrace.viewers.base.marks import Axis, Box, Drawing, Label, message, time_axis
from dptrace.viewers.base.table import (
    GAIN_UNKNOWN,
    TextTable,
    figure_words,
    gains_known,
    order_sentence,
    step_label,
    wait_cell,
)
from dptrace.viewers.base.theme import dark_color
from dptrace.viewers.views.registry import View

# A bar of the parts of a step, and its row in a table: shared by the views of steps.


StepFigures: TypeAlias = Mapping[str, float | None]
"""The figures of a step and those of waiting, in ns; one that is not known is None."""


def step_bar(figures: StepFigures, tick: str, name: str, head: str = "", rank: int | None = None) -> Bar:
    """Return the bar of a step's figures; its text is the wall time, which its parts add up to.

    Args:
        rank: the rank that the step waits for, if one stands out.
    """
    parts: list[tuple[str, float, str]] = []
    for part, color in theme.PART_COLORS.items():
        ns, label = figures[f"{part.name.lower()}_ns"], PART_LABELS[part]
        if ns is None and part is Part.OTHER:
            ns, label = figures[COMPUTE], UNKNOWN_PHASE
        parts += exposed_bar_parts(ns or 0, figures, rank) if part is Part.EXPOSED_COMM else [(label, ns or 0, color)]
    return Bar(tick, name, parts, under=figures["overlapped_comm_ns"] or 0, head=head)


def exposed_bar_parts(exposed_ns: float, waits: StepFigures, rank: int | None) -> Iterator[tuple[str, float, str]]:
    """Yield exposed communication as parts of a bar: transfer, what lacks a rank, and waiting."""
    parts = exposed_parts(exposed_ns, waits)
    wait = parts.pop("exposed_wait_ns", None)
    yield from ((EXPOSED_LABELS[name], ns, theme.EXPOSED) for name, ns in parts.items())
    if wait is not None:
        yield waiting_label(rank), wait, theme.WAITING


def columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of figures by their names, and of the overlap."""
    return *(HEADINGS[name].heading for name in names), "overlap"


def step_cells(figures: StepFigures, names: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a step's figures and overlap; ? for a wait that is not known."""
    percent = overlap_percent(figures["overlapped_comm_ns"], figures["exposed_comm_ns"])
    cells = ("?" if (ns := figures[name]) is None else milliseconds(ns) for name in names)
    return *cells, "–" if percent is None else f"{percent:.1f} %"


# A bar for each rank: the parts of its mean step.


SUMMARY_TITLE = "Mean step of each rank"


def summary(run: Run, note: str = "") -> Drawing:
    """Draw a bar for each rank, of many for the notable ones and some others: the mean of its steps."""
    means = list(_means(run).items())
    if not means:
        return message(SUMMARY_TITLE, NO_STEP)
    waits, (drawn, some) = step_waits(run), _with_bars(run)
    bars = [step_bar(means[row][1], means[row][0], means[row][0], rank=waits[row].waits_for_most()) for row in drawn]
    text = (note or "Means over the steps. The parts add up to the mean wall time.") + some
    return bar_chart(SUMMARY_TITLE, text, bars, TALL if len(bars) <= DENSE else FLAT)


def _with_bars(run: Run) -> tuple[list[int], str]:
    """Return the places of the devices with steps that a picture has bars for, and a sentence if it lacks some."""
    order = [place for place, _ in _in_order(run, MAX_BARS)]
    text = f" Of {len(order):,} ranks, {MAX_BARS} have a bar, the notable ones first."
    return order[:MAX_BARS], text if len(order) > MAX_BARS else ""


def summary_table(run: Run, many: int = MANY) -> TextTable:
    """Return the figures of each rank's mean step, in ms.

    Args:
        many: number of GPUs above which the table begins with the notable ones.
    """
    found = list(_means(run).items())
    names = shown_figures([figures for _, figures in found])
    rows = tuple(
        (_with_reason(found[place][0], why), *step_cells(found[place][1], names)) for place, why in _in_order(run, many)
    )
    return TextTable(("rank", *columns(names)), rows, 1, "In ms, means over the steps." if rows else NO_STEP)


def _in_order(run: Run, many: int = MANY) -> Iterator[tuple[int, str]]:
    """Yield the place of each device with steps in the order of a table, which of many begins with notable ones."""
    place = {id(device): number for number, device in enumerate(with_steps(run))}
    firsts = ((place.get(id(run.devices[one.index])), one.why) for one in ranks_first(run, many))
    yield from ((number, why) for number, why in firsts if number is not None)


def _with_reason(rank: str, why: str) -> str:
    return f"{rank} ({why})" if why else rank


def _means(run: Run) -> dict[str, StepFigures]:
    """Return the figures of each rank's mean step."""
    devices = with_steps(run)
    grid = step_grid(devices)
    means = {name: [None if np.isnan(ns) else ns for ns in grid.mean(name).tolist()] for name in grid.figures}
    waits = [wait.mean() for wait in step_waits(run)]
    return {
        rank: {name: values[row] for name, values in means.items()} | waits[row]
        for row, rank in enumerate(rank_labels(run, devices))
    }


SUMMARY_VIEW = View("summary", SUMMARY_TITLE, summary_table, summary)


# A bar for each node: the parts of its mean step.


NODES_TITLE = "Mean step of each node"
NO_NODES = "The recording does not say which ranks share a node, or they share one, or none."


def nodes(run: Run) -> Drawing:
    """Draw a bar for each node, of many for the first: those with a rank that others wait for, and some others."""
    found = nodes_first(run)
    if not found:
        return message(NODES_TITLE, NO_NODES)
    bars = [step_bar(node.mean_step(run), node.name, node.label(run)) for node in found[:MAX_BARS]]
    text = "Means over the steps and the ranks of a node. Where a node holds others up, its ranks wait least."
    text += f" Of {len(found):,} nodes, {MAX_BARS} have a bar." if len(found) > MAX_BARS else ""
    return bar_chart(NODES_TITLE, text, bars, TALL if len(bars) <= DENSE else FLAT)


def nodes_table(run: Run) -> TextTable:
    """Return the ranks of each node and the figures of its mean step, in ms."""
    found = nodes_first(run)
    means = [node.mean_step(run) for node in found]
    names = shown_figures(means)
    rows = tuple(
        (
            _with_reason(node.name, HELD_UP if node.is_late else ""),
            node.numbers(run),
            "?" if (least := node.least_waiting(run)) is None else f"rank {least}",
            *step_cells(figures, names),
        )
        for node, figures in zip(found, means, strict=True)
    )
    note = "In ms, means over the steps and the ranks of a node." if rows else NO_NODES
    return TextTable(("node", "ranks", "waits least", *columns(names)), rows, 3, note)


NODES_VIEW = View("nodes", NODES_TITLE, nodes_table, nodes, in_report=True, concerns=lambda run: bool(nodes_first(run)))


# A bar for each rank and step: its parts, which add up to its wall time.


TITLE = "Breakdown of each step"
NOTE = "In ms. The parts up to idle add up to wall; waiting and missing ranks are parts of exposed communication."
MAX_BARS = 96
"""Number of bars above which each is a rank's mean step; of more ranks, the notable ones and others have one."""


def breakdown(run: Run) -> Drawing:
    """Draw a bar for each rank and step, or for each rank's mean step where there would be too many."""
    devices = with_steps(run)
    if not devices:
        return message(TITLE, NO_STEP)
    bars = sum(len(device.split.names) for device in devices)
    if bars > MAX_BARS:
        return summary(run, f"{bars} steps of all ranks are too many for a bar each: a bar is the mean of a rank's.")
    drawn = []
    for rank, device, wait in zip(rank_labels(run, devices), devices, step_waits(run), strict=True):
        several = len(device.split.names) > 1
        for k, (name, figures) in enumerate(_steps(device, wait)):
            step, head = f"step {name}", rank if several and not k else ""
            waits_for = int(wait.waits_for[k])
            drawn.append(step_bar(figures, step if several else rank, f"{rank}, {step}", head, waits_for))
    subtitle = "The parts of each step add up to its wall time."
    return bar_chart(TITLE, subtitle, drawn, TALL if bars <= DENSE else FLAT + 3)


def breakdown_table(run: Run) -> TextTable:
    """Return the figures of each rank and step, in ms, with the node of each rank where there are several."""
    devices, waits = with_steps(run), step_waits(run)
    labels, node = (
        rank_labels(run, devices),
        {t.rank: node for t, node in zip(run.timelines, run.nodes, strict=True)},
    )
    of_rank = [(node[device.timeline.rank],) if any(node.values()) else () for device in devices]
    found = [
        ((_with_reason(labels[place], why), *of_rank[place], name), figures)
        for place, why in _in_order(run)
        for name, figures in _steps(devices[place], waits[place])
    ]
    names = shown_figures([figures for *_, figures in found])
    rows = tuple((*where, *step_cells(figures, names)) for where, figures in found)
    where = ("rank", *(("node",) if any(node.values()) else ()), "step")
    return TextTable((*where, *columns(names)), rows, len(where), NOTE if rows else NO_STEP)


def _steps(device: DeviceFigures, wait: ExposedWait) -> Iterator[tuple[str, StepFigures]]:
    """Yield the name of each step, and its figures."""
    for k, name in enumerate(device.split.names):
        yield step_label(name), {**device.split.step(k), **wait.step(k)}


BREAKDOWN_VIEW = View("breakdown", TITLE, breakdown_table, breakdown, in_report=True)


# A map of ranks by steps: wall time, exposed communication, waiting and idle time; more is darker.


_Rgb: TypeAlias = tuple[int, int, int]
_Look: TypeAlias = tuple[str, str, tuple[str, str]]
"""Color and text color of a cell, on a light and on a dark page."""

HEATMAP_TITLE = "Ranks by steps"
_PALE = (244, 246, 249)
"""Red, green and blue of the least value on a light page."""
_DARK = {"wall_ns": (27, 79, 156), "exposed_comm_ns": (190, 36, 24), "idle_ns": (55, 65, 81)}
_DARK["exposed_wait_ns"] = (92, 74, 110)
_DIM = (31, 38, 48)
"""As ``_PALE``, on a dark page."""
_BRIGHT = {"wall_ns": (127, 178, 245), "exposed_comm_ns": (255, 122, 107), "idle_ns": (190, 199, 210)}
_BRIGHT["exposed_wait_ns"] = (196, 176, 220)
_MISSING: _Look = ("#FFFFFF", "#9CA3AF", (dark_color("#FFFFFF"), dark_color("#9CA3AF")))
_NAMES = {
    "wall_ns": "Wall time",
    "exposed_comm_ns": "Exposed communication",
    "exposed_wait_ns": "Waiting",
    "idle_ns": "Idle",
}
"""The maps; that of waiting only where any wait is known."""
_HEAD = 26.0
"""Height of the names of columns, in pixels."""
_GAP = 0.06
"""Space between two maps, as a share of the width of one."""
_LEAST_SPAN = 0.1
"""Least span of the colors, as a share of the median wall time: a thousandth must not look like a straggler."""
_LEAST_SHARE = 0.2
"""Least share of the step that the darkest color stands for."""
_MOST_NAMES = 12
"""Of steps along the axis."""
_MOST_ROWS = 128
"""Rows of a map; of more ranks, several share one."""
BY_NODE = 64
"""GPUs above which a row of the map is a node, where nodes are known."""


def heatmap(run: Run) -> Drawing:
    """Draw the maps side by side, with a cell for each rank and step."""
    devices = with_steps(run)
    if not devices:
        return message(HEATMAP_TITLE, NO_STEP)
    rank_step_grid, labels = step_grid(devices), rank_labels(run, devices)
    waits = _Waits.of(rank_step_grid, devices, step_waits(run))
    names = [name for name in _NAMES if name != "exposed_wait_ns" or waits.known.any()]
    if not rank_step_grid.total("wall_ns"):
        return message(HEATMAP_TITLE, "The steps of this run have no length.")
    in_rows = nodes_first(run) if len(devices) > BY_NODE else ()
    rows, labels = _rows_of_map(run, labels, in_rows)
    height = 24.0 if len(labels) <= 32 else 12.0 if len(devices) <= _MOST_ROWS or len(labels) < _MOST_ROWS else 6.0
    every = 1 if height >= 12 else 4
    ticks = [(_HEAD + (row + 0.5) * height, label) for row, label in enumerate(labels) if row % every == 0]
    bottom = _HEAD + height * len(labels)
    marks: list[Box | Label] = []
    for index, name in enumerate(names):
        marks += _map(rank_step_grid, waits, (labels, rows), name, index * (1 + _GAP), height)
    y = Axis(0, bottom, tuple(ticks), grid=False)
    text = "Each map has its own scale; darker is more. Shares are of the step's wall time."
    text += (
        f" Of the ranks of a {'node' if in_rows else 'row'}, the one farthest from the median is shown."
        if len(rows) < len(devices)
        else ""
    )
    return Drawing(HEATMAP_TITLE, text, _heatmap_steps(rank_step_grid, len(names)), y, bottom, tuple(marks), right=16)


def _rows_of_map(run: Run, labels: list[str], nodes: Sequence[Node]) -> tuple[list[NDArray[np.intp]], list[str]]:
    """Return which GPUs share a row, and its label: one, those of a node, or of many several."""
    nodes = sorted(nodes, key=lambda node: node.indices[0])
    place = {id(device): number for number, device in enumerate(with_steps(run))}
    units = [np.array([place[id(run.devices[index])] for index in node.indices]) for node in nodes]
    names = [node.label(run) for node in nodes]
    units, names = (units, names) if nodes else (list(np.arange(len(labels))[:, None]), labels)
    shared = np.array_split(np.arange(len(units)), min(len(units), _MOST_ROWS))
    rows = [np.concatenate([units[number] for number in own]) for own in shared]
    ends = ["" if len(own) == 1 else f" to {names[own[-1]].removeprefix('rank ')}" for own in shared]
    return rows, [names[own[0]] + end for own, end in zip(shared, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class _Waits:
    """Waiting of each GPU in each step, in the rows and columns of the grid."""

    wait_ns: Int64
    known: NDArray[np.bool_]
    waits_for: Int64
    """The rank that it waits for, or -1."""

    @classmethod
    def of(cls, rank_step_grid: StepGrid, devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> _Waits:
        shape = rank_step_grid.present.shape
        wait_ns, known, waits_for = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.full(shape, -1, np.int64)
        column = {name: index for index, name in enumerate(rank_step_grid.steps)}
        for row, (device, wait) in enumerate(zip(devices, waits, strict=True)):
            columns = [column[name] for name in device.split.names]
            np.add.at(wait_ns[row], columns, wait.wait_ns)
            known[row, columns], waits_for[row, columns] = wait.known, wait.waits_for
        return cls(wait_ns, known, waits_for)

    def share(self, rank_step_grid: StepGrid) -> NDArray[np.float64]:
        """Return waiting as a share of the step's wall time, from 0 to 1; NaN where it is not known."""
        wall = rank_step_grid.figures["wall_ns"]
        return np.where(self.known & (wall > 0), self.wait_ns / np.maximum(wall, 1), np.nan)


def _heatmap_steps(rank_step_grid: StepGrid, maps: int) -> Axis:
    count = len(rank_step_grid.steps)
    every = -(-count // _MOST_NAMES)
    ticks = [
        (index * (1 + _GAP) + (step + 0.5) / count, step_label(name))
        for index in range(maps)
        for step, name in enumerate(rank_step_grid.steps)
        if step % every == 0
    ]
    return Axis(0, maps + (maps - 1) * _GAP, tuple(ticks), "step", grid=False)


def _values(rank_step_grid: StepGrid, waits: _Waits, name: str) -> NDArray[np.float64]:
    """Return what a map shows: ns of wall time, or a share of it; NaN where there is nothing to show."""
    if name == "exposed_wait_ns":
        return waits.share(rank_step_grid)
    values = rank_step_grid.figures["wall_ns"].astype(np.float64) if name == "wall_ns" else rank_step_grid.share(name)
    return np.where(rank_step_grid.present, values, np.nan)


def _map(
    rank_step_grid: StepGrid,
    waits: _Waits,
    rows: tuple[list[str], list[NDArray[np.intp]]],
    name: str,
    left: float,
    height: float,
) -> list[Box | Label]:
    values, ranks = _values(rank_step_grid, waits, name), rank_step_grid.device_ids
    away = np.nan_to_num(np.abs(values - np.nanmedian(values)), nan=-1)
    low, high = _span(name, values)
    ends = _words(name, float(np.nanmin(values))), _words(name, float(np.nanmax(values)))
    heading = f"{_NAMES[name]}: {ends[0]}" + (f" to {ends[1]}" if ends[0] != ends[1] else "")
    marks: list[Box | Label] = [Label(left - 0.005, 12, heading, "#111827", bold=True)]
    width = 1 / len(rank_step_grid.steps)
    for number, (label, own) in enumerate(zip(*rows, strict=True)):
        top = _HEAD + number * height
        for step, step_name in enumerate(rank_step_grid.steps):
            row = int(own[np.argmax(away[own, step])])
            at, value = left + step * width, values[row, step]
            missing = bool(np.isnan(value))
            look = _MISSING if missing else _color(name, (value - low) / (high - low))
            word = "–" if missing else _words(name, float(value))
            known = f"{_NAMES[name]} {'unknown' if missing else word}"
            what = known if rank_step_grid.present[row, step] else "not there"
            who = label if len(own) == 1 else f"rank {ranks[row][0]}"
            tip = f"{who}, step {step_label(step_name)}: {what}"
            if name == "exposed_wait_ns" and value > 0 and (rank := waits.waits_for[row, step]) >= 0:
                tip += f", for rank {rank}"
            edge = width * 0.02
            texts = word, word.split(" ")[0]
            marks.append(Box(at + edge, at + width - edge, top + 1, top + height, look[0], tip, texts, *look[1:]))
    return marks


def _span(name: str, values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if name != "wall_ns":
        return 0.0, max(high, _LEAST_SHARE)
    return low, max(high, low + _LEAST_SPAN * float(np.nanmedian(values)), low + 1)


def _words(name: str, value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{milliseconds(value)} ms" if name == "wall_ns" else f"{100 * value:.1f} %"


def _color(name: str, share: float) -> _Look:
    """Return the color for a share of the span and of text on it, then both on a dark page, where more is brighter."""
    return *_mixed(_PALE, _DARK[name], share, 140), _mixed(_DIM, _BRIGHT[name], share, 122)


def _mixed(none: _Rgb, all_: _Rgb, share: float, light_from: int) -> tuple[str, str]:
    mixed = [round(start + (end - start) * share) for start, end in zip(none, all_, strict=True)]
    light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]
    return "#" + "".join(f"{channel:02X}" for channel in mixed), "#111827" if light > light_from else "#FFFFFF"


def heatmap_table(run: Run) -> TextTable:
    """Return a row for each rank: its wall time in each step, and its shares over all steps."""
    devices = with_steps(run)
    rank_step_grid = step_grid(devices)
    shares_of_all = {name: _of_all(rank_step_grid, name) for name in ("exposed_comm_ns", "idle_ns")}
    waits = step_waits(run)
    known = any(wait.known.any() for wait in waits)
    rows = []
    for row, label in enumerate(rank_labels(run, devices)):
        steps = zip(rank_step_grid.figures["wall_ns"][row].tolist(), rank_step_grid.present[row].tolist(), strict=True)
        walls = (milliseconds(wall) if there else "–" for wall, there in steps)
        exposed, idle = (_words(name, of_all[row]) for name, of_all in shares_of_all.items())
        waiting = [_waiting(waits[row], rank_step_grid.figures["wall_ns"][row])] if known else []
        rows.append((label, *walls, exposed, *waiting, idle))
    shares = ("exposed", *(("waiting",) if known else ()), "idle")
    columns = ("rank", *map(step_label, rank_step_grid.steps), *shares)
    return TextTable(
        columns, tuple(rows), 1, "Wall time of each step in ms; shares are of all steps." if rows else NO_STEP
    )


def _waiting(wait: ExposedWait, wall_ns: Int64) -> str:
    """Return waiting as a share of all of a GPU's steps; a dash where none is known."""
    ns, wall = wait.total()["exposed_wait_ns"], int(wall_ns.sum())
    return "–" if ns is None or not wall else _words("exposed_wait_ns", ns / wall)


def _of_all(rank_step_grid: StepGrid, name: str) -> list[float]:
    """Return a figure of each GPU as a share of all of its steps; NaN where their wall time is 0."""
    figure, wall = rank_step_grid.mean(name), rank_step_grid.mean("wall_ns")
    shares: list[float] = np.where(wall > 0, figure / np.maximum(wall, 1), np.nan).tolist()  # NaN where unknown
    return shares


HEATMAP_VIEW = View("heatmap", HEATMAP_TITLE, heatmap_table, heatmap, in_report=True)


# Bars of idle time by cause: the mean of each rank's steps.


IDLE_TITLE = "Idle time by cause"
NOT_IDLE = "No GPU was idle in a step of this run."


_CAUSES = {cause.name: cause.label for cause in IDLE_CAUSES}


def idle(run: Run) -> Drawing:
    """Draw each rank's idle time by cause: the mean of its steps."""
    devices = with_steps(run)
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return message(IDLE_TITLE, NOT_IDLE if devices else NO_STEP)
    if why := next((device.split.unknown[CAUSES[0]] for device in devices if CAUSES[0] in device.split.unknown), ""):
        return message(IDLE_TITLE, f"Why GPUs were idle is unknown, because {why}.")
    bars, labels, (drawn, some) = list[Bar](), rank_labels(run, devices), _with_bars(run)
    for row in drawn:
        means = devices[row].mean_idle()
        parts = [(name, means[c] or 0.0, theme.CAUSE_COLORS[c]) for c, name in _CAUSES.items()]
        bars.append(Bar(labels[row], labels[row], parts))
    subtitle = f"Mean of each rank's steps. Shares are of its idle time.{some}"
    return bar_chart(IDLE_TITLE, subtitle, bars, TALL if len(bars) <= DENSE else FLAT)


def idle_table(run: Run) -> TextTable:
    """Return each rank's idle time by cause, in ms."""
    devices = with_steps(run)
    rows = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means = device.mean_idle()
        rows.append((label, *map(wait_cell, (*(means[cause] for cause in CAUSES), device.split.mean()["idle_ns"]))))
    columns = ("rank", *_CAUSES.values(), "idle")
    note = f"In ms, means over the steps. {_queues(run)}".strip()
    return TextTable(columns, tuple(rows), 1, note if rows else NO_STEP)


def _queues(run: Run) -> str:
    """Describe how far the hosts run ahead of the devices: where queues are empty, idle time is theirs."""
    figures = [launch_figures(timeline) for timeline in run.timelines]
    known = [one for one in figures if one.empty_queue_share is not None and one.queue_depth_p50 is not None]
    if not known:
        return ""
    starved = max(known, key=lambda one: one.empty_queue_share or 0)
    depth = float(np.median([one.queue_depth_p50 or 0 for one in known]))
    text = f"When the host launches, {depth:.0f} kernels are queued (median)"
    return f"{text}; on rank {starved.rank}, {share(starved.empty_queue_share or 0, 1)} of launches find none."


IDLE_VIEW = View("idle", IDLE_TITLE, idle_table, idle, in_report=True)


# Bars of findings by what a step gains without each, or the time that they count where that is not known.


FINDINGS_TITLE = "Findings by what a step would gain"
NO_FINDING = "No finding takes 1 % of a step or more."
_GAIN = "#5B6472"
"""Color of what is not a part of a step."""


def findings(run: Run) -> Drawing:
    """Draw the gain of each finding per step, in the order of the terminal."""
    found = findings_of(run)
    if not found:
        return message(FINDINGS_TITLE, NO_FINDING if with_steps(run) else NO_STEP)
    rows, known = RowLayout(TALL), gains_known(found)
    marks: list[Box | Label] = []
    for finding in found:
        top = rows.row(_place(finding))
        ns, share = finding.figure
        text = f"{milliseconds(ns)} ms · {100 * share:.1f} % of the step"
        if not finding.has_gain:
            text, ns = f"{GAIN_UNKNOWN}; counts {text}", 0 if known else ns
        tip = f"{finding.text} → {finding.advice}"
        marks.append(Box(0, max(ns, 0), top, top + rows.height, _GAIN, tip))
        marks.append(Label(max(ns, 0), top + rows.height / 2, text))
    longest = max(1, *(finding.figure[0] for finding in found if finding.has_gain or not known))
    subtitle = "Each at the rank and step where it takes most, by what a step would gain once those above it are gone."
    return Drawing(FINDINGS_TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), right=220)


def _place(finding: Finding) -> str:
    """Return the name of a finding and where to look for it."""
    where, kind = finding.evidence, finding.kind.replace("_", " ").replace("comm", "communication")
    words = [kind.replace("host bound", "host-bound")]
    if finding.kind == "exposed_comm" and where.collective:
        words = [f"exposed {where.collective}"]
    elif finding.kind != "straggler" and where.collective:
        words.append(where.collective)
    rank, step = where.rank, where.step
    places = [f"rank {rank}"] if rank is not None else []
    places += [f"step {step_label(step)}"] if step else []
    return sanitize(" · ".join([*words, *([", ".join(places)] if places else [])]))


def findings_table(run: Run) -> TextTable:
    """Return each finding with its gain, or what it counts, its text and its advice."""
    found = findings_of(run)
    known = gains_known(found) or not found
    rows = tuple((*_figure(f, known), f.text, f.advice) for f in found)
    nothing = NO_FINDING if with_steps(run) else NO_STEP
    note = order_sentence(found) if rows else nothing
    return TextTable(("gain" if known else "counted", "of the step", "what", "what to do"), rows, 4, note)


def _figure(finding: Finding, known: bool) -> tuple[str, str]:
    figure, of_step = figure_words(finding, known)
    return figure, f"{100 * finding.figure[1]:.1f} %" if of_step else f"{milliseconds(finding.counted_ns)} ms counted"


FINDINGS_VIEW = View("findings", FINDINGS_TITLE, findings_table, findings, shows_cross_rank=True)
