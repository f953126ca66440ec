"""Windows of steps: what is recorded, timed and kept as a spare."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.distributed import RankStore  # noqa: E402
from dptrace.record.messages import LauncherSettings, request_path  # noqa: E402
from dptrace.record.options.catalog import Schedule  # noqa: E402
from dptrace.record.windows import Plan, Purpose, WindowRequests, overhead_windows, spare_windows  # noqa: E402

SCHEDULES = st.builds(Schedule, st.integers(0, 60), st.integers(2, 6), st.integers(1, 40))


def _script(**settings: object) -> LauncherSettings:
    return LauncherSettings("staging", "runs/x", script=True, **settings)  # type: ignore[arg-type]


@given(SCHEDULES, st.sampled_from([None, _script(), _script(repeat=3, every=50)]))
def test_windows_are_in_order_and_do_not_overlap(schedule: Schedule, settings: LauncherSettings | None) -> None:
    """A process has one profiler: a window ends before the next begins, and each has a step."""
    windows = Plan.of(schedule, settings).windows

    assert all(window.first <= window.start < window.end for window in windows)
    assert all(before.end <= after.first for before, after in pairwise(windows))


@pytest.mark.heavy
@given(SCHEDULES)
def test_the_recorded_window_is_that_of_the_schedule(schedule: Schedule) -> None:
    """Whatever else is measured, the recorded steps follow wait and warm-up."""
    for settings in (None, _script()):
        plan = Plan.of(schedule, settings)
        recorded = plan.recorded
        assert recorded is not None
        assert (schedule.wait, schedule.total) == (recorded.first, recorded.end)
        assert (schedule.warmup, schedule.steps) == (recorded.start - recorded.first, recorded.steps)
        assert schedule.total == plan.last_step


def test_windows_with_and_without_the_profiler_alternate() -> None:
    """The first step of each is not timed: the profiler has just started or stopped."""
    windows = overhead_windows(10)

    assert [False, True, False, True, False] == [window.profiled for window in windows]
    assert [10, 13, 16, 19, 22] == [window.first for window in windows]
    assert {2} == {window.steps for window in windows}
    assert 25 == windows[-1].end


@given(st.integers(0, 100), st.integers(0, 100))
def test_overhead_windows_stay_in_their_room(first: int, room: int) -> None:
    """Without room for three windows, all steps are timed without the profiler; without any, none is."""
    windows = overhead_windows(first, room)

    assert all(first <= window.first and window.end <= first + room for window in windows)
    assert (room > 0) == bool(windows)
    if room < 9:
        assert all(window.purpose is Purpose.UNPROFILED and room == window.steps for window in windows)


def test_a_wait_has_a_spare_window() -> None:
    """It begins with the first typical step and ends before the wait does; a short wait has none."""
    (spare,) = spare_windows(Schedule(40, 3, 5))
    assert (1, 2, 7) == (spare.first, spare.start, spare.end)
    (short,) = spare_windows(Schedule(4, 3, 5))
    assert 4 == short.end
    assert [] == spare_windows(Schedule(2, 3, 5))


def test_on_demand_nothing_is_planned() -> None:
    """Windows come with requests, at the step that the ranks agree on, with the number of the next run."""
    plan = Plan.of(Schedule(0, 3, 5), _script(on_demand=True))
    (window,) = plan.requested("record", 1000, 4)

    assert ((), None, 0) == (plan.windows, plan.recorded, plan.last_step)
    assert (1000, 1003, 1008, 4) == (window.first, window.start, window.end, window.number)
    assert 1000 == plan.requested("overhead", 1000, 4)[0].first
    assert "Nothing was recorded" in plan.too_short_message(7)


def test_measuring_the_overhead_delays_no_planned_window() -> None:
    """It begins after the windows that it would overlap, between two of them if there is room."""
    plan = Plan.of(Schedule(0, 2, 4), _script(repeat=3, every=20))
    first = [plan.requested("overhead", asked, 2, plan.windows)[0].first for asked in (4, 30, 41, 56)]
    roomy = Plan.of(Schedule(0, 2, 4), _script(repeat=2, every=100))

    assert [0, 20, 40] == [window.first for window in plan.windows]
    assert [56, 56, 56, 56] == first
    assert 16 == roomy.requested("overhead", 4, 2, roomy.windows)[0].first


@pytest.mark.parametrize(("made", "advised"), [(2, "at least 4 steps"), (3, "at least 4 steps"), (4, "use --warmup 2")])
def test_a_training_that_is_too_short_gets_advice_that_can_be_followed(made: int, advised: str) -> None:
    """The first step begins the count and two warm up: with three steps, no --warmup leaves one to record."""
    plan = Plan.of(Schedule.of(5, 3, 0), LauncherSettings("", "", script=True))

    text = plan.too_short_message(made - 1)
    assert f"made {made} steps" in text
    assert advised in text


# Windows that begin while training runs.


def _requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[WindowRequests]:
    """Return those of three ranks, and ask for a window."""
    monkeypatch.setattr("dptrace.record.windows._POLL_NS", 0)
    store = torch.distributed.HashStore()
    monkeypatch.setattr("dptrace.record.distributed._store", lambda: store)
    monkeypatch.setenv("WORLD_SIZE", "3")
    ranks = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(WindowRequests(folder, RankStore("x")))
    request_path(folder, 1).write_text(json.dumps({"kind": "record", "steps": 7}))
    return ranks


def test_all_ranks_begin_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 chooses a step ahead of its own once all have seen the request, and the others find it."""
    ranks = _requests(tmp_path, monkeypatch)

    assert [None, None, None] == [requests.poll(99) for requests in ranks]
    answers = [requests.poll(step) for requests, step in zip(ranks, (100, 101, 99), strict=True)]
    assert answers[0] is not None
    assert answers[0].first > 101
    assert 7 == answers[0].steps
    assert 1 == len(set(answers))


def test_no_rank_can_miss_a_step_however_long_it_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank looks rarely while the others make step after step, as after a slow one: no step is chosen before."""
    ranks = _requests(tmp_path, monkeypatch)

    for step in range(500):
        assert (None, None) == (ranks[0].poll(step), ranks[1].poll(step))
    assert not ranks[2].is_pending
    assert ranks[2].poll(500) is None
    assert ranks[2].is_pending
    chosen = [requests.poll(501) for requests in ranks]
    assert chosen[0] is not None
    assert chosen[0].first > 501
    assert 1 == len(set(chosen))
