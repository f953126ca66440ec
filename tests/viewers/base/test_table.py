"""Tables of texts."""

from __future__ import annotations

import io

from rich.console import Console

from dptrace.viewers.base.table import TextTable, print_text_table
from tests.support.view_cases import PAYLOAD

CELLS = TextTable(("name", "ms"), tuple((f"row {i}", str(i)) for i in range(50)), 1, "All of it.")


def printed(cells: TextTable, width: int = 60) -> str:
    out = io.StringIO()
    print_text_table(cells, "Title", Console(file=out, width=width))
    return out.getvalue()


def test_a_table_is_printed_with_title_and_note() -> None:
    """Each row on a line."""
    text = printed(CELLS)

    assert text.startswith("Title\n")
    assert "row 49" in text
    assert text.rstrip().endswith("All of it.")


def test_the_first_rows_say_how_many_more_there_are() -> None:
    """And a short table stays as it is."""
    assert "All of it. 10 more rows are not shown." == CELLS.truncated().note
    assert 40 == len(CELLS.truncated().rows)
    assert CELLS == CELLS.truncated(50)


def test_names_give_the_terminal_no_orders() -> None:
    """Nor markup to rich."""
    text = printed(TextTable(("[bold]x", PAYLOAD), (("[red]y", PAYLOAD),), 2, PAYLOAD))

    assert not {"\x1b", "\u202e"} & set(text)
    assert "[red]y" in text
    assert "[bold]x" in text
