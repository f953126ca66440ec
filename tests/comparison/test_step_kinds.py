"""Steps are compared with those that do the same."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import force_setattr, replace

from dptrace.comparison.compare import Comparison, compare
from dptrace.comparison.step_kinds import two_lengths
from dptrace.run.run import Run
from dptrace.timeline.model import COLUMNS, Phase, Timeline, Windows
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder
from tests.support.jobs import run_of

__all__ = ["alternating", "half"]


def named(found: Comparison) -> list[str]:
    return [change.name for change in found.changes if change.beyond]


def half(timeline: Timeline, odd: int) -> Timeline:
    """Keep every second step, without the gaps."""
    bounds: list[int] = [0]
    names: list[str] = []
    parts: list[Timeline] = []
    for k in range(odd, len(timeline.windows), 2):
        selected = select_steps(timeline, k, k)
        part = selected.filter(selected.step >= 0)
        by = bounds[-1] - int(part.windows.bounds[0])
        step = np.full(len(part), len(names), np.int32)
        parts.append(replace(part, start_ns=part.start_ns + by, end_ns=part.end_ns + by, step=step))
        bounds.append(bounds[-1] + int(np.diff(part.windows.bounds)[0]))
        names.append(part.windows.names[0])
    whole = replace(timeline, windows=Windows(tuple(names), np.array(bounds)))
    for column in COLUMNS:
        force_setattr(whole, column, np.concatenate([getattr(part, column) for part in parts]))
    return whole


def alternating(steps: int = 12, seed: int = 0, start: int = 0, exposed: float = 1.0, extra: int = 40_000_000) -> Run:
    """Make a run in which every second step is longer and has the optimizer and a further collective."""
    draw = np.random.default_rng(seed)
    timelines = []
    for rank in (0, 1):
        bounds, build = [1_000_000_000], TimelineBuilder(rank)
        for k in range(start, start + steps):
            length = int(60_000_000 * (1 + 0.002 * draw.standard_normal()))
            at, end = bounds[-1], bounds[-1] + length + extra * (k % 2)
            build.compute(at, at + length - 20_000_000, Phase.BACKWARD)
            build.all_reduce(at + length - 20_000_000, at + length)
            if k % 2:
                comm = int(10_000_000 * exposed)
                build.all_reduce(at + length, at + length + comm)
                build.compute(at + length + comm, end, Phase.OPTIMIZER, "adam")
            bounds.append(end)
        build.bounds = tuple(bounds)
        timelines.append(build.build())
    return run_of(timelines)


@pytest.mark.heavy
def test_alternating_steps_are_compared_with_their_like() -> None:
    """A change in every second step, smaller than the distance of the kinds, is named, with its kind."""
    found = compare(alternating(), alternating(seed=1, exposed=1.5))

    assert found.change("exposed_comm_ns").beyond
    assert 2 == len(found.kinds)
    without, with_optimizer = sorted(found.kinds, key=lambda kind: "with optimizer" in kind.kind)
    moved = {change.name for change in with_optimizer.changes if change.beyond}
    assert "exposed_comm_ns" in moved
    assert not any(change.beyond for change in without.changes)
    assert (6, 6) == (without.a_steps, without.b_steps)
    assert found.change("exposed_comm_ns").delta == pytest.approx(2.5e6, rel=0.2)


def test_another_mix_of_kinds_is_no_difference() -> None:
    """A has one more of the longer steps, B one more of the shorter ones."""
    found = compare(alternating(steps=9, start=1), alternating(steps=9, seed=1))

    assert [] == named(found)
    assert abs(found.change("wall_ns").delta) < 0.5e6


def test_a_kind_that_one_side_lacks_is_no_figure() -> None:
    """Its steps are left out, and a note names the kind and the side."""
    both = alternating()
    only_short = halves_of(both, 0)
    found = compare(both, only_short)

    assert 6 == len(found.a.steps)
    assert [] == named(found)
    assert any("only in A" in note and "6 steps" in note for note in found.notes)


def test_sides_without_a_common_kind_cannot_be_compared() -> None:
    """However large the difference."""
    run = alternating()
    found = compare(halves_of(run, 0), halves_of(run, 1))

    assert [] == named(found)
    assert found.summary().startswith("Cannot tell")
    assert "only B's run the optimizer" in found.summary()


def test_too_few_steps_of_a_kind_cannot_be_compared() -> None:
    """A has one step of the kind that B has: its other steps are no substitute."""
    run = alternating(steps=20)
    two = run.select(steps=(0, 1))
    found = compare(two, halves_of(run, 1))

    assert [] == named(found)
    assert "too few steps of any kind" in found.summary()


def test_a_step_of_three_is_not_left_out() -> None:
    """One of A's three is of a kind that B lacks. Without it two remain, so that all count, as a note says: what is
    evident is told, though not what is smaller.
    """
    few = alternating(steps=3, start=1)
    slow, alike = (halves_of(alternating(steps=6, extra=extra), 1) for extra in (1_000_000_000, 40_000_000))
    found = compare(few, slow)

    assert (3, 3) == (len(found.a.steps), len(found.b.steps))
    assert "wall_ns" in named(found)
    assert "slower per step" in found.summary()
    assert any("too few steps of any kind" in note for note in found.notes)
    assert [] == named(compare(few, alike))
    assert "too few steps of any kind" in compare(few, alike).summary()


def halves_of(run: Run, odd: int) -> Run:
    return run_of([half(timeline, odd) for timeline in run.timelines])


@pytest.mark.parametrize(
    ("walls", "longer"),
    [
        pytest.param([10, 20, 10.1, 20.2, 9.9, 20.1, 10, 19.9], "01010101", id="every second step"),
        pytest.param([10, 20, 10.1, 10.2, 9.9, 10.1, 10, 9.9], None, id="one longer step"),
        pytest.param([10, 10.1, 9.9, 10, 20, 20.1, 19.9, 20], None, id="a change in the middle"),
        pytest.param([10, 12, 14, 16, 11, 13, 15, 17], None, id="all lengths"),
        pytest.param([10, 10, 10, 10, 10, 10], None, id="one length"),
        pytest.param([10, 20, 10, 20], None, id="too few"),
    ],
)
def test_two_lengths_are_kinds_where_they_alternate(walls: list[float], longer: str | None) -> None:
    """Not where the machine changed its speed once, nor where lengths are spread."""
    found = two_lengths(np.array(walls, np.float64))

    assert longer == (None if found is None else "".join(str(int(one)) for one in found))
