"""Runs side by side, the worst first, and over time with the changes in words: as tables, Markdown, and a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dptrace.analysis.per_gpu.split import EXPOSED_LABELS, FIGURES, Part
from dptrace.comparison.changes import FIGURE_NAMES
from dptrace.comparison.history import MIN_RUNS, ChangePoint, History, Series, Shift
from dptrace.core.units import duration, milliseconds, plural, ranks_text, signed_duration
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import RowLayout
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Entry, Label, Line, linear_axis
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
_LEAVING = ("overlap %", "optimizer", "overlapped", "forward", "backward", "steps")
_WALL, _LEVEL, _HEIGHT, _MAX_TICKS = "#1B4F9C", "#57606A", 280.0, 8
_MAX_LISTED = 3
"""Figures that moved with a change."""


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


def _order_note(series: Series) -> list[str]:
    """Return what the order of the runs rests on, where they do not say when they were recorded."""
    count = series.guessed
    if not count or len(series.rows) < 2:
        return []
    whose = "The runs don't" if count == len(series.rows) else f"{plural(count, 'run')} of {len(series.rows)} don't"
    return [
        f"{whose} say when they were recorded: they are in the order in which files were written, which copies change."
    ]


def sentences(series: Series) -> list[str]:
    """Return the changes in words, or that there is none; and what the order of the runs rests on."""
    found = [sentence(series, change) for change in series.changes]
    few = f" (fewer than {MIN_RUNS} can't show one)" if len(series.rows) < MIN_RUNS else ""
    return [*(found or [f"No change in {plural(len(series.rows), 'run')}{few}."]), *_order_note(series)]


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
    names = (name.removesuffix("_ns").replace("_comm", "") for name in _SHOWN[1:])
    heads = (*names, "overlap %", "MFU %")
    note = "ms, means over ranks and steps without outlier steps; ± is the standard deviation of the steps."
    return TextTable(("run", "recorded, UTC", "steps", "step", "±", *heads), tuple(rows), 2, note, _LEAVING)


# Runs side by side: where each loses time, the worst first.

_BY_LOSS = "Runs, the worst first"
_LOST_WORDS = (
    "Step in ms, all else in %. usual: longer than the job's median run; lost: the share of a step in which devices "
    "don't compute (exposed communication and memory, idle), or compute longer than in that run."
)
_UNKNOWN_WORDS = "? is unknown: records or ranks are missing."
_MOST_BARS = 60
"""Runs that are drawn."""
_MOST_ROWS = 25
"""Runs that the terminal lists."""


def _short_names(found: History) -> dict[str, str]:
    """Return the path of each run from the folder that holds all of them."""
    paths = [row["run"] for row in found.worst_first]
    parents = [os.path.dirname(path) for path in paths]
    above = os.path.commonpath(parents) if len({os.path.isabs(path) for path in parents}) == 1 else ""
    return {path: os.path.relpath(path, above) if above else path for path in paths}


def _percent(part: float | None) -> str:
    return "?" if part is None else f"{100 * part:.1f}"


def culprit_text(culprit: Mapping[str, Any] | None) -> str:
    """Return which ranks the others wait for: ``rank 3``."""
    return "–" if culprit is None else ranks_text(culprit["ranks"])


def fleet_cells(found: History) -> TextTable:
    """Return a row for each run, with its job where there are several: step, MFU, what it loses, and to whom."""
    names, several = _short_names(found), len(found.series) > 1
    usual = any(row["over_usual"] is not None for row in found.worst_first)
    rows = []
    for row in found.worst_first:
        name = names[row["run"]]
        texts = (name, *([row["series"]] if several else []), culprit_text(row["culprit"]))
        mfu = "–" if row["mfu"] is None else f"{100 * row['mfu']:.1f}"
        beyond = "–" if row["over_usual"] is None else f"{100 * row['over_usual']:+.1f}".replace("-", "−")
        shares = (_percent(row[part]) for part in ("lost_share", "exposed_share", "waiting_share"))
        rows.append((*texts, milliseconds(row["wall_ns"]), *([beyond] if usual else []), *shares, mfu))
    words = ("run", "job", "waits for") if several else ("run", "waits for")
    heads = (*words, "step", *(["usual"] if usual else []), "lost", "exposed", "waiting", "MFU")
    return TextTable(
        heads,
        tuple(rows),
        len(words),
        _LOST_WORDS + (f" {_UNKNOWN_WORDS}" if any("?" in row for row in rows) else ""),
        ("job", "MFU", "exposed", "usual"),
    )


def fleet_chart(found: History) -> Drawing:
    """Draw a bar for each run, as long as its step is 100 %: compute, waiting, exposed transfer, memory, idle."""
    names, rows, marks = _short_names(found), RowLayout(14), list[Box | Label]()
    colors = {"Compute": _COLORS["backward_ns"], EXPOSED_LABELS["exposed_wait_ns"]: theme.WAITING}
    colors |= {EXPOSED_LABELS[f"exposed_{rest}_ns"]: theme.EXPOSED for rest in ("transfer", "comm")}
    colors |= {"Exposed memory": theme.MEMORY, "Idle": theme.IDLE}
    known = [row for row in found.worst_first if row["no_compute_share"] is not None]
    drawn = [(row, dict(_parts(row))) for row in known[:_MOST_BARS]]
    for row, parts in drawn:
        name, at = names[row["run"]], 0.0
        top = rows.row(name if len(name) <= _NAME else f"…{name[1 - _NAME :]}")
        for part, share in parts.items():
            tip = f"{name}: {part} {share:.1f} %"
            ink = theme.ink_on(colors[part])
            marks.append(Box(at, at + share, top, top + 14, colors[part], tip, (f"{share:.0f} %",), ink))
            at += share
        beyond = "" if row["over_usual"] is None else f" ({100 * row['over_usual']:+.1f} %)".replace("-", "−")
        late = "" if row["culprit"] is None else f" · {culprit_text(row['culprit'])}"
        marks.append(Label(100, top + 7, f"{milliseconds(row['wall_ns'])} ms{beyond}{late}"))
    more = len(found.worst_first) - min(len(known), _MOST_BARS)
    about = "Shares of the mean step; at the right its length, how much longer it is than usual, and late ranks."
    about += f" {plural(more, 'run')} without a bar." if more else ""
    legend = tuple(Entry(color, name) for name, color in colors.items() if any(name in parts for _, parts in drawn))
    x = linear_axis(0, 100, " %", wanted=5)
    return Drawing(_BY_LOSS, about, x, rows.axis(), rows.y, tuple(marks), legend, right=230)


_NAME = 26
"""Characters of a run's name beside its bar."""


