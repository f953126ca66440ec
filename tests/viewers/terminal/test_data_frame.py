"""Frames in the terminal."""

from __future__ import annotations

import io

import pandas as pd
from rich.console import Console

from dptrace.viewers.terminal.data_frame import MAX_ROWS, print_frame


def printed(frame: pd.DataFrame, all_rows: bool = False, width: int = 132) -> str:
    file = io.StringIO()
    print_frame(frame, "a title", Console(file=file, width=width), all_rows)
    return file.getvalue()


def test_numbers_are_shown_to_the_digit() -> None:
    """Whole floats without a point, others with up to six decimals, what is missing as a dash; however narrow."""
    frame = pd.DataFrame({"idle_time(us)": [338781.0, 336419.714688, float("nan")], "name": ["a", "b", "c"]})

    for width in (132, 30):
        text = printed(frame, width=width)
        assert "338781 " in text
        assert "336419.714688" in text
        assert "–" in text


def test_names_give_no_orders() -> None:
    """Control characters and markup from a trace are shown as text, and a long name is cut."""
    text = printed(pd.DataFrame({"name": ["gemm\x1b[31m", "[bold]x[/bold]", "n" * 500]}))

    assert "gemm\\x1b[31m" in text
    assert "[bold]x[/bold]" in text
    assert "n…" in text


def test_long_tables_are_cut_and_say_so() -> None:
    """The rest is counted; --all leaves nothing out."""
    frame = pd.DataFrame({"n": range(1000, 1000 + MAX_ROWS + 5)})

    assert "… and 5 more rows" in printed(frame)
    assert "1024" in printed(frame, all_rows=True)
    assert "more rows" not in printed(frame, all_rows=True)
