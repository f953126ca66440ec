"""What the labels of the phases row stand on: spans of one part, a pipeline's actions, waits for one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dptrace.analysis.per_gpu.split import Part, Segments, waiting_label
from dptrace.core.intervals import Int64
from dptrace.timeline.model import Action, Timeline

__all__ = ["PhaseLabels", "phase_labels", "wait_names"]

_INTERRUPTIONS = (1 / 20_000, 1 / 2_000, 1 / 200)
"""Shares of a step up to which another part does not end a label; ascending, so that short pieces are joined first."""


@dataclass(frozen=True, slots=True)
class PhaseLabels:
    """The labels of one GPU's phases."""

    spans: Segments
    """What each label stands on; the source is an index into ``name``."""
    name: Int64
    """Index of each name plus 1, or 0 for a label that names only the part."""


def phase_labels(timeline: Timeline, busy: Segments, names: Mapping[str, int]) -> PhaseLabels:
    """Return the labels of a GPU's phases; a pipeline's forward and backward are its named actions.

    Args:
        busy: the partition without idle time.
        names: numbers the names, in the order of their first use.
    """
    plain, actions = _spans(busy, timeline.windows.bounds), timeline.actions
    kept = np.ones(len(plain.part), bool) if not len(actions) else ~np.isin(plain.part, (Part.FORWARD, Part.BACKWARD))
    several = len(set(actions.stage.tolist())) > 1
    texts = [
        f"{stage if several else ''}{Action(kind).name}{batch}"
        for stage, kind, batch in zip(actions.stage, actions.kind, actions.micro_batch, strict=True)
    ]
    part = np.where(actions.kind == Action.F, Part.FORWARD, Part.BACKWARD).astype(np.uint8)
    start = np.concatenate((plain.start_ns[kept], actions.start_ns))
    order = np.argsort(start, kind="stable")
    source = np.concatenate((np.zeros(int(kept.sum()), np.int32), np.arange(len(actions), dtype=np.int32) + 1))
    pieces = Segments(
        start[order],
        np.concatenate((plain.end_ns[kept], actions.end_ns))[order],
        np.concatenate((plain.part[kept], part))[order],
        source[order],
    )
    return PhaseLabels(pieces, np.array([0, *(names[text] + 1 for text in texts)], np.int64))


def _spans(busy: Segments, bounds: Int64) -> Segments:
    """Join pieces of one part across idle time and across short pieces of other parts.

    ``F.F.F|B.B o B.B|X`` becomes ``F---F|B-----B|X``, with one label each.
    """
    start, end, part, step = busy.start_ns, busy.end_ns, busy.part, busy.source
    time = end - start
    for share in (0.0, *_INTERRUPTIONS):
        long = time >= share * np.diff(bounds)[step]
        start, end, part, step, time = start[long], end[long], part[long], step[long], time[long]
        if not len(start):
            break
        changed = (part[1:] != part[:-1]) | (step[1:] != step[:-1])
        first = np.flatnonzero(np.concatenate(([True], changed)))
        last = np.concatenate((first[1:], [len(start)])) - 1
        time = np.add.reduceat(time, first)
        start, end, part, step = start[first], end[last], part[first], step[first]
    return Segments(start, end, part, step)


def wait_names(start: Int64, end: Int64, begun: Int64, ranks: Int64, names: Mapping[str, int]) -> Int64:
    """Return the index of ``Waiting for rank 2`` plus 1 for each span of waiting, or 0 where it is not for one rank.

    Args:
        start, end: of the spans.
        begun: starts of the waits that the spans hold, ascending.
        ranks: the rank that each of these is for, or -1.
    """
    low, high = np.searchsorted(begun, start).tolist(), np.searchsorted(begun, end).tolist()
    found = [set(ranks[first:last].tolist()) for first, last in zip(low, high, strict=True)]
    one = [rank.pop() if len(rank) == 1 else -1 for rank in found]
    return np.array([names[waiting_label(rank)] + 1 if rank >= 0 else 0 for rank in one], np.int64)
