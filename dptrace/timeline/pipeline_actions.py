"""The pipeline schedule as one GPU ran it: forward and backward of each stage and micro-batch.

The host labels what it launches: ``PP:0F1`` (torch's schedules: stage 0, forward of micro-batch 1), or ``Forward 1``
(GPipe's, without a stage). An action is the work launched during such a label, on any thread: the autograd engine's
threads, which have no label, launch backward's kernels while the labelled thread waits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, IntervalSet, covered, subtract, union
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.model import NO_ACTIONS, Action, Actions, Kind, Phase, Timeline

__all__ = ["MESSAGES", "actions_of", "backward_actions", "with_actions"]

MESSAGES = ("send", "recv", "send_recv")
"""Kinds of collectives between two stages."""

_ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})(?![\w])")
_RUNTIME = "PP:"
_PLAIN = re.compile(r"(Forward|Backward) (\d{1,6})")


class _LabeledAction(NamedTuple):
    """One action that a label names."""

    stage: int
    kind: Action
    micro_batch: int


def _read(name: str) -> tuple[_LabeledAction, ...]:
    """Parse the actions of a label: one, or a forward and a backward that overlap; else none.

    >>> _read("PP:0F1")
    (_LabeledAction(stage=0, kind=<Action.F: 0>, micro_batch=1),)
    """
    if name.startswith(_RUNTIME):
        return tuple(_LabeledAction(int(s), Action[kind], int(m)) for s, kind, m in _ACTION.findall(name))
    if plain := _PLAIN.fullmatch(name):
        return (_LabeledAction(-1, Action[plain[1][0]], int(plain[2])),)
    return ()


def _labels(trace: Trace) -> dict[int, tuple[_LabeledAction, ...]]:
    """Return the actions of the labels in the string table; labels without a stage only if none has one."""
    found = {i: labeled for i, name in enumerate(trace.names) if (labeled := _read(name))}
    named = {i: labeled for i, labeled in found.items() if labeled[0].stage >= 0}
    return named or found


def _marks(trace: Trace, names: list[int]) -> NDArray[np.bool_]:
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    marks: NDArray[np.bool_] = on_cpu & np.isin(trace.name, names)
    return marks


def backward_actions(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask of the labels of backward actions only; W is the weights' part of backward."""
    names = [i for i, labeled in _labels(trace).items() if all(action.kind != Action.F for action in labeled)]
    return _marks(trace, names) if names else np.zeros(len(trace), np.bool_)


def with_actions(trace: Trace, timeline: Timeline) -> Timeline:
    """Add the actions of a pipeline schedule to a timeline, if there is one."""
    actions = actions_of(trace, timeline)
    if not len(actions):
        return timeline
    received = (trace.category <= Category.ANNOTATION) & trace.named("gloo:recv", "c10d::recv")
    return replace(timeline, actions=actions, receiving=union(trace.start_ns[received], trace.end_ns[received]))


def actions_of(trace: Trace, timeline: Timeline) -> Actions:
    """Return the actions of the schedule on one device; none where the file has no labels.

    An action starts with the first and ends with the last compute launched under its label; the receive before and the
    send after are not part of it. Under a label of two actions, compute in the backward phase belongs to the backward.
    """
    labels = _labels(trace)
    named = any(labeled[0].stage >= 0 for labeled in labels.values())
    if not labels or not (named or any(c.kind in MESSAGES for c in timeline.collectives)):
        return NO_ACTIONS
    events = np.flatnonzero(_marks(trace, list(labels)))
    labeled = [(event, action) for event in events.tolist() for action in labels[int(trace.name[event])]]
    owner = _owners(trace, timeline, labeled)
    used, action = np.unique(owner[owner >= 0], return_inverse=True)
    compute = owner >= 0
    start, end = timeline.start_ns[compute], timeline.end_ns[compute]
    low, high = np.full(len(used), np.iinfo(np.int64).max), np.zeros(len(used), np.int64)
    np.minimum.at(low, action, start)
    np.maximum.at(high, action, end)
    step = np.zeros(len(used), np.int32)
    step[action] = timeline.step[compute]
    chosen = [labeled[i] for i in used.tolist()]
    kind = np.array([action.kind for _, action in chosen], np.uint8)
    label_events = np.array([event for event, _ in chosen], np.int64)
    table = Actions(
        stage=np.array([action.stage for _, action in chosen], np.int32),
        micro_batch=np.array([action.micro_batch for _, action in chosen], np.int32),
        kind=kind,
        step=step,
        start_ns=low,
        end_ns=high,
        busy_ns=_busy(low, high, kind, (start, end), kind[action] != Action.F),
        called_ns=trace.start_ns[label_events],
        returned_ns=trace.end_ns[label_events],
    )
    return table.filter(np.lexsort((high, low)))


def _owners(trace: Trace, timeline: Timeline, labeled: list[tuple[int, _LabeledAction]]) -> Int64:
    """Return for each interval the index in *labeled* of the action that launched it, or -1.

    Only compute belongs to actions. Labels of one process do not overlap: the last that started counts.
    """
    called = trace.start_ns[[event for event, _ in labeled]]
    returned = trace.end_ns[[event for event, _ in labeled]]
    begun = np.searchsorted(called, timeline.launch_ns, side="right")
    place = np.maximum(begun - 1, 0)
    forward = np.array([action.kind == Action.F for _, action in labeled], np.bool_)
    # A label of two actions is listed twice, and the search finds the second.
    twin = np.append(False, called[1:] == called[:-1])[place]
    backward = timeline.phase == Phase.BACKWARD
    other = twin & (forward[place] == backward) & (forward[np.maximum(place - 1, 0)] != backward)
    place = np.where(other, place - 1, place)
    inside = (begun > 0) & (timeline.launch_ns < returned[place]) & (timeline.kind == Kind.COMPUTE)
    return np.where(inside, place, -1)


def _busy(
    start: Int64, end: Int64, kind: NDArray[np.uint8], compute: IntervalSet, backward: NDArray[np.bool_]
) -> Int64:
    """Compute the busy time of each action; time under a backward's compute does not count for a forward."""
    first, last = compute
    behind = union(first[backward], last[backward])
    ahead = subtract(union(first[~backward], last[~backward]), behind)
    inside = [covered(when, end) - covered(when, start) for when in (ahead, behind)]
    busy: Int64 = np.where(kind == Action.F, *inside)
    return busy
