"""Views over time: the Gantt chart, layers, memory, the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median

import numpy as np

from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline, PipelineStep
from dptrace.analysis.kernels.attribution import attribute
from dptrace.analysis.kernels.grouping import layers_of
from dptrace.analysis.memory.usage import KIND_LABELS, MemoryKind, bytes_by_kind
from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.core.intervals import Int64, union
from dptrace.core.units import byte_size, milliseconds, plural, share
from dptrace.errors import DptraceError
from dptrace.run.kernels import kernel_summary
from dptrace.run.memory import NO_MEMORY, DeviceReport, by_device, device_reports
from dptrace.run.notable_ranks import middle_step_of
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OPERATOR_CALLS
from dptrace.timeline.model import Action, Actions, Kind, Phase, Timeline
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import KIND_COLORS, STACK, TALL, RowLayout, SampledLevels, sample_levels, span_of
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.marks import HEAD, Axis, Box, Dot, Drawing, Entry, Label, Line, message, time_axis
from dptrace.viewers.base.memory_table import CPU_NOTE, device_name, peaks_table
from dptrace.viewers.base.table import TextTable, number_table, rank_label, step_label
from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps import summary_table

# The Gantt chart as a view: ``viewers/gantt`` draws it, its table is that of the summary.


GANTT_VIEW = View("gantt", "Gantt chart", summary_table)


# Layers by time: when each layer's forward, backward and collectives ran in one step of one rank.


LAYERS_TITLE = "Layers by time"
NO_LAYERS = (
    "This run shows no layers. Record it with dptrace record --modules, or with with_stack=True of torch.profiler, "
    "and give its files, not a pipe."
)
MOST = 64
_HEIGHT = 14.0
"""Of a row, in pixels."""
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
        return message(LAYERS_TITLE, NO_LAYERS)
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
    return Drawing(LAYERS_TITLE, text, time_axis(end - begin), layout.axis(), layout.y, tuple(marks), legend)


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
    pieces = pieces.take(timeline.step[pieces.interval] >= 0)
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
    rows = tuple(
        (row["layer"], *("?" if (ns := row[name]) is None else f"{ns / steps / 1e6:.3f}" for name in columns))
        for row in found
    )
    headings = "layer", "forward ms", "backward ms", "recompute ms", "collectives ms", "exposed ms"
    return TextTable(headings, rows, 1, "Mean per rank and step." if rows else NO_LAYERS)


LAYERS_VIEW = View("layers", LAYERS_TITLE, layers_table, layers)


# Memory of each device over time: its kinds stacked, the peak, what is reserved, and calls of the allocator.


MEMORY_TITLE = "Memory over time"
_MEMORY_HEIGHT = 150.0
"""Height of a device's panel, in pixels."""
_ABOVE, _GAP, _TICK = HEAD + 10, 22.0, 7.0
"""Pixels above a panel and below it, and of the marks of the allocator's calls."""
_MOST_DEVICES = 8
"""Of a picture; the others are left out."""
_COLUMNS = 480
"""Columns of all panels together with few devices; more devices have fewer columns each."""
_OVERLAP = 0.2
"""Part of a column that a box covers of the next, so that no line shows between them."""
_APART = 40
"""Two windows are apart by this part of what all take."""
_PEAK, _RESERVED, _CALL = "#374151", "#4B5563", "#D55E00"


