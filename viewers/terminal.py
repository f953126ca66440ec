"""The Gantt chart in a terminal, for SSH: a row of parts and a row of communication per rank, and the split below."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dptrace.intervals import Int64, covered, union
from dptrace.run import Run
from dptrace.split import FIGURES, Part, Split, exposure, partition
from dptrace.timeline import Timeline
from dptrace.viewers.headline import headline
from dptrace.viewers.theme import OVERLAPPED, OVERLAPPED_LABEL, PART_COLORS, PART_LABELS, PART_ORDER, ink_on

__all__ = ["MOST_RANKS", "print_gantt"]

MOST_RANKS = 16
"""Ranks drawn; more would push the first ones off the screen."""
LEAST_CELLS = 16
LEAST_CELLS_PER_STEP = 6
LEAST_WIDTH_OF_TABLE = 80


@dataclass(frozen=True, slots=True)
class _Look:
    """How one part is drawn: never by its colour alone."""

    glyph: str
    label: str
    color: str = ""
    fill: str = " "


_GLYPHS = {
    Part.FORWARD: "F",
    Part.BACKWARD: "B",
    Part.OPTIMIZER: "O",
    Part.OTHER: "C",
    Part.EXPOSED_COMM: "X",
    Part.EXPOSED_MEMORY: "M",
}
_LOOKS = {part: _Look(glyph, PART_LABELS[part], PART_COLORS[part]) for part, glyph in _GLYPHS.items()}
_EXPOSED = _LOOKS[Part.EXPOSED_COMM] = _Look(
    "X", PART_LABELS[Part.EXPOSED_COMM], PART_COLORS[Part.EXPOSED_COMM], fill="/"
)
_OVERLAPPED = _Look("=", OVERLAPPED_LABEL, OVERLAPPED)
# Idle keeps the terminal's own background: a bar as bright as work would draw the eye to nothing.
_IDLE = _LOOKS[Part.IDLE] = _Look("·", PART_LABELS[Part.IDLE], fill="·")
_NOTHING = _Look(" ", "")
_FAINT = {part: _Look(look.glyph.lower(), look.label) for part, look in _LOOKS.items()}
"""Parts in a cell that is idle for most of its time: a small letter, without colour."""
LEAST_SEEN = 0.1
"""Share of an idle cell from which its largest part is seen in it."""
_IN_ASCII = str.maketrans("·µ×", ".ux")


@dataclass(frozen=True, slots=True)
class _Pen:
    """What the console can show."""

    colored: bool
    ascii: bool
    encoding: str

    def text(self, text: str) -> str:
        """Make a name from a trace harmless: no escape sequence, control or direction character gets through."""
        text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~])?", "", text)
        kept = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
        return self.known(kept)

    def known(self, text: str) -> str:
        """Write what the encoding has no sign for with one that it has."""
        text = text.translate(_IN_ASCII) if self.ascii else text
        return text.encode(self.encoding, "replace").decode(self.encoding)

    def style(self, look: _Look) -> str:
        return f"{ink_on(look.color)} on {look.color}" if self.colored and look.color else ""

    def bar(self, cells: Sequence[_Look]) -> Text:
        """Draw one row: in colour with the part's name or letter in each stretch, else as its letter repeated."""
        row = Text()
        for look, group in groupby(cells):
            width = len(list(group))
            drawn = _caption(look, width) if self.colored and look.color else look.glyph * width
            row.append(self.known(drawn), self.style(look))
        return row


