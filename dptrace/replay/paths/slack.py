"""How much later each task could end without delaying a step."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import Graph
from dptrace.replay.simulation.simulate import Times

__all__ = ["FREE", "slack_of"]

FREE = 1 << 62
"""The latest end of a task that the step does not wait for: after all times, which count from 1970."""
_LATEST = FREE - (1 << 60)


def slack_of(graph: Graph, times: Times, until_ns: int, last: Int64) -> Int64:
    """Return the slack of each task in ns: how much longer it could take before *until_ns* moves.

    It is FREE less some time where the step does not wait for it.

    Args:
        until_ns: the end of the step.
        last: the tasks that have to end by then.
    """
    edge = graph.edge
    # The latest start of each task, from those that wait for it: half of each pair is its start, half its end.
    latest = [FREE] * (2 * len(graph))
    for task in last.tolist():
        latest[2 * task + 1] = until_ns
    sources = (2 * edge.src + edge.from_end).tolist()
    lags, first, duration = edge.lag_ns.tolist(), graph.first.tolist(), (times.end_ns - times.start_ns).tolist()
    for task in graph.order[::-1].tolist():
        start = latest[2 * task + 1] - duration[task]
        if start < latest[2 * task]:
            latest[2 * task] = start
        start = latest[2 * task]
        if start >= _LATEST:
            continue
        for i in range(first[task], first[task + 1]):
            if start - lags[i] < latest[sources[i]]:
                latest[sources[i]] = start - lags[i]
    table = np.array(latest, np.int64).reshape(-1, 2)
    slack: Int64 = table[:, 1] - times.end_ns
    return slack
