"""Layers by time: when each layer's forward, backward and collectives ran in one step of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dptrace.analysis.kernels.attribution import attribute
from dptrace.analysis.kernels.grouping import layers_of
from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.core.intervals import Int64, union
from dptrace.core.units import milliseconds
from dptrace.errors import DptraceError
from dptrace.run.kernels import kernel_summary
from dptrace.run.notable_ranks import middle_step_of
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OPERATOR_CALLS
from dptrace.timeline.model import Kind, Phase, Timeline
from dptrace.viewers.base import theme
from dptrace.viewers.base.format import rank_label, step_label
from dptrace.viewers.base.marks import Box, Drawing, Entry, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import RowLayout
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "layers", "layers_table"]

TITLE = "Layers by time"
NO_LAYERS = (
    "This run shows no layers. Record it with dptrace record --modules, or with with_stack=True of torch.profiler, "
    "and give its files, not a pipe."
)
MOST = 64
_HEIGHT = 14.0
_FINEST = 2_000
"""Pieces of a row that are closer than this part of the step are drawn as one."""
_COLORS: Mapping[str, tuple[str, str]] = {
    "forward": (PART_LABELS[Part.FORWARD], theme.PART_COLORS[Part.FORWARD]),
    "backward": (PART_LABELS[Part.BACKWARD], theme.PART_COLORS[Part.BACKWARD]),
    "other": ("Optimizer and other compute", theme.PART_COLORS[Part.OPTIMIZER]),
    "communication": ("Collectives", theme.OVERLAPPED),
}


def layers(run: Run) -> Drawing:
    """Draw the step of median length on its first rank: a row per layer, in the order in which they begin."""
    part = middle_step_of(run)
    rows = _rows(part, part.timelines[0]) if part.timelines else []
    if not rows:
        return message(TITLE, NO_LAYERS)
    timeline = part.timelines[0]
    begin, end = int(timeline.windows.bounds[0]), int(timeline.windows.bounds[-1])
    layout, marks = RowLayout(_HEIGHT), list[Box]()
    for name, spans in rows[:MOST]:
        top = layout.row(name)
        marks += _boxes(name, spans, top, begin, end)
    text = f"Rank {rank_label(run, timeline)}, step {step_label(timeline.windows.names[0])}; backward belongs to the "
    text += "layer of its forward."
    text += f" {len(rows) - MOST} layers that begin later are not shown." if len(rows) > MOST else ""
    shown = {what for _, spans in rows[:MOST] for what in spans}
    legend = tuple(Entry(color, label) for what, (label, color) in _COLORS.items() if what in shown)
    return Drawing(TITLE, text, time_axis(end - begin), layout.axis(), layout.y, tuple(marks), legend)


def _boxes(name: str, spans: Mapping[str, tuple[Int64, Int64]], top: float, begin: int, end: int) -> Iterator[Box]:
    """Draw compute in the upper part of a row, collectives in the lower one."""
    for what, (start, stop) in spans.items():
        label, color = _COLORS[what]
        low, high = (_HEIGHT * 0.62, _HEIGHT) if what == "communication" else (0.0, _HEIGHT * 0.58)
        whole = f"{name}: {label.lower()} {milliseconds(int((stop - start).sum()))} ms in the step"
        # Pieces with gaps too small to be seen are one box.
        far = np.flatnonzero(start[1:] - stop[:-1] > (end - begin) / _FINEST)
        edges = np.append(0, far + 1), np.append(far, len(start) - 1)
        for first, last in zip(edges[0].tolist(), edges[1].tolist(), strict=True):
            left, right = max(int(start[first]), begin) - begin, min(int(stop[last]), end) - begin
            if right > left:
                yield Box(left, right, top + low, top + high, color, whole)


def _rows(run: Run, timeline: Timeline) -> list[tuple[str, dict[str, tuple[Int64, Int64]]]]:
    """Return the layers of a step with the times of their work, in the order in which they begin."""
    recorded = run.read_again(timeline, OPERATOR_CALLS) if not run.figures_only else None
    if recorded is None:
        return []
    pieces = attribute(timeline, recorded)
    pieces = pieces.filter(timeline.step[pieces.interval] >= 0)
    names, layer, _ = layers_of(timeline, recorded, pieces)
    start, end = timeline.start_ns[pieces.interval], timeline.end_ns[pieces.interval]
    kind, phase = timeline.kind[pieces.interval], timeline.phase[pieces.interval]
    compute = kind == Kind.COMPUTE
    parts = {
        "forward": compute & (phase == Phase.FORWARD),
        "backward": compute & (phase == Phase.BACKWARD),
        "other": compute & (phase > Phase.BACKWARD),
        "communication": kind == Kind.COMMUNICATION,
    }
    rows = []
    for number, name in enumerate(names):
        own = layer == number
        spans = {what: union(start[own & mask], end[own & mask]) for what, mask in parts.items()}
        spans = {what: span for what, span in spans.items() if len(span[0])}
        if spans:
            rows.append((min(int(begin[0]) for begin, _ in spans.values()), name, spans))
    return [(name, spans) for _, name, spans in sorted(rows, key=lambda row: row[:2])]


def layers_table(run: Run) -> TextTable:
    """Return forward, backward, recomputation and collectives of each layer, mean per device and step."""
    steps = max(sum(len(timeline.windows) for timeline in run.timelines), 1)
    try:
        found = kernel_summary(run, "layer").rows if run.timelines else []
    except DptraceError:
        found = []
    if all(row["layer"].startswith("(") for row in found):
        found = []
    columns = ("forward_ns", "backward_ns", "recompute_ns", "communication_ns", "exposed_comm_ns")
    rows = tuple((row["layer"], *(f"{row[name] / steps / 1e6:.3f}" for name in columns)) for row in found)
    headings = "layer", "forward ms", "backward ms", "recompute ms", "collectives ms", "exposed ms"
    return TextTable(headings, rows, 1, "Mean per rank and step." if rows else NO_LAYERS)


VIEW = View("layers", TITLE, layers_table, layers)
