"""Launches and enclosing events, compared with a brute-force search."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.launches import holding, last_enclosing, launches, outermost
from tests.support.kineto_files import BASE_NS, KinetoFile


def nested(draw: st.DrawFn, start: int, end: int, level: int = 0) -> list[tuple[int, int]]:
    """Draw properly nested intervals inside [start, end)."""
    found, at = [], start
    while at < end and level < 4 and draw(st.booleans()):
        a = draw(st.integers(at, end))
        b = draw(st.integers(a, end))
        found.append((a, b))
        found += nested(draw, a, b, level + 1)
        at = b + 1
    return found


@st.composite
def threads(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    return [(thread, a, b) for thread in range(draw(st.integers(1, 3))) for a, b in nested(draw, 0, 30)]


def trace_of(events: list[tuple[int, int, int]]) -> Trace:
    """Make a trace of annotations, sorted as the reader sorts them."""
    rows = sorted(events, key=lambda row: (row[1], -row[2]))
    count = len(rows)
    zeros = np.zeros(count, np.int32)
    return Trace(
        path="",
        rank=0,
        world_size=1,
        start_ns=np.array([a for _, a, _ in rows], np.int64),
        end_ns=np.array([b for _, _, b in rows], np.int64),
        category=np.full(count, Category.ANNOTATION, np.uint8),
        name=zeros,
        names=("label",),
        thread=np.array([thread for thread, _, _ in rows], np.int32),
        correlation=np.full(count, -1, np.int64),
        device=zeros,
        stream=zeros.astype(np.int64),
        comm={},
    )


@given(threads(), st.data())
def test_holding_finds_what_begins_and_ends_within(events: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Equal to a search through all pairs on the event's own thread."""
    trace = trace_of(events)
    inner = np.array(sorted(data.draw(st.sets(st.integers(0, len(events) - 1)))) if events else [], np.int64)
    ended = trace.start_ns[inner] + np.array([data.draw(st.integers(0, 20)) for _ in inner], np.int64)
    others = np.setdiff1d(np.arange(len(events)), inner)

    found = holding(trace, others, inner, ended)
    for event, held in zip(others, found, strict=True):
        within = [
            trace.start_ns[event] <= trace.start_ns[i] < trace.end_ns[event]
            and trace.thread[i] == trace.thread[event]
            and end <= trace.end_ns[event]
            for i, end in zip(inner, ended, strict=True)
        ]
        assert any(within) == held


@given(threads(), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 32)), max_size=10))
def test_enclosing_finds_the_shortest_event_around(
    events: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    """The innermost event around a time on its thread is the shortest of those around it, or none."""
    trace = trace_of(events)
    thread = np.array([t for t, _ in queries], np.int32)
    time = np.array([t for _, t in queries], np.int64)

    found = last_enclosing(trace, np.ones(len(trace), np.bool_), thread, time)

    for (on, at), index in zip(queries, found, strict=True):
        around = [b - a for t, a, b in events if t == on and a <= at <= b]
        if around:
            assert min(around) == trace.end_ns[index] - trace.start_ns[index]
            assert on == trace.thread[index]
        else:
            assert index == -1


any_events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)).map(lambda e: (e[0], e[1], e[1] + e[2])),
    max_size=40,
)


