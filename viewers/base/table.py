"""A table of texts, before it is decided where it stands: in a terminal or on a page."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dptrace.viewers.terminal.split_tables import plain

__all__ = ["MAX_ROWS", "TextTable", "print_text_table"]

MAX_ROWS = 40
"""Of a table in the terminal or in a report, unless every row is asked for."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts as hostile as the names in them: whoever shows them must escape them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    """How many columns, from the left, hold words; the others hold numbers, which end at the right."""
    note: str = ""
    """What the numbers are: of which steps, in which unit."""

    def truncated(self, count: int = MAX_ROWS) -> TextTable:
        """Keep the first rows, and say how many more there are."""
        more = len(self.rows) - count
        if more <= 0:
            return self
        note = f"{self.note} {more:,} more rows are not shown.".strip()
        return TextTable(self.columns, self.rows[:count], self.text_columns, note)


def print_text_table(cells: TextTable, title: str, console: Console) -> None:
    """Print a table, its title above and its note below it."""
    console.print(Text(title, style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for index, heading in enumerate(cells.columns):
        word = index < cells.text_columns
        # Headings may be folded where there is a blank; numbers may be folded nowhere.
        width = None if word else max((len(row[index]) for row in cells.rows), default=0)
        if word:
            table.add_column(plain(heading), overflow="fold")
        else:
            table.add_column(plain(heading), justify="right", min_width=width)
    for row in cells.rows:
        table.add_row(*map(plain, row))
    if cells.rows:
        console.print(table)
    if cells.note:
        console.print(plain(cells.note), style="dim")
