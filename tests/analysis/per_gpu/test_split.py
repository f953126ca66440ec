"""The split, against brute force over every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.analysis.per_gpu.split import (
    Part,
    by_kind,
    collective_exposure,
    compute_of,
    exposure,
    idle,
    partition,
    split,
)
from dptrace.core.intervals import IntervalSet, subtract, union
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Actions, HostActivity, HostCause, HostLabel, Phase, Timeline
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.totals import totals

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


# Why a GPU was idle.


def launched(timeline: Timeline, *times: int) -> Timeline:
    return replace(timeline, launch_ns=np.array(times, np.int64))


def one(start: int, end: int) -> IntervalSet:
    return np.array([start]), np.array([end])


def causes(timeline: Timeline) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in idle(timeline).causes.items() if values.any()}


def test_each_gap_has_the_cause_that_its_end_shows() -> None:
    """A gap is the host's until the launch of its end; then it is launch latency, or unexplained where it is longer."""
    build = TimelineBuilder(bounds=(0, 300_000)).compute(0, 10).compute(100_000, 100_010).compute(100_020, 200_000)
    timeline = launched(build.compute(290_000, 300_000).build(), 0, 5, 6, 250_000)

    expected = {"launch_latency_ns": [10], "host_bound_ns": [50_000]}
    assert expected | {"unexplained_ns": [139_990]} == causes(timeline)

    timeline = replace(timeline, launching=one(40_000, 70_000), depending=one(60_000, 100_000))
    named = {"launching_ns": [30_000], "waiting_ns": [30_000], "unexplained_ns": [39_990 + 40_000]}
    assert expected | named == causes(timeline)


def test_what_a_slow_call_leaves_of_a_launch_is_its_latency() -> None:
    """Work that begins within 20 µs after its launching call returned waited for nothing else."""
    timeline = launched(TimelineBuilder(bounds=(0, 200_000)).compute(0, 10_000).compute(95_000, 200_000).build(), 0, 5)
    timeline = replace(timeline, launching=one(10_000, 80_000), depending=one(10_000, 95_000))

    assert {"launching_ns": [70_000], "launch_latency_ns": [15_000]} == causes(timeline)


def test_work_from_before_the_recording_was_not_late() -> None:
    """Without a recorded launch, it was launched in time."""
    timeline = TimelineBuilder(bounds=(0, 100)).compute(50, 100).build()

    assert UNKNOWN == timeline.launch_ns[0]
    assert {"launch_latency_ns": [50]} == causes(timeline)


def acted(timeline: Timeline, *spans: tuple[int, int, int]) -> Timeline:
    """Add a pipeline's actions: when each was called, started and ended."""
    called, start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    small, zeros = np.zeros(len(spans), np.int32), np.zeros(len(spans), np.uint8)
    return replace(timeline, actions=Actions(small, small, zeros, small, start, end, end - start, called, called + 1))


def test_waiting_between_the_actions_of_a_pipeline_is_its_bubble() -> None:
    """Between the call of the first action and the end of the last; waits inside actions do not count."""
    build = TimelineBuilder(bounds=(0, 500_000)).compute(50_000, 100_000).compute(150_000, 200_000)
    build.compute(300_000, 350_000).compute(400_000, 500_000)
    timeline = launched(build.build(), 0, 0, 0, 0)
    actions = ((25_000, 50_000, 200_000), (30_000, 300_000, 350_000))

    assert {"unexplained_ns": [250_000]} == causes(timeline)
    assert {"unexplained_ns": [125_000], "bubble_ns": [125_000]} == causes(acted(timeline, *actions))
    timeline = replace(timeline, depending=one(0, 500_000))
    assert {"waiting_ns": [125_000], "bubble_ns": [125_000]} == causes(acted(timeline, *actions))


def test_a_host_in_a_receive_is_the_pipeline_s_bubble() -> None:
    """Only host lateness counts, only in a run with a pipeline, and data loading takes precedence."""
    build = TimelineBuilder(bounds=(0, 300_000)).compute(0, 100_000).compute(200_000, 300_000)
    timeline = launched(build.build(), 0, 190_000)
    timeline = replace(timeline, receiving=one(50_000, 160_000), data_loading=one(100_000, 110_000))

    latency = {"launch_latency_ns": [10_000]}
    assert {"data_loading_ns": [10_000], "host_bound_ns": [80_000]} | latency == causes(timeline)
    assert {"data_loading_ns": [10_000], "host_bound_ns": [30_000], "bubble_ns": [50_000]} | latency == causes(
        acted(timeline, (0, 0, 100_000), (195_000, 200_000, 300_000))
    )


rows = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 20), st.integers(0, 2), st.integers(-30, 100)), min_size=1, max_size=12
)
idle_spans = st.lists(st.tuples(st.integers(-5, 110), st.integers(1, 30)), max_size=4)


