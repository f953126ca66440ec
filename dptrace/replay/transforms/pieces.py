"""Pieces of a rank's own work between the points of its program, by what each is spent on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dptrace.analysis.per_gpu.causes import DELAY_OF
from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, unique
from dptrace.readers.communication import C10D_PREFIX
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind, is_one_of
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.tasks import host_pieces
from dptrace.timeline.model import HostCause, HostLabel
from dptrace.timeline.steps import WRAPPER

Label = tuple[str, str, str]
"""Cause, what, where; of a pause of which nothing is recorded, the call after it is where."""
MANY: Label = ("slower_host", "", "")
_UNNAMED: Label = ("nothing_recorded", "", "")
VAGUE: tuple[Label, ...] = (MANY, _UNNAMED)
"""Labels of whatever has no name: not one thing that all ranks do."""


class Pieces(Columns, frozen=True):
    """Pieces of a rank's own work, sorted by segment; one entry per piece in each array."""

    length_ns: Int64
    segment: Int64
    """Number of program points before it."""
    at_ns: Int64
    """When each call or launch starts, and the call after each pause."""
    step: Int64
    """Number of its step, in which most of it lies, among those of its process: -1 before the first."""
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    label: Int64
    """Number of what it is spent on, the same on all ranks."""
    named: Int64
    """Number of what the rank says of it, such as an annotation that other ranks may lack."""
    place: Int64
    """Number of its place in the program of its rank: its call or kernel, or the two calls around a pause."""

    def by_segment(self) -> Pieces:
        """Sort pieces by segment."""
        return self.take(np.argsort(self.segment, kind="stable"))


def joined(pieces: Sequence[Pieces], segments: Sequence[int]) -> Iterator[tuple[int, Pieces, Int64]]:
    """Yield some segments, ascending: the pieces of all ranks in each, and the rank of each piece."""
    wanted = np.array(segments, np.int64)
    place = [np.searchsorted(wanted, own.segment) for own in pieces]
    chosen = [np.append(wanted, -1)[at] == own.segment for at, own in zip(place, pieces, strict=True)]
    whole = Pieces.concat([own.take(rows) for own, rows in zip(pieces, chosen, strict=True)])
    order = np.argsort(whole.segment, kind="stable")
    whole, rank = whole.take(order), np.repeat(np.arange(len(pieces)), [int(rows.sum()) for rows in chosen])[order]
    bounds = np.searchsorted(whole.segment, [*segments, np.iinfo(np.int64).max]).tolist()
    for segment, (low, high) in zip(segments, pairwise(bounds), strict=True):
        yield segment, whole.take(slice(low, high)), rank[low:high]


def spent_on(pieces: Sequence[Pieces], labels: Sequence[int], segments: int) -> Iterator[Int64]:
    """Yield what each rank spends on each of some things in each segment, in ns: ranks × segments."""
    label, length = (np.concatenate([getattr(own, name) for own in pieces]) for name in ("label", "length_ns"))
    place = np.concatenate([rank * segments + own.segment for rank, own in enumerate(pieces)])
    by_label = np.argsort(label, kind="stable")
    low, high = (np.searchsorted(label[by_label], labels, side) for side in ("left", "right"))
    for rows in map(by_label.__getitem__, map(slice, low.tolist(), high.tolist())):
        spent = np.bincount(place[rows], length[rows], len(pieces) * segments)
        yield spent.reshape(len(pieces), segments).astype(np.int64)


