"""The terminal's Gantt: which ranks, what is said of them, and two runs over each other."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.terminal.gantt.chart import MAX_RANKS
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job
from tests.support.real_traces import needs_real_traces, real
from tests.support.terminal_text import drawn, paired, run_of, training


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, MAX_RANKS, MAX_RANKS + 1, 1000])
def test_many_ranks_are_cut_and_reported(ranks: int) -> None:
    """The first ranks are drawn, and the number of those left out is told with the way to see them."""
    lines = drawn(run_of(*(training(rank, 1) for rank in range(ranks))), 100)

    assert min(ranks, MAX_RANKS) == sum("comm  " in line[:8] for line in lines)
    remarks = [line for line in lines if "not drawn" in line]
    assert len(remarks) == (ranks > MAX_RANKS)
    assert all(line.startswith(f"{ranks - MAX_RANKS} more rank") for line in remarks)


def test_a_run_without_communication_has_no_row_for_it() -> None:
    """On a single GPU the row of communication is left out, not drawn empty."""
    lines = drawn(run_of(TimelineBuilder(0).compute(0, 50).build()))

    assert not any(line.startswith("  comm") for line in lines)


@pytest.mark.parametrize("bounds", [(), (5,)])
def test_no_steps_are_reported(bounds: tuple[int, ...]) -> None:
    """A run without steps, or without ranks, is told in words."""
    timeline = TimelineBuilder(0, bounds=bounds).compute(1, 3).build()

    assert "No steps to draw." in drawn(run_of(timeline))
    assert "No steps to draw." in drawn(Run("x", (), notes=("why",)))
    assert "! why" in drawn(Run("x", (), notes=("why",)))


def test_a_rank_without_steps_is_named() -> None:
    """A rank with nothing to draw is listed below the picture."""
    lines = drawn(run_of(training(0, 1), TimelineBuilder(1, bounds=()).compute(1, 3).build()))

    assert "Not drawn, as they have no step: rank 1." in lines


def test_two_devices_of_one_rank_are_distinguished() -> None:
    """A rank with several GPUs has a row for each, named by the GPU."""
    lines = drawn(run_of(*(TimelineBuilder(0, device=k).compute(0, 100).build() for k in (0, 1))))

    assert ["rank 0 GPU 0", "rank 0 GPU 1"] == [
        line[:12] for line in lines if line.startswith("rank 0 GPU") and "FF" in line
    ]


@pytest.mark.heavy
@needs_real_traces
def test_real_run_shows_its_straggler() -> None:
    """In the eight-GPU recording rank 1 waits least and idles most, which its row shows."""
    lines = drawn(dptrace.open(real("sharded_h100_8ranks")), 120)

    rows = [line for line in lines if line.startswith("rank ") and "%" not in line]
    waiting = [row.count("W") for row in rows]
    assert len(rows) == 8
    assert min(waiting) == waiting[1] < min(waiting[:1] + waiting[2:]) / 2


def test_a_run_without_steps_cannot_stand_beside_another() -> None:
    """It is refused by its name."""
    with pytest.raises(DptraceError, match=r"runs/made: there is no step"):
        paired(job(), run_of(TimelineBuilder(0, bounds=()).build()))


def test_those_that_matter_are_drawn_first() -> None:
    """Of more ranks than fit, the slowest one is among those drawn, and it is said where to look."""
    timelines = [training(rank, 1) for rank in range(40)]
    slow = TimelineBuilder(33, bounds=(0, 1500)).compute(0, 1400).build()
    lines = drawn(run_of(*timelines[:33], slow, *timelines[34:]), 100)

    first = next(line for line in lines if line.startswith("rank "))
    assert first.startswith("rank 33 ")
    assert any(line.startswith("Look at: rank 33 (slowest") for line in lines)


def test_a_screen_full_of_ranks_is_drawn() -> None:
    """On a tall terminal more are drawn than on a low one, or than go to a pipe."""
    run = run_of(*(training(rank, 1) for rank in range(60)))

    counts = [
        sum("comm  " in line[:8] for line in drawn(run, 100, height=height, force_terminal=True, color_system=None))
        for height in (24, 100)
    ]

    assert MAX_RANKS == counts[0]
    assert 40 <= counts[1] <= 50
