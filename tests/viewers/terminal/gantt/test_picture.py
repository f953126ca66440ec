"""The terminal's picture in any width: steps, rows, axis."""

from __future__ import annotations

import pytest

from dptrace.comparison.compare import compare
from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.viewers.base.time_saved import time_saved_sentence
from tests.support.builders import two_rank_timelines
from tests.support.jobs import job
from tests.support.terminal_text import drawn, paired, run_of, training


def test_a_pipe_gets_letters() -> None:
    """Without colours each cell is its part's letter, and communication has a row of its own."""
    lines = drawn(run_of(*two_rank_timelines()), 108)

    assert lines[:6] == [
        "made · 2 ranks · 2 × NVIDIA H100 · 2 steps",
        "steps   │ProfilerStep#0                                   │ProfilerStep#1" + " " * 35,
        "rank 0  " + 2 * "MFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBBBBXXXXX·OOOO·····",
        "  comm  " + 2 * "                         ==========XXXXX          ",
        "rank 1  " + 2 * "MFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBBBBXXXXXXOOOO·····",
        "  comm  " + 2 * "                         ==========XXXXXX         ",
    ]
    assert lines[6].startswith("        ┴────")
    assert ["0", "µs", "50", "µs", "100", "µs", "150", "µs"] == lines[7].split()


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("steps", [1, 3, 40, 700])
def test_any_number_of_steps_fits(width: int, steps: int) -> None:
    """No line is wider than the terminal, and with many steps only every so-manieth is named."""
    lines = drawn(run_of(training(0, steps)), width)

    assert max(map(len, lines)) <= width
    if width == 80:
        named = lines[1].count("│")
        assert 1 <= named <= 12
        assert (steps == 1) == (named == 1)
        assert any("Many steps" in line for line in lines) == (steps > 12)


def test_ranks_share_one_axis() -> None:
    """A rank that began late is drawn late."""
    lines = drawn(run_of(training(0, 2), training(1, 2, origin=1000)), 98)

    assert lines[2][8:].startswith("F")
    assert lines[4][8:].index("F") == 30
    assert lines[4][8:38].isspace()


def test_wild_clocks_get_an_axis_each() -> None:
    """Ranks whose clocks lie years apart are drawn from their own starts, and that is told."""
    lines = drawn(run_of(training(0, 2), training(1, 2, origin=10**18)))

    assert lines[2][8:] == lines[4][8:]
    assert any("its own first step" in line for line in lines)


@pytest.mark.heavy
@pytest.mark.parametrize("width", [40, 60, 80, 110, 300])
def test_two_runs_fit_any_width(width: int) -> None:
    """No line is wider than the terminal, and the sentence is the figures' own."""
    a, b = job(ranks=4), job(ranks=1, seed=1, factors={"exposed": 0.2})
    lines = paired(a, b, width)

    assert max(map(len, lines)) <= width
    found = compare(a, b)
    text = " ".join(" ".join(lines).split())
    assert time_saved_sentence(align_steps(run_steps(a), run_steps(b), comparison=found)) in text
    assert found.summary() in text
    assert 5 == sum("comm  " in line[:8] for line in lines)