def _caption(look: _Look, width: int) -> str:
    """Write the longest name of a part that fits into its stretch: its label, the label's first word, its letter."""
    for words in (look.label, look.label.split()[0]):
        if len(words) + 2 <= width:
            return f" {words} ".ljust(width, look.fill)
    return look.glyph.ljust(width, look.fill)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Time on cells: every rank has its own origin, the same one unless the clocks lie too far apart."""

    origins: tuple[int, ...]
    span_ns: int
    cells: int
    shared: bool

    def edges(self, row: int) -> Int64:
        """Give the ``cells + 1`` edges of the row's cells in ns."""
        # Python's integers, for span times cells may pass 64 bits.
        origin, span = self.origins[row], self.span_ns
        return np.array([origin + span * cell // self.cells for cell in range(self.cells + 1)], np.int64)


def print_gantt(run: Run, console: Console) -> None:
    """Draw *run* as wide as the console: each cell shows the part that holds most of its time."""
    pairs = zip(run.timelines, run.splits, strict=True)
    drawn = [(timeline, split) for timeline, split in pairs if len(timeline.windows)][:MOST_RANKS]
    utf = console.encoding.lower().replace("-", "").startswith("utf")
    pen = _Pen(console.color_system is not None and not console.no_color, not utf, console.encoding)
    told = headline(run)
    console.print(Text(pen.text(" · ".join((told.title, *told.facts))), style="bold"), highlight=False)
    if drawn:
        _print_chart(run, drawn, pen, console)
    else:
        console.print("No steps to draw.")
    for note in run.notes:
        console.print(Text(pen.text(f"! {note}")), highlight=False)


def _print_chart(run: Run, pairs: list[tuple[Timeline, Split]], pen: _Pen, console: Console) -> None:
    drawn = [timeline for timeline, _ in pairs]
    labels = _labels(drawn)
    margin = max(map(len, labels)) + 2
    scale = _scale(drawn, max(console.width - margin, LEAST_CELLS))
    for line in _picture(drawn, [label.ljust(margin) for label in labels], scale, pen):
        console.print(line, highlight=False, no_wrap=True, overflow="crop")
    rows = {label: _shares(split) for label, (_, split) in zip(labels, pairs, strict=True)}
    legend, remarks = _legend(pen, console.width), _remarks(run, drawn, scale)
    console.print(*legend, *remarks, *_figures(rows, pen, console.width), sep="\n", highlight=False)


def _picture(drawn: list[Timeline], labels: list[str], scale: _Scale, pen: _Pen) -> Iterator[Text]:
    margin = len(labels[0])
    communicates = any(len(timeline.collectives) for timeline in drawn)
    yield Text("steps".ljust(margin)) + _steps(drawn[0], scale, pen)
    for row, (label, timeline) in enumerate(zip(labels, drawn, strict=True)):
        yield Text(label) + pen.bar(_parts(timeline, scale.edges(row)))
        if communicates:
            yield Text("  comm".ljust(margin)) + pen.bar(_communication(timeline, scale.edges(row)))
    yield from (Text(" " * margin) + Text(pen.known(line)) for line in _axis(scale, pen.ascii))


def _remarks(run: Run, drawn: list[Timeline], scale: _Scale) -> Iterator[str]:
    """Say what the picture does not show."""
    empty = [timeline for timeline in run.timelines if not len(timeline.windows)]
    if empty:
        yield f"Without a step, and so not drawn: {', '.join(_labels(empty))}."
    more = len(run.timelines) - len(empty) - len(drawn)
    if more:
        yield f"{more} more rank{'s' if more > 1 else ''} not drawn: choose which with --ranks, such as --ranks 8-15."
    if not scale.shared:
        yield "Each rank is drawn from its own first step: the clocks lie too far apart for one axis."
    if len(drawn[0].windows) * LEAST_CELLS_PER_STEP > scale.cells:
        yield "Many steps for this width: a cell shows only what fills most of it. Choose some with --steps FIRST:LAST."


def _labels(drawn: list[Timeline]) -> list[str]:
    ranks = [timeline.rank for timeline in drawn]
    return [f"rank {t.rank}" + (f" GPU {t.device}" if ranks.count(t.rank) > 1 else "") for t in drawn]


def _scale(drawn: list[Timeline], cells: int) -> _Scale:
    """Put all ranks on one axis, unless that would leave each of them but a sliver of it."""
    starts = [int(timeline.windows.bounds[0]) for timeline in drawn]
    ends = [int(timeline.windows.bounds[-1]) for timeline in drawn]
    first, span = min(starts), max(ends) - min(starts)
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    if span > 3 * longest:
        return _Scale(tuple(starts), max(longest, 1), cells, shared=False)
    return _Scale((first,) * len(drawn), max(span, 1), cells, shared=True)


def _parts(timeline: Timeline, edges: Int64) -> list[_Look]:
    pieces = partition(timeline)
    sets = [(pieces.start_ns[pieces.part == part], pieces.end_ns[pieces.part == part]) for part in Part]
    cells = _most(sets, [_LOOKS[part] for part in Part], edges)
    held = np.array([np.diff(covered(union(*each), edges)) for each in sets[: Part.IDLE]])
    seen = held.max(axis=0) >= LEAST_SEEN * np.diff(edges)
    # A GPU that idles most of the time would else show nothing of what it does.
    largest = [_FAINT[Part(part)] for part in held.argmax(axis=0)]
    return [
        faint if cell is _IDLE and visible else cell for cell, faint, visible in zip(cells, largest, seen, strict=True)
    ]


def _communication(timeline: Timeline, edges: Int64) -> list[_Look]:
    pieces = exposure(timeline)
    sets = [(pieces.start_ns[pieces.part == exposed], pieces.end_ns[pieces.part == exposed]) for exposed in (1, 0)]
    return _most(sets, [_EXPOSED, _OVERLAPPED], edges)


def _most(sets: list[tuple[Int64, Int64]], looks: list[_Look], edges: Int64) -> list[_Look]:
    """Give for each cell the look that holds most of its ns, or nothing when most of it lies outside of all."""
    held = [np.diff(covered(union(*each), edges)) for each in sets]
    held.append(np.diff(edges) - np.sum(held, axis=0))
    return [[*looks, _NOTHING][winner] for winner in np.argmax(held, axis=0)]


def _steps(timeline: Timeline, scale: _Scale, pen: _Pen) -> Text:
    """Write the steps' names where they begin, and only every 2nd, 5th, 10th … when there is no room for more."""
    bounds, names = timeline.windows.bounds, timeline.windows.names
    every = next(n for n in _nice() if scale.cells * n >= LEAST_CELLS_PER_STEP * len(names))
    places = [(int(bound) - scale.origins[0]) * scale.cells // scale.span_ns for bound in bounds[:-1:every]]
    rooms = [after - place for place, after in zip(places, [*places[1:], scale.cells], strict=True)]
    words = [pen.text(name) for name in names[::every]]
    if any(cell_len(word) + 2 > room for word, room in zip(words, rooms, strict=True)):
        words = [word[word.rfind("#") :] if "#" in word else word for word in words]
    tick = "|" if pen.ascii else "│"
    row = (
        set_cell_size(tick + set_cell_size(word, max(room - 2, 0)), room)
        for word, room in zip(words, rooms, strict=True)
    )
    return Text(" " * places[0] + "".join(row))


def _nice() -> Iterator[int]:
    """Give 1, 2, 5, 10, 20, 50 …"""
    factor = 1
    while True:
        yield from (factor, 2 * factor, 5 * factor)
        factor *= 10


def _axis(scale: _Scale, ascii_only: bool) -> Iterator[str]:
    """Draw a line with ticks at round times and, below it, the times."""
    unit, size = next(
        (unit, size) for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 1000), ("ns", 1)) if scale.span_ns >= size
    )
    ticks = next(n for n in _nice() if n * scale.cells >= 12 * scale.span_ns)
    line, times = ["-" if ascii_only else "─"] * scale.cells, [" "] * scale.cells
    for tick in range(0, scale.span_ns, ticks):
        place = tick * scale.cells // scale.span_ns
        line[place] = "+" if ascii_only else "┴"
        label = f"{tick / size:g} {unit}"
        if place + len(label) <= scale.cells:
            times[place : place + len(label)] = label
    yield "".join(line)
    yield "".join(times)


def _legend(pen: _Pen, width: int) -> Iterator[Text]:
    line = Text()
    for look in (*(_LOOKS[part] for part in PART_ORDER), _OVERLAPPED):
        entry = Text.assemble((pen.known(f" {look.glyph} "), pen.style(look)), f" {look.label}  ")
        if line and len(line) + len(entry) > width:
            yield line
            line = Text()
        line += entry
    yield line
    yield Text(pen.known(" f b o c x m  the same, in a cell that is idle for most of its time"))


def _shares(split: Split) -> dict[str, str]:
    """Write the nine figures: shares of the wall time, and that time."""
    total = split.total()
    wall = total["wall_ns"]
    shares = {name: f"{100 * total[name] / wall:.1f}%" if wall else "-" for name in FIGURES}
    return shares | {"wall_ns": _duration(wall)}


def _figures(rows: dict[str, dict[str, str]], pen: _Pen, width: int) -> Iterator[str | Text | Table]:
    """List the figures by rank: a table, or sentences where a table would be cut."""
    if width < LEAST_WIDTH_OF_TABLE:
        for label, shares in rows.items():
            told = (f"{name.removesuffix('_ns').replace('_', ' ')} {share}" for name, share in shares.items())
            yield Text(pen.known(f"{label}: {', '.join(told)}"))
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    table.add_column("share\nof wall", no_wrap=True)
    for name in FIGURES:
        heading = name.removesuffix("_ns").replace("overlapped_comm", "over-_lapped").replace("_", "\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for label, shares in rows.items():
        table.add_row(label, *map(pen.known, shares.values()))
    yield ""
    yield table


def _duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 1000)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"
