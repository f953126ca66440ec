"""What a piece of host time is called: by what the host did for most of it, never by the call that follows alone.

::

    host      │ aten::cat │   sleep in "# forward"        │ aten::mm │
    pieces    └───────────┴───────────────────────────────┴──────────┘
    names       aten::cat   Python in # forward, before aten::mm

A piece is a task's pause and, if the task is a call, the call itself. Where the pause took longer, the host's recorded
activity names it; the call is inside an operator, which then names it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.timeline.model import HostActivity, HostCause, HostLabel

__all__ = ["HostNames", "host_names", "name_of"]

_LONG_NS = 500_000
"""From here on, all that the host did in a pause counts, of shorter ones their middle; and a call has its own name."""
_OWN = (TaskKind.CALL, TaskKind.RETURN)
_WORDS = {
    HostCause.DATA_LOADING: "data loading",
    HostCause.ALLOCATOR: "allocator",
    HostCause.SYNCHRONIZING: "synchronizing",
    HostCause.PASSIVE: "waiting for a collective",
}


class HostNames(msgspec.Struct, frozen=True):
    """The names of the host's pieces."""

    name: NDArray[np.int32]
    """Of the piece of each task, index into ``names``; that of an empty name for tasks that no process has."""
    names: tuple[str, ...]


def host_names(model: Model, tasks: Int64 | None = None) -> HostNames:
    """Return the names of the pieces that lead to tasks, or are calls.

    Args:
        tasks: those to name, the others get any name; by default, all.
    """
    graph, numbers = model.graph, {"": 0}
    operator = np.where(graph.operator >= 0, graph.operator, graph.name)
    before = _starts_of_pauses(model)
    found = np.zeros(len(graph), np.int32)
    chosen = np.ones(len(graph), np.bool_)
    if tasks is not None:
        chosen[:] = False
        chosen[tasks] = True
    calls = graph.of(*_OWN)
    for index, process in enumerate(model.processes):
        own = np.flatnonzero(chosen & (graph.process == index))
        number = process.timelines[0][0]
        host = model.run.timelines[number].host
        since, until = (model.run.cross_rank.clocks.unalign(number, column[own]) for column in (before, graph.start_ns))
        length = np.where(calls[own], graph.duration_ns[own], 0)
        place = np.searchsorted(host.start_ns, (since + until) // 2, side="right") - 1
        label = np.where(place >= 0, host.label[np.maximum(place, 0)], -1) if len(host.label) else np.full(len(own), -1)
        pause = until - since
        by_call = length >= pause
        for row in np.flatnonzero(~by_call & (pause >= _LONG_NS)).tolist():
            following = graph.names[operator[own[row]]]
            text = name_of(host.spent(int(since[row]), int(until[row])), following)
            found[own[row]] = numbers.setdefault(text, len(numbers))
        # One number for each combination of label (one more for the call itself), operator and own name.
        code = np.where(by_call, len(host.labels) + (length >= _LONG_NS), np.maximum(label, -1)) + 1
        short = np.flatnonzero(by_call | (pause < _LONG_NS))
        keys = np.stack((code[short], operator[own[short]], graph.name[own[short]]))
        distinct, which = np.unique(keys, axis=1, return_inverse=True)
        texts = [
            numbers.setdefault(_short(host, code - 1, graph.names[operator], graph.names[name]), len(numbers))
            for code, operator, name in distinct.T.tolist()
        ]
        found[own[short]] = np.array(texts, np.int32)[which.ravel()] if texts else 0
    return HostNames(found, tuple(numbers))


def _starts_of_pauses(model: Model) -> Int64:
    """Return when the host was free to begin each task, on the shared clock; the task's start without a pause."""
    graph = model.graph
    edge = graph.edge.filter(graph.edge.of(EdgeKind.HOST, EdgeKind.THREAD, EdgeKind.HIDDEN) & graph.edge.from_end)
    start = np.full(len(graph), np.iinfo(np.int64).min)
    np.maximum.at(start, edge.dst, graph.end_ns[edge.src])
    return np.where(start == np.iinfo(np.int64).min, graph.start_ns, np.minimum(start, graph.start_ns))


def _short(host: HostActivity, label: int, operator: str, name: str) -> str:
    """Return the name of a call, or of a short pause with a label, or -1."""
    if label > len(host.labels):
        return name if name == operator else f"{name} in {operator}"
    if label == len(host.labels):
        return operator
    return name_of({host.labels[label]: 1} if label >= 0 else {}, operator, many=operator)


def name_of(spent: Mapping[HostLabel, int], following: str, many: str = "") -> str:
    """Return what a host did for most of a piece of time.

    Args:
        spent: ns of each thing it did; they add up to the piece.
        following: what it did next.
        many: what many short operators are called; by default by the range that most of them are in.

    >>> sleep, product = HostLabel(HostCause.PYTHON, "# forward"), HostLabel(HostCause.OPERATOR, "aten::mm")
    >>> name_of({sleep: 9, product: 5}, "aten::cat"), name_of({sleep: 5, product: 9}, "aten::cat")
    ('Python in # forward, before aten::cat', 'aten::mm')
    >>> name_of({HostLabel(HostCause.OPERATOR, f"aten::{i}", "# forward"): 2 for i in range(9)}, "aten::cat")
    'many operators in # forward'
    """
    whole = sum(spent.values())
    kinds: dict[int, int] = {}
    for label, ns in spent.items():
        kinds[label.cause] = kinds.get(label.cause, 0) + ns
    cause = HostCause(max(kinds, key=lambda kind: kinds[kind], default=HostCause.NOTHING_RECORDED))
    own = {label: ns for label, ns in spent.items() if label.cause == cause}
    if cause == HostCause.NOTHING_RECORDED:
        return f"nothing recorded, before {following}"
    most = max(own, key=lambda label: own[label])
    if cause == HostCause.PYTHON:
        return f"Python in {most.what or most.where}, before {following}"
    if cause == HostCause.OPERATOR and (not most.what or 2 * own[most] < whole):
        ranges: dict[str, int] = {}
        for label, ns in own.items():
            ranges[label.where] = ranges.get(label.where, 0) + ns
        where = max(ranges, key=lambda one: ranges[one])
        return many or (f"many operators in {where}" if where else f"many operators, before {following}")
    what = most.what or _WORDS.get(cause, "")
    return f"{what} in {most.where}" if most.where and most.where != most.what else what