@pytest.mark.heavy
@given(rows, idle_spans, idle_spans, st.integers(1, 99), st.lists(st.sampled_from(HostCause), min_size=10, max_size=10))
def test_every_nanosecond_of_idle_has_one_cause(
    rows: list[tuple[int, int, int, int]],
    spans: list[tuple[int, int]],
    receives: list[tuple[int, int]],
    middle: int,
    doing: list[HostCause],
) -> None:
    """Causes against brute force over every nanosecond; the host does something else in each 10 ns."""
    build = TimelineBuilder(bounds=(0, middle, 100))
    rows = sorted(rows)
    for start, length, kind, _ in rows:
        (build.compute, build.all_reduce, build.memory)[kind](start, start + length)
    rows = sorted(rows, key=lambda row: (row[0], row[0] + row[1]))
    timeline = replace(launched(build.build(), *(row[3] for row in rows)), data_loading=as_set(spans))
    if receives:
        timeline = replace(acted(timeline, (0, 0, 1)), receiving=as_set(receives))
    timeline = replace(timeline, host=busy_host(doing))

    expected = [brute_force(rows, spans, receives, doing, time) for time in range(100)]
    found = idle(timeline)
    for step, (low, high) in enumerate(((0, middle), (middle, 100))):
        assert [expected[low:high].count(name) for name in CAUSES] == [int(found.causes[name][step]) for name in CAUSES]
    assert split(timeline).figures["idle_ns"].tolist() == sum(found.causes.values()).tolist()  # type: ignore[union-attr]
    assert sum(map(bool, expected)) == sum(int((ends - starts).sum()) for starts, ends in found.sets.values())


@pytest.mark.heavy
@given(rows, idle_spans, idle_spans, idle_spans, st.booleans())
def test_causes_of_long_gaps_add_up_to_idle_time(
    rows: list[tuple[int, int, int, int]],
    launching: list[tuple[int, int]],
    depending: list[tuple[int, int]],
    receives: list[tuple[int, int]],
    staged: bool,
) -> None:
    """In µs: whatever calls show, each nanosecond has one cause, and one that is said only where it was seen."""
    build = TimelineBuilder(bounds=(0, 50_000, 100_000))
    rows = sorted(rows, key=lambda row: (row[0], row[0] + row[1]))
    for start, length, *_ in rows:
        build.compute(1_000 * start, 1_000 * (start + length))
    timeline = launched(build.build(), *(1_000 * row[3] for row in rows))
    sets = {"launching": thousandfold(launching), "depending": thousandfold(depending)}
    timeline = replace(acted(timeline, (0, 0, 1)) if staged else timeline, receiving=thousandfold(receives), **sets)
    found = idle(timeline)

    assert split(timeline).figures["idle_ns"].tolist() == sum(found.causes.values()).tolist()  # type: ignore[union-attr]
    assert all((values >= 0).all() for values in found.causes.values())
    for name, seen in (("launching_ns", timeline.launching), ("waiting_ns", timeline.depending)):
        assert 0 == len(subtract(found.sets[name], seen)[0])


def thousandfold(spans: list[tuple[int, int]]) -> IntervalSet:
    starts, ends = as_set(spans)
    return 1_000 * starts, 1_000 * ends


def busy_host(doing: list[HostCause]) -> HostActivity:
    """A host that does something else in each 10 ns."""
    labels = tuple(HostLabel(cause) for cause in doing)
    return HostActivity(np.arange(10) * 10, 100, np.arange(10, dtype=np.int32), labels)


def as_set(spans: list[tuple[int, int]]) -> IntervalSet:
    columns = np.array(spans, np.int64).reshape(-1, 2)
    return union(columns[:, 0], columns.sum(axis=1))


def brute_force(
    rows: list[tuple[int, int, int, int]],
    spans: list[tuple[int, int]],
    receives: list[tuple[int, int]],
    doing: list[HostCause],
    time: int,
) -> str:
    """Return the cause of idle time at a nanosecond; empty where the GPU is busy."""

    def at(moment: int) -> set[int]:
        return {kind for start, length, kind, _ in rows if start <= moment < start + length}

    told = [cause for cause in IDLE_CAUSES if cause.name not in ("data_loading_ns", "launching_ns")]

    if at(time):
        return ""
    begin = end = time
    while begin > 0 and not at(begin - 1):
        begin -= 1
    while end < 100 and not at(end):
        end += 1
    launches = [launch for start, _, _, launch in rows if start == end]
    if time < min(launches, default=end if end == 100 else begin):
        if any(a <= time < a + n for a, n in spans):
            return "data_loading_ns"
        if any(a <= time < a + n for a, n in receives):
            return "bubble_ns"
        return next((cause.name for cause in told if doing[time // 10] in cause.host_causes), "host_bound_ns")
    return "launch_latency_ns"  # none of these gaps is longer than a launch takes


# Figures of each kind of collective.


def test_a_kind_is_reported_per_gpu_and_step() -> None:
    """Counts, bytes and times add up to the splits' when multiplied by GPUs and steps."""
    run = Run("x", two_rank_timelines())
    (kind,) = by_kind(run.splits)
    total = [*map(totals, run.splits)]

    assert kind.exposed_ns is not None
    assert kind.overlapped_ns is not None
    assert ("all_reduce", 1.0, 4096.0) == (kind.kind, kind.count, kind.bytes)
    assert sum(one["exposed_comm_ns"] for one in total) == 4 * kind.exposed_ns
    assert sum(one["overlapped_comm_ns"] for one in total) == 4 * kind.overlapped_ns
    assert kind.overlap_percent == pytest.approx(100 * kind.overlapped_ns / (kind.overlapped_ns + kind.exposed_ns))
