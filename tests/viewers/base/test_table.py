"""Tables of texts."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.analysis.findings.finding import Finding, Gain
from dptrace.replay.paths import LINK_KINDS
from dptrace.run.columns import HEADINGS
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.table import PATH_KINDS, TextTable, gain_sentence, print_text_table
from tests.support.terminal_text import captured
from tests.support.view_cases import PAYLOAD

CELLS = TextTable(("name", "ms"), tuple((f"row {i}", str(i)) for i in range(50)), 1, "All of it.")


def test_the_first_rows_say_how_many_more_there_are() -> None:
    """And a short table stays as it is."""
    assert "All of it. 10 more rows are not shown." == CELLS.truncated().note
    assert 40 == len(CELLS.truncated().rows)
    assert CELLS == CELLS.truncated(50)


def test_names_give_the_terminal_no_orders() -> None:
    """Nor markup to rich."""
    table = TextTable(("[bold]x", PAYLOAD), (("[red]y", PAYLOAD),), 2, PAYLOAD)
    text = captured(lambda console: print_text_table(table, "Title", console), 60)

    assert text.startswith("Title\n")
    assert not {"\x1b", "\u202e"} & set(text)
    assert {"[red]y", "[bold]x"} <= set(text.split())


# How a gain reads.


MS = 1_000_000


def test_a_gain_is_a_sentence() -> None:
    """It says how much, in which range, what is different, and why it is less; or why it is not known."""
    for gain, parts in (
        (Gain("no copies", 10 * MS, 5 * MS, 15 * MS), ["10.0 ms a step", "5.00 ms", "15.0 ms", "no copies"]),
        (Gain("no copies", 0, 0, 2 * MS, reason="Hidden."), ["nothing", "2.00 ms", "Hidden."]),
        (Gain("schedule ddp", -3 * MS, -4 * MS, -2 * MS), ["Loses 3.00 ms", "schedule ddp"]),
        (Gain(reason="The recording is too short."), ["20.0 ms counted", "unknown", "The recording is too short."]),
    ):
        text = gain_sentence(Finding("copies", "", "", 20 * MS, 0.1, gain=replace(gain, marginal_ns=gain.ns)))

        assert [part for part in parts if part in text] == parts, (gain, parts)
        assert text.endswith("."), (gain, parts)


def test_a_gain_after_those_above_is_not_taken_for_that_alone() -> None:
    """A finding is shown with the first of two figures that differ by 4 %: both are labelled."""
    gain = Gain("no copies", 22_500_000, 20 * MS, 25 * MS, marginal_ns=21_940_000)

    assert "21.9 ms after those above, alone 22.5 ms" in gain_sentence(Finding("copies", "", "", 0, 0.1, gain=gain))


# What the kinds of pieces of a critical path are called.


def test_every_kind_of_piece_has_words() -> None:
    """In the order in which a path lists its time by kind."""
    assert LINK_KINDS == tuple(PATH_KINDS)


def test_no_heading_is_broken_within_a_word_or_a_difference() -> None:
    """What does not fit is left out instead; a heading wraps between its words."""
    for width in range(20, 50, 3):
        table = Fitting("", [("kind", True), ("synchronizing", False), ("wait B − A", False), ("± 95 %", False)])
        table.add_row("all_reduce", "1", "+2", "3")
        lines = [line.plain for line in table.lines(width)]
        shown = "\n".join(lines).partition("Left out")[0]

        assert "wait" not in shown or "B − A" in shown, width
        assert "95" not in shown or "± 95 %" in shown, width
        assert "synchroni" not in shown or "synchronizing" in shown, width


def test_the_headings_of_figures_are_whole_words() -> None:
    """However narrow: a hyphen within one would say that it goes on."""
    assert not [name for name, column in HEADINGS.items() if "-\n" in column.folded or "|" in column.heading]
