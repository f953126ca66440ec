"""The forward operator that each backward function differentiates: autograd numbers the nodes of its graph.

Several nested forward operators carry one number; the last to start created the node. Numbers count per thread, and a
backward function names the thread by a number of autograd's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.call_tree import CallTree, Index
from dptrace.core.intervals import Int64
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.steps import WRAPPER

__all__ = ["forward_operators", "in_autograd", "recomputed_calls"]


def in_autograd(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls are the engine's run of one node."""
    calls = recorded.calls
    wrappers = np.array([name.startswith(WRAPPER) for name in calls.names], np.bool_)
    return recorded.is_operator & (wrappers[calls.name] if len(wrappers) else False)


def _nodes(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls are backward functions with a number."""
    return recorded.is_operator & (recorded.sequence >= 0) & ((recorded.forward_thread > 0) | in_autograd(recorded))


def recomputed_calls(recorded: OperatorCalls, tree: CallTree) -> NDArray[np.bool_]:
    """Return which calls repeat forward work within backward.

    In backward, an operator creates a node of its own only if it runs to be differentiated.
    """
    calls = recorded.calls
    aten = np.array([name.startswith("aten::") for name in calls.names], np.bool_)
    if not len(aten):
        return np.zeros(len(recorded), np.bool_)
    creates = recorded.is_operator & aten[calls.name] & (recorded.sequence >= 0) & (recorded.forward_thread == 0)
    inside = tree.innermost(in_autograd(recorded)) >= 0
    return tree.outermost(creates & inside) >= 0


def forward_operators(recorded: OperatorCalls, tree: CallTree) -> Index:
    """Return for each call the forward operator whose backward it is a part of, or -1."""
    nodes = _nodes(recorded)
    forward = np.full(len(recorded), -1, np.int64)
    creators = np.flatnonzero(recorded.is_operator & (recorded.sequence >= 0) & ~nodes)
    calls, node = recorded.calls, np.flatnonzero(nodes)
    if not len(creators) or not len(node):
        return forward
    for number in np.unique(recorded.forward_thread[node]):
        of_number = node[recorded.forward_thread[node] == number]
        own = _of_one_thread(recorded, creators, recorded.sequence[of_number])
        forward[of_number] = _last_started(
            recorded.sequence[own], calls.start_ns[own], recorded.sequence[of_number], calls.start_ns[of_number], own
        )
    innermost = tree.innermost(nodes)
    return np.where(innermost >= 0, forward[innermost], -1)


def _of_one_thread(recorded: OperatorCalls, creators: Index, numbers: Int64) -> Index:
    """Return the creators of the thread that has most of the *numbers*."""
    threads = recorded.calls.thread[creators]
    known = np.unique(threads)
    if len(known) == 1:
        return creators
    held = [int(np.isin(numbers, recorded.sequence[creators[threads == thread]]).sum()) for thread in known]
    own: Index = creators[threads == known[int(np.argmax(held))]]
    return own


def _last_started(numbers: Int64, start: Int64, wanted: Int64, before: Int64, creators: Index) -> Index:
    """Return the last creator of each *wanted* number that started before a time, or -1.

    Creators and queries are sorted together by number and time; the last creator so far is the answer if it has the
    number: (7, 10 µs) (7, 12 µs) [7, 50 µs] → the one at 12 µs.
    """
    count = len(numbers)
    order = np.lexsort((np.append(start, before), np.append(numbers, wanted)))
    seen = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    last = np.where(seen >= 0, order[seen], -1)
    found = np.full(len(wanted), -1, np.int64)
    queries = order >= count
    found[order[queries] - count] = last[queries]
    same = (found >= 0) & (numbers[found] == wanted)
    return np.where(same, creators[found], -1)
