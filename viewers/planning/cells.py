"""How the cells of the planners' tables are written: each column is a function of a row of the JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dptrace.core.units import byte_size, duration, share
from dptrace.viewers.base.table import TextTable

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Headings, and what returns the cell of a row."""
HELD = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state and master weights",
    "gathered_bytes": "gathered parameters",
    "activation_bytes": "activations",
    "recompute_bytes": "recomputed, its gradients, or the loss",
}
"""The parts of what a GPU holds."""


def table_of(
    rows: Sequence[Row], columns: Columns, words: int = 1, note: str = "", leaving: tuple[str, ...] = ()
) -> TextTable:
    """Write a table, whose first *words* columns hold words; *leaving* is as in :class:`TextTable`."""
    cells = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
    return TextTable(tuple(columns), cells, words, note, leaving)


def cell(key: str, write: Callable[[Any], str], none: str = "–") -> Callable[[Row], str]:
    return lambda row: none if row[key] is None else write(row[key])


def columns(text: str) -> dict[str, Callable[[Row], str]]:
    """Return columns from ``heading=key, …``, or ``key`` that is its own heading; the key tells how a value is written.

    >>> {name: write({"step_s": 0.5, "mfu": 0.25}) for name, write in columns("step=step_s, mfu").items()}
    {'step': '500 ms', 'mfu': '25 %'}
    """
    found: dict[str, Callable[[Row], str]] = {}
    for part in text.split(", "):
        heading, _, key = part.rpartition("=")
        write = next((write for ends, write in _WRITTEN if key.endswith(ends)), str)
        found[heading or key] = cell(key, write)
    return found


def seconds(value: float) -> str:
    """Write a time that is in seconds; none is a dash."""
    return duration(1e9 * value) if value else "–"


def billions(count: float) -> str:
    """Write a number of parameters.

    >>> billions(7e9), billions(175e9), billions(52.04e6), billions(1.008e12)
    ('7.0 billion', '175 billion', '52.0 million', '1.01 trillion')
    """
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= size:
            value = count / size
            return f"{value:.0f} {word}" if value >= 100 else f"{value:.{2 if size == 1e12 else 1}f} {word}"
    return f"{count:,.0f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


_WRITTEN: tuple[tuple[tuple[str, ...], Callable[[Any], str]], ...] = (
    (("_per_s", "gpus", "ranks", "calls", "ccr", "ridge", "steps", "hops"), _count),
    (("_s", "seconds"), seconds),
    (("_ns",), duration),
    (("bytes",), byte_size),
    (("_share", "efficiency", "mfu", "bubble"), share),
    (("critical_batch",), lambda value: f"{value:,.3g}"),
    (("ceiling",), lambda value: f"{value:,.1f}×"),
    (("fits",), lambda fits: "yes" if fits else "no"),
    (("kind",), lambda kind: str(kind).replace("_", "-")),
)
"""How the values are written whose key ends so: numbers of things, times, sizes, shares …"""
