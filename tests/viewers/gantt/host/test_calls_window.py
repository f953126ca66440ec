"""Calls of a window: those that touch it, the longest ones, whole levels in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.timeline.host_calls import CallKind, HostCalls, nesting
from dptrace.viewers.gantt.host.calls_window import calls_window

CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 25)), max_size=40)


def calls_of(events: list[tuple[int, int, int]]) -> HostCalls:
    """Build the calls (thread, start, length)."""
    ordered = sorted(events, key=lambda event: (event[0], event[1], -event[2]))
    thread, start, length = np.array(ordered, np.int64).reshape(-1, 3).T
    depth, parent = nesting(start, start + length, thread)
    return HostCalls(
        threads=("a", "b", "c"),
        start_ns=start,
        end_ns=start + length,
        kind=np.full(len(start), CallKind.OPERATOR, np.uint8),
        thread=thread.astype(np.int32),
        depth=depth,
        parent=parent,
    )


@pytest.mark.heavy
@given(CALLS, st.integers(0, 60), st.integers(1, 30), st.integers(0, 45))
def test_the_longest_calls_of_a_window_are_kept(
    events: list[tuple[int, int, int]], start: int, length: int, most: int
) -> None:
    """At most as many as allowed; none that is left out is as long as the limit; nothing outside, no other thread."""
    calls = calls_of(events)
    window = calls_window(calls, [0, 2], start, start + length, most)
    inside = {
        i
        for i in range(len(calls))
        if calls.thread[i] != 1 and calls.start_ns[i] < start + length and calls.end_ns[i] > start
    }
    kept = set(window.index.tolist())
    lengths = calls.end_ns - calls.start_ns

    assert kept <= inside
    assert len(kept) <= most
    assert len(inside) - len(kept) == window.left_out
    assert all(lengths[i] < window.shortest_ns for i in inside - kept)
    assert all(lengths[i] >= window.shortest_ns for i in kept)
    assert (window.shortest_ns == 0) == (len(inside) <= most)


@pytest.mark.heavy
@given(CALLS)
def test_levels_hold_their_calls_in_order(events: list[tuple[int, int, int]]) -> None:
    """Each level is of one thread and depth, sorted by start."""
    calls = calls_of(events)
    window, place = calls_window(calls, [0, 1, 2], 0, 100, 100), 0
    for level in window.levels:
        index = window.index[place : place + level.count]
        place += level.count
        assert {(level.thread, level.depth)} == set(zip(calls.thread[index], calls.depth[index], strict=True))
        assert (np.diff(calls.start_ns[index]) >= 0).all()

    assert len(window.index) == place


def test_parents_of_kept_calls_are_kept() -> None:
    """Nested calls are shorter than those around them, so that leaving out the short ones keeps the nesting."""
    calls = calls_of([(0, 0, 50), (0, 5, 20), (0, 6, 4), (0, 30, 10), (0, 31, 3)])
    kept = calls_window(calls, [0], 0, 100, 3).index

    assert {0, 1, 3} == set(kept.tolist())
    assert {-1, 0} == set(calls.parent[kept].tolist())
