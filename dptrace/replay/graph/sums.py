"""What a simulation computes as sums: when tasks start that follow one another, or a launch and the kernel before.

::

    join ──► a ──► b ──► c        follower: waits for one task, so it starts a known time after the join
    join ──► k ──► l ──► m        chain: waits for the kernel before and for a launch of one host
    host ────┴─────┴─────┘
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.replay.graph.model import NEVER, NO_PROCESS, EdgeKind, Graph

_LEFT_OUT = NEVER // 4
"""Time along an edge below which it is left out, so that it is no term of a sum."""


# The parts of a graph: ranges of tasks, one for each process, and one for the transfers, through which they meet.


class Parts(msgspec.Struct, frozen=True):
    """Ranges of tasks; an edge from one to another begins or ends at the hub. All arrays below are sorted by part."""

    first: Int64
    """First task of each, followed by the number of tasks."""
    edge: Int64
    """First edge of each, followed by the number of edges."""
    hub: int
    """The part of the transfers; -1 without one."""
    part: NDArray[np.int32]
    """That of each task."""

    @classmethod
    def at(cls, first: Int64, graph: Graph, hub: int) -> Parts:
        """Return the parts that begin with these tasks."""
        part = np.repeat(np.arange(len(first) - 1, dtype=np.int32), np.diff(first))
        return cls(first, graph.first[first], hub, part)

    def __len__(self) -> int:
        return len(self.first) - 1

    def bounds(self, task: Int64) -> Int64:
        """Return the index of each part's first entry in a column of tasks that is sorted by part, and the length."""
        return np.searchsorted(self.part[task], np.arange(len(self) + 1))


def parts_of(graph: Graph) -> Parts:
    """Return the parts of a graph; one of all tasks, where those of a process are apart or wait for another process."""
    count = len(graph)
    first = np.append(np.flatnonzero(np.diff(graph.process, prepend=graph.process[:1] - 1)), count)
    owner = graph.process[first[:-1]]
    hub = np.flatnonzero(owner == NO_PROCESS)
    if len(unique(owner)) == len(owner):
        source, destination = graph.process[graph.edge.src], graph.process[graph.edge.dst]
        if ((source == destination) | (source == NO_PROCESS) | (destination == NO_PROCESS)).all():
            return Parts.at(first, graph, int(hub[0]) if len(hub) else -1)
    return Parts.at(np.array([0, count]), graph, -1)


# Followers: tasks that wait for one task of their part.


class Followers(msgspec.Struct, frozen=True):
    """Followers in paths, as they run: how long after its root each starts is a sum along its path and those before."""

    root: Int64
    """Of each task of the graph: itself, or the first on the way back that is no follower."""
    task: Int64
    """Sorted by path."""
    source: Int64
    edge: Int64
    from_end: NDArray[np.bool_]
    first: Int64
    """Index of each path's first follower, followed by the number of followers."""
    leaves: Int64
    """Index of the follower that each path's first one waits for, or -1."""
    path: Int64
    """Number of each follower's path."""
    bounds: Int64
    """First follower of each part."""

    def after(self, duration_ns: Int64, lag_ns: Int64, parts: tuple[int, int], tasks: tuple[int, int]) -> Int64:
        """Return how long after the start of its root each task of some parts starts.

        Args:
            parts: the first part, and the one after the last.
            tasks: the same for their tasks.
        """
        low, high = self.bounds[list(parts)].tolist()
        paths = np.searchsorted(self.first, (low, high)).tolist()
        task = self.task[low:high]
        step = duration_ns[self.source[low:high]]
        step *= self.from_end[low:high]
        step += lag_ns[self.edge[low:high]]
        result = np.zeros(tasks[1] - tasks[0], np.int64)
        if len(step):
            first, leaves = self.first[paths[0] : paths[1]] - low, self.leaves[paths[0] : paths[1]]
            leaves = np.where(leaves >= 0, leaves - low, -1)
            if step.min() < _LEFT_OUT:
                way = _one_by_one(step, first, leaves)
            else:
                way = np.cumsum(step)
                path = self.path[low:high] - paths[0]
                # Each path begins where it leaves another, which itself left one before.
                way += (step[first] - way[first])[path]
                way += _added_up(np.where(leaves >= 0, way[leaves], 0), np.where(leaves >= 0, path[leaves], -1))[path]
            result[task - tasks[0]] = way
        return result


def _added_up(length: Int64, before: Int64) -> Int64:
    """Return for each entry its length with those of all before it; one that is the first has none before it (-1)."""
    count = len(length)
    length, before = np.append(length, 0), np.append(np.where(before < 0, count, before), count)
    # Each turn looks twice as far ahead: entries that are not there yet, and what they look at.
    while len(further := np.flatnonzero(before != count)):
        length[further] += length[before[further]]
        before[further] = before[before[further]]
    return length[:-1]


def _one_by_one(step: Int64, first: Int64, leaves: Int64) -> Int64:
    """Return the ways of followers where edges are left out: what follows one stays as far below any time."""
    count = len(step)
    way, source = np.append(step, 0), np.append(np.arange(count) - 1, count)
    source[first] = np.where(leaves >= 0, leaves, count)
    while len(further := np.flatnonzero(source != count)):
        ahead = source[further]
        way[further] = np.maximum(way[further] + way[ahead], NEVER)
        source[further] = source[ahead]
    return way[:-1]


def _end_of(pointer: Int64) -> Int64:
    """Return where each entry ends that goes on with what it points to."""
    # Most point to the entry before them: a run of such ends where its first one does.
    number = np.arange(len(pointer))
    pointer = pointer[np.maximum.accumulate(np.where(pointer == number - 1, 0, number))]
    further = np.flatnonzero(pointer[pointer] != pointer)
    while len(further):
        ahead = pointer[pointer[further]]
        pointer[further] = ahead
        further = further[pointer[ahead] != ahead]
    return pointer