def memory(run: Run) -> Drawing:
    """Draw the memory of each device; of a rank with a GPU, only that of its GPUs."""
    reports = _shown(device_reports(run))
    if not reports:
        return message(MEMORY_TITLE, NO_MEMORY)
    devices = by_device(reports)
    drawn = [report for own in devices[:_MOST_DEVICES] for report in own]
    highest = max(max(_high(report), 1) for report in drawn)
    low = min(_floor(report) for report in drawn)
    places, longest = _side_by_side(drawn)
    y, ticks, strong, marks = 4.0, list[tuple[float, str]](), list[float](), list[Box | Dot | Line | Label]()
    for own in devices[:_MOST_DEVICES]:
        panels = [
            _Panel(report, y + _ABOVE, highest, low, max(_COLUMNS // len(drawn), 120), places[id(report)])
            for report in own
        ]
        strong.append(y + HEAD / 2)
        ticks += [(y + HEAD / 2, device_name(own[0])), *panels[0].ticks()]
        marks += [mark for panel in panels for mark in panel.marks()] + [*panels[0].peak(longest)]
        y += _ABOVE + _MEMORY_HEIGHT + _GAP
    axis = Axis(0, y, tuple(ticks), strong=frozenset(strong), grid=False)
    return Drawing(
        MEMORY_TITLE,
        _subtitle(drawn, len(devices)),
        time_axis(longest),
        axis,
        y,
        tuple(marks),
        tuple(_legend(drawn)),
        right=90,
    )


def _shown(reports: Sequence[DeviceReport]) -> list[DeviceReport]:
    with_gpu = {report.rank for report in reports if not report.device.on_cpu}
    return [report for report in reports if not report.device.on_cpu or report.rank not in with_gpu]


def _side_by_side(drawn: Sequence[DeviceReport]) -> tuple[dict[int, int], int]:
    """Return where each report begins on the axis, and how long that is: windows of a rank are one after the other."""
    numbers = {id(report): 0 for report in drawn}
    for own in by_device(drawn):
        ordered = sorted(own, key=lambda report: int(report.device.events.time_ns[0]))
        numbers |= {id(report): number for number, report in enumerate(ordered)}
    lengths = [0] * (max(numbers.values()) + 1)
    for report in drawn:
        start, end = span_of(report)
        lengths[numbers[id(report)]] = max(lengths[numbers[id(report)]], end - start)
    apart = sum(lengths) // _APART if len(lengths) > 1 else 0
    begins = [0, *accumulate(length + apart for length in lengths)]
    return {key: begins[number] for key, number in numbers.items()}, begins[-1] - apart


def _high(report: DeviceReport) -> int:
    reserved = report.device.events.reserved
    return max(report.peak.bytes, int(reserved.max(initial=0)))


def _floor(report: DeviceReport) -> int:
    """Return where the stack begins: below 0 on a CPU whose recording freed what was there before."""
    return min(report.device.baseline_bytes - report.device.freed_preexisting_bytes, 0)


class _Panel:
    """One device in one recording, which begins at *place* on the axis: its kinds stacked over time."""

    def __init__(self, report: DeviceReport, top: float, highest: int, low: int, columns: int, place: int) -> None:
        self.report, self.top, self.bottom = report, top, top + _MEMORY_HEIGHT
        self.low, self.scale = low, _MEMORY_HEIGHT / (highest - low)
        self.start, self.end = span_of(report)
        self.columns: SampledLevels = sample_levels(report.device, self.start, self.end, columns)
        self.edges = place + self.columns.edges
        self.highest, self.place = highest, place

    def y(self, size: float) -> float:
        return self.bottom - (size - self.low) * self.scale

    def x(self, time: int) -> int:
        return self.place + time - self.start

    def ticks(self) -> Iterator[tuple[float, str]]:
        yield self.y(0), "0 B"
        for part in (0.5, 1.0):
            yield self.y(part * self.highest), byte_size(part * self.highest)

    def marks(self) -> Iterator[Box | Dot | Line | Label]:
        yield from self._steps()
        yield from self._stack()
        yield from self._reserved()
        yield from self._calls()

    def _stack(self) -> Iterator[Box]:
        levels: Int64 = bytes_by_kind(self.report.device)[:, self.columns.level]
        below = np.full(levels.shape[1], _floor(self.report), np.int64)
        # What was there before begins at the floor, so that the top of the stack is the total.
        levels[MemoryKind.PREEXISTING] -= _floor(self.report)
        for kind in STACK:
            above = below + levels[kind]
            yield from self._boxes(kind, below, above)
            below = above

    def _boxes(self, kind: MemoryKind, below: Int64, above: Int64) -> Iterator[Box]:
        """Draw a kind as few boxes: columns of the same height are one."""
        name, edges = f"{device_name(self.report)}: {KIND_LABELS[kind]}", self.edges
        same = (np.diff(below) == 0) & (np.diff(above) == 0)
        first = np.flatnonzero(np.append(True, ~same))
        overlap = _OVERLAP * (edges[1] - edges[0])
        for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(below)], strict=True):
            if (size := int(above[begin] - below[begin])) > 0:
                tip = f"{name} {byte_size(size)}, from {edges[begin] / 1e6:.3f} ms"
                top, bottom = self.y(int(above[begin])), self.y(int(below[begin]))
                right = min(edges[end] + overlap, edges[-1])
                yield Box(edges[begin], right, top, bottom, KIND_COLORS[kind], tip)

    def _steps(self) -> Iterator[Line | Label]:
        use = self.report.use
        if len(use.step_ns) != len(use.steps) + 1:
            return
        for name, start in zip(use.steps, use.step_ns.tolist(), strict=False):
            if self.start <= start <= self.end:
                x = self.x(start)
                yield Line(((x, self.top - 4), (x, self.bottom)), theme.CHROME["light"]["edge"], "2 3", 1)
                yield Label(x, self.top - 10, f"step {step_label(name)}")

    def _reserved(self) -> Iterator[Line]:
        reserved = np.append(self.report.device.events.reserved[:1], self.report.device.events.reserved)
        if reserved.any():
            heights = [self.y(size) for size in reserved[self.columns.level].tolist()]
            edges = self.edges.tolist()
            points = [(x, h) for i, h in enumerate(heights) for x in (edges[i], edges[i + 1])]
            yield Line(tuple(points), _RESERVED, "5 3", 1.5)

    def _calls(self) -> Iterator[Line | Dot]:
        use = self.report.use
        if self.report.device.on_cpu:
            return
        for start in use.calls.start_ns.tolist():
            if self.start <= start <= self.end:
                x = self.x(start)
                yield Line(((x, self.bottom), (x, self.bottom + _TICK)), _CALL, "", 2)
        for at in use.failed.time_ns[use.failed.device == self.report.device.device].tolist():
            if self.start <= at <= self.end:
                tip = f"{device_name(self.report)}: out of memory"
                yield Dot(self.x(at), self.top, _CALL, tip, shape="triangle")

    def peak(self, longest: int) -> Iterator[Dot | Label]:
        """Mark the peak, on an axis of this length."""
        peak = self.report.peak
        x, y = float(self.x(min(max(peak.at_ns, self.start), self.end))), self.y(peak.bytes)
        tip = f"{device_name(self.report)}: peak {byte_size(peak.bytes)} in {peak.phase.name.lower()}"
        yield Dot(x, y, _PEAK, tip, shape="diamond")
        late = x > 0.8 * longest
        yield Label(x, y - 9, f"peak {byte_size(peak.bytes)}", side="left" if late else "right", bold=True)


