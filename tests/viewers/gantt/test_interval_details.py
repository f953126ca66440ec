"""What a page tells of single intervals: launch delays, and the collectives' members as the analysis has them."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.run.run import Run
from dptrace.viewers.gantt import interval_details as module
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.interval_details import details
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.synthetic import training_run


def test_members_are_those_of_the_matches() -> None:
    """Wait, lateness, transfer, bandwidth and exposed time of every collective, as Run.matches() gives them."""
    run = Run("two", two_rank_timelines())
    drawn = chart(run)
    told = details(run, drawn)
    instance, wait, late = (unpack(told[key]) for key in ("instance", "wait", "late"))
    lanes = [lane for lane in drawn.lanes if lane.role is Role.COLLECTIVES]
    starts = np.concatenate([lane.start_ns for lane in lanes]) + drawn.origin_ns
    tracks = np.repeat(np.arange(len(lanes)), [len(lane) for lane in lanes])
    exposed = np.concatenate([lane.exposed_ns for lane in lanes])
    rows = run.matched_collectives()

    assert len(rows) == np.count_nonzero(instance) > 0
    for row in rows.to_dict("records"):
        [place] = np.flatnonzero((starts == row["start_ns"]) & (tracks == row["rank"]))
        number = instance[place] - 1
        assert row["collective"] == number
        assert (row["wait_ns"], row["exposed_ns"]) == (wait[place], exposed[place])
        assert (None if np.isnan(row["late_ns"]) else row["late_ns"]) == (late[place] - 1 if late[place] else None)
        one = {key: unpack(told["instances"][key])[number] for key in ("transfer", "busbw", "bytes", "seq", "group")}
        assert (row["transfer_ns"], row["bytes"], row["seq"]) == (one["transfer"], one["bytes"], one["seq"] - 1)
        assert one["busbw"] == pytest.approx(0 if row["busbw_gbps"] is None else row["busbw_gbps"] * 1e6, abs=1)
        assert told["groups"][one["group"]]["name"] == row["group"]


def test_launch_delays_stand_in_the_order_of_the_lanes() -> None:
    """One more than the ns from launch to start, and 0 where the launch is not in the file."""
    build = TimelineBuilder(0, bounds=(1_000, 2_000)).compute(1_100, 1_200).compute(1_300, 1_400)
    made = build.build()
    made.launch_ns[0] = 1_050
    run = Run("launched", (made,))

    assert [51, 0] == unpack(details(run, chart(run))["launch"]).tolist()


def test_a_large_page_holds_no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would make it a third larger."""
    run = training_run(300)
    monkeypatch.setattr(module, "MAX_LAUNCHES", 100)

    assert "launch" not in details(run, chart(run))
    assert "instance" in details(run, chart(run))


def test_a_run_without_collectives_has_no_members() -> None:
    """Nothing is matched for nothing."""
    run = Run("single", (TimelineBuilder(0).compute(0, 50).build(),))

    assert ["launch"] == list(details(run, chart(run)))
