"""Who launched what, against a search by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dptrace.kineto import read_trace
from dptrace.launches import depth, enclosing, launches
from dptrace.trace import Category, Trace
from tests.kineto_files import KinetoFile


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


@given(threads(), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 32)), max_size=10))
def test_enclosing_finds_the_shortest_event_around(
    events: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    """The innermost event that holds a time on its thread is the shortest of those that do, or none."""
    trace = trace_of(events)
    thread = np.array([t for t, _ in queries], np.int32)
    time = np.array([t for _, t in queries], np.int64)

    found = enclosing(trace, np.ones(len(trace), np.bool_), thread, time)

    for (on, at), index in zip(queries, found, strict=True):
        around = [b - a for t, a, b in events if t == on and a <= at < b]
        if around:
            assert min(around) == trace.end_ns[index] - trace.start_ns[index]
            assert on == trace.thread[index]
        else:
            assert index == -1


@given(threads())
def test_depth_counts_the_events_around(events: list[tuple[int, int, int]]) -> None:
    """An event of some length is as deep as there are longer events around it on its thread, none counted twice."""
    trace = trace_of(events)
    levels = depth(trace, np.arange(len(trace)))

    for i in range(len(trace)):
        if trace.end_ns[i] == trace.start_ns[i]:
            continue
        around = sum(
            trace.thread[j] == trace.thread[i]
            and trace.start_ns[j] <= trace.start_ns[i]
            and trace.end_ns[i] <= trace.end_ns[j]
            and j < i
            for j in range(len(trace))
        )
        assert around == levels[i]


def test_launch_is_the_call_with_the_same_correlation(tmp_path: Path) -> None:
    """A kernel is joined to its own call, an orphan and one with correlation 0 to none."""
    file = KinetoFile().kernel("a", 10, 20, launch=5).kernel("b", 20, 30, launch=None)
    file.event("kernel", "c", 40, 50, correlation=0).event("cuda_runtime", "cudaLaunchKernel", 38, 39, correlation=0)
    trace = read_trace(file.write(tmp_path / "t.json"))
    kernels = np.flatnonzero(trace.category == Category.KERNEL)

    found = launches(trace, kernels)

    assert trace.start_ns[kernels[0]] - trace.start_ns[found[0]] == 5_000
    assert [-1, -1] == found[1:].tolist()


def test_of_a_runtime_and_a_driver_call_with_one_id_the_outer_one_launches(tmp_path: Path) -> None:
    """cudaLaunchKernelExC and the cuLaunchKernelEx inside it share their id: the launch begins with the first."""
    file = KinetoFile()
    file.event("cuda_driver", "cuLaunchKernelEx", 6, 7, correlation=9)
    file.event("cuda_runtime", "cudaLaunchKernelExC", 5, 8, correlation=9)
    trace = read_trace(file.event("kernel", "k", 10, 20, correlation=9).write(tmp_path / "t.json"))

    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))

    assert "cudaLaunchKernelExC" == trace.names[trace.name[found[0]]]