def _subtitle(drawn: Sequence[DeviceReport], devices: int) -> str:
    first = max(drawn, key=lambda report: report.peak.bytes)
    kinds = dict(first.groups("kind"))
    unknown = kinds.get(KIND_LABELS[MemoryKind.OTHER])
    text = "Bytes allocated; each column shows the most in its time."
    if unknown is not None and unknown.peak_bytes:
        text += f" Of the highest peak, {share(unknown.peak_bytes / max(first.peak.bytes, 1))} is of unknown kind."
    if any(report.device.on_cpu for report in drawn):
        text += f" {CPU_NOTE}"
    if devices > _MOST_DEVICES:
        text += f" {devices - _MOST_DEVICES:,} more devices are not drawn; choose with --ranks."
    return text


def _legend(drawn: Sequence[DeviceReport]) -> Iterator[Entry]:
    used = {int(kind) for report in drawn for kind in np.unique(report.device.kind).tolist()}
    before = any(report.device.baseline_bytes or report.device.freed_preexisting_bytes for report in drawn)
    for kind in reversed(STACK):
        if kind in used or (kind is MemoryKind.PREEXISTING and before):
            yield Entry(KIND_COLORS[kind], KIND_LABELS[kind])
    if any(report.device.events.reserved.any() for report in drawn):
        yield Entry(_RESERVED, "reserved by the allocator (line)")
    if any(len(report.use.calls) and not report.device.on_cpu for report in drawn):
        yield Entry(_CALL, "call of the runtime's allocator (tick)")


