"""The table of a benchmark, for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from dptrace.bench.conclusions import ChartText, conclusions
from dptrace.bench.table import BenchResult, Row, savings, shares, usable
from dptrace.core.units import MINUS, number, plural, sanitize, signed
from dptrace.core.units import share as format_share
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import RowLayout
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Entry, Label, Line, linear_axis, log_axis, message
from dptrace.viewers.base.table import TextTable, markdown_page, number_table, plain

_LEAVING = ("parameters", "± spread", "overlap", "exposed", "efficiency", "comm", "TFLOP/s", "samples/s")
"""Columns that a narrow terminal goes without, in this order."""
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


def _percent(value: float | None, times: float = 100, digits: int = 0) -> str:
    return "–" if value is None else f"{times * value:.{digits}f} %"


def _tflops(row: Row) -> str:
    """Return a rank's rate, with the share of its GPU's peak where that is known."""
    if row.tflops is None:
        return "–"
    return number(row.tflops) if row.mfu is None else f"{number(row.tflops)} ({format_share(row.mfu)})"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row.model,
    "mode": lambda row: row.mode,
    "GPUs": lambda row: str(row.gpus),
    "parameters": lambda row: "–" if row.parameters is None else f"{row.parameters / 1e6:.1f} M",
    "epoch": lambda row: seconds(row.epoch_s),
    "± spread": lambda row: _percent(row.spread if row.epochs > 1 else None, digits=1),
    "comm": lambda row: seconds(row.comm_s if row.gpus > 1 else None),
    "samples/s": lambda row: "–" if row.samples_per_s is None else f"{row.samples_per_s:,.0f}",
    "TFLOP/s": _tflops,
    "speedup": lambda row: "–" if row.speedup is None else f"{row.speedup:.2f}×",
    "efficiency": lambda row: _percent(row.efficiency),
    "overlap": lambda row: _percent(row.overlap_percent, 1),
    "exposed": lambda row: _percent(row.exposed_share),
}
"""The columns of every table; TFLOP/s only where a row has it. Options of the rows follow."""


def _option(name: str, row: Row) -> str:
    return row.options.get(name, "–") or "yes"


def text_table(rows: Sequence[Row], note: str = "") -> TextTable:
    """Return all rows as a table of texts, with a column for each option."""
    columns = {name: cell for name, cell in COLUMNS.items() if name != "TFLOP/s" or any(row.tflops for row in rows)}
    for option in dict.fromkeys(name for row in rows for name in row.options):
        columns[option] = partial(_option, option)
    return TextTable(tuple(columns), tuple(tuple(cell(row) for cell in columns.values()) for row in rows), _TEXTS, note)


def table(rows: Sequence[Row], title: str) -> Fitting:
    """Return the table for a terminal, with an empty line between models."""
    cells = text_table(rows)
    made = number_table(plain(title), cells.columns[:_TEXTS], map(sanitize, cells.columns[_TEXTS:]), _LEAVING)
    before = None
    for row, texts in zip(rows, cells.rows, strict=True):
        if before not in (None, row.model):
            made.add_section()
        before = row.model
        made.add_row(*map(plain, texts), style="dim" if row.failed else "")
    return made


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each failed run."""
    return [f"{row.model}, {row.mode}, {plural(row.gpus, 'GPU')} failed: {row.failed}" for row in rows if row.failed]