def pieces_of_host(model: Model, rank: int, points: Int64, labels: dict[Label, int]) -> Pieces:
    """Return the calls, pauses and hand-overs of a process, by what its host did in the middle of each."""
    process, graph = model.processes[rank], model.graph
    pieces = host_pieces(model, process)
    number = process.timelines[0][0]
    host, clocks = model.run.timelines[number].host, model.run.cross_rank.clocks
    names_of = [_named(one, model.run.on_cpu) for one in host.labels]
    said = np.array([labels.setdefault(one, len(labels)) for one in names_of], np.int64)
    # An autograd node is the same within an annotation that other ranks lack.
    known = [labels.setdefault((*one[:2], "") if _is_node(one) else one, len(labels)) for one in names_of]
    middle = (pieces.start_ns + pieces.end_ns) // 2
    # From the shared clock back to the rank's own.
    place = np.searchsorted(host.start_ns, 2 * middle - clocks.align(number, middle), side="right") - 1
    label, named = np.zeros((2, len(middle)), np.int64)
    if known:
        at = host.label[np.maximum(place, 0)]
        label, named = (np.where(place >= 0, one[at], 0) for one in (np.array(known), said))
    if model.run.on_cpu:
        operator = np.flatnonzero((pieces.index >= 0) & (graph.kind[np.maximum(pieces.index, 0)] == TaskKind.COMPUTE))
        names = graph.name[pieces.index[operator]]
        for n in unique(names).tolist():
            # What requests a collective computes nothing.
            own = MANY if graph.names[n].startswith(C10D_PREFIX) else ("compute", graph.names[n], "")
            label[operator[names == n]] = named[operator[names == n]] = labels.setdefault(own, len(labels))
    edge = np.maximum(-1 - pieces.index, 0)
    source, target = graph.edge.src[edge], graph.edge.dst[edge]
    if model.run.on_cpu:
        # Pauses are compared by the call after them: what an annotation says, it may say on one rank only.
        vague = np.array([own[0] == "nothing_recorded" or _is_plain_python(own) for own in labels], np.bool_)
        pause = np.flatnonzero((pieces.index < 0) & vague[label])
        names = graph.name[target[pause]]
        for n in unique(names).tolist():
            own = ("nothing_recorded", "", graph.names[n])
            label[pause[names == n]] = labels.setdefault(own, len(labels))
        unnamed = named[pause] == labels.get(_UNNAMED, -1)
        named[pause[unnamed]] = label[pause[unnamed]]
    base = len(graph.names)
    # Each step's mark has a name of its own.
    before = np.where(graph.kind[source] == TaskKind.MARK, -1, graph.name[source]).astype(np.int64)
    between = base + (before + 1) * base + graph.name[target]
    place = np.where(pieces.index >= 0, graph.name[np.maximum(pieces.index, 0)], between)
    segment, step = np.searchsorted(points, pieces.at_ns), _step_at(process, middle)
    return Pieces(
        pieces.length_ns, segment, pieces.at_ns, step, pieces.index, pieces.twin, label, named, place
    ).by_segment()


def _step_at(process: Process, at_ns: Int64) -> Int64:
    """Return the number of the step at some times; a mark is the end of the step before it."""
    return np.searchsorted(process.host.start_ns[process.host.marks], at_ns) - 1


def _is_node(label: Label) -> bool:
    return label[0] == "python" and label[1].startswith(WRAPPER)


def _is_plain_python(label: Label) -> bool:
    return label[0] == "python" and not _is_node(label)


_ACTION = re.compile(r"^(PP:|Forward |Backward )\d+(?:([FBIW])\d+)?$")
"""A pipeline's action of a stage and micro-batch: others have their own."""


@lru_cache(1 << 16)
def _named(label: HostLabel, on_cpu: bool) -> Label:
    """Return the cause of a piece with a label: ranks have the same."""
    label = HostLabel(label.cause, *(_ACTION.sub(r"\1…\2", name) for name in (label.what, label.where)))
    cause = DELAY_OF[HostCause(label.cause)]
    if cause == "host_bound" and label.what.startswith(C10D_PREFIX):
        return MANY  # what requests a collective computes nothing
    if on_cpu and cause == "host_bound":
        # What an autograd node does outside of its operators is Python's: a hook.
        return ("python", label.what, label.where) if label.what.startswith(WRAPPER) else ("compute", label.what, "")
    if cause == "host_bound" and not label.what:
        return MANY
    return cause, label.what, label.where


def pieces_of_device(model: Model, rank: int, points: Int64, labels: dict[Label, int]) -> Pieces:
    """Return the kernels and copies of a process, by their launch."""
    graph, process = model.graph, model.processes[rank]
    task = process.interval_tasks
    task = task[is_one_of(graph.kind[task], (TaskKind.COMPUTE, TaskKind.MEMORY))]
    by = process.device.launched_by[task - process.interval_tasks[:1].sum()]
    task, by = task[by >= 0], by[by >= 0]
    names, label = np.unique(graph.name[task], return_inverse=True)
    copies = set(unique(graph.name[task[graph.kind[task] == TaskKind.MEMORY]]).tolist())
    causes = ["memory_copies" if name in copies else "compute" for name in names.tolist()]
    known = [
        labels.setdefault((cause, graph.names[name], ""), len(labels))
        for cause, name in zip(causes, names.tolist(), strict=True)
    ]
    at = process.host.start_ns[by]
    label = np.array(known, np.int64)[label]
    segment, none = np.searchsorted(points, at), np.full(len(task), -1)
    place = graph.name[task].astype(np.int64)
    step = _step_at(process, at)
    return Pieces(graph.duration_ns[task], segment, at, step, task, none, label, label, place).by_segment()
