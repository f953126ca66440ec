"""Details of single intervals: launch delays, and the members of collectives as in the analysis."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.page import interval_details as module
from dptrace.viewers.gantt.page.interval_details import details
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.synthetic import training_run


def test_members_are_those_of_the_matches() -> None:
    """Wait, lateness, transfer, bandwidth and exposed time of every collective, as in Run.matched_collectives().

    Where one may be unknown, it is packed plus 1.
    """
    run = Run("two", two_rank_timelines())
    drawn = chart(run)
    columns = details(run, drawn)
    instance, wait, late = (unpack(columns[key]) for key in ("instance", "wait", "late"))
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
        assert (row["wait_ns"] + 1, row["exposed_ns"]) == (wait[place], exposed[place])
        assert (None if np.isnan(row["late_ns"]) else row["late_ns"]) == (late[place] - 1 if late[place] else None)
        one = {key: unpack(columns["instances"][key])[number] for key in ("transfer", "busbw", "bytes", "seq", "group")}
        assert (row["transfer_ns"] + 1, row["bytes"], row["seq"]) == (one["transfer"], one["bytes"], one["seq"] - 1)
        assert one["busbw"] == pytest.approx(0 if row["busbw_gbps"] is None else row["busbw_gbps"] * 1e6, abs=1)
        assert columns["groups"][one["group"]]["name"] == row["group"]


def test_members_of_incomplete_collectives_have_no_times() -> None:
    """With a rank missing, wait, lateness and transfer are 0, which stands for unknown."""
    run = Run("two", two_rank_timelines()[:1], world_size=2)
    columns = details(run, chart(run))

    assert unpack(columns["instance"]).any()
    unknown = [columns["wait"], columns["late"], columns["instances"]["transfer"], columns["instances"]["last"]]
    assert {0} == {value for column in unknown for value in unpack(column).tolist()}


def test_launch_delays_are_in_the_order_of_the_lanes() -> None:
    """Each is the ns from launch to start plus 1, or 0 without a recorded launch."""
    build = TimelineBuilder(0, bounds=(1_000, 2_000)).compute(1_100, 1_200).compute(1_300, 1_400)
    timeline = build.build()
    timeline.launch_ns[0] = 1_050
    run = Run("launched", (timeline,))

    assert [51, 0] == unpack(details(run, chart(run))["launch"]).tolist()


def test_a_large_page_holds_no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch delays are left out above MAX_LAUNCHES."""
    run = training_run(300)
    monkeypatch.setattr(module, "MAX_LAUNCHES", 100)

    assert "launch" not in details(run, chart(run))
    assert "instance" in details(run, chart(run))


def test_a_run_without_collectives_has_no_members() -> None:
    """Only launch delays are there."""
    run = Run("single", (TimelineBuilder(0).compute(0, 50).build(),))

    assert ["launch"] == list(details(run, chart(run)))
