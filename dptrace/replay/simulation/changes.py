"""What may be different in a what-if: each change takes a model and returns one with other durations or lags."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.patterns import matches
from dptrace.core.units import duration
from dptrace.errors import DptraceError, UsageError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.simulation.simulate import NEVER

__all__ = [
    "Bandwidth",
    "Change",
    "Compute",
    "HasDoubts",
    "Kernel",
    "NoHostDelay",
    "PerfectOverlap",
    "Straggler",
    "no_collectives",
    "with_times",
]


class Change(Protocol):
    """One change of a run."""

    @property
    def collectives(self) -> bool:
        """Whether it needs to know how long a collective waits and how long it transfers."""

    @property
    def host(self) -> bool:
        """Whether it changes what hosts do."""

    def describe(self) -> str:
        """Return what changes, for a heading."""

    def apply(self, model: Model) -> Model:
        """Return the changed model.

        Raises:
            DptraceError: the run does not have what would change.
        """


@runtime_checkable
class HasDoubts(Protocol):
    """A change that takes something for granted."""

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return what, in sentences."""


def with_times(model: Model, duration_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Model:
    """Return a model with other durations of tasks or lags of edges."""
    graph = model.graph
    if duration_ns is not None:
        graph = replace(graph, duration_ns=duration_ns)
    if lag_ns is not None:
        graph = replace(graph, edge=replace(graph.edge, lag_ns=lag_ns))
    return replace(model, graph=graph)


def no_collectives(model: Model) -> DptraceError:
    """Return the error about a change of communication in a run that has none."""
    return DptraceError(
        f"{model.run.path}: the run has no collectives, so links and schedules do not matter to it. To predict more "
        "ranks from one, add --world-size N and --link NAME."
    )


def _scaled(values: Int64, chosen: NDArray[np.bool_], factor: float) -> Int64:
    scaled = values.copy()
    scaled[chosen] = np.rint(values[chosen] * factor).astype(np.int64)
    return scaled


class Compute(msgspec.Struct, frozen=True):
    """Compute on all devices is faster by a factor; that of ranks that were not recorded, too."""

    speedup: float
    collectives: bool = False
    host: bool = False

    def describe(self) -> str:
        return f"compute {self.speedup:g}×"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        durations = _scaled(graph.duration_ns, graph.of(TaskKind.COMPUTE), 1 / self.speedup)
        return with_times(model, durations, _scaled(graph.edge.lag_ns, graph.edge.of(EdgeKind.PEER), 1 / self.speedup))


class Bandwidth(msgspec.Struct, frozen=True):
    """Links are faster by a factor; the latency of a collective stays, where sizes show it."""

    speedup: float
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"bandwidth {self.speedup:g}×"

    def apply(self, model: Model) -> Model:
        graph, transfers = model.graph, model.transfers
        moving = graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)
        if not moving.any():
            raise no_collectives(model)
        latency = np.zeros(len(graph), np.int64)
        for fit in model.run.cross_rank.fits:
            if fit.alpha_s:
                same = (transfers.kind == fit.kind) & (transfers.group == fit.group)
                latency[transfers.task[same]] = max(0, round(fit.alpha_s * 1e9))
        fixed = np.minimum(latency, graph.duration_ns)
        return with_times(model, fixed + _scaled(graph.duration_ns - fixed, moving, 1 / self.speedup))


class Kernel(msgspec.Struct, frozen=True):
    """The kernels whose name matches take another share of their time."""

    pattern: str
    factor: float
    collectives: bool = False
    host: bool = False

    def describe(self) -> str:
        return f"kernels {self.pattern!r} {self.factor:g}×"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        fits = np.array(matches(self.pattern, graph.names, "--kernel"), np.bool_)
        chosen = fits[graph.name] & graph.of(TaskKind.COMPUTE, TaskKind.MEMORY, TaskKind.COMMUNICATION)
        # A collective's kernel is an arrival: what it takes is its transfer.
        arrived = model.transfers.instance[fits[graph.name[model.transfers.arrival]]]
        chosen[model.transfers.task[arrived]] = True
        if not chosen.any():
            raise UsageError(f"--kernel {self.pattern!r} fits no kernel of the run.")
        return with_times(model, _scaled(graph.duration_ns, chosen, self.factor))


class Straggler(msgspec.Struct, frozen=True):
    """The host of one rank is late by some time in every step."""

    rank: int
    late_ns: int
    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return f"rank {self.rank} {duration(self.late_ns)} late in each step"

    def apply(self, model: Model) -> Model:
        durations = model.graph.duration_ns.copy()
        found = False
        for timeline, (index, _) in zip(model.run.timelines, model.place, strict=True):
            if timeline.rank == self.rank and not found:
                found, process = True, model.processes[index]
                marks = process.mark_tasks[:-1]
                # Without marks the whole recording is one step.
                durations[marks if len(marks) else [process.first_task]] += self.late_ns
        if not found:
            known = ", ".join(map(str, model.run.ranks))
            raise UsageError(f"--straggler {self.rank}: rank {self.rank} is not in the run. Choose from {known}.")
        return with_times(model, durations)


class NoHostDelay(msgspec.Struct, frozen=True):
    """Hosts take no time: every launch is in the queue as soon as what the host waits for has happened."""

    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return "no host delay"

    def apply(self, model: Model) -> Model:
        return without_host(model)


def without_host(model: Model) -> Model:
    """Return the model with calls and pauses of no length; operators that compute on a CPU remain."""
    graph = model.graph
    durations = _scaled(graph.duration_ns, graph.of(TaskKind.CALL), 0)
    return with_times(model, durations, _scaled(graph.edge.lag_ns, graph.edge.of(EdgeKind.HOST, EdgeKind.THREAD), 0))


class PerfectOverlap(msgspec.Struct, frozen=True):
    """Nothing waits for a collective: all communication is hidden, as far as links have the time."""

    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return "perfect overlap"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        edge = graph.edge
        waits = edge.of(EdgeKind.JOIN, EdgeKind.TIMED, EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN)
        collective = graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION, TaskKind.ARRIVAL)
        if not collective.any():
            raise no_collectives(model)
        return with_times(model, lag_ns=np.where(waits & collective[edge.src], NEVER, edge.lag_ns))