def memory_table(run: Run) -> TextTable:
    """Return the peak of each device."""
    reports = device_reports(run)
    return peaks_table(reports) if reports else TextTable(("device",), (), 1, NO_MEMORY)


MEMORY_VIEW = View("memory", MEMORY_TITLE, memory_table, memory)


# The schedule of a pipeline and its bubble: a row per rank, a box per forward and backward of a micro-batch.


TITLE = "Pipeline schedule"
NO_PIPELINE = (
    "This run has no pipeline: its traces have no labels such as PP:0F1 or Forward 1, and no messages that pass "
    "micro-batches from rank to rank."
)
_FORWARD, _BACKWARD = theme.PART_COLORS[Part.FORWARD], theme.PART_COLORS[Part.BACKWARD]


def labels(actions: Actions, stages: int = 1) -> list[str]:
    """Return the names of actions as in schedule diagrams: ``F3``, or ``2F3`` where a rank has several *stages*."""
    columns = zip(actions.stage.tolist(), actions.kind.tolist(), actions.micro_batch.tolist(), strict=True)
    return [f"{stage if stages > 1 else ''}{Action(kind).name}{micro}" for stage, kind, micro in columns]


def _typical(pipeline: Pipeline) -> PipelineStep:
    """Return the step whose bubble is closest to the median."""
    return min(pipeline.steps, key=lambda pipeline_step: abs(pipeline_step.bubble_percent - pipeline.bubble_percent))


def _row(
    run: Run, pipeline: Pipeline, pipeline_step: PipelineStep, place: int
) -> tuple[str, Int64, Int64, list[str], list[int]]:
    """Return one rank's actions in a step: its name, starts and ends from the start of the schedule, labels, kinds."""
    share, stages = pipeline_step.shares[place], pipeline.stages[place]
    timeline, actions = run.timelines[share.device], pipeline.actions[place]
    own = actions.take(actions.step == timeline.windows.names.index(pipeline_step.step))
    # The shift from the rank's clock to the first rank's, taken at its first action.
    moved = share.start_ns - int(own.start_ns.min()) - min(one.start_ns for one in pipeline_step.shares)
    name = f"rank {rank_label(run, timeline)} · stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
    return name, own.start_ns + moved, own.end_ns + moved, labels(own, len(stages)), own.kind.tolist()


def _lanes(start: Int64, end: Int64, span_ns: int) -> list[int]:
    """Return the first lane that is free for each interval; one that ends less than a pixel later is over, too."""
    free, lanes = list[int](), [0] * len(start)
    for index in np.argsort(start, kind="stable").tolist():
        begin = int(start[index]) + span_ns // 1000
        lanes[index] = next((lane for lane, until in enumerate(free) if until <= begin), len(free))
        free[lanes[index] : lanes[index] + 1] = [int(end[index])]
    return lanes


def _caption(pipeline: Pipeline, pipeline_step: PipelineStep) -> str:
    """Describe the pipeline and its bubble in one line."""
    by_formula = pipeline.formula_percent
    by_formula_text = "" if by_formula is None else f"; the formula for equal stages gives {by_formula:.1f} %"
    return (
        f"{pipeline.schedule}, {plural(pipeline.micro_batches, 'micro-batch', 'micro-batches')}, step "
        f"{step_label(pipeline_step.step)}: bubble "
        f"{pipeline_step.bubble_percent:.1f} %{by_formula_text}"
    )


