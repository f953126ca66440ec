"""Which rank kept the others waiting, and how long."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.analysis.cross_rank.stragglers import stragglers
from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.timeline.model import Timeline
from tests.support.builders import TimelineBuilder

MS = 1_000_000


def rank(number: int, late_by: int = 0) -> Timeline:
    """Two all-reduces of 2 ms at 10 and 30 ms; before the second, this rank may be late by *late_by*."""
    build = TimelineBuilder(number, bounds=(0, 50 * MS)).compute(0, 10 * MS).all_reduce(10 * MS, 12 * MS)
    build.compute(12 * MS, 30 * MS + late_by).all_reduce(30 * MS + late_by, 40 * MS)
    timeline = build.build()
    of_three = tuple(replace(collective, group_size=3) for collective in timeline.collectives)
    return replace(timeline, collectives=of_three)


def devices(*timelines: Timeline) -> list[DeviceFigures]:
    return [figures_of(timeline) for timeline in timelines]


def test_the_last_rank_is_named_with_its_lateness() -> None:
    """Rank 1 arrives 4 ms late at the second all-reduce; the wait of the others is exposed."""
    run = devices(rank(0), rank(1, 4 * MS), rank(2))
    matches = match(run, 3)

    found = stragglers(matches, run)

    assert 2 == len(matches)
    assert ([1], [1], [4 * MS], [4 * MS]) == (
        found.instance.tolist(),
        found.device.tolist(),
        found.late_ns.tolist(),
        found.waited_ns.tolist(),
    )


def test_ranks_that_come_together_keep_nobody_waiting() -> None:
    """A difference of microseconds is not lateness, and a single rank has nobody to wait for."""
    run = devices(rank(0), rank(1, 15_000), rank(2, 5_000))

    assert 0 == len(stragglers(match(run, 3), run))
    assert 0 == len(stragglers(match(run[:1], 3), run[:1]))
    assert 0 == len(stragglers(match([], 0), []))


def test_a_wait_under_compute_is_not_exposed() -> None:
    """The others had other work in the meantime."""
    builders = [TimelineBuilder(number, bounds=(0, 50 * MS)).compute(0, 40 * MS) for number in range(2)]
    run = devices(builders[0].all_reduce(10 * MS, 20 * MS).build(), builders[1].all_reduce(18 * MS, 20 * MS).build())

    found = stragglers(match(run, 2), run)

    assert ([8 * MS], [0]) == (found.late_ns.tolist(), found.waited_ns.tolist())


def test_what_a_rank_pays_is_no_more_than_its_exposed_time() -> None:
    """Two concurrent collectives share the time without compute."""
    waiting = TimelineBuilder(0, bounds=(0, 50 * MS)).compute(0, 10 * MS)
    waiting.all_reduce(10 * MS, 40 * MS).all_reduce(10 * MS, 41 * MS, lane=21)
    late = TimelineBuilder(1, bounds=(0, 50 * MS)).compute(0, 39 * MS)
    late.all_reduce(39 * MS, 40 * MS).all_reduce(39 * MS, 41 * MS, lane=21)
    run = devices(waiting.build(), late.build())

    found = stragglers(match(run, 2), run)

    assert 2 == len(found)
    assert int(found.waited_ns.sum()) <= int(run[0].split.figures["exposed_comm_ns"][0]) == 31 * MS
