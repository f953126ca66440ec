"""The Gantt chart in a terminal: a row of parts and a row of communication per rank, and figures below.

It shows one run, or two on one time axis, aligned by step, with the time that the second one saves.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.text import Text

from dptrace.analysis.cross_rank.clocks import Shift
from dptrace.analysis.cross_rank.transfers import ExposedWait, beside_waiting, sum_of_waits
from dptrace.analysis.findings.finding import nothing_found, top_findings
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import (
    EXPOSED_LABELS,
    FIGURES,
    OVERLAPPED_LABEL,
    PART_LABELS,
    Part,
    Split,
    by_kind,
    exposure,
    overlap_percent,
    partition,
)
from dptrace.comparison.sides import drawn_differences
from dptrace.comparison.step_alignment import AlignedSteps, align
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, intersect, subtract, union, union_all
from dptrace.core.units import byte_size, device_names, duration, plural, sanitize
from dptrace.replay.findings import findings_of
from dptrace.run.notable_ranks import NotableRank, middle_window_of, notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.fitting import Fitting, heading_words
from dptrace.viewers.base.headline import drawn_headline
from dptrace.viewers.base.table import figure_words, gains_known, number_table, order_sentence, step_label
from dptrace.viewers.base.theme import DARK, GLYPHS, PART_COLORS, PART_ORDER, PATTERNS
from dptrace.viewers.base.theme import OVERLAPPED as THEME_OVERLAPPED
from dptrace.viewers.base.theme import WAITING as THEME_WAITING
from dptrace.viewers.base.time_saved import notes_of_all, time_saved_sentence, time_saved_text
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role
from dptrace.viewers.terminal.split import findings_heading, minor_sentence

# The look of a cell in the terminal's picture: its letter, its colors on any terminal, its name where that fits.


@dataclass(frozen=True, slots=True)
class Look:
    """How a part is drawn: never by its color alone."""

    glyph: str
    label: str
    color: str = ""
    ansi_16: str = ""
    """The style on a terminal with sixteen colors."""
    fill: str = " "
    ink: str = ""
    """The text style of a part that has no background and whose label is centered."""


_FILLS = {color: {"hatch": "/", "back": "\\"}.get(pattern, " ") for color, pattern in PATTERNS.items()}
"""What fills the rest of a stretch with a name or letter, by color."""
LOOKS = {
    part: Look(glyph, PART_LABELS[part], PART_COLORS[part], ansi_16, fill=_FILLS.get(PART_COLORS[part], " "))
    for part in Part
    for glyph, ansi_16 in [GLYPHS[f"{part.name.lower()}_ns"]]
    if ansi_16
}
EXPOSED = LOOKS[Part.EXPOSED_COMM]
_WAITS, _WAITING_LABEL = GLYPHS["exposed_wait_ns"], EXPOSED_LABELS["exposed_wait_ns"]
WAITS = Look(_WAITS[0], _WAITING_LABEL, THEME_WAITING, _WAITS[1], fill=_FILLS[THEME_WAITING])
OVERLAP = Look("=", OVERLAPPED_LABEL, THEME_OVERLAPPED, "black on green")
# Idle keeps the terminal's background: a bar as bright as work would draw attention to nothing.
IDLE = LOOKS[Part.IDLE] = Look("·", PART_LABELS[Part.IDLE], fill="·")
NOTHING = Look(" ", "")
FAINT = {part: Look(look.glyph.lower(), look.label) for part, look in LOOKS.items()}
"""Parts in a cell that is mostly idle: a small letter without color."""
LEGEND = (*(LOOKS[part] for part in PART_ORDER), OVERLAP)

_IN_ASCII = str.maketrans({"·": ".", "µ": "u", "×": "x", "–": "-", "−": "-", "…": "...", "→": "->"})


def time_saved_look(label: str, saved: bool | None) -> Look:
    """Return the look of time that one of two runs saves; it shows *label* where that fits.

    Args:
        saved: whether B saves it; None where the difference may be noise.
    """
    return Look("-", label, fill="-", ink={True: "bold green", False: "bold red", None: "dim"}[saved])


@dataclass(frozen=True, slots=True)
class Pen:
    """What the console can show."""

    colored: bool
    ansi_16: bool
    ascii: bool
    encoding: str

    def text(self, text: str) -> str:
        """Return a name from a trace with control characters spelled out or removed."""
        kept = "".join(
            c for c in sanitize(text) if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        )
        return self.encodable(kept)

    def encodable(self, text: str) -> str:
        """Replace characters that the encoding does not have."""
        text = text.translate(_IN_ASCII) if self.ascii else text
        return text.encode(self.encoding, "replace").decode(self.encoding)

    def style(self, look: Look) -> str:
        """Return the look's colors; empty where there are none."""
        if not self.colored:
            return ""
        if look.ink:
            return look.ink
        if not look.color:
            return ""
        # Those for a dark page, as most terminals are dark; each stretch has its name or letter as well.
        color, ink = DARK[look.color]
        return look.ansi_16 if self.ansi_16 else f"{ink} on {color}"

    def bar(self, cells: Sequence[Look]) -> Text:
        """Draw one row: in color with the part's name or letter, otherwise with its letter repeated."""
        row = Text()
        for look, group in groupby(cells):
            width = len(list(group))
            captioned = look.ink or (self.colored and look.color)
            row.append(self.encodable(_caption(look, width) if captioned else look.glyph * width), self.style(look))
        return row


