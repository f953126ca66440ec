"""The cells of the terminal's picture: exactly what holds most of each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.analysis.per_gpu.split import Part, partition
from dptrace.run.run import Run
from dptrace.timeline.model import Phase, Timeline
from tests.support.builders import TimelineBuilder
from tests.support.jobs import late_run
from tests.support.jobs import run_of as job_of
from tests.support.terminal_text import GLYPHS, drawn, paired, run_of


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Give a step of 200 ns with any work in it."""
    build = TimelineBuilder(0, bounds=(0, 90, 200))
    for _ in range(draw(st.integers(0, 12))):
        start, length = draw(st.integers(0, 199)), draw(st.integers(1, 60))
        phase = draw(st.sampled_from([*Phase, None]))
        if phase is None:
            build.all_reduce(start, start + length)
        else:
            build.compute(start, start + length, phase)
    return build.build()


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(timelines(), st.integers(24, 120))
def test_each_cell_shows_what_holds_most_of_it(timeline: Timeline, width: int) -> None:
    """Counting every nanosecond of a cell finds no part that holds more of it than the one shown.

    A small letter is the largest part of a cell that is idle for more of its time than that.
    """
    row = next(line for line in drawn(run_of(timeline), width) if line.startswith("rank 0  "))[8:]
    pieces = partition(timeline)
    part_at = np.repeat(pieces.part, pieces.end_ns - pieces.start_ns)

    cells = width - 8
    assert len(row) == cells
    for cell, glyph in enumerate(row):
        held = Counter(GLYPHS[Part(p)] for p in part_at[200 * cell // cells : 200 * (cell + 1) // cells])
        if glyph.islower():
            work = {part: count for part, count in held.items() if part != GLYPHS[Part.IDLE]}
            assert work[glyph.upper()] == max(work.values()) >= 0.1 * held.total()
            glyph = GLYPHS[Part.IDLE]
        assert held[glyph] == max(held.values())


def row_of(lines: list[str], label: str) -> str:
    """Return the cells of a row by its label."""
    return next(line[10:] for line in lines if line.startswith(label.ljust(10)))


def test_where_b_is_slower_a_has_time() -> None:
    """It is then A's row that has a rest; of one step each, nothing shows that B has lost it."""
    a = job_of([TimelineBuilder(0, bounds=(0, 50)).compute(0, 50).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 100)).compute(0, 100).build()])

    lines = paired(a, b, 90)

    assert "50 ns longer (100 %)" in row_of(lines, "A rank 0")
    assert 80 * "F" == row_of(lines, "B rank 0")
    assert any("B longer" in line for line in lines)


def test_two_runs_stand_over_each_other() -> None:
    """A's ranks over B's, each step of both beginning in one cell, and in between how much shorter B's are."""
    a = job_of([TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 100).compute(100, 200).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 50, 100)).compute(0, 50).compute(50, 100).build()], path="runs/b")

    lines = paired(a, b, 90)

    for side in "AB":
        steps = row_of(lines, f"{side} steps").rstrip()
        assert "│ProfilerStep#0".ljust(40) + "│ProfilerStep#1" == steps
    assert 80 * "F" == row_of(lines, "A rank 0")
    cells = row_of(lines, "B rank 0")
    assert 20 * "F" == cells[:20] == cells[40:60]
    assert "F" not in cells[20:40] + cells[60:]
    assert "In the 2 steps drawn, B takes 100 ns (50 %) less: 100 ns against A's 200 ns." in lines


def test_time_is_saved_where_the_step_time_differs_beyond_noise() -> None:
    """Ten steps each: the gaps and the sentence say so."""
    length = 1_000_000

    def steady(factor: int) -> Run:
        bounds = tuple(factor * length * k for k in range(11))
        build = TimelineBuilder(0, bounds=bounds)
        for at in bounds[:-1]:
            build.compute(at, at + factor * length)
        return job_of([build.build()])

    lines = paired(steady(2), steady(1), 90)

    assert any(line.startswith("B saves 10.0 ms (50 %) in 10 steps") for line in lines)
    assert any("Saved by B" in line for line in lines)


def test_runs_that_only_begin_together_go_on_as_they_ran() -> None:
    """Without alignment by step, what B takes less stands once at the end."""
    a = job_of([TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 200).build()])
    b = job_of([TimelineBuilder(0, bounds=(0, 50, 100)).compute(0, 100).build()])

    row = row_of(paired(a, b, 90, by_step=False), "B rank 0")

    assert 40 * "F" + " 100 ns shorter (50 %) ".center(40, "-") == row


def test_waiting_has_a_letter_of_its_own() -> None:
    """In both rows of the rank that waits, and in the legend; none where waits are not known."""
    late, alone = (drawn(run, 108) for run in (late_run(30, 70), late_run(30, size=2)))
    phases, comm = (next(line for line in late if line.startswith(start)) for start in ("rank 0", "  comm"))

    assert 30 * "F" + 40 * "W" + 10 * "X" + 20 * "·" == phases[8:]
    assert 40 * "W" + 10 * "X" == comm[8:].strip()
    assert any("Waiting for other ranks" in line for line in late)
    assert not any("W" in line for line in alone)


def test_waiting_is_drawn_in_a_pair_of_runs() -> None:
    """In the row of either run."""
    lines = paired(late_run(30, 70), late_run(30, 70), 110)

    assert 2 == sum(40 * "W" + 10 * "X" in line for line in lines if line[2:].startswith("rank 0"))
