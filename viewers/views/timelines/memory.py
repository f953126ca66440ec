"""Memory of each device over time: its kinds stacked, the peak, what is reserved, and calls of the allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dptrace.analysis.memory.usage import KIND_LABELS, MemoryKind, bytes_by_kind
from dptrace.core.intervals import Int64
from dptrace.core.units import byte_size, share
from dptrace.run.memory import NO_MEMORY, DeviceReport, device_reports
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import HEAD, Axis, Box, Dot, Drawing, Entry, Label, Line, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.memory_curve import KIND_COLORS, STACK, SampledLevels, sample_levels, span_of
from dptrace.viewers.terminal.tables.memory import CPU_NOTE, device_name, peaks_table
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "memory", "memory_table"]

TITLE = "Memory over time"
_HEIGHT = 150.0
"""Height of a device's panel, in pixels."""
_ABOVE, _GAP, _TICK = HEAD + 10, 22.0, 7.0
_MOST_DEVICES = 8
_COLUMNS = 480
"""Columns of all panels together with few devices; more devices have fewer columns each."""
_OVERLAP = 0.2
"""Part of a column that a box covers of the next, so that no line shows between them."""
_PEAK, _RESERVED, _CALL = "#374151", "#4B5563", "#D55E00"


def memory(run: Run) -> Drawing:
    """Draw the memory of each device; of a rank with a GPU, only that of its GPUs."""
    reports = _shown(device_reports(run))
    if not reports:
        return message(TITLE, NO_MEMORY)
    drawn = reports[:_MOST_DEVICES]
    highest = max(max(_high(report), 1) for report in drawn)
    low = min(_floor(report) for report in drawn)
    y, ticks, strong, marks = 4.0, list[tuple[float, str]](), list[float](), list[Box | Dot | Line | Label]()
    for report in drawn:
        panel = _Panel(report, y + _ABOVE, highest, low, max(_COLUMNS // len(drawn), 120))
        strong.append(y + HEAD / 2)
        ticks += [(y + HEAD / 2, device_name(report)), *panel.ticks()]
        marks += panel.marks()
        y += _ABOVE + _HEIGHT + _GAP
    longest = max(end - start for start, end in map(span_of, drawn))
    axis = Axis(0, y, tuple(ticks), strong=frozenset(strong), grid=False)
    return Drawing(
        TITLE, _subtitle(reports, drawn), time_axis(longest), axis, y, tuple(marks), tuple(_legend(drawn)), right=90
    )


def _shown(reports: Sequence[DeviceReport]) -> list[DeviceReport]:
    with_gpu = {report.rank for report in reports if not report.device.on_cpu}
    return [report for report in reports if not report.device.on_cpu or report.rank not in with_gpu]


def _high(report: DeviceReport) -> int:
    reserved = report.device.events.reserved
    return max(report.peak.bytes, int(reserved.max(initial=0)))


def _floor(report: DeviceReport) -> int:
    """Return where the stack begins: below 0 on a CPU whose recording freed what was there before."""
    return min(report.device.baseline_bytes - report.device.freed_preexisting_bytes, 0)


class _Panel:
    """One device: its kinds stacked over time."""

    def __init__(self, report: DeviceReport, top: float, highest: int, low: int, columns: int) -> None:
        self.report, self.top, self.bottom = report, top, top + _HEIGHT
        self.low, self.scale = low, _HEIGHT / (highest - low)
        self.start, self.end = span_of(report)
        self.columns: SampledLevels = sample_levels(report.device, self.start, self.end, columns)
        self.highest = highest

    def y(self, size: float) -> float:
        return self.bottom - (size - self.low) * self.scale

    def ticks(self) -> Iterator[tuple[float, str]]:
        yield self.y(0), "0 B"
        for part in (0.5, 1.0):
            yield self.y(part * self.highest), byte_size(part * self.highest)

    def marks(self) -> Iterator[Box | Dot | Line | Label]:
        yield from self._steps()
        yield from self._stack()
        yield from self._reserved()
        yield from self._calls()
        yield from self._peak()

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
        name, edges = f"{device_name(self.report)}: {KIND_LABELS[kind]}", self.columns.edges
        same = (np.diff(below) == 0) & (np.diff(above) == 0)
        first = np.flatnonzero(np.append(True, ~same))
        overlap = _OVERLAP * edges[1]
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
                x = start - self.start
                yield Line(((x, self.top - 4), (x, self.bottom)), theme.CHROME["light"]["edge"], "2 3", 1)
                yield Label(x, self.top - 10, f"step {step_label(name)}")

    def _reserved(self) -> Iterator[Line]:
        reserved = np.append(self.report.device.events.reserved[:1], self.report.device.events.reserved)
        if reserved.any():
            heights = [self.y(size) for size in reserved[self.columns.level].tolist()]
            edges = self.columns.edges.tolist()
            points = [(x, h) for i, h in enumerate(heights) for x in (edges[i], edges[i + 1])]
            yield Line(tuple(points), _RESERVED, "5 3", 1.5)

    def _calls(self) -> Iterator[Line | Dot]:
        use = self.report.use
        if self.report.device.on_cpu:
            return
        for start in use.calls.start_ns.tolist():
            if self.start <= start <= self.end:
                x = start - self.start
                yield Line(((x, self.bottom), (x, self.bottom + _TICK)), _CALL, "", 2)
        for at in use.failed.time_ns[use.failed.device == self.report.device.device].tolist():
            if self.start <= at <= self.end:
                tip = f"{device_name(self.report)}: out of memory"
                yield Dot(at - self.start, self.top, _CALL, tip, shape="triangle")

    def _peak(self) -> Iterator[Dot | Label]:
        peak = self.report.peak
        x, y = float(min(max(peak.at_ns - self.start, 0), self.end - self.start)), self.y(peak.bytes)
        tip = f"{device_name(self.report)}: peak {byte_size(peak.bytes)} in {peak.phase.name.lower()}"
        yield Dot(x, y, _PEAK, tip, shape="diamond")
        late = x > 0.8 * (self.end - self.start)
        yield Label(x, y - 9, f"peak {byte_size(peak.bytes)}", side="left" if late else "right", bold=True)


def _subtitle(reports: Sequence[DeviceReport], drawn: Sequence[DeviceReport]) -> str:
    first = max(drawn, key=lambda report: report.peak.bytes)
    kinds = dict(first.groups("kind"))
    unknown = kinds.get(KIND_LABELS[MemoryKind.OTHER])
    text = "Bytes allocated; each column shows the most in its time."
    if unknown is not None and unknown.peak_bytes:
        text += f" Of the highest peak, {share(unknown.peak_bytes / max(first.peak.bytes, 1))} is of unknown kind."
    if any(report.device.on_cpu for report in drawn):
        text += f" {CPU_NOTE}"
    if len(reports) > len(drawn):
        text += f" {len(reports) - len(drawn):,} more devices are not drawn; choose with --ranks."
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


VIEW = View("memory", TITLE, memory_table, memory)