def pen_for(console: Console) -> Pen:
    """Return what a console can show."""
    utf = console.encoding.lower().replace("-", "").startswith("utf")
    colored = console.color_system is not None and not console.no_color
    return Pen(colored, console.color_system in ("standard", "windows"), not utf, console.encoding)


def _caption(look: Look, width: int) -> str:
    """Return the longest name of a part that fits: its label, the label's first words, or its letter."""
    words = look.label.split()
    if look.ink:
        fitting = next((" ".join(words[:n]) for n in (len(words), 3, 2) if _room(words[:n]) + 2 <= width), "")
        return f" {fitting} ".center(width, look.fill) if fitting else look.fill * width
    for text in (look.label, words[0]):
        if len(text) + 2 <= width:
            return f" {text} ".ljust(width, look.fill)
    return look.glyph.ljust(width, look.fill)


def _room(words: Sequence[str]) -> int:
    return cell_len(" ".join(words))


# The figures below the terminal's picture: the split by rank, causes of idle time, kinds of communication, savings.


MAX_PAIRS = 12


_COLUMNS = (*FIGURES[:5], "exposed_wait_ns", *FIGURES[5:])
"""The nine figures, with waiting after the exposed communication that it is a part of."""


def shares(split: Split, wait: ExposedWait) -> dict[str, str]:
    """Return the figures as text: shares of the wall time, and the wall time itself; no wait where none is known."""
    total: dict[str, int | None] = {**split.total(), **wait.total()}
    wall = total["wall_ns"] or 0
    known = {name: ns for name, ns in total.items() if name in _COLUMNS and ns is not None}
    cells = {name: f"{100 * ns / wall:.1f}" if wall else "–" for name, ns in known.items()}
    return cells | {"wall_ns": duration(wall)}


def split_figures(rows: Mapping[str, Mapping[str, str]], pen: Pen) -> Fitting:
    """Return the figures by rank as a table."""
    shown = [name for name in _COLUMNS if any(name in cells for cells in rows.values())]
    leaving = ("optimizer_ns", "other_ns", "exposed_memory_ns", "overlapped_comm_ns", "forward_ns", "backward_ns")
    heads = {name: _heading(name) for name in shown}
    table = number_table(
        "", ["% of\nwall"], heads.values(), [heading_words(heads[name]) for name in leaving if name in heads]
    )
    for label, cells in rows.items():
        table.add_row(label, *(pen.encodable(cells.get(name, "?")) for name in shown))
    return table


def _heading(name: str) -> str:
    short = {"overlapped_comm_ns": "overl._comm", "exposed_wait_ns": "of it_wait"}
    return short.get(name, name.removesuffix("_ns")).replace("_", "\n")


