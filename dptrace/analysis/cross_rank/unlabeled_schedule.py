"""The schedule of a pipeline whose labels say nothing, from the order of its messages and its work.

::

    stage 1   recv │ forward │ send   recv │ forward │ send   recv │ backward │ send
                     F 0                     F 1                     B 0
    messages       from 0    to 2            …                from 2          to 0

What a message is for, forward or backward, the work says that is launched after it was received. Forward comes from one
neighbor, backward from the other, and each goes to where the other comes from. A micro-batch begins with its receive;
on the first stage, and in backward on the last, it ends with its send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, sums, union
from dptrace.timeline.model import NO_ACTIONS, UNKNOWN, Action, Actions, Kind, Phase, Timeline

_NONE = -1
"""No neighbor: before the first stage and after the last."""
_SURE = 0.9
"""Share of the messages from one rank that have to be for one phase; rings, as of attention, serve both."""


class _Part(NamedTuple):
    """What one rank shows of a schedule: its neighbors' ranks, and its actions, without a stage."""

    before: int
    after: int
    actions: Actions


class _Launched(NamedTuple):
    """Work and messages of one rank in the order in which they were launched; an entry each in each column."""

    interval: Int64
    """Index into the timeline's intervals."""
    step: NDArray[np.int32]
    is_work: NDArray[np.bool_]
    is_send: NDArray[np.bool_]
    peer: Int64
    """The other rank of a message; of work, _NONE."""
    is_backward: NDArray[np.bool_]
    """Of work: whether it is backward's; of a message: whether the work after it is."""


def unlabeled_actions(timelines: Sequence[Timeline]) -> dict[int, Actions]:
    """Return the actions of each rank of a pipeline, by its place in *timelines*; empty where the order says none.

    All ranks of a pipeline have to be recorded, with one stage each, and as many micro-batches in each step.
    """
    parts = {place: part for place, part in enumerate(map(_part_of, timelines)) if part is not None}
    by_rank = {timelines[place].rank: place for place in parts}
    found = {}
    for first in (place for place, part in parts.items() if part.before == _NONE):
        chain = _chain(first, parts, by_rank, timelines)
        if len(chain) > 1 and len({len(parts[place].actions) for place in chain}) == 1:
            for stage, place in enumerate(chain):
                actions = parts[place].actions
                found[place] = replace(actions, stage=np.full(len(actions), stage, np.int32))
    return found


def _chain(
    first: int, parts: Mapping[int, _Part], by_rank: Mapping[int, int], timelines: Sequence[Timeline]
) -> list[int]:
    """Return the places of a pipeline's ranks, in order; empty where one is missing or says otherwise."""
    chain = [first]
    while (after := parts[chain[-1]].after) != _NONE:
        place = by_rank.get(after)
        if place is None or place in chain or parts[place].before != timelines[chain[-1]].rank:
            return []
        chain.append(place)
    return chain


def _part_of(timeline: Timeline) -> _Part | None:
    """Return what one rank shows, or None where its messages do not pass micro-batches on."""
    launched = _launched(timeline)
    if launched is None:
        return None
    received = ~launched.is_work & ~launched.is_send
    before, after = (_source(launched, received, phase) for phase in (False, True))
    known = np.isin(launched.peer, [one for one in (before, after) if one != _NONE])
    if before == after or not known[~launched.is_work].all():
        return None
    forward = _actions(timeline, launched, Action.F, before, after)
    backward = _actions(timeline, launched, Action.B, after, before)
    if not len(forward) or not np.array_equal(np.sort(forward.step), np.sort(backward.step)):
        return None
    actions = Actions.concat([forward, backward])
    return _Part(before, after, actions.take(np.lexsort((actions.end_ns, actions.start_ns))))


