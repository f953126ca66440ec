"""The table of a benchmark, for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dptrace.bench.conclusions import ChartText
from dptrace.bench.table import Row, savings, shares
from dptrace.core.units import MINUS, number, plural, sanitize, signed
from dptrace.core.units import share as format_share
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import RowLayout
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Entry, Label, Line, linear_axis, log_axis, message
from dptrace.viewers.base.table import TextTable, escape_markdown, markdown_lines

__all__ = [
    "COMPUTE",
    "HEADINGS",
    "cells",
    "draw",
    "failures",
    "full_row",
    "headings",
    "markdown",
    "style",
    "table",
    "text_table",
]


HEADINGS = (
    *("model", "mode", "GPUs", "parameters", "epoch", "± spread", "comm", "samples/s"),
    *("speedup", "efficiency", "overlap", "exposed"),
)
_LEAVING = ("parameters", "± spread", "overlap", "exposed", "efficiency", "comm", "TFLOP/s", "samples/s")
"""Columns to drop in a narrow terminal, in this order."""
_TFLOPS, _RATE = "TFLOP/s", 8
"""The heading of a column that only some tables have, and its place."""
_TEXTS = 2
"""Number of columns that hold text; the others hold numbers."""


def seconds(value: float | None) -> str:
    """Write the time of an epoch.

    >>> seconds(0.0361), seconds(12.345), seconds(None)
    ('36.1 ms', '12.35 s', '–')
    """
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def _share(value: float | None, times: float = 100) -> str:
    return "–" if value is None else f"{times * value:.0f} %"


def _tflops(row: Row) -> str:
    """Return a rank's rate, with the share of its GPU's peak where that is known."""
    if row.tflops is None:
        return "–"
    return number(row.tflops) if row.mfu is None else f"{number(row.tflops)} ({format_share(row.mfu)})"


def cells(row: Row) -> list[str]:
    """Return a row as texts, one for each heading."""
    start = [row.model, row.mode, str(row.gpus), "–" if row.parameters is None else f"{row.parameters / 1e6:.1f} M"]
    return [
        *start,
        seconds(row.epoch_s),
        "–" if row.spread is None or row.epochs < 2 else f"{100 * row.spread:.1f} %",
        seconds(row.comm_s) if row.gpus > 1 else "–",
        "–" if row.samples_per_s is None else f"{row.samples_per_s:,.0f}",
        _tflops(row),
        "–" if row.speedup is None else f"{row.speedup:.2f}×",
        _share(row.efficiency),
        _share(row.overlap_percent, 1),
        _share(row.exposed_share),
    ]


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the headings: those of every table, TFLOP/s if any row has it, and the options that these rows have."""
    return (*_own_headings(rows), *dict.fromkeys(name for row in rows for name in row.options))


def full_row(row: Row, names: Sequence[str]) -> list[str]:
    """Return a row as texts, with its options; *names* are the headings of the table."""
    texts = dict(zip((*HEADINGS[:_RATE], _TFLOPS, *HEADINGS[_RATE:]), cells(row), strict=True))
    return [texts[name] if name in texts else row.options.get(name, "–") or "yes" for name in names]


def _own_headings(rows: Sequence[Row]) -> tuple[str, ...]:
    known = any(row.tflops is not None for row in rows)
    return (*HEADINGS[:_RATE], *((_TFLOPS,) if known else ()), *HEADINGS[_RATE:])


def text_table(rows: Sequence[Row], note: str = "") -> TextTable:
    """Return all rows as a table of texts, with a column for each option."""
    names = headings(rows)
    return TextTable(names, tuple(tuple(full_row(row, names)) for row in rows), _TEXTS, note)


