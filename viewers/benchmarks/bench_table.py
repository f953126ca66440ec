"""The table of a benchmark, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dptrace.bench.table import Row
from dptrace.core.units import number, plural, sanitize, share
from dptrace.viewers.base.table import TextTable, escape_markdown, markdown_lines

__all__ = ["HEADINGS", "cells", "failures", "full_row", "headings", "markdown", "seconds", "table", "text_table"]

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
    return number(row.tflops) if row.mfu is None else f"{number(row.tflops)} ({share(row.mfu)})"


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
