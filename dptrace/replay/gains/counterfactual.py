"""Which change of a run takes a finding away: a counterfactual for each kind, or why there is none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.host import HOST_CAUSES
from dptrace.core.intervals import IntervalSet, subtract
from dptrace.errors import DptraceError
from dptrace.replay.gains.context import GainContext
from dptrace.replay.gains.device_time import HiddenCollectives, NoStreamGaps, NoStreamWaits, ShorterTasks
from dptrace.replay.gains.host_time import host_time
from dptrace.replay.gains.kernels import kernel_change
from dptrace.replay.gains.messages import faster_links, fewer_messages, usual_transfers
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.simulation.changes import Change
from dptrace.replay.transforms.launches import NoRecompute
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.timeline.model import Timeline

__all__ = ["counterfactual"]

_UNLEVEL_START = "The recordings begin at different points of the program: no step would be shorter."
_When = Callable[[Timeline], IntervalSet]


def counterfactual(finding: Finding, context: GainContext) -> Change | str:
    """Return the change of the run without a finding, or why there is none.

    Raises:
        DptraceError: the run does not have what would change.
    """
    if finding.kind == "straggler":
        return _UNLEVEL_START
    if finding.kind in _HOST:
        return _without_host_time(finding, context.model)
    if finding.kind in _OTHERS:
        return _OTHERS[finding.kind](finding, context.model)
    return kernel_change(finding, context)


class _HostTime(msgspec.Struct, frozen=True):
    """Host time that a finding is about."""

    what: str
    when: _When
    waits: bool = False


def _of(idle_cause: str) -> _When:
    return lambda timeline: subtract(timeline.host.intervals(*HOST_CAUSES[idle_cause]), timeline.data_loading)


_HOST = {
    "data_loading": _HostTime("the DataLoader always ready", lambda timeline: timeline.data_loading),
    "allocator": _HostTime("no time in calls that allocate or free", _of("allocator_ns"), waits=True),
    "synchronizing": _HostTime("no waits of hosts for their devices", _of("synchronizing_ns"), waits=True),
    "host_bound": _HostTime("no host time between launches", _of("host_bound_ns")),
    "unused_parameters": _HostTime("no search for unused parameters", lambda timeline: timeline.parameter_search),
}


def _without_host_time(finding: Finding, model: Model) -> Change | str:
    time = _HOST[finding.kind]
    change = host_time(model, time.what, time.when, waits=time.waits)
    return change or "The trace does not show when hosts did that."


def _hidden(finding: Finding, model: Model) -> Change | str:
    return HiddenCollectives(str(finding.evidence["collective"]))


def _smaller_first_bucket(finding: Finding, model: Model) -> Change | str:
    change = Reschedule("ddp")
    change.apply(model)
    return change


def _bubble(finding: Finding, model: Model) -> Change | str:
    return "A replay keeps the order of micro-batches and stages, which another schedule would change."


def _no_copies(finding: Finding, model: Model) -> Change | str:
    task = np.flatnonzero(model.graph.of(TaskKind.MEMORY))
    return ShorterTasks("no time in copies", task, model.graph.duration_ns[task])


def _no_recompute(finding: Finding, model: Model) -> Change | str:
    try:
        NoRecompute().apply(model)
    except DptraceError:
        return "The operators do not show which kernels are repeated."
    return NoRecompute()


_OTHERS: dict[str, Callable[[Finding, Model], Change | str]] = {
    "exposed_comm": _hidden,
    "first_bucket": _smaller_first_bucket,
    "small_messages": fewer_messages,
    "low_bandwidth": faster_links,
    "slow_collectives": usual_transfers,
    "launch_latency": lambda finding, model: NoStreamGaps(),
    "waiting": lambda finding, model: NoStreamWaits(),
    "bubble": _bubble,
    "copies": _no_copies,
    "recompute": _no_recompute,
}