@dataclass(frozen=True, slots=True)
class _FittingTable:
    """A table that drops columns where the terminal is too narrow."""

    rows: Sequence[Row]
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        dropped_columns: list[str] = []
        table_to_print = self.of(dropped_columns)
        for name in (name for name in _LEAVING if name in headings(self.rows)):
            if Measurement.get(console, options.update(max_width=10_000), table_to_print).maximum <= options.max_width:
                break
            dropped_columns.append(name)
            table_to_print = self.of(dropped_columns)
        yield table_to_print
        if dropped_columns:
            yield Text(f"Too narrow for {', '.join(dropped_columns)}; the files have all columns.", style="dim")

    def of(self, dropped_columns: Sequence[str]) -> Table:
        names = headings(self.rows)
        kept = [i for i, name in enumerate(names) if name not in dropped_columns]
        table_to_print = Table(title=Text(sanitize(self.title)), title_justify="left", title_style="bold")
        for i in kept:
            table_to_print.add_column(names[i], justify="left" if i < _TEXTS else "right", no_wrap=True)
        before = None
        for row in self.rows:
            if before not in (None, row.model):
                table_to_print.add_section()
            before = row.model
            texts = full_row(row, names)
            table_to_print.add_row(*(Text(sanitize(texts[i])) for i in kept), style="dim" if row.failed else None)
        return table_to_print


def table(rows: Sequence[Row], title: str) -> RenderableType:
    """Return the table for a terminal; a narrow one drops the least important columns."""
    return _FittingTable(rows, title)


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each failed run."""
    return [f"{row.model}, {row.mode}, {plural(row.gpus, 'GPU')} failed: {row.failed}" for row in rows if row.failed]


def markdown(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> str:
    """Return the table as Markdown, with *notes* below it."""
    lines = [f"# {escape_markdown(title)}", "", *markdown_lines(text_table(rows))]
    below = [*notes, *failures(rows)]
    return "\n".join([*lines, *([""] if below else []), *(f"- {escape_markdown(note)}" for note in below)]) + "\n"


# The six charts of a benchmark, for the page and for slides.


_Mark: TypeAlias = Box | Dot | Line | Label

_STYLES = {
    "single": ("#4B5563", "circle"),
    "naive": ("#D55E00", "triangle"),
    "interleaved": ("#0072B2", "square"),
    "ddp": ("#009E73", "diamond"),
}
"""A color for each mode that readers with any kind of color vision can tell apart (after Okabe and Ito), and a mark."""
_OTHERS = (
    *(("#A8438A", "circle"), ("#B58900", "square"), ("#56B4E9", "triangle"), ("#602047", "diamond")),
    *(("#6A4C93", "square"), ("#857B70", "diamond"), ("#C86FA8", "triangle"), ("#3A7D44", "circle")),
)
"""Colors of all other modes, in their order."""
COMPUTE = "#5D7290"
"""Compute, not split into phases."""
_INK, _QUIET, _IDEAL = "#374151", "#5B6472", "#9AA5B4"
_LABELS = {"ddp": "DDP", "single": "one GPU"}
_MANY_BARS = 44
"""Number of bars above which their values have no room."""
_PANEL = 1.22
"""Distance from the start of one model's panel to the next; each is 1 wide."""
_NS = 1e9


def style(mode: str, modes: Sequence[str]) -> tuple[str, str]:
    """Return a mode's color and mark; *modes* are all modes of the benchmark, in order."""
    if mode in _STYLES:
        return _STYLES[mode]
    others = [name for name in modes if name not in _STYLES]
    return _OTHERS[others.index(mode) % len(_OTHERS)]


def draw(chart: ChartText, rows: Sequence[Row], local_loss: bool = False, on_cpu: bool = False) -> Drawing:
    """Draw a chart, or return a drawing that says why there is none.

    Args:
        chart: the name, title and text of the chart, from ``conclusions``.
        rows: the rows to draw, from ``scaling.usable``.
        local_loss: whether the loss chart shows rank 0's own losses.
        on_cpu: whether the rows are of processes on CPU.
    """
    if chart.missing:
        return message(chart.title, chart.missing)
    bench = _Bench(rows, on_cpu)
    drawn = {
        "epoch_time": bench.epoch_time,
        "speedup": bench.speedup,
        "communication": bench.communication,
        "saving": bench.saving,
        "loss": bench.local_loss if local_loss else bench.loss,
        "throughput": bench.throughput,
    }[chart.name]()
    first = chart.sentences[0] if chart.sentences else ""
    return Drawing(chart.title, first, drawn.x, drawn.y, drawn.height, drawn.marks, drawn.legend, right=drawn.right)


