"""The terminal's picture: rows of cells below the names of the steps, a time axis, and the legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dptrace.core.intervals import Int64
from dptrace.viewers.terminal.gantt.cell_style import Look, Pen
from dptrace.viewers.terminal.gantt.rows import Row

__all__ = ["MIN_CELLS_PER_STEP", "Block", "Scale", "legend_lines", "print_picture"]

MIN_CELLS = 16
MIN_CELLS_PER_STEP = 6


@dataclass(frozen=True, slots=True)
class Scale:
    """The time axis: a span of time and the cells that show it."""

    span_ns: int
    cells: int

    def edges(self, origin: int) -> Int64:
        """Return the ``cells + 1`` edges of a row's cells in ns."""
        # Python's integers: span times cells may exceed 64 bits.
        return np.array([origin + self.span_ns * cell // self.cells for cell in range(self.cells + 1)], np.int64)

    def cell(self, time: int) -> int:
        return time * self.cells // self.span_ns


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one run below a row of its steps."""

    heading: str
    names: Sequence[str]
    starts_ns: Sequence[int]
    """Of the steps, on the axis."""
    end_ns: int
    labels: Sequence[str]
    rows: Sequence[Row]
    origins: Sequence[int]
    """What each row's own time is where the axis begins."""
    communicates: bool


def print_picture(blocks: Sequence[Block], span: int, pen: Pen, console: Console) -> Scale:
    margin = max(len(label) for block in blocks for label in (*block.labels, block.heading)) + 2
    scale = Scale(max(span, 1), max(console.width - margin, MIN_CELLS))
    for block in blocks:
        for line in _lines(block, margin, scale, pen):
            console.print(line, highlight=False, no_wrap=True, overflow="crop")
    for axis in _axis(scale, pen.ascii):
        console.print(Text(" " * margin + pen.encodable(axis)), highlight=False, no_wrap=True, overflow="crop")
    return scale


def _lines(block: Block, margin: int, scale: Scale, pen: Pen) -> Iterator[Text]:
    yield Text(block.heading.ljust(margin)) + _steps(block, scale, pen)
    for label, row, origin in zip(block.labels, block.rows, block.origins, strict=True):
        edges = scale.edges(origin)
        yield Text(label.ljust(margin)) + pen.bar(row.phases(edges))
        if block.communicates:
            yield Text("  comm".ljust(margin)) + pen.bar(row.exposure(edges))


def _steps(block: Block, scale: Scale, pen: Pen) -> Text:
    """Return the steps' names where they begin; only every 2nd, 5th, 10th … where there is no room for all."""
    names = block.names
    every = next(n for n in _round_numbers() if scale.cells * n >= MIN_CELLS_PER_STEP * len(names))
    places = [scale.cell(start) for start in block.starts_ns[::every]]
    after = [*places[1:], scale.cell(block.end_ns)]
    rooms = [max(end - place, 0) for place, end in zip(places, after, strict=True)]
    labels = [pen.text(name) for name in names[::every]]
    if any(cell_len(label) + 2 > room for label, room in zip(labels, rooms, strict=True)):
        labels = [label[label.rfind("#") :] if "#" in label else label for label in labels]
    tick = "|" if pen.ascii else "│"
    row = (
        set_cell_size(tick + set_cell_size(label, max(room - 2, 0)), room)
        for label, room in zip(labels, rooms, strict=True)
    )
    return Text(" " * places[0] + "".join(row))


def _round_numbers() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 …"""
    factor = 1
    while True:
        yield from (factor, 2 * factor, 5 * factor)
        factor *= 10


def _axis(scale: Scale, ascii_only: bool) -> Iterator[str]:
    """Yield a line with ticks at round times and, below it, the times."""
    unit, size = next(
        (unit, size) for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 1000), ("ns", 1)) if scale.span_ns >= size
    )
    ticks = next(n for n in _round_numbers() if n * scale.cells >= 12 * scale.span_ns)
    line, times = ["-" if ascii_only else "─"] * scale.cells, [" "] * scale.cells
    for tick in range(0, scale.span_ns, ticks):
        place = scale.cell(tick)
        line[place] = "+" if ascii_only else "┴"
        label = f"{tick / size:g} {unit}"
        if place + len(label) <= scale.cells:
            times[place : place + len(label)] = label
    yield "".join(line)
    yield "".join(times)


def legend_lines(looks: Sequence[Look], pen: Pen, width: int) -> Iterator[Text]:
    line = Text()
    for look in looks:
        entry = Text.assemble((pen.encodable(f" {look.glyph} "), pen.style(look)), f" {look.label}  ")
        if line and len(line) + len(entry) > width:
            yield line
            line = Text()
        line += entry
    yield line
    yield Text(pen.encodable(" f b o c x m  the same, in a cell that is idle for most of its time"))
