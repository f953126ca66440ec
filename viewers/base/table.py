"""A table of texts, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dptrace.core.units import sanitize
from dptrace.viewers.base.format import plain

__all__ = ["MAX_ROWS", "TextTable", "escape_markdown", "markdown_lines", "print_text_table", "rich_table"]

MAX_ROWS = 40
"""Most rows of a table in the terminal or in a report, without --all."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts, which may hold hostile names: the renderer must escape them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    """Number of columns, from the left, that hold words; the others hold numbers and are aligned right."""
    note: str = ""
    """What the numbers mean: which steps, which unit."""

    def truncated(self, count: int = MAX_ROWS) -> TextTable:
        """Return the first rows, with a note on how many more there are."""
        more = len(self.rows) - count
        if more <= 0:
            return self
        note = f"{self.note} {more:,} more rows are not shown.".strip()
        return TextTable(self.columns, self.rows[:count], self.text_columns, note)


def rich_table(cells: TextTable, styles: Sequence[str] = ()) -> Table:
    """Return a table for the terminal, without its note.

    Args:
        styles: of each row; without, they have none.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for index, heading in enumerate(cells.columns):
        word = index < cells.text_columns
        # Headings may wrap at blanks; numbers must not wrap.
        width = None if word else max((len(row[index]) for row in cells.rows), default=0)
        if word:
            table.add_column(plain(heading), overflow="fold")
        else:
            table.add_column(plain(heading), justify="right", min_width=width)
    for row, style in zip(cells.rows, styles or repeat(""), strict=False):
        table.add_row(*map(plain, row), style=style)
    return table


def print_text_table(cells: TextTable, title: str, console: Console) -> None:
    """Print a table, its title above and its note below it."""
    console.print(Text(title, style="bold"))
    if cells.rows:
        console.print(rich_table(cells))
    if cells.note:
        console.print(plain(cells.note), style="dim")


def markdown_lines(cells: TextTable) -> list[str]:
    """Return a table as lines of Markdown, without its note."""
    numbers = len(cells.columns) - cells.text_columns
    rows = ("| " + " | ".join(map(escape_markdown, row)) + " |" for row in (cells.columns, *cells.rows))
    heading, *lines = rows
    return [heading, "|" + "--|" * cells.text_columns + "--:|" * numbers, *lines]


def escape_markdown(text: str) -> str:
    """Escape what has a meaning in Markdown or HTML: names and notes may come from other people's scripts."""
    escaped = sanitize(text).replace("\\", "\\\\").replace("|", "\\|")
    return escaped.replace("<", "&lt;").replace("[", "\\[").replace("\n", " ")
