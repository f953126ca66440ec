"""What a step would gain if something took 10 % less time, by replay: a second chain may be nearly as long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.paths.path import StepEnds
from dptrace.replay.simulation.simulate import Schedule

__all__ = ["HOST", "TIMED_TASKS", "Shortening"]

SHORTER = 0.1
HOST = "host"
TIMED_TASKS = {
    "compute": (TaskKind.COMPUTE,),
    "memory": (TaskKind.MEMORY,),
    "transfer": (TaskKind.TRANSFER, TaskKind.COMMUNICATION),
    HOST: (TaskKind.CALL,),
}
"""The tasks whose own time is a kind of piece of a path."""
_LAGS = {
    HOST: (EdgeKind.HOST, EdgeKind.THREAD),
    "launch": (EdgeKind.LAUNCH,),
    "stream": (EdgeKind.STREAM,),
    "absent_ranks": (EdgeKind.PEER,),
    "wait": (EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN, EdgeKind.QUEUE, EdgeKind.JOIN, EdgeKind.PRODUCE),
}
"""The edges whose lag is a kind of piece."""


class Shortening:
    """Replays of a run in which something takes 10 % less time in every step, and as much as before ahead of the first.

    What is ahead of the first step, such as the start of the profiler, would make no step shorter, but could be most of
    what a replay gains.
    """

    def __init__(self, model: Model, ends: StepEnds) -> None:
        """Replay the run as it was.

        Args:
            ends: the tasks that end each step.
        """
        self._graph = model.graph
        self._schedule = Schedule(model.graph)
        self._last = ends.task[ends.step == ends.step.max()]
        self._steps = max(1, int(ends.step.max()) + 1)
        times = self._schedule.run()
        self._end = int(times.end_ns[self._last].max())
        # A tenth of each task's time, and of each edge's lag, as far as they lie in the steps.
        ahead = ends.task[ends.step < 0]
        since = int(times.end_ns[ahead].max()) if len(ahead) else int(times.start_ns.min())
        edge, length = model.graph.edge, times.end_ns - times.start_ns
        self._of_task = _tenth(np.clip(times.end_ns - since, 0, length))
        self._of_edge = _tenth(np.clip(times.start_ns[edge.dst] - since, 0, np.maximum(edge.lag_ns, 0)))

    def of_name(self, kind: str, name: int, names: NDArray[np.int32]) -> int:
        """Return the gain of a step in ns if all pieces of a kind and name took less.

        Args:
            kind: one of LINK_KINDS.
            name: index of the name, which only tasks have; what only edges have is shorter under all names.
            names: the name that each task counts for.
        """
        graph, edge = self._graph, self._graph.edge
        edges = edge.of(*_LAGS.get(kind, ()))
        if kind == HOST:
            edges &= (names[edge.dst] == name) & edge.from_end
        return self._gain(graph.of(*TIMED_TASKS.get(kind, ())) & (names == name), edges)

    def of_tasks(self, tasks: NDArray[np.bool_]) -> int:
        """Return the gain of a step in ns if these tasks, and the host's pauses before them, took less."""
        edge = self._graph.edge
        timed = self._graph.of(*(kind for kinds in TIMED_TASKS.values() for kind in kinds))
        return self._gain(tasks & timed, edge.of(*_LAGS[HOST]) & edge.from_end & tasks[edge.dst])

    def _gain(self, tasks: NDArray[np.bool_], edges: NDArray[np.bool_]) -> int:
        graph = self._graph
        durations = graph.duration_ns - np.where(tasks, self._of_task, 0)
        lags = graph.edge.lag_ns - np.where(edges, self._of_edge, 0)
        ended = int(self._schedule.run(durations, lags).end_ns[self._last].max())
        return round((self._end - ended) / self._steps)


def _tenth(ns: Int64) -> Int64:
    shorter: Int64 = np.rint(ns * SHORTER).astype(np.int64)
    return shorter
