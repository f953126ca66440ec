"""Exposed communication in the rows of the Gantt chart, divided into waiting and transfer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import covered, union
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import WAITING, Chart, Lane, Role, chart
from tests.analysis.cross_rank.test_transfers import Job, jobs
from tests.support.jobs import MS, late_run


def lane(drawn: Chart, role: Role, track: int = 0) -> Lane:
    return next(one for one in drawn.lanes if one.role is role and one.track == track)


def spans(of: Lane, category: int) -> list[tuple[int, int]]:
    mask = of.category == category
    return list(zip(of.start_ns[mask].tolist(), of.duration_ns[mask].tolist(), strict=True))


@pytest.mark.heavy
@settings(max_examples=40)
@given(jobs())
def test_waiting_in_both_rows_is_that_of_the_figures(job: Job) -> None:
    """In each step, phases and the union of all collectives' pieces hold the wait; the rest is as it was."""
    devices = job.devices()
    run = Run("r", tuple(device.timeline for device in devices), world_size=job.ranks)
    drawn = chart(run)

    for track, (device, wait) in enumerate(zip(run.devices, run.cross_rank.exposed_waits, strict=True)):
        bounds = drawn.tracks[track].bounds_ns
        phases = lane(drawn, Role.PHASES, track)
        for of in (phases, lane(drawn, Role.EXPOSURE, track)):
            mask = of.category == WAITING
            waiting = union(of.start_ns[mask], (of.start_ns + of.duration_ns)[mask])
            assert wait.wait_ns.tolist() == np.diff(covered(waiting, bounds)).tolist()
        exposed = np.isin(phases.category, (WAITING, int(Part.EXPOSED_COMM)))
        assert device.split.total()["exposed_comm_ns"] == phases.duration_ns[exposed].sum()


def test_a_collective_waits_and_then_transfers() -> None:
    """One piece each, in the rows of phases and of communication; the collective itself stays whole."""
    drawn = chart(late_run(30, 70))

    for role in (Role.PHASES, Role.EXPOSURE):
        assert [(30 * MS, 40 * MS)] == spans(lane(drawn, role), WAITING)
        assert [(70 * MS, 10 * MS)] == spans(lane(drawn, role), int(Part.EXPOSED_COMM))
        assert [] == spans(lane(drawn, role, 1), WAITING)
    whole = lane(drawn, Role.COLLECTIVES)
    assert ([50 * MS], [40 * MS + 1], [2]) == (
        whole.duration_ns.tolist(),
        whole.wait_ns.tolist(),
        whole.waits_for.tolist(),
    )


def test_the_row_of_phases_names_the_rank_that_is_waited_for() -> None:
    """Plus 1; 0 for all other parts, and where two ranks are late together."""
    phases = lane(chart(late_run(30, 70)), Role.PHASES)
    together = lane(chart(late_run(30, 68, 70)), Role.PHASES)

    assert [(WAITING, 2)] == [pair for pair in zip(phases.category, phases.name, strict=True) if pair[1]]
    assert not together.name.any()


def test_unknown_waits_are_not_divided() -> None:
    """A rank is missing: the collective is exposed as a whole, and its wait unknown."""
    drawn = chart(late_run(30, size=2))

    assert [(30 * MS, 50 * MS)] == spans(lane(drawn, Role.PHASES), int(Part.EXPOSED_COMM))
    assert [0] == lane(drawn, Role.COLLECTIVES).wait_ns.tolist()
