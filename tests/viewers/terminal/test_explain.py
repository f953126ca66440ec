"""An explanation in the terminal."""

from __future__ import annotations

import pytest

from dptrace.simulate.catalog import ENTRIES
from dptrace.viewers.terminal.explain import chart_lines, lines
from tests.support.explanations import explained


@pytest.mark.heavy
def test_lines_fit_80_columns() -> None:
    """For few ranks and many, without a cut: the numbers of every message are there."""
    for ranks in (4, 9):
        for name in ENTRIES:
            printed = list(lines(explained(name, ranks + ranks % 2 if name == "dualpipe" else ranks), 80))

            assert max(map(len, printed)) <= 80, (ranks, name)
            assert not [line for line in printed if line.endswith("…") and ranks < 9], (ranks, name)


def test_a_step_shows_before_and_after() -> None:
    """Rank 0's chunk of 10 is added to rank 1's of 20. One step alone has no cost; nine letters do not fit, so
    the column has their number instead."""
    printed = "\n".join(lines(explained("ring", 4), 80))
    alone = list(lines(explained("ring", 9), 80, 8))

    assert "0 → 1  chunk 0 (52 MB): A0 = 10, added to 20 → 30" in printed
    assert "  rank 1  A0+B0*   B1       B2       B3" in printed
    assert "Step 8 of 16" in alone[0]
    assert not any("Step 9" in line or "Size" in line for line in alone)
    assert any(line.startswith("  rank 0") and " 9*" in line for line in alone)


def test_the_chart_has_a_column_for_each_unit_of_time() -> None:
    """1F1B with four ranks and four micro-batches: the last rank's first backward follows its first forward."""
    chart = list(chart_lines(explained("1f1b", 4, micro_batches=4), 80))
    rows = {line[:6]: line for line in chart if line.startswith("rank")}

    assert rows["rank 3"].index("B0") > rows["rank 3"].index("F0") == rows["rank 0"].index("F3")
    assert rows["rank 0"].index("B0") > rows["rank 1"].index("B0") > rows["rank 2"].index("B0")


def test_a_narrow_terminal_gets_the_chart_in_pieces() -> None:
    """Each with its rows; no work is lost."""
    explanation = explained("gpipe", 3, micro_batches=9)
    printed = "\n".join(chart_lines(explanation, 50))

    assert printed.count("rank 0") > 1
    assert 3 * 9 == sum(printed.count(f"F{micro}") for micro in range(9))
