"""The times of the Gantt lanes add up to the split's figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES, Part, exposure
from dptrace.core.intervals import covered, union
from dptrace.run.run import Run
from dptrace.timeline.model import Actions, Collective, Kind, Phase, Windows
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role, cause_category, chart
from tests.analysis.cross_rank.test_transfers import Job, jobs
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.gantt_page import SHARE_FIGURES
from tests.support.jobs import MS, late_run
from tests.support.synthetic import training_run
from tests.support.totals import totals

PART_FIGURES = {part: figure for part, figure in SHARE_FIGURES.items() if part != Part.IDLE}


def lane(drawn: Chart, role: Role, track: int = 0) -> Lane:
    """Return the lane of a role on a track."""
    [found] = [lane for lane in drawn.lanes if lane.role is role and lane.track == track]
    return found


def runs() -> list[Run]:
    """A small run, a large one with overlapping streams, and one with kernels before the first step."""
    late = TimelineBuilder(0, bounds=(100, 200)).compute(50, 120).all_reduce(110, 150).compute(190, 230)
    return [Run("hand", two_rank_timelines()), training_run(2_000), Run("late", (late.build(),))]


def test_rows_add_up_to_the_split() -> None:
    """To the nanosecond: each part on the phases row, whose rest is idle; overlapped time, counted once where
    collectives run at the same time; each idle cause. Intervals of a row do not overlap."""
    for run in runs():
        drawn = chart(run)
        for track, device in enumerate(run.devices):
            phases, pieces, gaps = (lane(drawn, role, track) for role in (Role.PHASES, Role.EXPOSURE, Role.IDLE))
            expected, bounds = device.split.total(), drawn.tracks[track].bounds_ns
            parts = {part: int(phases.duration_ns[phases.category == part].sum()) for part in PART_FIGURES}
            causes = {c: int(gaps.duration_ns[gaps.category == cause_category(c)].sum()) for c in CAUSES}
            mask = pieces.category == OVERLAPPED
            busy = union(pieces.start_ns[mask], (pieces.start_ns + pieces.duration_ns)[mask])

            assert {part: expected[figure] for part, figure in PART_FIGURES.items()} == parts, run
            assert bounds[-1] - bounds[0] - phases.duration_ns.sum() == expected["idle_ns"], run
            assert expected["overlapped_comm_ns"] == np.diff(covered(busy, bounds[[0, -1]]))[0], run
            assert {cause: int(values.sum()) for cause, values in device.idle_causes.items()} == causes, run
            for row in (phases, gaps):
                assert np.all(row.start_ns[1:] >= (row.start_ns + row.duration_ns)[:-1]), run


def test_every_stretch_of_a_collective_is_there() -> None:
    """The pieces of the exposure with their categories, and each collective's exposed time."""
    run = training_run(2_000, ranks=1)
    drawn, truth = chart(run), exposure(run.timelines[0])
    pieces, whole = lane(drawn, Role.EXPOSURE), lane(drawn, Role.COLLECTIVES)

    assert (truth.start_ns - drawn.origin_ns).tolist() == pieces.start_ns.tolist()
    assert np.where(truth.part == 1, Part.EXPOSED_COMM, OVERLAPPED).tolist() == pieces.category.tolist()
    assert pieces.duration_ns.sum() == whole.duration_ns.sum()
    assert pieces.duration_ns[pieces.category == Part.EXPOSED_COMM].sum() == whole.exposed_ns.sum()
    name, known, _ = drawn.collectives[whole.name[0]]
    assert ("all_reduce", 26_214_400) == (known.kind, known.bytes)
    assert name.startswith("ncclDevKernel")


def test_kernels_keep_their_own_times() -> None:
    """Kernels of two streams that overlap are shown as recorded, with name, phase and stream."""
    build = TimelineBuilder(0, bounds=(1_000, 2_000))
    build.compute(1_100, 1_500, Phase.FORWARD, "a", lane=7).compute(1_200, 1_300, Phase.BACKWARD, "b", lane=8)
    compute = lane(chart(Run("two", (build.build(),))), Role.COMPUTE)

    assert [100, 200] == compute.start_ns.tolist()
    assert [400, 100] == compute.duration_ns.tolist()
    assert [Part.FORWARD, Part.BACKWARD] == compute.category.tolist()
    assert [7, 8] == compute.stream.tolist()


def test_time_begins_with_the_first_step_of_any_rank() -> None:
    """Intervals that run before it have negative starts; intervals that end before it are excluded."""
    early = TimelineBuilder(0, bounds=(1_000, 2_000)).compute(100, 200).compute(900, 1_100).build()
    late = TimelineBuilder(1, bounds=(1_500, 2_500)).compute(1_400, 1_600).build()
    drawn = chart(Run("skewed", (early, late)))

    assert (1_000, 1_500) == (drawn.origin_ns, drawn.end_ns)
    assert [-100] == lane(drawn, Role.COMPUTE, 0).start_ns.tolist()
    assert [400] == lane(drawn, Role.COMPUTE, 1).start_ns.tolist()
    assert [0, 1_000] == drawn.tracks[0].bounds_ns.tolist()


def test_one_strip_stands_for_ranks_whose_steps_agree() -> None:
    """A rank with another clock or other step names has its own strip."""
    one, two = two_rank_timelines()
    aside = replace(two, windows=Windows(two.windows.names, two.windows.bounds + 10**12))
    other = replace(two, windows=Windows(("a", "b"), two.windows.bounds))

    assert [(0, 1)] == [strip.tracks for strip in chart(Run("", (one, two))).strips]
    assert [(0,), (1,)] == [strip.tracks for strip in chart(Run("", (one, aside))).strips]
    assert [(0,), (1,)] == [strip.tracks for strip in chart(Run("", (one, other))).strips]


