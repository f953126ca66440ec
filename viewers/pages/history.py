"""The runs of a job over time: as tables with the changes in words, as Markdown, and as a page with the trend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from dptrace.analysis.per_gpu.split import FIGURES, Part
from dptrace.comparison.compare import FIGURE_NAMES
from dptrace.comparison.history import MIN_RUNS, ChangePoint, History, Series, Shift
from dptrace.core.units import duration, milliseconds, plural, signed_duration
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, linear_axis
from dptrace.viewers.base.page import Markup, Section, pictures, section_page, sections
from dptrace.viewers.base.table import TextTable, markdown_page, plain, print_text_table, wait_cell

_SHOWN = ("wall_ns", "forward_ns", "backward_ns", "optimizer_ns", "exposed_comm_ns", "overlapped_comm_ns", "idle_ns")
_COLORS = {
    "forward_ns": theme.PART_COLORS[Part.FORWARD],
    "backward_ns": theme.PART_COLORS[Part.BACKWARD],
    "optimizer_ns": theme.PART_COLORS[Part.OPTIMIZER],
    "exposed_comm_ns": theme.EXPOSED,
    "overlapped_comm_ns": theme.OVERLAPPED,
    "idle_ns": theme.WAITING,
}
_WALL, _LEVEL, _HEIGHT, _MAX_TICKS = "#1B4F9C", "#57606A", 280.0, 8
_MAX_LISTED = 3


def _name(series: Series, index: int) -> str:
    return Path(series.rows[index]["run"]).name or str(series.rows[index]["run"])


def _when(series: Series, index: int) -> str:
    return str(series.rows[index]["recorded"])[:16].replace("T", " ") or "time unknown"


def _moved(shift: Shift) -> str:
    return f"{FIGURE_NAMES[shift.figure]} {signed_duration(shift.delta)}"


def sentence(series: Series, change: ChangePoint) -> str:
    """Return a change in words: from which run on, by how much, what moved, and what changed in the setup."""
    first, *rest = change.shifts
    start = f"From {_name(series, change.index)} ({_when(series, change.index)}) on"
    if first.figure == "wall_ns":
        percent = f"{100 * first.delta / first.before:+.1f} %".replace("-", "−")
        text = f"{start}, a step takes {duration(first.after)} instead of {duration(first.before)} ({percent})"
        text += f": {', '.join(map(_moved, rest[:_MAX_LISTED]))}" if rest else ""
    else:
        text = f"{start}: {', '.join(map(_moved, change.shifts[:_MAX_LISTED]))}; the step time shows no change"
    return " ".join((f"{text}.", *change.differs))


def sentences(series: Series) -> list[str]:
    """Return the changes in words; or that there is none."""
    found = [sentence(series, change) for change in series.changes]
    few = f" (fewer than {MIN_RUNS} can't show one)" if len(series.rows) < MIN_RUNS else ""
    return found or [f"No change in {plural(len(series.rows), 'run')}{few}."]


def cells(series: Series) -> TextTable:
    """Return a row for each run, with a mark where a level begins."""
    begins = {change.index for change in series.changes}
    rows = []
    for index, row in enumerate(series.rows):
        spread = "–" if row["step_spread_ns"] is None else milliseconds(row["step_spread_ns"])
        overlap = "–" if row["overlap_percent"] is None else f"{row['overlap_percent']:.1f}"
        mfu = "–" if row["mfu"] is None else f"{100 * row['mfu']:.1f}"
        name = _name(series, index) + (" ◀" if index in begins else "")
        wall, *parts = (wait_cell(row[figure]) for figure in _SHOWN)
        rows.append((name, _when(series, index), str(row["steps"]), wall, spread, *parts, overlap, mfu))
    heads = ("forward", "backward", "optimizer", "exposed", "overlapped", "idle", "overlap %", "MFU %")
    note = "ms, means over ranks and steps without outlier steps; ± is the standard deviation of the steps."
    return TextTable(("run", "recorded, UTC", "steps", "step", "±", *heads), tuple(rows), 2, note)


def print_history(found: History, console: Console) -> None:
    """Print the changes and the runs of each series."""
    for series in found.series:
        console.print(*map(plain, sentences(series)), sep="\n", style="bold")
        print_text_table(cells(series), series.title, console)


def markdown(found: History) -> str:
    """Return the same as Markdown."""
    pages = (markdown_page(one.title, sentences(one), [cells(one)], ()) for one in found.series)
    return "\n".join(pages)


def document(found: History) -> str:
    """Draw the trend of each series as one HTML page, which runs no script."""
    parts = []
    for number, series in enumerate(found.series):
        said = Markup("").join(Markup("<li>{}</li>").format(text) for text in sentences(series))
        listed = Markup('<ul class="sentences">{}</ul>').format(said)
        charts = [step_chart(series), parts_chart(series)]
        parts.append(Section(f"series{number}", series.title, listed + pictures(charts), cells(series)))
    runs = sum(len(series.rows) for series in found.series)
    head = Headline("Runs over time", "", (plural(runs, "run"), plural(len(found.series), "kind of job", "kinds")), ())
    return section_page(head, sections(parts))


def step_chart(series: Series) -> Drawing:
    """Draw the step of each run, with the standard deviation of its steps, its levels, and where they begin."""
    walls = series.values("wall_ns") / 1e6
    spread = np.array([row["step_spread_ns"] or 0 for row in series.rows]) / 1e6
    low, high = float((walls - spread).min()), float((walls + spread).max())
    room = 0.2 * (high - low) or 0.1 * high or 1.0
    y = linear_axis(max(low - room, 0.0), high + room, "", "ms", 6)
    marks = list[Dot | Line | Label]()
    for first, last, mean in series.levels():
        marks.append(Line(((first - 0.4, mean / 1e6), (last + 0.4, mean / 1e6)), _LEVEL, width=3.5))
        if first:
            marks.append(Line(((first - 0.5, y.low), (first - 0.5, y.high)), theme.EXPOSED, "2 4"))
            side = "left" if first > len(walls) / 2 else "right"
            marks.append(Label(first - 0.5, y.high - room / 4, _name(series, first), theme.EXPOSED, side, True))
    for at, (wall, wide) in enumerate(zip(walls.tolist(), spread.tolist(), strict=True)):
        marks.append(Line(((at, wall - wide), (at, wall + wide)), _WALL))
        marks.append(Dot(at, wall, _WALL, f"{_name(series, at)}, {_when(series, at)}: {wall:,.4g} ms"))
    legend = Entry(_WALL, "a run, ± its steps", "circle"), Entry(_LEVEL, "level", "line")
    return _drawing(series, "Time of a step", y, marks, legend)


def parts_chart(series: Series) -> Drawing:
    """Draw the parts of a step over the runs, a line each; none for a part that a run does not know."""
    marks, legend, top = list[Line](), [], 1e-6
    for figure in (name for name in FIGURES if name in _COLORS):
        values = (series.values(figure) / 1e6).tolist()
        if any(values) and not np.isnan(values).any():
            marks.append(Line(tuple((float(at), value) for at, value in enumerate(values)), _COLORS[figure], width=2))
            legend.append(Entry(_COLORS[figure], FIGURE_NAMES[figure], "line"))
            top = max(top, *values)
    return _drawing(series, "Its parts", linear_axis(0, 1.1 * top, "", "ms", 6), marks, legend)


def _drawing(
    series: Series, title: str, up: Axis, marks: Sequence[Dot | Line | Label], legend: Sequence[Entry]
) -> Drawing:
    count = len(series.rows)
    every = -(-count // _MAX_TICKS)
    times = [str(row["recorded"]) for row in series.rows]
    days = {time[:10] for time in times}
    same = len(days) == 1 < count
    label, part = (f"recorded on {min(days)}, UTC", slice(11, 16)) if same else ("recorded", slice(10))
    ticks = tuple((float(at), times[at][part] or str(at)) for at in range(0, count, every))
    x, y = Axis(-0.6, count - 0.4, ticks, label, grid=False), Axis(up.high, up.low, up.ticks, up.title)
    return Drawing(title, "Means over ranks and steps.", x, y, _HEIGHT, tuple(marks), tuple(legend))
