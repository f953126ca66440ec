"""What the labels of the phases row say."""

from __future__ import annotations

from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from dptrace.viewers.gantt.chart import WAITING, Chart, Role, chart
from tests.support.builders import TimelineBuilder
from tests.support.jobs import MS, late_run


def waits(drawn: Chart, track: int = 0) -> list[tuple[int, int, str]]:
    """Return start and duration of each label of waiting, and its name."""
    lane = next(one for one in drawn.lanes if one.role is Role.PHASE_LABELS and one.track == track)
    rows = zip(
        lane.start_ns.tolist(), lane.duration_ns.tolist(), lane.name.tolist(), lane.category.tolist(), strict=True
    )
    return [(start, ns, drawn.names[name - 1] if name else "") for start, ns, name, kind in rows if kind == WAITING]


def test_a_wait_is_named_by_the_rank_that_it_is_for() -> None:
    """The one that came last, if it alone was late."""
    assert [(30 * MS, 40 * MS, "Waiting for rank 1")] == waits(chart(late_run(30, 70)))
    assert [""] == [name for _, _, name in waits(chart(late_run(30, 68, 70)))]
    assert [] == waits(chart(late_run(30, 70)), 1)


def test_waits_for_several_ranks_bear_no_rank() -> None:
    """One label stands on two waits: naming the first rank would blame it for both."""
    comm, short = Collective("all_reduce", 4_096, "float", "0", 3), 20_000
    first, second = 40 * MS + short, 90 * MS + short
    builds = [
        TimelineBuilder(rank, bounds=(0, 100 * MS)).collective(a * MS, first, comm).collective(b, second, comm)
        for rank, (a, b) in enumerate(((10, first), (40, first), (10, 90 * MS)))
    ]

    assert ["", "Waiting for rank 2"] == [
        name for track in (0, 1) for _, _, name in waits(chart(Run("r", tuple(b.build() for b in builds))), track)
    ]
