"""Any pandas frame as a table for the terminal, with its numbers unrounded."""

from __future__ import annotations

import math

import pandas as pd
from rich.console import Console

from dptrace.core.units import sanitize
from dptrace.viewers.base.fitting import Fitting

MAX_ROWS = 20
_LONGEST = 72
"""Characters of a name that are shown; kernel names can have a thousand."""


def cell(value: object) -> str:
    """Return a value as text; a number with at most six decimals, as pandas prints it.

    >>> cell(338781.0), cell(77.78), cell(float("nan")), cell("gemm")
    ('338781', '77.78', '–', 'gemm')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return sanitize(str(value))


def print_frame(frame: pd.DataFrame, title: str, console: Console, all_rows: bool = False) -> None:
    """Print the first rows of a frame, or every row, and the number of rows left out."""
    rows = frame if all_rows else frame.head(MAX_ROWS)
    texts = [[_short(cell(value)) for value in row] for row in rows.itertuples(index=False)]
    headings = (sanitize(str(name)).replace("_", " ").replace("(", " (") for name in frame.columns)
    words = (not pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns)
    table = Fitting(title, zip(headings, words, strict=True))
    for row in texts:
        table.add_row(*row)
    console.print(table)
    if len(rows) < len(frame):
        console.print(f"… and {len(frame) - len(rows):,} more rows; --all shows them, --csv writes them.", style="dim")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
