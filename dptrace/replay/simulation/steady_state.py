"""How long a step takes in the long run: no shorter than the host alone needs, nor than the devices alone."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.intervals import Int64, median
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.simulation.changes import with_times, without_host
from dptrace.replay.simulation.simulate import NEVER, Schedule, Times
from dptrace.replay.simulation.timelines import step_bounds, timeline_at

__all__ = ["SteadyState", "steady_state"]

_HOST_WAITS = (EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN, EdgeKind.QUEUE)


class SteadyState(msgspec.Struct, frozen=True):
    """The length of a step in ns that each side sets on its own: the median step of the slowest rank."""

    host_ns: int
    device_ns: int

    @property
    def step_ns(self) -> int:
        """The length of a step in the long run."""
        return max(self.host_ns, self.device_ns)


def steady_state(model: Model) -> SteadyState:
    """Replay the hosts as if they never waited for devices, and the devices as if hosts took no time.

    A recording of a few steps need not be in its steady state: at its start the host may be ahead of the device by
    more than its queue holds later, or behind.
    """
    edge = model.graph.edge
    free = with_times(model, lag_ns=np.where(edge.of(*_HOST_WAITS), NEVER, edge.lag_ns))
    graph = free.graph
    on_device = graph.of(TaskKind.MEMORY, TaskKind.COMMUNICATION, TaskKind.TRANSFER)
    if not model.run.on_cpu:
        on_device |= graph.of(TaskKind.COMPUTE)
    hosts = with_times(free, np.where(on_device, 0, graph.duration_ns))
    devices = without_host(with_times(free, np.where(graph.of(TaskKind.MARK), 0, graph.duration_ns)))
    host, device = Schedule(hosts.graph).run(), Schedule(devices.graph).run()
    return SteadyState(_host_step(model, host), _device_step(model, device))


def _host_step(model: Model, times: Times) -> int:
    """Return the median step of the slowest host, from mark to mark; 0 without marks."""
    lengths = [np.diff(times.start_ns[process.mark_tasks]) for process in model.processes if len(process.host.marks)]
    return _slowest(lengths)


def _device_step(model: Model, times: Times) -> int:
    """Return the median step of the slowest device, from the end of one step's work to that of the next."""
    lengths = []
    for number in range(len(model.run.timelines)):
        timeline = timeline_at(model, number, times)
        lengths.append(np.diff(step_bounds(model, number, times, timeline)))
    return _slowest(lengths)


def _slowest(lengths: list[Int64]) -> int:
    steps = min((len(one) for one in lengths), default=0)
    return int(median(np.stack([one[:steps] for one in lengths]).max(axis=0))) if steps else 0