def followers_of(graph: Graph, parts: Parts) -> Followers:
    """Prepare the followers of a graph."""
    edge, count = graph.edge, len(graph)
    task = graph.order[np.diff(graph.first)[graph.order] == 1]
    single = graph.first[task]
    inside = parts.part[task] == parts.part[edge.src[single]]
    task, single = task[inside], single[inside]
    source = edge.src[single]
    # Of those that follow one task, the host's next call goes on with its path, or else any.
    goes_on = np.full(count, -1, np.int64)
    goes_on[source] = task
    host = edge.kind[single] == EdgeKind.HOST
    goes_on[source[host]] = task[host]
    is_follower = np.zeros(count, np.bool_)
    is_follower[task] = True
    inner = is_follower[source] & (goes_on[source] == task)
    head = np.arange(count)
    head[task[inner]] = source[inner]
    head = _end_of(head)[task]
    by_path = np.argsort(head, kind="stable")
    task, single, source, head = task[by_path], single[by_path], source[by_path], head[by_path]
    first = np.append(np.flatnonzero(np.diff(head, prepend=-1)), len(task))
    place = np.full(count, -1, np.int64)
    place[task] = np.arange(len(task))
    root = np.arange(count)
    root[task] = source
    return Followers(
        root=_end_of(root),
        task=task,
        source=source,
        edge=single,
        from_end=edge.from_end[single],
        first=first,
        leaves=place[source[first[:-1]]],
        path=np.repeat(np.arange(len(first) - 1), np.diff(first)),
        bounds=parts.bounds(task),
    )


# Chains: a stream's kernels that wait for the one before, and for a launch of one host.


class Chains(msgspec.Struct, frozen=True):
    """Kernels in chains, as they run; all columns but the last four have an entry for each.

    With s, the way from the head to a kernel, and m, the latest way of a launch up to it less that way, a kernel
    starts at s + max(start of head, start of host + m).
    """

    task: Int64
    """Sorted by chain."""
    edge: Int64
    """From the one before: 2 × kernels, the second row from its launch."""
    key: Int64
    """Of what both begin with, as :class:`Ways` have it."""
    chain: Int64
    """Number of each one's chain."""
    first: Int64
    """Index of each chain's first kernel, followed by the number of kernels."""
    head: Int64
    """What the first kernel of each chain follows, and what all its launches follow: their places among the joins."""
    host: Int64
    bounds: Int64
    """First kernel of each part."""

    def add_up(self, since: NDArray[np.int64], low: int, high: int) -> bool:
        """Put s and m of the kernels from *low* to *high* in the place of the times that they are sums of.

        Args:
            since: from the start of the root of each edge to what waits for it: 2 × kernels.

        Returns:
            False where an edge is left out: they are no sums.
        """
        way, late = since
        if not len(way):
            return True
        if since.min() < _LEFT_OUT:
            return False
        chains = np.searchsorted(self.first, (low, high)).tolist()
        first, chain = self.first[chains[0] : chains[1]] - low, self.chain[low:high] - chains[0]
        step = way[first]
        np.cumsum(way, out=way)
        way += (step - way[first])[chain]
        late -= way
        # The values of each chain above those of the one before it: then one running maximum is that of each.
        span = int(late.max()) - int(late.min()) + 1
        if span * len(first) >= 1 << 61:
            return False
        above = chain * span
        late += above
        np.maximum.accumulate(late, out=late)
        late -= above
        return True


def chains_of(graph: Graph, joins: Int64, root: Int64, parts: Parts) -> tuple[Chains, Int64, Int64]:
    """Return the chains among the joins, which are in order, with the head and the host of each, as tasks."""
    edge, count = graph.edge, len(graph)
    task = joins[np.diff(graph.first)[joins] == 2]
    first = graph.first[task]
    streams = edge.kind[first] == EdgeKind.STREAM, edge.kind[first + 1] == EdgeKind.STREAM
    one = streams[0] != streams[1]
    task, edges = task[one], np.stack((first[one] + streams[1][one], first[one] + streams[0][one]))
    part = parts.part[task]
    before, host = root[edge.src[edges]]
    host_of = np.full(count, -1, np.int64)
    host_of[task] = host
    # A chain has one host, which is no kernel, and one kernel after another.
    kept = (host_of[host] < 0) & ((host_of[before] < 0) | (host_of[before] == host)) & (parts.part[host] == part)
    after = np.full(count, -1, np.int64)
    after[before[kept]] = task[kept]
    kept &= (host_of[before] < 0) | (after[before] == task)
    task, before, host, edges = task[kept], before[kept], host[kept], edges[:, kept]
    known = np.zeros(count, np.bool_)
    known[task] = True
    chain = np.arange(count)
    inner = known[before]
    chain[task[inner]] = before[inner]
    chain = _end_of(chain)[task]
    order = np.argsort(chain, kind="stable")  # in each chain, they are in the order in which they run
    edges, begins = edges[:, order], np.append(np.flatnonzero(np.diff(chain[order], prepend=-1)), len(order))
    found = Chains(
        task=task[order],
        edge=edges,
        key=edge.src[edges] + count * edge.from_end[edges],
        chain=np.repeat(np.arange(len(begins) - 1), np.diff(begins)),
        first=begins,
        head=before[:0],
        host=before[:0],
        bounds=parts.bounds(task[order]),
    )
    return found, before[order][begins[:-1]], host[order][begins[:-1]]
