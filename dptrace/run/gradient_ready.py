"""When DDP's buckets were ready to be sent, and how long each transfer takes without others at the same time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, median, unique
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

__all__ = ["exclusive_ns", "gradient_transfers", "ready_before_last", "ready_ns"]


def gradient_transfers(cross_rank: CrossRankAnalysis) -> tuple[tuple[int, float], ...]:
    """Return bytes and seconds of each complete all-reduce in backward, as if it had run alone."""
    matches = cross_rank.matches
    if not len(matches):
        return ()
    wanted = (matches.kind == "all_reduce") & (matches.phase == Phase.BACKWARD)
    wanted &= matches.complete & (matches.bytes > 0) & (matches.size > 1)
    alone = np.zeros(len(matches.device))
    for device in range(len(cross_rank.devices)):
        rows = matches.device == device
        alone[rows] = exclusive_ns(matches.start_ns[rows], matches.end_ns[rows])
    # The shortest is that of the rank that did not wait for the others.
    shortest = np.minimum.reduceat(alone, matches.first[:-1])
    wanted &= shortest > 0
    return tuple(zip(matches.bytes[wanted].tolist(), (shortest[wanted] / 1e9).tolist(), strict=True))


def exclusive_ns(start_ns: Int64, end_ns: Int64) -> NDArray[np.float64]:
    """Compute how long each collective would have taken alone: while k run at once, each gets 1/k of the time.

    Gloo runs two collectives at once, which share the link and the cores.
    """
    edges = unique(np.concatenate((start_ns, end_ns)))
    begun = np.searchsorted(np.sort(start_ns), edges[:-1], "right")
    ended = np.searchsorted(np.sort(end_ns), edges[:-1], "right")
    share = np.diff(edges) / np.maximum(begun - ended, 1)
    until = np.concatenate(([0.0], np.cumsum(share)))
    alone: NDArray[np.float64] = until[np.searchsorted(edges, end_ns)] - until[np.searchsorted(edges, start_ns)]
    return alone


def ready_ns(timeline: Timeline) -> Int64:
    """Return when the data of each communication interval was ready to be sent.

    On a GPU that is the end of the compute launched before it, which its stream waits for; on a CPU it is the launch.
    Where launches are unknown, it is the start of the interval.
    """
    comm = timeline.kind == Kind.COMMUNICATION
    start, launch = timeline.start_ns[comm], timeline.launch_ns[comm]
    ready: Int64 = np.where(launch == UNKNOWN, start, launch)
    before = (timeline.kind == Kind.COMPUTE) & (timeline.launch_ns != UNKNOWN)
    if timeline.on_cpu or not before.any():
        return ready
    order = np.argsort(timeline.launch_ns[before], kind="stable")
    ended = np.maximum.accumulate(timeline.end_ns[before][order])
    place = np.searchsorted(timeline.launch_ns[before][order], launch) - 1
    known = (launch != UNKNOWN) & (place >= 0)
    # Never later than its start: it may not depend on compute on another stream.
    latest: Int64 = np.minimum(np.maximum(ready, ended[np.maximum(place, 0)]), start)
    return np.where(known, latest, ready)


def ready_before_last(cross_rank: CrossRankAnalysis) -> tuple[float, ...]:
    """Return when each of DDP's buckets was ready, in s relative to the last bucket of its step, so 0 or less.

    Medians over ranks and over the steps with all buckets; empty where there is no such step.
    """
    if cross_rank.buckets is None:
        return ()
    matches, count = cross_rank.matches, len(cross_rank.buckets.buckets)
    ready = [ready_ns(device.timeline) for device in cross_rank.devices]
    bucket, step = cross_rank.buckets.bucket[matches.instance], matches.step[matches.instance]
    lines = []
    for name in dict.fromkeys(matches.step.tolist()):
        for device in range(len(cross_rank.devices)):
            rows = np.flatnonzero((matches.device == device) & (step == name) & (bucket >= 0))
            if sorted(bucket[rows].tolist()) == list(range(count)):
                times = ready[device][matches.index[rows]][np.argsort(bucket[rows])]
                lines.append(times - times[-1])
    if not lines:
        return ()
    # One thread launches the buckets in order; their separate medians need not be in order.
    middle = np.minimum(np.maximum.accumulate(median(np.array(lines), axis=0)), 0) / 1e9
    return tuple(middle.tolist())
