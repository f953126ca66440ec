"""The host calls of some threads in a window of time: the longest ones, as many as fit, and how many are left out.

Calls nest, so that a call is at least as long as those inside it: leaving out the short ones keeps the nesting.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.timeline.host_calls import Flame, HostCalls

__all__ = ["CallsWindow", "Level", "calls_window"]


@dataclass(frozen=True, slots=True)
class Level:
    """The calls of one thread, flame and depth: none of them overlap."""

    thread: int
    flame: int
    depth: int
    count: int


@dataclass(frozen=True, slots=True)
class CallsWindow:
    """Host calls of a window."""

    index: Int64
    """Indices into the host calls, sorted by level, then start."""
    levels: tuple[Level, ...]
    """The levels that hold them, in order."""
    left_out: int
    """Calls of the window that are not among them."""
    shortest_ns: int
    """No call of this length or longer is left out; 0 if none is."""


def calls_window(calls: HostCalls, threads: Collection[int], start_ns: int, end_ns: int, most: int) -> CallsWindow:
    """Return the calls of *threads* that touch a window, the longest *most* at most.

    Args:
        threads: indices into ``calls.threads``.
        start_ns, end_ns: in the time of the trace.
    """
    touches = (calls.start_ns < end_ns) & (calls.end_ns > start_ns)
    inside = np.flatnonzero(touches & np.isin(calls.thread, list(threads)))
    length = calls.end_ns[inside] - calls.start_ns[inside]
    shortest = _limit(length, most)
    kept = inside[length >= shortest]
    key = _level_key(calls, kept)
    order = np.argsort(key, kind="stable")
    keys, count = np.unique(key, return_counts=True)
    depths = _depths(calls)
    levels = tuple(
        Level(level // depths // len(Flame), level // depths % len(Flame), level % depths, number)
        for level, number in zip(keys.tolist(), count.tolist(), strict=True)
    )
    return CallsWindow(kept[order], levels, len(inside) - len(kept), shortest)


def _limit(length: Int64, most: int) -> int:
    """Return the least length of which at most *most* calls are, or are longer; 0 where all fit."""
    if len(length) <= most:
        return 0
    longest = np.sort(length)[::-1]
    # Calls of one length stay or go together.
    return int(longest[most]) + 1


def _depths(calls: HostCalls) -> int:
    return int(calls.depth.max(initial=0)) + 1


def _level_key(calls: HostCalls, index: Int64) -> NDArray[np.int64]:
    flame = calls.thread[index].astype(np.int64) * len(Flame) + calls.flame[index]
    key: NDArray[np.int64] = flame * _depths(calls) + calls.depth[index]
    return key