def markdown(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> str:
    """Return the table as Markdown, with *notes* below it."""
    return markdown_page(title, (), [text_table(rows)], [*notes, *failures(rows)])


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
_MAX_TEXTS = 44
"""Number of bars up to which their values have room."""
_PANEL = 1.22
"""Distance from the start of one model's panel to the next; each is 1 wide."""
_HEIGHT = 330.0
"""Of a chart with panels, in pixels."""
_NS = 1e9
"""Nanoseconds of a second: tables are in seconds, axes of charts in nanoseconds."""


def style(mode: str, modes: Sequence[str]) -> tuple[str, str]:
    """Return a mode's color and mark; *modes* are all modes of the benchmark, in order."""
    if mode in _STYLES:
        return _STYLES[mode]
    others = [name for name in modes if name not in _STYLES]
    return _OTHERS[others.index(mode) % len(_OTHERS)]


def draw_charts(result: BenchResult, local_loss: bool = False) -> list[tuple[ChartText, Drawing]]:
    """Draw the six charts, each with its conclusions, or a message that says why there is none.

    Args:
        local_loss: whether the loss chart shows rank 0's own losses.
    """
    bench = _Bench(usable(result.rows), result.on_cpu)
    draw = {
        "epoch_time": bench.epoch_time,
        "speedup": bench.speedup,
        "communication": bench.communication,
        "saving": bench.saving,
        "loss": lambda: bench.loss(lambda row: row.local_losses if local_loss else row.losses),
        "throughput": bench.throughput,
    }
    charts = []
    for chart in conclusions(result.rows, result.here, local_loss, result.on_cpu):
        if chart.missing:
            drawing = message(chart.title, chart.missing)
        else:
            subtitle = chart.sentences[0] if chart.sentences else ""
            drawing = replace(draw[chart.name](), title=chart.title, subtitle=subtitle)
        charts.append((chart, drawing))
    return charts


def _drawing(
    x: Axis, y: Axis, height: float, marks: Sequence[_Mark], legend: Sequence[Entry], right: float = 30
) -> Drawing:
    return Drawing("", "", x, y, height, tuple(marks), tuple(legend), right=right)


def _rate(value: float) -> str:
    """Write samples per second in at most seven characters, which a panel has room for."""
    return f"{value / 1e6:,.3g} M/s" if value >= 1e6 else f"{value:,.0f}/s"


def _moved(y: Axis, value: float, pixels: float) -> float:
    """Return the value this many pixels above another on an upward axis of the height of a panel."""
    share = pixels / _HEIGHT
    return value * (y.low / y.high) ** share if y.log else value + (y.low - y.high) * share


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

    def epoch_time(self) -> Drawing:
        """Draw bars from zero, grouped by model and number of GPUs, each with its mode's mark on top."""
        most = max(row.epoch_s or 0.0 for row in self.rows)
        unit, times = (" s", 1.0) if most >= 1 else (" ms", 1e3)
        y = self._up_axis(0, most * times * 1.2, unit, "time of an epoch")
        marks: list[_Mark] = []
        ticks: list[tuple[float, str]] = []
        x = 0.4
        for model in self.models:
            begun = x
            for gpus in self.counts:
                group = [row for row in self._of(model) if row.gpus == gpus]
                for n, row in enumerate(group):
                    color, mark = self._style(row.mode)
                    value, tip = (row.epoch_s or 0.0) * times, f"{self._name(row)}: {seconds(row.epoch_s)}"
                    marks.append(Box(x + n + 0.1, x + n + 0.9, value, 0, color, tip))
                    marks.append(Dot(x + n + 0.5, _moved(y, value, 8), color, tip, shape=mark))
                    if len(self.rows) <= _MAX_TEXTS:
                        text = f"{value:.0f}" if value >= 19.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
                        marks.append(Label(x + n + 0.5, _moved(y, value, 22), text, _QUIET, "center"))
                if group:
                    ticks.append((x + len(group) / 2, str(gpus) if self.on_cpu else self._count(gpus)))
                    x += len(group) + 0.5
            name, middle = sanitize(self._titled(model)), (begun + x - 0.5) / 2
            marks.append(Label(middle, _moved(y, y.low, -9), name, _INK, "center", True))
            x += 0.9
        across = Axis(0, x - 0.9, tuple(ticks), self._several() if self.on_cpu else "", grid=False)
        return _drawing(across, y, _HEIGHT, marks, self._entries(self.modes))

    def _up_axis(self, low: float, high: float, unit: str, title: str) -> Axis:
        return Axis(high, low, linear_axis(low, high, unit, wanted=6).ticks, title)

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

    def _over_gpus(
        self,
        values: Callable[[Row], float | None],
        format_value: Callable[[float], str],
        y: Axis,
        rings: Callable[[Row], float | None] = lambda row: None,
    ) -> Drawing:
        """Draw a panel for each model: a line per mode over the number of GPUs, from one GPU on, and the ideal.

        Args:
            rings: a bound of a row's value, which is drawn as a ring.
        """
        marks: list[_Mark] = []
        ticks: list[tuple[float, str]] = []
        ideals: list[_Mark] = []
        bounds: list[_Mark] = []
        drawn = [row for row in self.rows if values(row) is not None]
        for panel, model, own in self._panels(values):
            ticks += [(self._across(panel, gpus, y.log), str(gpus)) for gpus in self.counts]
            alone = [row for row in own if row.gpus == 1][:1]
            best = max((row for row in own if row.gpus > 1), key=lambda row: values(row) or 0, default=None)
            for mode in self.modes:
                mine = sorted((row for row in own if row.mode == mode), key=lambda row: row.gpus)
                marks += self._curve(panel, mine, alone, values, format_value, y.log)
            if best is not None:
                value, place = values(best) or 0, self._across(panel, best.gpus, y.log)
                marks.append(Label(place, _moved(y, value, 15), format_value(value), _INK, "center", True))
            marks.append(_head(panel, self._titled(model), _moved(y, y.low, -10)))
            one = values(alone[0]) if alone else None
            if one is not None:
                points = tuple((self._across(panel, gpus, y.log), one * gpus) for gpus in self.counts)
                ideals.append(Line(points, _IDEAL, "5 4"))
            for row in own:
                if (bound := rings(row)) is not None:
                    tip = f"Amdahl's ceiling for {row.model} on {self._count(row.gpus)}: {bound:.2f}×"
                    bounds.append(Dot(self._across(panel, row.gpus, y.log), bound, _QUIET, tip, hollow=True))
        legend = [*self._entries([mode for mode in self.modes if any(row.mode == mode for row in drawn)])]
        legend += [Entry(_IDEAL, "the ideal", "dashes")] if ideals else []
        legend += [Entry(_QUIET, "Amdahl's ceiling", "ring")] if bounds else []
        title = f"{self._several()} (log scale)" if y.log else self._several()
        x = Axis(0, len(list(self._panels(values))) * _PANEL - (_PANEL - 1), tuple(ticks), title, grid=False)
        return _drawing(x, y, _HEIGHT, [*ideals, *bounds, *marks], legend)

    def _curve(
        self,
        panel: int,
        mine: list[Row],
        alone: list[Row],
        values: Callable[[Row], float | None],
        format_value: Callable[[float], str],
        log: bool,
    ) -> Iterator[_Mark]:
        """Draw one mode in a panel."""
        points = mine if any(row.gpus == 1 for row in mine) else [*alone, *mine]
        if mine and len(points) > 1:
            line = tuple((self._across(panel, row.gpus, log), values(row) or 0) for row in points)
            yield Line(line, self._style(mine[0].mode)[0], width=2)
        for row in mine:
            value, (color, mark) = values(row) or 0, self._style(row.mode)
            tip = f"{self._name(row)}: {format_value(value)}"
            yield Dot(self._across(panel, row.gpus, log), value, color, tip, shape=mark)

    def speedup(self) -> Drawing:
        """Draw speedups over the number of GPUs, the ideal as a line, and Amdahl's ceilings as rings."""
        high = max([*self.counts, *(row.speedup for row in self.rows if row.speedup)]) * 1.16
        y = self._up_axis(0, high, "×", "speedup")
        return self._over_gpus(lambda row: row.speedup, lambda value: f"{value:.2f}×", y, lambda row: row.ceiling)

    def throughput(self) -> Drawing:
        """Draw throughput over the number of GPUs on a log axis, where the ideal has one slope everywhere."""
        rates = [(row.gpus, row.samples_per_s) for row in self.rows if row.samples_per_s]
        low = min(rate for _, rate in rates) / 1.5
        high = 1.7 * max(rate * (self.counts[-1] if gpus == 1 else 1) for gpus, rate in rates)
        ticks = log_axis([low, high], lambda value: f"{value:,.0f}").ticks
        inside = tuple(tick for tick in ticks if low <= tick[0] <= high)
        y = Axis(high, low, inside, "samples per second (log scale)", log=True)
        return self._over_gpus(lambda row: row.samples_per_s or None, _rate, y)

    def communication(self) -> Drawing:
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
        return _drawing(x, rows.axis(), rows.y, marks, legend, right=215)

    def saving(self) -> Drawing:
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
        entries = [Entry(self._style(mode)[0], sanitize(_LABELS.get(mode, mode))) for mode in modes]
        return _drawing(axis, rows.axis(), rows.y, marks, entries)

    def loss(self, curve: Callable[[Row], Sequence[float | None]]) -> Drawing:
        """Draw the losses of the whole batch, or of rank 0: a curve for each mode and number of GPUs."""
        with_losses = [row for row in self.rows if any(value is not None for value in curve(row))]
        values = [value for row in with_losses for value in curve(row) if value is not None]
        low, high = min(values), max(values)
        low, high = low - 0.04 * (high - low or 1), high + 0.16 * (high - low or 1)
        y = self._up_axis(low, high, "", "loss")
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
                place = points[-1 - (n * len(points) // (len(own) + 1))]
                marks.append(Dot(*place, color, f"{self._name(row)}: {points[-1][1]:.6g} at last", shape=mark))
            marks.append(_head(panel, self._titled(model), _moved(y, y.low, -10)))
        modes = [mode for mode in self.modes if any(row.mode == mode for row in with_losses)]
        x = Axis(0, len(models) * _PANEL - (_PANEL - 1), tuple(ticks), grid=False)
        return _drawing(x, y, _HEIGHT, marks, self._entries(modes), right=40)


def _head(panel: int, text: str, y: float) -> Label:
    return Label(panel * _PANEL + 0.5, y, sanitize(text), _INK, "center", True)
