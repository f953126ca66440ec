"""Random dependency graphs for hypothesis, and their times by definition."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import strategies as st

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import NO_PROCESS, Edge, EdgeKind, Graph, TaskKind, order_tasks


def graph_of(start: Int64, duration: Int64, edge: Edge, process: Int64 | None = None) -> Graph:
    """Build a graph of compute tasks, by default of one process."""
    ordered, first, order = order_tasks(edge, start)
    count = len(start)
    zero = np.zeros(count, np.int32)
    owner = zero if process is None else process.astype(np.int32)
    kind = np.full(count, TaskKind.COMPUTE, np.uint8)
    return Graph(start, duration, start + duration, kind, owner, zero, zero, ("task",), ordered, first, order)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, least_lag: int = -20) -> Graph:
    """Draw a graph whose edges point from tasks to later ones, numbered at random."""
    count = draw(st.integers(1, most))
    number = np.array(draw(st.permutations(range(count))), np.int64)
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count, unique=True)) if pairs else []
    lags = draw(st.lists(st.integers(least_lag, 50), min_size=len(chosen), max_size=len(chosen)))
    ends = draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    places = np.array(chosen, np.int64).reshape(-1, 2)
    edge = Edge(
        number[places[:, 0]],
        number[places[:, 1]],
        np.array(lags, np.int64),
        np.array(ends, np.bool_),
        np.full(len(chosen), EdgeKind.STREAM, np.uint8),
    )
    times = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    return graph_of(np.array(draw(times), np.int64), np.array(draw(times), np.int64), edge)


class _Mesh:
    """A graph that grows at random: hosts launch kernels on two streams, wait for some, and meet in transfers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.edges, self.start, self.process = list[tuple[int, ...]](), list[int](), list[int]()
        arrivals = [self.rank(owner) for owner in range(self.below(4) + 1)]
        for place in range(max(map(len, arrivals))):
            self.transfer([own[place] for own in arrivals if place < len(own)])

    def below(self, count: int) -> int:
        return int(self.rng.integers(count))

    def task(self, owner: int, at: int) -> int:
        self.start.append(at)
        self.process.append(owner)
        return len(self.start) - 1

    def edge(self, sources: list[int], target: int, kind: EdgeKind, one_in: int = 1) -> None:
        """Add an edge from one of some tasks, one time in so many."""
        if sources and not self.below(one_in):
            self.edges.append((sources[self.below(len(sources))], target, self.below(36) - 5, self.below(4) > 0, kind))

    def rank(self, owner: int) -> list[int]:
        """Add the tasks of a rank; return those that meet the others."""
        host, kernels, arrivals, last = list[int](), list[int](), list[int](), [list[int](), list[int]()]
        for number in range(self.below(8) + 1):
            host.append(self.task(owner, 100 * number))
            self.edge(host[-2:-1], host[-1], EdgeKind.HOST)
            self.edge(kernels, host[-1], EdgeKind.SYNCHRONIZE, 4)
            for _ in range(self.below(3)):
                kernel, stream = self.task(owner, 100 * number + self.below(30)), self.below(2)
                self.edge(host[-2:] if self.below(6) else [], kernel, EdgeKind.LAUNCH)
                self.edge(last[stream], kernel, EdgeKind.STREAM)
                self.edge(kernels, kernel, EdgeKind.JOIN, 5)
                last[stream] = [kernel]
                kernels.append(kernel)
                arrivals += [kernel] * (not self.below(3))
        return arrivals

    def transfer(self, arrivals: list[int]) -> None:
        """Add a transfer; what waits for the end of an arrival waits for it."""
        own = self.task(NO_PROCESS, 90 + max(self.start[one] for one in arrivals))
        self.edges = [(own if edge[0] in arrivals else edge[0], *edge[1:]) for edge in self.edges]
        for one in arrivals:
            self.edge([one], own, EdgeKind.RENDEZVOUS)


def mesh(seed: int) -> Graph:
    """Return a random graph of one to four ranks."""
    grown = _Mesh(seed)
    source, target, lag, from_end, kind = np.array(grown.edges, np.int64).reshape(-1, 5).T
    edge = Edge(source, target, lag, from_end.astype(np.bool_), kind.astype(np.uint8))
    duration = grown.rng.integers(0, 30, len(grown.start))
    return graph_of(np.array(grown.start, np.int64), duration, edge, np.array(grown.process))


def times_by_definition(graph: Graph) -> tuple[list[int], list[int]]:
    """Return starts and ends by the formula, task by task."""
    edge = graph.edge
    source, target, lag, from_end = (one.tolist() for one in (edge.src, edge.dst, edge.lag_ns, edge.from_end))

    @cache
    def start(task: int) -> int:
        edges = [i for i, own in enumerate(target) if own == task]
        came = [(end if from_end[i] else start)(source[i]) + lag[i] for i in edges]
        return max(came) if came else int(graph.start_ns[task])

    def end(task: int) -> int:
        return start(task) + int(graph.duration_ns[task])

    return [start(i) for i in range(len(graph))], [end(i) for i in range(len(graph))]