def schedule(run: Run) -> Drawing:
    """Draw a typical step of each pipeline."""
    if not run.pipelines:
        return message(TITLE, NO_PIPELINE)
    rows, marks, captions = RowLayout(TALL), list[Box | Label](), []
    for pipeline in run.pipelines:
        pipeline_step = _typical(pipeline)
        captions.append(_caption(pipeline, pipeline_step))
        for place in range(len(pipeline.devices)):
            name, start, end, texts, kinds = _row(run, pipeline, pipeline_step, place)
            # Actions that run at once, as of DualPipe, stand below each other.
            tops, lanes = [rows.row(name)], _lanes(start, end, pipeline_step.span_ns)
            tops += [rows.row("") for _ in range(max(lanes, default=0))]
            actions = zip(texts, start.tolist(), end.tolist(), kinds, (tops[lane] for lane in lanes), strict=True)
            for text, left, right, kind, top in actions:
                color = _FORWARD if kind == Action.F else _BACKWARD
                tip = f"{name}: {text} {milliseconds(right - left)} ms"
                marks.append(Box(left, right, top, top + TALL, color, tip, (text,), theme.ink_on(color)))
    longest = max(_typical(pipeline).span_ns for pipeline in run.pipelines)
    legend = (Entry(_FORWARD, "Forward"), Entry(_BACKWARD, "Backward (B), of the inputs (I), of the weights (W)"))
    return Drawing(TITLE, ". ".join(captions), time_axis(longest), rows.axis(), rows.y, tuple(marks), legend)


def schedule_table(run: Run) -> TextTable:
    """Return each action of a typical step of each pipeline, in the order of their starts; times in ms."""
    rows = []
    for pipeline in run.pipelines:
        pipeline_step = _typical(pipeline)
        for place in range(len(pipeline.devices)):
            name, start, end, texts, _ = _row(run, pipeline, pipeline_step, place)
            for text, left, right in zip(texts, start.tolist(), end.tolist(), strict=True):
                rows.append((name, text, f"{left / 1e6:.3f}", f"{(right - left) / 1e6:.3f}"))
    note = "A typical step; times in ms from the start of its schedule." if rows else NO_PIPELINE
    return TextTable(("rank", "action", "start ms", "ms"), tuple(rows), 2, note)


def bubble_table(run: Run) -> Fitting | None:
    """Return a row for each rank of each pipeline, with its bubble and the formula's; None without a pipeline."""
    if not run.pipelines:
        return None
    title = "pipeline: the bubble's share of the schedule, median of the steps"
    numbers = ("micro\nbatches", "busy\nms", "bubble\n%", "formula\n%")
    table = number_table(title, ("rank", "stages", "schedule"), numbers, ("busy ms", "stages", "microbatches"))
    for pipeline in run.pipelines:
        for place, (i, stages) in enumerate(zip(pipeline.devices, pipeline.stages, strict=True)):
            busy = median(step.shares[place].busy_ns for step in pipeline.steps)
            bubble = median(step.rank_bubble_percent(step.shares[place]) for step in pipeline.steps)
            name = rank_label(run, run.timelines[i])
            table.add_row(name, ", ".join(map(str, stages)), "", "", milliseconds(busy), f"{bubble:.1f}", "")
        formula = "–" if pipeline.formula_percent is None else f"{pipeline.formula_percent:.1f}"
        counts = pipeline.schedule, str(pipeline.micro_batches), "", f"{pipeline.bubble_percent:.1f}", formula
        table.add_row("all", str(max(map(max, pipeline.stages)) + 1), *counts, style="bold")
    return table


PIPELINE_VIEW = View("pipeline", TITLE, schedule_table, schedule)