def _parts(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the parts of a run's step in percent, without empty ones."""
    wall, waiting = row["wall_ns"], 100 * (row["waiting_share"] or 0.0)
    shares = {name: 100 * row[name] / wall for name in ("exposed_comm_ns", "exposed_memory_ns", "idle_ns")}
    rest = EXPOSED_LABELS["exposed_comm_ns" if row["waiting_share"] is None else "exposed_transfer_ns"]
    parts = {
        "Compute": 100 - sum(shares.values()),
        EXPOSED_LABELS["exposed_wait_ns"]: waiting,
        rest: shares["exposed_comm_ns"] - waiting,
        "Exposed memory": shares["exposed_memory_ns"],
        "Idle": shares["idle_ns"],
    }
    yield from ((name, share) for name, share in parts.items() if share > 0)


def print_history(found: History, console: Console) -> None:
    """Print the runs, the worst first, then the changes and the runs of each series in the order of time."""
    several = len(found.worst_first) > 1
    if several:
        print_text_table(fleet_cells(found).truncated(_MOST_ROWS), _BY_LOSS, console)
    for series in found.series:
        if several and len(series.rows) == 1:
            continue
        if several:
            console.print()
        console.print(*map(plain, sentences(series)), sep="\n", style="bold")
        print_text_table(cells(series), series.title, console)


def markdown(found: History) -> str:
    """Return the same as Markdown."""
    pages = [markdown_page(one.title, sentences(one), [cells(one)], ()) for one in found.series]
    if len(found.worst_first) > 1:
        pages.insert(0, markdown_page(_BY_LOSS, [], [fleet_cells(found)], ()))
    return "\n".join(pages)


def document(found: History) -> str:
    """Draw the runs, the worst first, and the trend of each series, as one HTML page, which runs no script."""
    parts = []
    if len(found.worst_first) > 1:
        chart = fleet_chart(found)
        parts.append(Section("runs", _BY_LOSS, pictures(chart), fleet_cells(found), chart.subtitle, open=True))
    for number, series in enumerate(found.series):
        said = Markup("").join(Markup("<li>{}</li>").format(text) for text in sentences(series))
        listed = Markup('<ul class="sentences">{}</ul>').format(said)
        charts = [step_chart(series), parts_chart(series)] if len(series.rows) > 1 else []
        parts.append(Section(f"series{number}", series.title, listed + pictures(charts), cells(series)))
    runs = sum(len(series.rows) for series in found.series)
    head = Headline("Runs", "", (plural(runs, "run"), plural(len(found.series), "kind of job", "kinds")), ())
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