def causes(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Yield why the GPUs were idle, the mean of their steps; nothing where no GPU was."""
    devices = [device for device in run.devices if len(device.timeline.windows)]
    means = [device.mean_idle() for device in devices if not device.split.unknown.keys() & {*CAUSES}]
    idle = {cause: sum(mean[cause] or 0 for mean in means) / len(means) for cause in CAUSES} if means else {}
    if not any(idle.values()):
        return
    listed = ", ".join(
        f"{cause.removesuffix('_ns').replace('_', ' ').replace('host bound', 'host-bound')} {duration(ns)}"
        for cause, ns in idle.items()
        if ns
    )
    yield _line(f"{whose}Idle {duration(sum(idle.values()))} per step: {listed}", pen)


def kinds(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Yield the collectives of each kind, as the average of a GPU and step."""
    waits = run.cross_rank.mean_waits_by_kind()
    for kind in by_kind(run.splits):
        if not kind.count or kind.exposed_ns is None or kind.overlapped_ns is None:
            continue  # launched outside the steps, or not known
        wait = waits[kind.kind]["exposed_wait_ns"]
        waited = "" if wait is None else f" ({_some(wait) if wait else 'none'} of it waiting)"
        percent = overlap_percent(round(kind.overlapped_ns), round(kind.exposed_ns))
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        hidden = "" if percent is None else f" ({percent:.1f} %)"
        yield _line(
            f"{whose}{pen.text(kind.kind)}: {kind.count:.4g} per step{size}, {_some(kind.exposed_ns)} exposed{waited}, "
            f"{_some(kind.overlapped_ns)} overlapped{hidden}",
            pen,
        )


def saved_by_step(aligned: AlignedSteps, pen: Pen) -> Iterator[Fitting | Text]:
    """Yield a table of the pairs of steps, with the time saved."""
    pairs = [aligned.a.names, aligned.a.mean_ns.tolist(), aligned.b.names, aligned.b.mean_ns.tolist()]
    rows = [*zip(*pairs, strict=True)]
    if len(rows) < 2:
        return
    table = number_table("", (), ("step of A", "A", "step of B", "B", "B against A"))
    for pair, (name, a, other, b) in enumerate(rows[:MAX_PAIRS]):
        saved = (
            "–" if aligned.incomparable else time_saved_text(a - b, (a - b) / max(a, 1), aligned.certain(a - b, pair))
        )
        cells = step_label(name), duration(a), step_label(other), duration(b), saved
        table.add_row(*(Text(pen.text(cell)) for cell in cells))
    yield table
    if len(rows) > MAX_PAIRS:
        yield _line(f"{len(rows) - MAX_PAIRS} more pairs of steps", pen)


def _some(ns: float) -> str:
    return duration(ns) if ns >= 1 else "0"


def _line(text: str, pen: Pen) -> Text:
    return Text(pen.encodable(text))


# The rows of the terminal's picture: intervals by part, and the look of each cell.


MIN_VISIBLE_SHARE = 0.1
"""Share of an idle cell from which its largest part is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU's time, by part, in ns on the picture's axis."""

    parts: tuple[IntervalSet, ...]
    """By :class:`Part`."""
    communication: tuple[IntervalSet, IntervalSet]
    """Exposed, overlapped."""
    time_saved: tuple[tuple[IntervalSet, Look], ...] = ()
    """Time in which this run is done with a step and the other is not."""
    waiting: IntervalSet = field(default_factory=lambda: EMPTY)
    """The part of the exposed time in which the GPU waited for later ranks."""

    def phases(self, edges: Int64) -> list[Look]:
        """Return for each cell between two edges the part that takes most of it."""
        time_saved = [interval for interval, _ in self.time_saved]
        looks = [*(LOOKS[part] for part in Part), WAITS, *(look for _, look in self.time_saved)]
        parts = list(self.parts)
        waiting = intersect(self.waiting, parts[Part.EXPOSED_COMM])
        parts[Part.EXPOSED_COMM] = subtract(parts[Part.EXPOSED_COMM], waiting)
        cells = _largest([*parts, waiting, *time_saved], looks, edges)
        time = np.array([np.diff(covered(part, edges)) for part in self.parts[: Part.IDLE]])
        seen = time.max(axis=0) >= MIN_VISIBLE_SHARE * np.diff(edges)
        # Otherwise a GPU that idles most of the time would show nothing of its work.
        largest = [FAINT[Part(part)] for part in time.argmax(axis=0)]
        return [
            faint if cell is IDLE and visible else cell
            for cell, faint, visible in zip(cells, largest, seen, strict=True)
        ]

    def exposure(self, edges: Int64) -> list[Look]:
        """Return for each cell whether most of it is communication: exposed, overlapped or waiting."""
        exposed, overlapped = self.communication
        return _largest([subtract(exposed, self.waiting), overlapped, self.waiting], [EXPOSED, OVERLAP, WAITS], edges)


def _largest(sets: Sequence[IntervalSet], looks: Sequence[Look], edges: Int64) -> list[Look]:
    """Return for each cell the look that takes most of its time; NOTHING where most of it is in no set."""
    time = [np.diff(covered(intervals, edges)) for intervals in sets]
    time.append(np.diff(edges) - np.sum(time, axis=0))
    return [[*looks, NOTHING][largest] for largest in np.argmax(time, axis=0)]


def row_of(timeline: Timeline, wait: ExposedWait) -> Row:
    """Return a GPU's row, on its own clock."""
    pieces, exposures = partition(timeline), exposure(timeline)
    parts = [union(pieces.start_ns[pieces.part == part], pieces.end_ns[pieces.part == part]) for part in Part]
    exposed, overlapped = (
        union(exposures.start_ns[exposures.part == x], exposures.end_ns[exposures.part == x]) for x in (1, 0)
    )
    return Row(tuple(parts), (exposed, overlapped), waiting=wait.intervals)


def paired_rows(aligned: AlignedSteps) -> tuple[list[Row], list[Row]]:
    """Return the rows of A's and of B's GPUs, on their common axis."""
    from dptrace.viewers.gantt.page.pair import paired_chart  # imports Bokeh, which one run does not need

    drawn = paired_chart(aligned)
    time_saved: tuple[list[tuple[IntervalSet, Look]], ...] = ([], [])
    for gap in aligned.time_saved():
        interval = np.array([gap.from_ns], np.int64), np.array([gap.to_ns], np.int64)
        certain = gap.certain
        look = time_saved_look(time_saved_text(gap.saved_ns, gap.share, certain), gap.saved_ns > 0 if certain else None)
        time_saved[gap.run].append((interval, look))
    rows: tuple[list[Row], list[Row]] = ([], [])
    for which, run in enumerate(aligned.runs):
        shifts = aligned.shifts(which)
        for device in range(len(run.devices)):
            spans = run.start_ns[device] + shifts[device], run.end_ns[device] + shifts[device]
            track = device + which * len(aligned.a.devices)
            rows[which].append(_row(drawn, track, union(*spans), tuple(time_saved[which]) if device == 0 else ()))
    return rows


def _row(drawn: Chart, track: int, spans: IntervalSet, time_saved: tuple[tuple[IntervalSet, Look], ...]) -> Row:
    phases, exposure_lane = (
        next(lane for lane in drawn.lanes if lane.track == track and lane.role is role)
        for role in (Role.PHASES, Role.EXPOSURE)
    )
    parts, waiting = [_spans(phases, part) for part in Part], _spans(phases, WAITING)
    parts[Part.EXPOSED_COMM] = union_all([parts[Part.EXPOSED_COMM], waiting])
    busy = union(phases.start_ns, phases.start_ns + phases.duration_ns)
    parts[Part.IDLE] = subtract(spans, busy)
    return Row(
        tuple(parts),
        (
            union_all([_spans(exposure_lane, Part.EXPOSED_COMM), _spans(exposure_lane, WAITING)]),
            _spans(exposure_lane, OVERLAPPED),
        ),
        time_saved,
        waiting,
    )


def _spans(lane: Lane, category: int) -> IntervalSet:
    chosen = lane.category == category
    start = lane.start_ns[chosen]
    return union(start, start + lane.duration_ns[chosen])


# The terminal's picture: rows of cells below the names of the steps, a time axis, and the legend.


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
    """The time of each row where the axis begins, on the clock that they share."""
    shifts: Sequence[Shift]
    """What moves each row's own times onto that clock."""
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
    for label, row, origin, shift in zip(block.labels, block.rows, block.origins, block.shifts, strict=True):
        edges = shift.back(scale.edges(origin))
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


DEFAULT_WIDTH = 80
"""Columns in a pipe or a file."""
MAX_RANKS = 16
"""Ranks drawn where the height of the terminal is unknown."""
LINES_BELOW = 16
"""Approximate number of lines above and below the rows."""
MAX_REASONS = 4


def print_gantt(run: Run, console: Console) -> None:
    """Draw *run* as wide as the console: each cell shows the part that takes most of its time."""
    pen = pen_for(console)
    _print_title(run, pen, console)
    chosen, notable = _chosen(run, _most_ranks(console, 1))
    if not chosen:
        console.print("No steps to draw.")
    else:
        # Several windows, with the time between them on the axis, would leave no room for any.
        part = middle_window_of(run)
        own = {(one.timeline.rank, one.timeline.device): one for one in part.devices}
        whole = [one for one in chosen if (one.timeline.rank, one.timeline.device) in own]
        chosen = [own[one.timeline.rank, one.timeline.device] for one in whole]
        labels = _labels([device.timeline for device in chosen])
        by_device = {id(device): shift for device, shift in zip(part.devices, part.shifts, strict=True)}
        shifts = [by_device[id(device)] for device in chosen]
        bounds = [shift(device.timeline.windows.bounds) for shift, device in zip(shifts, chosen, strict=True)]
        origins, span, shared = _origins(bounds)
        first, waits = chosen[0].timeline.windows, _waits(part)
        block = Block(
            "steps",
            first.names,
            [int(bound) - origins[0] for bound in bounds[0][:-1]],
            int(bounds[0][-1]) - origins[0],
            labels,
            [row_of(device.timeline, waits[id(device)]) for device in chosen],
            origins,
            shifts,
            any(len(device.timeline.collectives) for device in chosen),
        )
        scale = print_picture([block], span, pen, console)
        remarks = [*_remarks(run, whole, notable), *_scale_remarks(scale, len(first), shared)]
        if part is not run:
            names = f"{first.names[0]} to {first.names[-1]}"
            remarks.append(f"Drawn is one window, {names}; --window N draws another. Figures below are of all steps.")
        numbers = [*causes(run, pen), *kinds(run, pen)]
        rows = _shares(run, labels, whole)
        _print_below(_legend(block.rows, run), remarks, ["", split_figures(rows, pen), *numbers], pen, console)
    _print_notes([note for note in run.notes if note not in run.several_runs], pen, console)
    if chosen:
        _print_findings(run, pen, console)


def _print_findings(run: Run, pen: Pen, console: Console) -> None:
    """Print the list of findings: the figure of each, and what it is."""
    found = findings_of(run)
    lines = [minor_sentence(found) if found else f"Findings: {nothing_found(run.on_cpu, run.is_limited)}"]
    if shown := top_findings(found):
        figures = [figure_words(one, gains_known(found)) for one in shown]
        width = max(len(figure) for figure, _ in figures)
        rows = (
            f"{figure:>{width}} {f'({of}) {one.text}' if of else f'({duration(one.counted_ns)} counted) {one.text}'}"
            for (figure, of), one in zip(figures, shown, strict=True)
        )
        lines = [findings_heading(found), order_sentence(found), *rows, *lines]
    for line in filter(None, lines):
        console.print(Text(pen.text(line), style="bold"), highlight=False)


def print_pair(a: Run, b: Run, console: Console, by_step: bool = True) -> None:
    """Draw two runs as wide as the console, A above B on one axis, with the time that B saves.

    Args:
        by_step: align each pair of steps; otherwise only the first.

    Raises:
        DptraceError: one of the runs has no step.
    """
    pen, most = pen_for(console), _most_ranks(console, 2)
    aligned = align(a, b, by_step)
    for letter, run in (("A", a), ("B", b)):
        _print_title(run, pen, console, f"{letter}  ")
    if aligned.comparison is not None:
        console.print(Text(pen.text(aligned.comparison.summary()), style="bold"), highlight=False)
    console.print(Text(pen.text(time_saved_sentence(aligned)), style=_verdict_style(aligned)), highlight=False)
    _print_notes(drawn_differences(a, b), pen, console)
    chosen = [_chosen(run, most) for run in (a, b)]
    rows = paired_rows(aligned)
    blocks = [_paired_block(aligned, which, devices, rows[which]) for which, (devices, _) in enumerate(chosen)]
    scale = print_picture(blocks, int(aligned.slots_ns[-1]), pen, console)
    remarks = [*aligned.notes, *_scale_remarks(scale, len(aligned.a.names), True)]
    numbers: list[RenderableType] = ["", *saved_by_step(aligned, pen)]
    figures, shown_rows = dict[str, dict[str, str]](), list[Row]()
    for letter, run, block, (devices, notable) in zip("AB", (a, b), blocks, chosen, strict=True):
        remarks += [f"{letter}: {remark}" for remark in _remarks(run, devices, notable)]
        most_steps = max(len(device.timeline.windows) for device in devices)
        if most_steps > len(aligned.a.names):
            remarks.append(f"{letter}: the shares and the wall time below are of all {most_steps} steps.")
        numbers += [*causes(run, pen, f"{letter}  "), *kinds(run, pen, f"{letter}  ")]
        shown_rows += block.rows
        figures |= _shares(run, block.labels, devices)
    legend = (*_legend(shown_rows, a, b), *_time_saved_legend(aligned))
    _print_below(legend, remarks, ["", split_figures(figures, pen), *numbers], pen, console)
    _print_notes(notes_of_all(a, b), pen, console)


def _shares(run: Run, labels: Sequence[str], chosen: Sequence[DeviceFigures]) -> dict[str, dict[str, str]]:
    """Return the figures of the chosen devices by label."""
    waits = _waits(run)
    return {label: shares(device.split, waits[id(device)]) for label, device in zip(labels, chosen, strict=True)}


def _waits(run: Run) -> dict[int, ExposedWait]:
    """Return the waits of each of the run's devices by its id()."""
    return {id(device): wait for device, wait in zip(run.devices, run.cross_rank.exposed_waits, strict=True)}


def _legend(rows: Sequence[Row], *runs: Run) -> tuple[Look, ...]:
    """Return the legend, with waiting after the rest of exposed communication where any rank waits."""
    place = LEGEND.index(EXPOSED)
    waits = sum_of_waits(wait for run in runs for wait in run.cross_rank.exposed_waits)
    exposed = replace(EXPOSED, label=beside_waiting(waits))
    waiting = (WAITS,) if any(len(row.waiting[0]) for row in rows) else ()
    return (*LEGEND[:place], exposed, *waiting, *LEGEND[place + 1 :])


def _time_saved_legend(aligned: AlignedSteps) -> list[Look]:
    """Return the looks of the gaps: saved or lost beyond noise, or shorter and longer steps that may be chance."""
    words = {(1, True): "Saved by B", (-1, True): "Lost by B", (1, False): "B shorter", (-1, False): "B longer"}
    gaps = {(1 if gap.saved_ns > 0 else -1, gap.certain) for gap in aligned.time_saved()}
    return [time_saved_look(words[gap], gap[0] > 0 if gap[1] else None) for gap in words if gap in gaps]


def _verdict_style(aligned: AlignedSteps) -> str:
    saved = aligned.saved_ns()
    if aligned.incomparable or not aligned.certain(saved):
        return ""
    return "bold green" if saved > 0 else "bold red" if saved else "bold"


def _paired_block(aligned: AlignedSteps, which: int, chosen: Sequence[DeviceFigures], rows: Sequence[Row]) -> Block:
    steps, place = aligned.runs[which], aligned.place_ns[which].tolist()
    row_by_device = {id(device): row for device, row in zip(steps.devices, rows, strict=True)}
    timelines = [device.timeline for device in chosen]
    shown = [row_by_device[id(device)] for device in chosen]
    # The time saved is labeled once: in the first row, whichever rank that is.
    shown[0] = replace(shown[0], time_saved=rows[0].time_saved)
    return Block(
        f"{'AB'[which]} steps",
        steps.names,
        place,
        place[-1] + int(steps.length_ns[-1]),
        [f"{'AB'[which]} {label}" for label in _labels(timelines)],
        [shown[0], *(replace(row, time_saved=()) for row in shown[1:])],
        [0] * len(shown),
        [Shift(timeline.rank) for timeline in timelines],
        any(len(timeline.collectives) for timeline in timelines),
    )


def _most_ranks(console: Console, runs: int) -> int:
    """Return how many ranks of each run to draw: those that fit on the screen, if there is one."""
    if not console.is_terminal:
        return MAX_RANKS // runs
    return max((console.height - LINES_BELOW) // (2 * runs), MAX_RANKS // runs)


def _chosen(run: Run, most: int) -> tuple[list[DeviceFigures], tuple[NotableRank, ...]]:
    """Return the devices to draw, by rank; where not all fit, the most notable ones, most notable first."""
    with_steps = [device for device in run.devices if len(device.timeline.windows)]
    notable = notable_ranks(run) if len(with_steps) > 2 else ()
    if len(with_steps) <= most:
        return with_steps, notable
    return [run.devices[rank.index] for rank in notable[:most]], notable


def _print_title(run: Run, pen: Pen, console: Console, before: str = "") -> None:
    console.print(Text(pen.text(before + drawn_headline(run).line), style="bold"), highlight=False)
    for line in run.several_runs:
        console.print(Text(pen.text(line), style="bold red"), highlight=False)


def _print_below(
    legend: Sequence[Look], remarks: Sequence[str], numbers: Sequence[RenderableType], pen: Pen, console: Console
) -> None:
    texts = [Text(pen.text(remark)) for remark in remarks]
    console.print(*legend_lines(legend, pen, console.width), *texts, *numbers, sep="\n", highlight=False)


def _print_notes(notes: Sequence[str], pen: Pen, console: Console) -> None:
    for note in notes:
        console.print(Text(pen.text(f"! {note}")), highlight=False)


def _remarks(run: Run, chosen: Sequence[DeviceFigures], notable: Sequence[NotableRank]) -> Iterator[str]:
    """Yield what the picture does not show, and which ranks to look at."""
    empty = [timeline for timeline in run.timelines if not len(timeline.windows)]
    if empty:
        yield f"Not drawn, as they have no step: {', '.join(_labels(empty))}."
    names = _labels(run.timelines)
    more = len(run.timelines) - len(empty) - len(chosen)
    reasons = [f"{names[rank.index]} ({rank.why})" for rank in notable if rank.why][:MAX_REASONS]
    if more or [rank.why for rank in notable if rank.why] != ["typical"]:
        yield from [f"Look at: {', '.join(reasons)}."] if reasons else []
    if more:
        yield f"{plural(more, 'more rank')} not drawn: choose with --ranks, for example --ranks 8-15."


def _scale_remarks(scale: Scale, steps: int, shared: bool) -> Iterator[str]:
    """Yield what the axis can't show."""
    if not shared:
        yield "Each rank is drawn from its own first step: the clocks are too far apart for one axis."
    if steps * MIN_CELLS_PER_STEP > scale.cells:
        yield "Many steps for this width: a cell shows only what fills most of it. Choose some with --steps A:B."


def _labels(timelines: Sequence[Timeline]) -> list[str]:
    return device_names([(timeline.rank, timeline.device) for timeline in timelines])


def _origins(bounds: Sequence[Int64]) -> tuple[list[int], int, bool]:
    """Return each rank's origin, the length of the axis, and whether the ranks share it.

    They do, unless each would get only a small part of it.
    """
    starts, ends = [int(steps[0]) for steps in bounds], [int(steps[-1]) for steps in bounds]
    first, span = min(starts), max(ends) - min(starts)
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    if span > 3 * longest:
        return starts, max(longest, 1), False
    return [first] * len(bounds), max(span, 1), True
