"""Two runs on one axis, checked against a loop that places the steps one by one."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw a run of up to three ranks, whose steps start within half a step of each other."""
    steps, ranks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    walls = draw(st.lists(st.integers(40, 90), min_size=steps, max_size=steps))
    bounds = np.concatenate(([0], np.cumsum(walls))) + draw(st.integers(0, 10**18))
    skews = [np.array(draw(st.lists(st.integers(0, 15), min_size=steps + 1, max_size=steps + 1))) for _ in range(ranks)]
    return run_of([TimelineBuilder(r, bounds=tuple((bounds + skews[r]).tolist())).build() for r in range(ranks)])


def walked(run: Run, count: int) -> list[tuple[int, int]]:
    """Compute each step's first start and last end, one by one."""
    found = []
    for k in range(count):
        begins = [int(t.windows.bounds[k]) for t in run.timelines]
        ends = [int(t.windows.bounds[k + 1]) for t in run.timelines]
        found.append((min(begins), max(ends)))
    return found


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(runs(), runs())
def test_steps_begin_together(a: Run, b: Run) -> None:
    """Each pair starts at one place and is drawn as long as its longer step; what is saved is of the ranks' means."""
    found = align_steps(run_steps(a), run_steps(b))
    count = min(len(one.timelines[0].windows) for one in (a, b))

    place, time_saved, shares, gains, saved = 0, [], [], [], []
    for k, spans in enumerate(zip(walked(a, count), walked(b, count), strict=True)):
        lengths = [end - begin for begin, end in spans]
        assert place == found.slots_ns[k]
        for which, run in enumerate((a, b)):
            for device, timeline in enumerate(run.timelines):
                begin = int(timeline.windows.bounds[k])
                assert place + begin - spans[which][0] == begin + found.shifts(which)[device, k]
        means = [fmean(int(np.diff(t.windows.bounds)[k]) for t in run.timelines) for run in (a, b)]
        saved.append(means[0] - means[1])
        if (lengths[0] - lengths[1]) * saved[-1] > 0:
            short = int(lengths[0] > lengths[1])
            time_saved.append((short, place + min(lengths), place + max(lengths)))
            shares.append(saved[-1] / means[0])
            gains.append(saved[-1])
        place += max(lengths)
    assert place == found.slots_ns[-1]
    assert time_saved == [(one.run, one.from_ns, one.to_ns) for one in found.time_saved()]
    assert gains == pytest.approx([one.saved_ns for one in found.time_saved()])
    assert found.saved_ns() == pytest.approx(fmean(saved))
    assert shares == pytest.approx([one.share for one in found.time_saved()])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(runs(), runs())
def test_runs_can_begin_together_only(a: Run, b: Run) -> None:
    """Then each goes on as it ran, and one stretch is freed at the end."""
    found = align_steps(run_steps(a), run_steps(b), by_step=False)
    count = min(len(one.timelines[0].windows) for one in (a, b))
    spans = [walked(run, count) for run in (a, b)]
    whole = [max(end for _, end in one) - one[0][0] for one in spans]

    for which, one in enumerate(spans):
        assert [begin - one[0][0] for begin, _ in one] == found.place_ns[which].tolist()
        assert 1 == len(set(found.shifts(which).ravel().tolist()))
    if (whole[0] - whole[1]) * found.saved_ns() > 0:
        (time_saved,) = found.time_saved()
        assert max(whole) == time_saved.to_ns
        assert time_saved.saved_ns == pytest.approx(count * found.saved_ns())
    else:
        assert () == found.time_saved()
    assert found.slots_ns[-1] == max(whole)


def test_what_one_run_lacks_is_left_out_and_said() -> None:
    """Steps are paired in their order, as many as both have."""
    found = align_steps(run_steps(job(steps=8)), run_steps(job(steps=5, seed=1)))

    assert (5, 5) == (len(found.a.names), len(found.b.names))
    assert "A has 8 steps and B has 5" in found.notes[0]
    (lasts,) = align_steps(run_steps(job()), run_steps(job(seed=1))).notes
    assert "from its first rank's start to its last rank's end" in lasts
    assert () == align_steps(run_steps(job(ranks=1)), run_steps(job(ranks=1, seed=1))).notes


def test_another_work_saves_nothing() -> None:
    """Runs of two models are drawn beside each other, and neither is ahead."""
    found = align_steps(
        run_steps(job(metadata={"model": "small"})), run_steps(job(seed=1, metadata={"model": "large"}))
    )

    assert "A trained the model small, B large" == found.incomparable
    assert found.saved_ns() != 0
    assert () == found.time_saved()


def test_clocks_that_lie_apart_begin_each_step_together() -> None:
    """A note says so; otherwise a step would last for years. Where collectives tell the offset, it is corrected."""
    one, two = job().timelines
    apart = run_of([one, _later(two, 10**15)])
    found = align_steps(run_steps(apart.on_own_clocks()), run_steps(job(seed=1)))

    assert found.a.clocks_apart
    assert not found.b.clocks_apart
    assert any(note.startswith("A: ") and "clocks" in note for note in found.notes)
    assert found.a.length_ns.max() < 10**9
    begins = found.a.start_ns + found.shifts(0)
    assert (begins == found.slots_ns[:-1]).all()
    assert not run_steps(apart).clocks_apart


def _later(timeline: Timeline, by: int) -> Timeline:
    windows = replace(timeline.windows, bounds=timeline.windows.bounds + by)
    return replace(timeline, start_ns=timeline.start_ns + by, end_ns=timeline.end_ns + by, windows=windows)


def test_a_run_without_steps_is_refused() -> None:
    """The message names the run; a run without any of the wanted steps is refused, too."""
    with pytest.raises(DptraceError, match="runs/job: there is no step"):
        run_steps(run_of([TimelineBuilder(0, bounds=()).build()]))
    with pytest.raises(DptraceError, match="no step in common"):
        run_steps(job(), step_names={"nothing"})
