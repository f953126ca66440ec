"""Counters have the right value at every time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import exposure
from dptrace.export.counters import Counter, counters
from dptrace.timeline.model import UNKNOWN, Timeline
from tests.support.builders import TimelineBuilder

spans = st.tuples(st.integers(0, 40), st.integers(1, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def lines(timeline: Timeline) -> dict[str, Counter]:
    return {counter.name: counter for counter in counters(timeline, exposure(timeline))}


def at(counter: Counter, time: int) -> int:
    """Return the value at a time."""
    index = int(np.searchsorted(counter.time_ns, time, side="right")) - 1
    return int(counter.value[index]) if index >= 0 else 0


@given(st.lists(spans, max_size=6), st.lists(st.tuples(spans, st.integers(0, 9)), min_size=1, max_size=6))
def test_bytes_and_overlap_at_every_moment(
    compute: list[tuple[int, int]], comm: list[tuple[tuple[int, int], int]]
) -> None:
    """Bytes in flight are the sum over running collectives, and overlap is 1 while one runs under compute."""
    build = TimelineBuilder(0)
    for start, end in compute:
        build.compute(start, end)
    for (start, end), size in comm:
        build.all_reduce(start, end, bytes=size)

    found = lines(build.build())

    busy = {time for start, end in compute for time in range(start, end)}
    assert ("bytes in flight" in found) == any(size for _, size in comm)
    for time in range(60):
        running = [size for (start, end), size in comm if start <= time < end]
        assert bool(running and time in busy) == at(found["communication overlapped"], time)
        if "bytes in flight" in found:
            assert sum(running) == at(found["bytes in flight"], time)


@given(st.lists(st.tuples(st.integers(-1, 40), st.integers(-3, 20)), min_size=1, max_size=12))
def test_the_queue_at_every_moment(work: list[tuple[int, int]]) -> None:
    """Launched work waits until it starts; work without a launch, or with one after its start, is not counted."""
    build = TimelineBuilder(0, bounds=(0, 100))
    for launch, wait in work:
        build.compute(max(launch + wait, 0), max(launch + wait, 0) + 1, name=f"{launch}")
    timeline = build.build()
    launches = np.array([int(timeline.names[name]) for name in timeline.name], np.int64)
    timeline = replace(timeline, launch_ns=launches)

    found = lines(timeline)

    known = [(a, b) for a, b in zip(launches.tolist(), timeline.start_ns.tolist(), strict=True) if UNKNOWN != a <= b]
    assert ("launch queue" in found) == bool(known)
    for time in range(70):
        if known:
            assert sum(launch <= time < start for launch, start in known) == at(found["launch queue"], time)


def test_a_line_has_no_more_points_than_changes() -> None:
    """Times are unique, and each value differs from the one before."""
    timeline = TimelineBuilder(0).all_reduce(0, 10).all_reduce(10, 20).all_reduce(15, 30).build()

    line = lines(timeline)["bytes in flight"]

    assert [0, 15, 20, 30] == line.time_ns.tolist()
    assert [4096, 8192, 4096, 0] == line.value.tolist()


def test_what_is_not_known_is_not_drawn() -> None:
    """Without communication, sizes or launches there is no counter for them."""
    assert {} == lines(TimelineBuilder(0).compute(0, 5).build())
    assert ["communication overlapped"] == list(lines(TimelineBuilder(0).all_reduce(0, 5, bytes=0).build()))


def test_chunks_are_the_whole() -> None:
    """Split into parts, a counter loses no point."""
    line = Counter("x", "y", np.arange(200_000), np.arange(200_000))

    assert 4 == len(list(line.chunks()))
    assert 200_000 == sum(map(len, line.chunks()))