@dataclass(frozen=True, slots=True)
class _Drawn:
    x: Axis
    y: Axis
    height: float
    marks: tuple[_Mark, ...]
    legend: tuple[Entry, ...]
    right: float = 30


class _Bench:
    def __init__(self, rows: Sequence[Row], on_cpu: bool = False) -> None:
        self.rows, self.on_cpu = rows, on_cpu
        self.models = list(dict.fromkeys(row.model for row in rows))
        self.modes = list(dict.fromkeys(row.mode for row in rows))
        self.counts = sorted({row.gpus for row in rows})

    def _entries(self, modes: Sequence[str]) -> tuple[Entry, ...]:
        return tuple(Entry(color, sanitize(self._mode(m)), mark) for m in modes for color, mark in [self._style(m)])

    def _mode(self, mode: str) -> str:
        return "one process" if self.on_cpu and mode == "single" else _LABELS.get(mode, mode)

    def _count(self, number: int) -> str:
        return plural(number, "process", "processes") if self.on_cpu else plural(number, "GPU")

    def _style(self, mode: str) -> tuple[str, str]:
        return style(mode, self.modes)

    def _of(self, model: str) -> list[Row]:
        return [row for row in self.rows if row.model == model]

    def epoch_time(self) -> _Drawn:
        """Draw bars from zero, grouped by model and number of GPUs, each with its mode's mark on top."""
        most = max(row.epoch_s or 0.0 for row in self.rows)
        unit, times = (" s", 1.0) if most >= 1 else (" ms", 1e3)
        height = 330.0
        high = most * times * 1.2
        pixel = high / height
        marks: list[_Mark] = []
        ticks: list[tuple[float, str]] = []
        x = 0.4
        many = len(self.rows) > _MANY_BARS
        for model in self.models:
            begun = x
            for gpus in self.counts:
                group = [row for row in self._of(model) if row.gpus == gpus]
                for n, row in enumerate(group):
                    color, mark = self._style(row.mode)
                    value = (row.epoch_s or 0.0) * times
                    tip = f"{self._name(row)}: {seconds(row.epoch_s)}"
                    marks.append(Box(x + n + 0.1, x + n + 0.9, value, 0, color, tip))
                    marks.append(Dot(x + n + 0.5, value + 8 * pixel, color, tip, shape=mark))
                    if not many:
                        text = f"{value:.0f}" if value >= 19.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
                        marks.append(Label(x + n + 0.5, value + 22 * pixel, text, _QUIET, "center"))
                if group:
                    ticks.append((x + len(group) / 2, str(gpus) if self.on_cpu else self._count(gpus)))
                    x += len(group) + 0.5
            marks.append(
                Label((begun + x - 0.5) / 2, high - 9 * pixel, sanitize(self._titled(model)), _INK, "center", True)
            )
            x += 0.9
        own = linear_axis(0, high, unit, wanted=6)
        y = Axis(high, 0, own.ticks, "time of an epoch")
        across = Axis(0, x - 0.9, tuple(ticks), self._several() if self.on_cpu else "", grid=False)
        return _Drawn(across, y, height, tuple(marks), self._entries(self.modes))

    def _titled(self, model: str) -> str:
        size = next((row.parameters for row in self._of(model) if row.parameters), None)
        return model if size is None else f"{model} ({size / 1e6:.1f} M)"

    def _name(self, row: Row) -> str:
        return f"{row.model}, {self._mode(row.mode)}, {self._count(row.gpus)}"

    def _panels(self, values: Callable[[Row], float | None]) -> Iterator[tuple[int, str, list[Row]]]:
        shown = [model for model in self.models if any(values(row) is not None for row in self._of(model))]
        for n, model in enumerate(shown):
            yield n, model, [row for row in self._of(model) if values(row) is not None]

    def _across(self, panel: int, gpus: int, log: bool = False) -> float:
        """Return the place of a number of GPUs, to scale, so that the ideal is a straight line."""
        first, last, own = (math.log(n) if log else n for n in (self.counts[0], self.counts[-1], gpus))
        return panel * _PANEL + 0.08 + 0.84 * ((own - first) / (last - first) if last > first else 0.0)

    def _several(self) -> str:
        return "number of processes" if self.on_cpu else "number of GPUs"

    def _lines(
        self,
        values: Callable[[Row], float | None],
        format_value: Callable[[float], str],
        above: Callable[[float], float],
        log: bool = False,
    ) -> tuple[list[_Mark], list[tuple[float, str]]]:
        """Draw a panel for each model: a line per mode over the number of GPUs, which starts at one GPU.

        Args:
            above: whether the text of a value is above its mark.
        """
        marks: list[_Mark] = []
        ticks: list[tuple[float, str]] = []
        for panel, _, own in self._panels(values):
            ticks += [(self._across(panel, gpus, log), str(gpus)) for gpus in self.counts]
            alone = [row for row in own if row.gpus == 1][:1]
            best = max((row for row in own if row.gpus > 1), key=lambda row: values(row) or 0, default=None)
            for mode in self.modes:
                color, mark = self._style(mode)
                mine = sorted((row for row in own if row.mode == mode), key=lambda row: row.gpus)
                points = mine if any(row.gpus == 1 for row in mine) else [*alone, *mine]
                if mine and len(points) > 1:
                    line = tuple((self._across(panel, row.gpus, log), values(row) or 0) for row in points)
                    marks.append(Line(line, color, width=2))
                for row in mine:
                    value = values(row) or 0
                    tip = f"{self._name(row)}: {format_value(value)}"
                    marks.append(Dot(self._across(panel, row.gpus, log), value, color, tip, shape=mark))
            if best is not None:
                value = values(best) or 0
                place = self._across(panel, best.gpus, log)
                marks.append(Label(place, above(value), format_value(value), _INK, "center", True))
        return marks, ticks

    def _width(self, values: Callable[[Row], float | None]) -> float:
        return len(list(self._panels(values))) * _PANEL - (_PANEL - 1)

    def speedup(self) -> _Drawn:
        """Draw speedups over the number of GPUs, the ideal as a line, and Amdahl's ceilings as rings."""

        def values(row: Row) -> float | None:
            return row.speedup

        ideal = self.counts
        high = max([*ideal, *(row.speedup for row in self.rows if row.speedup)]) * 1.16
        height = 330.0
        marks, ticks = self._lines(values, lambda value: f"{value:.2f}×", lambda value: value + high * 15 / height)
        below = []
        for panel, model, own in self._panels(values):
            below.append(Line(tuple((self._across(panel, n), float(n)) for n in ideal), _IDEAL, "5 4"))
            for row in own:
                if row.ceiling is not None:
                    tip = f"Amdahl's ceiling for {row.model} on {self._count(row.gpus)}: {row.ceiling:.2f}×"
                    marks.insert(0, Dot(self._across(panel, row.gpus), row.ceiling, _QUIET, tip, hollow=True))
            marks.append(_head(panel, self._titled(model), high * (1 - 10 / height)))
        ceilings = any(row.ceiling is not None for row in self.rows)
        legend = [*self._entries(self.modes), Entry(_IDEAL, "dashed: the ideal")]
        legend += [Entry(_QUIET, "ring: Amdahl's ceiling", "circle")] if ceilings else []
        y = Axis(high, 0, linear_axis(0, high, "×", wanted=6).ticks, "speedup")
        x = Axis(0, self._width(values), tuple(ticks), self._several(), grid=False)
        return _Drawn(x, y, height, (*below, *marks), tuple(legend))

    def throughput(self) -> _Drawn:
        """Draw throughput over the number of GPUs on a log axis, where the ideal has one slope everywhere."""

        def values(row: Row) -> float | None:
            return row.samples_per_s or None

        with_rates = [(row, row.samples_per_s) for row in self.rows if row.samples_per_s]
        rates = [rate for _, rate in with_rates]
        ideals = [rate * self.counts[-1] for row, rate in with_rates if row.gpus == 1]
        low, high = min(rates) / 1.5, max([*rates, *ideals]) * 1.7
        pixel = (high / low) ** (1 / 330)
        marks, ticks = self._lines(values, lambda value: f"{value:,.0f}/s", lambda value: value * pixel**15, True)
        below = []
        for panel, model, own in self._panels(values):
            alone = next((row.samples_per_s for row in own if row.gpus == 1), None)
            marks.append(_head(panel, self._titled(model), high / pixel**10))
            if alone is not None:
                points = tuple((self._across(panel, gpus, True), alone * gpus) for gpus in self.counts)
                below.append(Line(points, _IDEAL, "5 4"))
        axis = log_axis([low, high], lambda value: f"{value:,.0f}")
        y = Axis(
            high, low, tuple(t for t in axis.ticks if low <= t[0] <= high), "samples per second (log scale)", log=True
        )
        legend = (*self._entries(self.modes), Entry(_IDEAL, "dashed: the ideal"))
        x = Axis(0, self._width(values), tuple(ticks), f"{self._several()} (log scale)", grid=False)
        return _Drawn(x, y, 330, (*below, *marks), legend)

    def communication(self) -> _Drawn:
        """Draw a bar for each naive run: compute, then communication."""
        rows = RowLayout(20)
        marks: list[_Mark] = []
        bars = shares(self.rows)
        high = max(share.compute_s + share.comm_s for share in bars) * _NS
        for model in dict.fromkeys(share.row.model for share in bars):
            rows.head(sanitize(self._titled(model)))
            for share in (one for one in bars if one.row.model == model):
                top, gpus = rows.row(self._count(share.row.gpus)), share.row.gpus
                of, whole = f"{model}, {self._count(gpus)}", share.compute_s + share.comm_s
                compute, end = share.compute_s * _NS, whole * _NS
                tip = f"{of}: compute {seconds(share.compute_s)} of {seconds(whole)}"
                marks.append(Box(0, compute, top, top + 20, COMPUTE, tip, (seconds(share.compute_s),), "#FFFFFF"))
                tip = f"{of}: communication {seconds(share.comm_s)} · {100 * share.fraction:.0f} % of {seconds(whole)}"
                marks.append(Box(compute, end, top, top + 20, theme.EXPOSED, tip, (), theme.ink_on(theme.EXPOSED)))
                marks.append(
                    Label(end, top + 10, f"{100 * share.fraction:.0f} % communication, {seconds(share.comm_s)}")
                )
        unit, size = (" s", _NS) if high >= _NS else (" ms", 1e6)
        own = linear_axis(0, high / size * 1.02, unit)
        x = Axis(0, own.high * size, tuple((at * size, text) for at, text in own.ticks), "time of an epoch")
        legend = (Entry(COMPUTE, "Compute"), Entry(theme.EXPOSED, "Communication"))
        return _Drawn(x, rows.axis(), rows.y, tuple(marks), legend, right=215)

    def saving(self) -> _Drawn:
        """Draw bars right of zero where a mode is faster than naive, left where it is slower."""
        rows, bars = RowLayout(16), savings(self.rows)
        low = min(0.0, *(one.percent for one in bars))
        high = max(0.0, *(one.percent for one in bars))
        room = 0.14 * (high - low or 1)
        marks: list[_Mark] = []
        modes = list(dict.fromkeys(one.row.mode for one in bars))
        for model in dict.fromkeys(one.row.model for one in bars):
            rows.head(sanitize(self._titled(model)))
            for one in (one for one in bars if one.row.model == model):
                label = f"{self._count(one.row.gpus)}, {self._mode(one.row.mode)}"
                top, color = rows.row(sanitize(label)), self._style(one.row.mode)[0]
                change = signed(one.percent, f"{abs(one.percent):.0f} %")
                tip = f"{self._name(one.row)}: {change} of naive's epoch"
                left, right = sorted((0.0, one.percent))
                marks.append(Box(left, right, top, top + 16, color, tip))
                marks.append(Label(one.percent, top + 8, change, _INK, "left" if change.startswith(MINUS) else "right"))
        x = linear_axis(low - (room if low < 0 else 0), high + room, " %")
        ticks = tuple((at, text.replace("-", "−")) for at, text in x.ticks)
        marks.insert(0, Line(((0.0, 0.0), (0.0, rows.y)), _QUIET))
        axis = Axis(x.low, x.high, ticks, "shorter than naive's epoch (+) or longer (−)")
        entries = tuple(Entry(self._style(mode)[0], sanitize(_LABELS.get(mode, mode))) for mode in modes)
        return _Drawn(axis, rows.axis(), rows.y, tuple(marks), entries)

    def loss(self) -> _Drawn:
        """Draw the losses of the whole batch, one curve per mode."""
        return self._losses(lambda row: row.losses)

    def local_loss(self) -> _Drawn:
        """Draw rank 0's losses: a curve for each number of GPUs."""
        return self._losses(lambda row: row.local_losses)

    def _losses(self, curve: Callable[[Row], Sequence[float | None]]) -> _Drawn:
        with_losses = [row for row in self.rows if any(value is not None for value in curve(row))]
        values = [value for row in with_losses for value in curve(row) if value is not None]
        low, high = min(values), max(values)
        low, high = low - 0.04 * (high - low or 1), high + 0.16 * (high - low or 1)
        marks: list[_Mark] = []
        ticks: list[tuple[float, str]] = []
        models = list(dict.fromkeys(row.model for row in with_losses))
        for panel, model in enumerate(models):
            own = [row for row in with_losses if row.model == model]
            last = max(len(curve(row)) for row in own)
            ticks += [(panel * _PANEL, "step 1"), (panel * _PANEL + 1, f"{last}")][: 1 + (last > 1)]
            for n, row in enumerate(own):
                points = [
                    (panel * _PANEL + step / max(last - 1, 1), value)
                    for step, value in enumerate(curve(row))
                    if value is not None
                ]
                color, mark = self._style(row.mode)
                # Curves may coincide: the first are wider, so that they show behind those that follow.
                width = 1.2 + 1.6 * (len(own) - 1 - n)
                marks.append(Line(tuple(points), color, "5 4" if n % 2 else "", width))
                marks.append(
                    Dot(
                        *points[-1 - (n * len(points) // (len(own) + 1))],
                        color,
                        f"{self._name(row)}: {points[-1][1]:.6g} at last",
                        shape=mark,
                    )
                )
            marks.append(_head(panel, self._titled(model), high - (high - low) * 10 / 330))
        y = Axis(high, low, linear_axis(low, high, "", wanted=6).ticks, "loss")
        modes = [mode for mode in self.modes if any(row.mode == mode for row in with_losses)]
        x = Axis(0, len(models) * _PANEL - (_PANEL - 1), tuple(ticks), grid=False)
        return _Drawn(x, y, 330, tuple(marks), self._entries(modes), right=40)


def _head(panel: int, text: str, y: float) -> Label:
    return Label(panel * _PANEL + 0.5, y, sanitize(text), _INK, "center", True)