def _launched(timeline: Timeline) -> _Launched | None:
    """Return work and messages in the order of their launches; None without both."""
    peers = np.array([c.peer if c.kind in ("send", "recv") else _NONE for c in timeline.collectives], np.int64)
    if not (peers >= 0).any():
        return None
    sends = np.array([c.kind == "send" for c in timeline.collectives], np.bool_)
    peer = np.where(timeline.collective >= 0, peers[timeline.collective], _NONE)
    phased = (timeline.phase == Phase.FORWARD) | (timeline.phase == Phase.BACKWARD)
    works = phased & np.isin(timeline.kind, (Kind.COMPUTE, Kind.MEMORY))
    chosen = np.flatnonzero((works | (peer >= 0)) & (timeline.step >= 0))
    chosen = chosen[np.argsort(_launch_of(timeline, chosen), kind="stable")]
    is_work = works[chosen]
    work = np.flatnonzero(is_work)
    if not len(work):
        return None
    following = work[np.minimum(np.searchsorted(work, np.arange(len(chosen))), len(work) - 1)]
    return _Launched(
        interval=chosen,
        step=timeline.step[chosen],
        is_work=is_work,
        is_send=~is_work & sends[timeline.collective[chosen]],
        peer=peer[chosen],
        is_backward=(timeline.phase[chosen] == Phase.BACKWARD)[following],
    )


def _launch_of(timeline: Timeline, intervals: Int64) -> Int64:
    launch = timeline.launch_ns[intervals]
    return np.where(launch == UNKNOWN, timeline.start_ns[intervals], launch)


def _source(launched: _Launched, received: NDArray[np.bool_], is_backward: bool) -> int:
    """Return the only rank whose messages are nearly all for one phase, or _NONE."""
    peers, of, count = np.unique(launched.peer[received], return_inverse=True, return_counts=True)
    fits = np.bincount(of, launched.is_backward[received] == is_backward, len(peers)) >= _SURE * count
    return int(peers[fits][0]) if fits.sum() == 1 else _NONE


def _actions(timeline: Timeline, launched: _Launched, kind: Action, source: int, target: int) -> Actions:
    """Return the actions of a phase: the work after each receive, or before each send where nothing comes."""
    receives = source != _NONE
    peer = source if receives else target
    marks = np.flatnonzero((launched.peer == peer) & (launched.is_send != receives))
    work = np.flatnonzero(launched.is_work & (launched.is_backward == (kind is Action.B)))
    # On the first stage, action k ends at the k-th send; on others, it begins at the k-th receive.
    number = np.searchsorted(marks, work) - receives
    inside = (number >= 0) & (number < len(marks))
    inside[inside] = launched.step[work[inside]] == launched.step[marks[number[inside]]]
    work, number = launched.interval[work[inside]], number[inside]
    used, first = np.unique(number, return_index=True)
    if len(used) < len(marks) or not len(used):
        return NO_ACTIONS
    step = launched.step[marks]
    begins = np.flatnonzero(np.diff(step, prepend=-1))
    start, end, called = timeline.start_ns[work], timeline.end_ns[work], _launch_of(timeline, work)
    # Work that is only copies has an extent, but does not compute.
    computes = timeline.kind[work] == Kind.COMPUTE
    counts = computes | ~np.logical_or.reduceat(computes, first)[number]
    limits = np.iinfo(np.int64)
    # Each action's work is moved to times of its own, so that one union is that of each.
    span = int(end.max() - start.min()) + 1
    moved = number[computes] * span - start.min()
    low, high = union(start[computes] + moved, end[computes] + moved)
    return Actions(
        stage=np.full(len(used), _NONE, np.int32),
        micro_batch=(used - np.repeat(begins, np.diff(np.append(begins, len(used))))).astype(np.int32),
        kind=np.full(len(used), kind, np.uint8),
        step=step,
        start_ns=np.minimum.reduceat(np.where(counts, start, limits.max), first),
        end_ns=np.maximum.reduceat(np.where(counts, end, limits.min), first),
        busy_ns=sums(low // span, high - low, len(used)),
        called_ns=np.minimum.reduceat(called, first),
        returned_ns=np.maximum.reduceat(called, first),
    )
