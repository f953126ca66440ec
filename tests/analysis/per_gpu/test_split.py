"""The split, against brute force over every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.analysis.per_gpu.split import FIGURES, Part, collective_exposure, compute_of, exposure, partition, split
from dptrace.timeline.model import Phase, Timeline
from tests.support.builders import TimelineBuilder, two_rank_timelines

ORDER = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.OTHER)
NAMES = ("backward_ns", "forward_ns", "optimizer_ns", "other_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")

spans = st.tuples(st.integers(-10, 90), st.integers(0, 40))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    inner = draw(st.lists(st.integers(1, 79), max_size=3))
    build = TimelineBuilder(bounds=(0, *sorted(inner), 80))
    for start, length in draw(st.lists(spans, max_size=8)):
        build.compute(start, start + length, draw(st.sampled_from(Phase)))
    for start, length in draw(st.lists(spans, max_size=5)):
        build.all_reduce(start, start + length)
    for start, length in draw(st.lists(spans, max_size=4)):
        build.memory(start, start + length)
    return build.build()


def part_of(timeline: Timeline, instant: int) -> Part:
    """Return the part that an instant belongs to by definition."""
    on = (timeline.start_ns <= instant) & (instant < timeline.end_ns)
    computing = set(timeline.phase[on & (timeline.kind == 0)].tolist())
    for phase, part in zip(ORDER, Part, strict=False):
        if phase in computing:
            return part
    kinds = set(timeline.kind[on].tolist())
    return Part.EXPOSED_COMM if 1 in kinds else Part.EXPOSED_MEMORY if 2 in kinds else Part.IDLE


@pytest.mark.heavy
@given(timelines())
def test_every_nanosecond_is_counted_once(timeline: Timeline) -> None:
    """Each figure of each step is the number of instants of its part, so the parts sum to the wall time."""
    figures = split(timeline).figures
    bounds = timeline.windows.bounds
    for k in range(len(timeline.windows)):
        instants = [part_of(timeline, t) for t in range(bounds[k], bounds[k + 1])]
        for part, name in zip(Part, NAMES, strict=True):
            assert instants.count(part) == figures[name][k], (name, k)
        assert len(instants) == figures["wall_ns"][k] == sum(figures[name][k] for name in NAMES)


@pytest.mark.heavy
@given(timelines())
def test_overlapped_is_communication_under_compute(timeline: Timeline) -> None:
    """Overlapped plus exposed is the time with communication; overlapped is the time that also has compute."""
    figures = split(timeline).figures
    bounds = timeline.windows.bounds
    for k in range(len(timeline.windows)):
        both = 0
        for t in range(bounds[k], bounds[k + 1]):
            on = (timeline.start_ns <= t) & (t < timeline.end_ns)
            both += {0, 1} <= set(timeline.kind[on].tolist())
        assert both == figures["overlapped_comm_ns"][k]


@pytest.mark.heavy
@given(timelines())
def test_partition_has_no_gap_and_sums_to_the_split(timeline: Timeline) -> None:
    """The segments of the Gantt row are contiguous through all steps and sum to the figures."""
    stretches, bounds = partition(timeline), timeline.windows.bounds
    figures = split(timeline).figures
    edges = [int(bounds[0]), *stretches.end_ns.tolist()]

    assert edges[:-1] == stretches.start_ns.tolist()
    assert edges[-1] == bounds[-1]
    for part, name in zip(Part, NAMES, strict=True):
        mine = stretches.part == part
        length = (stretches.end_ns - stretches.start_ns)[mine]
        assert (
            figures[name].tolist()
            == np.bincount(stretches.source[mine], weights=length, minlength=len(bounds) - 1).astype(int).tolist()
        )


@pytest.mark.heavy
@given(timelines())
def test_exposure_cuts_each_collective_into_its_own_two_kinds(timeline: Timeline) -> None:
    """The segments of a collective cover it, and exposed ones have no compute at any instant."""
    stretches = exposure(timeline)
    exposed, overlapped = collective_exposure(timeline, compute_of(timeline))
    length = stretches.end_ns - stretches.start_ns
    for i in np.flatnonzero(timeline.kind == 1):
        mine = stretches.source == i
        assert timeline.end_ns[i] - timeline.start_ns[i] == length[mine].sum() == exposed[i] + overlapped[i]
        assert exposed[i] == length[mine & (stretches.part == 1)].sum()
    for start, end, part in zip(stretches.start_ns, stretches.end_ns, stretches.part, strict=True):
        for t in range(start, end):
            on = (timeline.start_ns <= t) & (t < timeline.end_ns) & (timeline.kind == 0)
            assert bool(part) == (not on.any())


@pytest.mark.parametrize(
    ("compute", "comm", "exposed", "overlapped"),
    [
        pytest.param((0, 60), (60, 90), 30, 0, id="naive: all-reduce after backward"),
        pytest.param((0, 60), (20, 50), 0, 30, id="interleaved: hidden"),
        pytest.param((0, 60), (40, 80), 20, 20, id="its tail sticks out"),
    ],
)
def test_cases_that_the_documents_draw(
    compute: tuple[int, int], comm: tuple[int, int], exposed: int, overlapped: int
) -> None:
    """The three examples of data parallelism have the figures that the pictures show."""
    figures = split(TimelineBuilder().compute(*compute).all_reduce(*comm).build())

    assert {"exposed_comm_ns": exposed, "overlapped_comm_ns": overlapped} == {
        name: figures.total()[name] for name in ("exposed_comm_ns", "overlapped_comm_ns")
    }


def test_a_kind_of_collective_is_counted_in_the_step_that_launched_it() -> None:
    """Count and bytes belong to the step of the launch, times to the step they fall into."""
    _, timeline = two_rank_timelines()
    figures = split(timeline).comm["all_reduce"]

    assert ([1, 1], [4096, 4096]) == (figures.count.tolist(), figures.bytes.tolist())
    assert ([11_000, 11_000], [20_000, 20_000]) == (figures.exposed_ns.tolist(), figures.overlapped_ns.tolist())


def test_the_mean_step_adds_up() -> None:
    """The means of three steps of different lengths, idle time included."""
    three = split(TimelineBuilder(bounds=(0, 100, 250, 300)).compute(0, 30).compute(100, 110).compute(250, 270).build())

    assert (20, 80, 100) == tuple(three.mean()[name] for name in ("forward_ns", "idle_ns", "wall_ns"))


def test_figures_come_in_the_documented_order() -> None:
    """The nine names are in the order of all tables, and a run without communication has no kinds."""
    figures = split(TimelineBuilder().compute(0, 10).build())

    assert FIGURES == tuple(figures.figures)
    assert {} == figures.comm
