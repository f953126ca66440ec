"""What a call inherits from the calls around it, and the label around an instant."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.timeline.host_calls import Flame, HostCalls

__all__ = ["CallTree", "Labels"]

Index = NDArray[np.int64]
"""Indices of calls; -1 for none."""


class CallTree:
    """The nesting of host calls: each has the index of the one around it.

    A column is passed down level by level, so that the cost is that of a few passes over it::

        parent   -1  0  1  1          aten::linear ⊃ aten::addmm ⊃ two launches
        own       0  1 -1 -1          the operators among them
        innermost 0  1  1  1          outermost 0  0  0  0
    """

    def __init__(self, calls: HostCalls) -> None:
        self.calls = calls
        self.parent = calls.parent.astype(np.int64)
        order = np.argsort(calls.depth, kind="stable")
        edges = np.searchsorted(calls.depth[order], np.arange(1, int(calls.depth.max(initial=0)) + 2))
        self._levels = [order[low:high] for low, high in pairwise(edges)]

    def innermost(self, chosen: NDArray[np.bool_]) -> Index:
        """Return for each call the innermost of the *chosen* calls that is it or lies around it."""
        found = np.where(chosen, np.arange(len(chosen)), -1)
        for level in self._levels:
            own = found[level]
            found[level] = np.where(own >= 0, own, found[self.parent[level]])
        return found

    def outermost(self, chosen: NDArray[np.bool_]) -> Index:
        """Return for each call the outermost of the *chosen* calls that is it or lies around it."""
        found = np.where(chosen, np.arange(len(chosen)), -1)
        for level in self._levels:
            above = found[self.parent[level]]
            found[level] = np.where(above >= 0, above, found[level])
        return found

    def holds(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which calls have a *chosen* call inside them."""
        found = np.zeros(len(chosen), np.bool_)
        for level in reversed(self._levels):
            found[self.parent[level[chosen[level] | found[level]]]] = True
        return found

    def self_ns(self) -> Int64:
        """Return the time of each call without the calls inside it; a call ends no later than the one around it."""
        start, end = self.calls.start_ns, self.calls.end_ns.copy()
        for level in self._levels:
            end[level] = np.minimum(end[level], end[self.parent[level]])
        own = np.maximum(end - start, 0)
        nested = np.flatnonzero(self.parent >= 0)
        inside = np.zeros(len(own), np.int64)
        np.add.at(inside, self.parent[nested], own[nested])
        rest: Int64 = own - inside
        return rest


class Labels:
    """The annotations and modules of each thread, to be looked up by thread and time."""

    def __init__(self, calls: HostCalls) -> None:
        self.calls = calls
        self._labels = np.flatnonzero(calls.flame == Flame.LABELS)
        times = calls.start_ns
        self._origin = int(times.min(initial=0)) if len(times) else 0
        self._span = int(calls.end_ns.max(initial=self._origin)) - self._origin + 2
        self._keys = self._key(calls.thread[self._labels], times[self._labels])

    def _key(self, thread: NDArray[np.int32], time: Int64) -> Int64:
        return thread.astype(np.int64) * self._span + np.clip(time - self._origin, 0, self._span - 1)

    def around(self, thread: NDArray[np.int32], time: Int64) -> Index:
        """Return the innermost label around each (thread, time), or -1; both of its ends belong to it."""
        if not len(self._labels):
            return np.full(len(time), -1, np.int64)
        calls, place = self.calls, np.searchsorted(self._keys, self._key(thread, time), side="right") - 1
        found = np.where(place >= 0, self._labels[place], -1)
        found[(found >= 0) & (calls.thread[found] != thread)] = -1
        while len(ended := np.flatnonzero((found >= 0) & (calls.end_ns[found] < time))):
            found[ended] = calls.parent[found[ended]]
        return found
