"""The launch side: how far the host runs ahead of a device, what its time goes to, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.call_tree import CallTree
from dptrace.core.intervals import Int64
from dptrace.timeline.host_calls import CallKind, Flame, OperatorCalls
from dptrace.timeline.model import UNKNOWN, Timeline

__all__ = ["LaunchFigures", "host_rows", "launch_figures", "queue_depth"]

_KINDS = {CallKind.OPERATOR: "operator", CallKind.RUNTIME: "runtime", CallKind.ALLOCATOR: "allocator"}
_SYNCHRONIZING = "synchronizing"


class LaunchFigures(msgspec.Struct, frozen=True):
    """How the work of one device was launched; None where the file does not show it."""

    rank: int
    launches: int
    """Intervals whose launch is in the file."""
    delay_p50_ns: float | None
    delay_p95_ns: float | None
    """From the start of the launching call to the start of the work."""
    queue_depth_p50: float | None
    queue_depth_p95: float | None
    """Launched and not yet started, when a launch begins."""
    empty_queue_share: float | None
    """Launches that find nothing launched and not yet started: the device waits for the host, or soon will."""
    graph_kernels: int | None = None
    """Intervals launched by a graph (cudaGraphLaunch, hipGraphLaunch)."""
    graph_share: float | None = None
    """Their share of the time of all intervals."""
    synchronizing_calls: int | None = None
    synchronizing_ns: int | None = None
    """Calls in which the host waits for the device: cudaStreamSynchronize, blocking copies, ``.item()``."""


def queue_depth(launch_ns: Int64, start_ns: Int64) -> Int64:
    """Return for each launch how much was launched before it and had not started.

    Args:
        launch_ns, start_ns: when each interval was launched, and when it started, in ns.

    >>> queue_depth(np.array([0, 1, 9]), np.array([2, 5, 10])).tolist()
    [0, 1, 0]
    """
    launched, started = (np.searchsorted(np.sort(times), launch_ns) for times in (launch_ns, start_ns))
    depth: Int64 = launched - started
    return depth


def launch_figures(timeline: Timeline, recorded: OperatorCalls | None = None) -> LaunchFigures:
    """Compute the launch figures of one device, those of its calls too where they were read."""
    known = (timeline.launch_ns != UNKNOWN) & (timeline.step >= 0)
    launch, start = timeline.launch_ns[known], timeline.start_ns[known]
    delay, depth = np.maximum(start - launch, 0), queue_depth(launch, start)
    figures = LaunchFigures(timeline.rank, 0, None, None, None, None, None)
    if not timeline.on_cpu and len(launch):
        times = [float(np.quantile(values, share)) for values in (delay, depth) for share in (0.5, 0.95)]
        empty = round(float((depth == 0).mean()), 6)
        figures = LaunchFigures(timeline.rank, len(launch), times[0], times[1], times[2], times[3], empty)
    return figures if recorded is None or timeline.on_cpu else _with_calls(figures, timeline, recorded)


def _with_calls(figures: LaunchFigures, timeline: Timeline, recorded: OperatorCalls) -> LaunchFigures:
    calls, place = recorded.calls, recorded.calls.device_index(timeline)
    call = np.where(place >= 0, calls.device_call[place], -1) if len(calls.device_call) else place
    graph = np.array(["GraphLaunch" in name for name in calls.names], np.bool_)
    by_graph = (call >= 0) & (timeline.step >= 0)
    by_graph &= graph[calls.name[call]] if len(calls) else False
    ns = timeline.end_ns - timeline.start_ns
    whole = int(ns[timeline.step >= 0].sum())
    waiting = _outer_waits(recorded) & _in_steps(timeline, recorded)
    return msgspec.structs.replace(
        figures,
        graph_kernels=int(by_graph.sum()),
        graph_share=round(int(ns[by_graph].sum()) / whole, 6) if whole else None,
        synchronizing_calls=int(waiting.sum()),
        synchronizing_ns=int((calls.end_ns - calls.start_ns)[waiting].sum()),
    )


def _outer_waits(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return the synchronizing calls that no other one encloses: ``.item()`` copies and then synchronizes."""
    waits = recorded.calls.kind == CallKind.SYNCHRONIZING
    outer = CallTree(recorded.calls).outermost(waits)
    chosen: NDArray[np.bool_] = waits & (outer == np.arange(len(waits)))
    return chosen