def test_labels_step_over_gaps_and_short_interruptions() -> None:
    """Forward and backward have one label each per step, despite kernels of other phases in between."""
    build = TimelineBuilder(0, bounds=(0, 100_000, 200_000))
    for t in (0, 100_000):
        for k in range(20):
            phase = Phase.FORWARD if k < 8 else Phase.BACKWARD
            build.compute(t + 4_000 * k + 100, t + 4_000 * k + 3_000, phase)
        build.compute(t + 20_000, t + 20_020, Phase.OTHER).compute(t + 85_000, t + 90_000, Phase.OPTIMIZER)
    stretches = lane(chart(Run("labels", (build.build(),))), Role.PHASE_LABELS)

    assert [Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER] * 2 == stretches.category.tolist()
    assert [100, 32_100, 85_000] == stretches.start_ns.tolist()[:3]
    assert [30_900, 46_900, 5_000] == stretches.duration_ns.tolist()[:3]


def test_names_are_shared_by_all_ranks() -> None:
    """A page holds each kernel name once."""
    drawn = chart(training_run(400, ranks=2))

    assert len(set(drawn.names)) == len(drawn.names)
    assert drawn.names[lane(drawn, Role.MEMORY, 1).name[0]].startswith("Memcpy")


def test_a_run_without_ranks_is_an_empty_chart() -> None:
    """It has no tracks."""
    assert () == chart(Run("none", ())).tracks


def test_the_synthetic_run_tests_what_it_should() -> None:
    """Overlapping kernels, every phase, exposed and overlapped communication, memory and idle."""
    run = training_run(2_000)
    total = totals(run.splits[0])
    compute = run.timelines[0].kind == Kind.COMPUTE
    start, end = run.timelines[0].start_ns[compute], run.timelines[0].end_ns[compute]

    assert all(total[figure] > 0 for figure in FIGURES)
    assert (start[1:] < end[:-1]).any()


def test_pieces_of_communication_know_their_collective() -> None:
    """Each piece has the name of its collective."""
    drawn = chart(training_run(2_000, ranks=1))
    pieces, whole = lane(drawn, Role.EXPOSURE), lane(drawn, Role.COLLECTIVES)

    assert set(pieces.name.tolist()) == set(whole.name.tolist())
    for name in set(whole.name.tolist()):
        assert pieces.duration_ns[pieces.name == name].sum() == whole.duration_ns[whole.name == name].sum()


def test_a_pipeline_s_stretches_bear_its_micro_batches() -> None:
    """Forward and backward are labelled by action and micro-batch, and by stage if a GPU has several."""
    build = TimelineBuilder(0, bounds=(0, 100_000)).compute(1_000, 30_000, Phase.FORWARD)
    timeline = build.compute(40_000, 90_000, Phase.BACKWARD).compute(92_000, 99_000, Phase.OPTIMIZER).build()
    ints, times = np.array([0, 0], np.int32), np.array([1_000, 40_000])
    actions = Actions(ints, np.array([3, 3], np.int32), np.array([0, 1], np.uint8), ints, times, *[times + 20_000] * 4)
    for stages, expected in ((ints, ["F3", "B3"]), (np.array([0, 2], np.int32), ["0F3", "2B3"])):
        drawn = chart(Run("pp", (replace(timeline, actions=replace(actions, stage=stages)),)))
        found = lane(drawn, Role.PHASE_LABELS)

        assert [Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER] == found.category.tolist()
        assert [*expected, None] == [drawn.names[name - 1] if name else None for name in found.name]
        assert [20_000, 20_000] == found.duration_ns[:2].tolist()


# What the labels of the phases row say.


def waits(drawn: Chart, track: int = 0) -> list[tuple[int, int, str]]:
    """Return start and duration of each label of waiting, and its name."""
    of = lane(drawn, Role.PHASE_LABELS, track)
    columns = (of.start_ns, of.duration_ns, of.name, of.category)
    rows = zip(*(column.tolist() for column in columns), strict=True)
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


# Exposed communication in the rows of the Gantt chart, divided into waiting and transfer.


def spans(of: Lane, category: int) -> list[tuple[int, int]]:
    mask = of.category == category
    return list(zip(of.start_ns[mask].tolist(), of.duration_ns[mask].tolist(), strict=True))


@pytest.mark.slow
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
    told = [column.tolist() for column in (whole.duration_ns, whole.wait_ns, whole.waits_for)]
    assert [[50 * MS], [40 * MS + 1], [2]] == told


def test_the_row_of_phases_names_the_rank_that_is_waited_for() -> None:
    """Plus 1; 0 for all other parts, and where two ranks are late together."""
    phases = lane(chart(late_run(30, 70)), Role.PHASES)
    together = lane(chart(late_run(30, 68, 70)), Role.PHASES)

    assert [(WAITING, 2)] == [pair for pair in zip(phases.category, phases.name, strict=True) if pair[1]]
    assert not together.name.any()


def test_unknown_spans_are_not_divided() -> None:
    """A rank is missing: the collective is exposed as a whole, and its wait unknown."""
    drawn = chart(late_run(30, size=2))

    assert [(30 * MS, 50 * MS)] == spans(lane(drawn, Role.PHASES), int(Part.EXPOSED_COMM))
    assert [0] == lane(drawn, Role.COLLECTIVES).wait_ns.tolist()