@pytest.mark.heavy
@given(any_events, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 45)), max_size=20))
def test_enclosing_takes_the_last_to_begin_where_events_overlap_in_part(
    events: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    """For any events it is the last to start of those around the time, by brute force."""
    trace = trace_of(events)
    thread = np.array([t for t, _ in queries], np.int32)
    time = np.array([t for _, t in queries], np.int64)

    found = last_enclosing(trace, np.ones(len(trace), np.bool_), thread, time)

    for (on, at), index in zip(queries, found, strict=True):
        around = [i for i in range(len(trace)) if trace.thread[i] == on and trace.start_ns[i] <= at <= trace.end_ns[i]]
        starts = [int(trace.start_ns[i]) for i in around]
        assert (max(starts) if starts else None) == (int(trace.start_ns[index]) if index >= 0 else None)
        assert index == -1 or index in around


@given(any_events)
def test_outermost_events_are_those_in_no_earlier_one(events: list[tuple[int, int, int]]) -> None:
    """Events inside an earlier event on the thread are dropped; those that reach beyond it are kept."""
    trace = trace_of(events)

    kept = outermost(trace, np.arange(len(trace)))

    assert kept.tolist() == [
        i
        for i in range(len(trace))
        if not any(trace.thread[j] == trace.thread[i] and trace.end_ns[i] <= trace.end_ns[j] for j in range(i))
    ]


def test_a_stack_ten_thousand_deep_costs_no_more_than_a_flat_one() -> None:
    """The cost does not grow with depth: 10,000 nested labels and as many queries take well under a second."""
    count = 10_000
    trace = trace_of([(0, i, 3 * count - i) for i in range(count)])
    time = np.arange(count, dtype=np.int64) * 2 + count

    begin = process_time()
    found = last_enclosing(trace, np.ones(count, np.bool_), np.zeros(count, np.int32), time)

    assert process_time() - begin < 0.5
    assert [min(3 * count - at, count - 1) for at in time.tolist()] == found.tolist()


def test_launch_is_the_call_with_the_same_correlation(tmp_path: Path) -> None:
    """A kernel is linked to its own call; an orphan and one with correlation 0 to none."""
    file = KinetoFile().kernel("a", 10, 20, launch=5).kernel("b", 20, 30, launch=None)
    file.event("kernel", "c", 40, 50, correlation=0).event("cuda_runtime", "cudaLaunchKernel", 38, 39, correlation=0)
    trace = read_trace(file.write(tmp_path / "t.json"))
    kernels = np.flatnonzero(trace.category == Category.KERNEL)

    found = launches(trace, kernels)

    assert trace.start_ns[kernels[0]] - trace.start_ns[found[0]] == 5_000
    assert [-1, -1] == found[1:].tolist()


def test_of_a_runtime_and_a_driver_call_with_one_id_the_outer_one_launches(tmp_path: Path) -> None:
    """cudaLaunchKernelExC and the cuLaunchKernelEx inside it share an id: the launch is the outer call."""
    file = KinetoFile()
    file.event("cuda_driver", "cuLaunchKernelEx", 6, 7, correlation=9)
    file.event("cuda_runtime", "cudaLaunchKernelExC", 5, 8, correlation=9)
    trace = read_trace(file.event("kernel", "k", 10, 20, correlation=9).write(tmp_path / "t.json"))

    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))

    assert "cudaLaunchKernelExC" == trace.names[trace.name[found[0]]]


CALLS = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cudaMemcpyAsync", "cudaMemsetAsync"),
    *("cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyAsync"),
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver", "hip_runtime", "Runtime"])
def test_every_kind_of_call_launches(call: str, category: str, tmp_path: Path) -> None:
    """The id links them, whatever the call's name and category."""
    file = KinetoFile().event(category, call, 5, 6, correlation=7).event("kernel", "k", 10, 20, correlation=7)
    trace = read_trace(file.write(tmp_path / "t.json"))

    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))

    assert call == trace.names[trace.name[found[0]]]


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"])
def test_a_graph_launches_many(call: str, tmp_path: Path) -> None:
    """All kernels of a graph share the id of its launch."""
    file = KinetoFile().event("cuda_runtime", call, 5, 6, correlation=7)
    for k in range(5):
        file.event("kernel", f"k{k}", 10 + k, 11 + k, correlation=7, stream=k)
    trace = read_trace(file.write(tmp_path / "t.json"))

    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))

    assert [call] * 5 == [trace.names[trace.name[i]] for i in found]


def test_of_calls_with_one_id_the_last_before_the_kernel_launches_it(tmp_path: Path) -> None:
    """Ids that wrap, or that two processes share, lead to the last call before the kernel, else to the first."""
    file = KinetoFile()
    for at in (100, 200, 300):
        file.event("cuda_runtime", "cudaLaunchKernel", at, at + 5, correlation=7)
        file.event("cuda_driver", "cuLaunchKernel", at + 1, at + 2, correlation=7)
    for begin in (50, 101.5, 150, 250, 900):
        file.event("kernel", "k", begin, begin + 1, correlation=7)
    trace = read_trace(file.write(tmp_path / "t.json"))

    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))

    assert [100, 100, 100, 200, 300] == ((trace.start_ns[found] - BASE_NS) / 1000).tolist()


def test_devices_that_share_ids_are_separated_by_time(tmp_path: Path) -> None:
    """Two devices of one process draw ids from one counter; each kernel keeps its own device and launch."""
    file = KinetoFile().kernel("a", 10, 20, launch=5, device=0).kernel("b", 11, 21, launch=6, device=1)
    trace = read_trace(file.write(tmp_path / "t.json"))
    kernels = np.flatnonzero(trace.category == Category.KERNEL)

    assert [0, 1] == trace.device[kernels].tolist()
    assert [5.0, 6.0] == ((trace.start_ns[launches(trace, kernels)] - BASE_NS) / 1000).tolist()