def _in_steps(timeline: Timeline, recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls begin in the steps of the timeline: from the first one's start to the last launch."""
    calls = recorded.calls
    own = timeline.launch_ns[(timeline.step >= 0) & (timeline.launch_ns != UNKNOWN)]
    begin = timeline.host.step_ns[0] if len(timeline.host.step_ns) else own.min(initial=np.iinfo(np.int64).max)
    end = max(int(own.max(initial=0)), int(timeline.windows.bounds[-1]) if len(timeline.windows.bounds) else 0)
    chosen: NDArray[np.bool_] = (calls.start_ns >= begin) & (calls.start_ns <= end)
    return chosen


def host_rows(
    timelines: Sequence[Timeline], recorded: Sequence[OperatorCalls], per_rank: bool = False
) -> list[dict[str, Any]]:
    """Return the host time of each operator and runtime call on the threads that launch, most self time first.

    Self time is without the calls inside; so rows add up. Total time counts a call inside one of its name once.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for timeline, calls in zip(timelines, recorded, strict=True):
        for own, figures in _host_figures(timeline, calls):
            key: tuple[Any, ...] = (*own, timeline.rank) if per_rank else own
            whole = found.setdefault(key, [0] * len(figures))
            whole[:] = [one + more for one, more in zip(whole, figures, strict=True)]
    wall = {timeline.rank: 0 for timeline in timelines}
    for timeline in timelines:
        bounds = timeline.windows.bounds
        wall[timeline.rank] += int(bounds[-1] - bounds[0]) if len(bounds) else 0
    rows = []
    for key, (count, self_ns, total, launches) in found.items():
        length = wall[key[2]] if per_rank else sum(wall.values())
        rows.append(
            ({"rank": key[2]} if per_rank else {})
            | {"call": key[0], "kind": key[1], "count": count, "self_ns": self_ns, "total_ns": total}
            | {"mean_ns": round(total / count, 1), "share_of_step": round(self_ns / length, 6) if length else None}
            | {"launches": launches}
        )
    return sorted(rows, key=lambda row: -row["self_ns"])


def _host_figures(timeline: Timeline, recorded: OperatorCalls) -> list[tuple[tuple[str, str], list[int]]]:
    """Return count, self time, total time and launched intervals by name and kind of call, on one rank."""
    calls, tree = recorded.calls, CallTree(recorded.calls)
    if not len(calls):
        return []
    chosen = np.flatnonzero((calls.flame == Flame.CALLS) & _in_steps(timeline, recorded))
    name, kind, parent = calls.name[chosen], calls.kind[chosen], tree.parent[chosen]
    again = (parent >= 0) & (calls.name[parent] == name)
    total = np.where(again, 0, calls.end_ns[chosen] - calls.start_ns[chosen])
    # Work that operators launch counts for them and for the call that launches it.
    launched = np.zeros(len(calls), np.int64)
    own = calls.device_call[calls.device_call >= 0]
    np.add.at(launched, own, 1)
    operator = tree.innermost(recorded.is_operator)[own]
    np.add.at(launched, operator[(operator >= 0) & (operator != own)], 1)
    keys, code = np.unique(np.stack((name, kind.astype(np.int32)), axis=1), axis=0, return_inverse=True)
    sums = np.zeros((len(keys), 4), np.int64)
    columns = np.ones(len(chosen), np.int64), tree.self_ns()[chosen], total, launched[chosen]
    np.add.at(sums, code.reshape(-1), np.stack(columns, axis=1))
    return [
        ((calls.names[number], _KINDS.get(CallKind(of_kind), _SYNCHRONIZING)), figures)
        for (number, of_kind), figures in zip(keys.tolist(), sums.tolist(), strict=True)
    ]
