"""What each rank does longer than the others between two program points: the one definition of a delay.

::

    own time of a segment   rank 0  ██████            calls, pauses and hand-overs without waits; kernels launched there
                            rank 1  ██████░░░░░░      ░ excess: beyond what half of the other ranks take at most
                            rank 2  ██████

Program points are the launches of collectives. Findings on stragglers, their gains and
``--no-straggler`` take the same pieces out of the same graph, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
import numpy as np

from dptrace.analysis.cross_rank.stragglers import HOST_CAUSES
from dptrace.core.intervals import Int64, members, unique
from dptrace.errors import DptraceError
from dptrace.readers.communication import C10D_PREFIX
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind, is_one_of
from dptrace.replay.graph.tasks import cut_pieces, host_pieces
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.change import Change
from dptrace.timeline.model import HostCause, HostLabel
from dptrace.timeline.steps import WRAPPER

_MIN_NS = 50_000
"""Smallest excess that counts, as for a late arrival."""
_NAMED = 0.2
"""Smallest share of an excess that is named on its own."""
_MIN_STEADY_NS = 1_000_000
_MIN_STEPS = 3
_SHARED = 0.02
"""Least share of a steady excess that the others spend on the same thing: otherwise only its name may differ."""
_NEVER = np.iinfo(np.int64).max


class Excess(msgspec.Struct, frozen=True, eq=False):
    """Time that one rank spends on one thing in a segment beyond the others."""

    process: int
    instance: int
    """The matched collective whose launch ends the segment; -1 after the last, and where steps are the points."""
    cause: str
    """One of :data:`~dptrace.analysis.cross_rank.stragglers.CAUSES`."""
    what: str
    where: str
    index: Int64
    """Of the task that each piece is of, or -1 - that of its edge."""
    twin: Int64
    """Of the edge with the same lag after a wait, or -1."""
    cut_ns: Int64

    @property
    def ns(self) -> int:
        """The excess."""
        return int(self.cut_ns.sum())


class WithoutExcesses(Change, frozen=True, eq=False):
    """A run without some excesses: these ranks take no longer than the others there."""

    what: str
    excesses: tuple[Excess, ...]
    collectives: ClassVar[bool] = True
    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def apply(self, model: Model) -> Model:
        return _without(model, self.excesses)


def _without(model: Model, cuts: Iterable[Excess | _Cuts]) -> Model:
    durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
    for one in cuts:
        task = one.index >= 0
        durations[one.index[task]] -= one.cut_ns[task]
        lags[-1 - one.index[~task]] -= one.cut_ns[~task]
        lags[one.twin[one.twin >= 0]] -= one.cut_ns[one.twin >= 0]
    return with_times(model, durations, lags)


class NoStraggler(Change, frozen=True):
    """No rank takes longer than half of the others between two collectives that all ranks share."""

    collectives: ClassVar[bool] = True
    host: ClassVar[bool] = True
    what = "no straggler"

    def apply(self, model: Model) -> Model:
        level = _without(model, _cuts(model))
        # What ranks that are not replayed do later than those that stand for them.
        edge = level.graph.edge
        later = edge.of(EdgeKind.RENDEZVOUS)
        return with_times(level, lag_ns=np.where(later, np.minimum(edge.lag_ns, _MIN_NS), edge.lag_ns))


class _Peers(msgspec.Struct, frozen=True):
    """Ranks that run the same program, with the points that all of them pass: processes × points."""

    processes: tuple[int, ...]
    times_ns: Int64
    """Ascending, on the shared clock."""
    instance: Int64
    """The collective that each launches there, or -1."""


def excesses(model: Model) -> tuple[Excess, ...]:
    """Return all excesses of a run, in the order of the program.

    Raises:
        DptraceError: the run has one process, so that there is nothing to compare.
    """
    return tuple(excess for cuts in _cuts(model) for excess in _parts(cuts))


class _Cuts(msgspec.Struct, frozen=True, eq=False):
    """What is taken from the pieces of ranks in one segment; one entry per piece in each array."""

    rank: Int64
    """Index of its process, ascending."""
    instance: Int64
    index: Int64
    twin: Int64
    label: Int64
    labels: tuple[_Label, ...]
    cut_ns: Int64


def _cuts(model: Model) -> Iterator[_Cuts]:
    """Yield what ranks spend beyond the others, segment by segment."""
    if len(model.processes) < 2:
        raise DptraceError(
            f"{model.run.path}: --no-straggler compares ranks, and the run has one. Add the other ranks' traces."
        )
    for peers in _peers(model):
        for pieces_of in (_host_pieces, _kernels):
            yield from _cuts_of(model, peers, pieces_of)


def _cuts_of(model: Model, peers: _Peers, pieces_of: _PiecesOf) -> Iterator[_Cuts]:
    labels: dict[_Label, int] = {_MANY: 0}
    pieces = [
        pieces_of(model, rank, times, labels) for rank, times in zip(peers.processes, peers.times_ns, strict=True)
    ]
    points = peers.times_ns.shape[1]
    total = np.stack([np.bincount(own.segment, own.length_ns, points + 1) for own in pieces]).astype(np.int64)
    count = model.ranks[list(peers.processes)]
    extra = total - _half_of_the_others(total, count)
    steady = _steady_excesses(pieces, labels, total, count, len(model.run.timelines[0].windows))
    processes = np.array(peers.processes)
    for segment in sorted({*np.flatnonzero((extra > _MIN_NS).any(axis=0)).tolist(), *steady}):
        own, rank = _joined(pieces, segment)
        chosen, cut = _cut(own, rank, extra[:, segment], count, steady.get(segment, {}))
        instance = peers.instance[:, segment] if segment < points else np.full(len(pieces), -1)
        of = rank[chosen]
        yield _Cuts(
            processes[of], instance[of], own.index[chosen], own.twin[chosen], own.label[chosen], tuple(labels), cut
        )


def _steady_excesses(
    pieces: Sequence[_Pieces], labels: Iterable[_Label], total: Int64, count: Int64, steps: int
) -> dict[int, dict[tuple[int, int], int]]:
    """Return what ranks take longer for one thing in step after step, by segment, and by rank and label, in ns.

    Two ranks that are late for different things between the same two collectives hide each other: their own times are
    alike. What all of them do, and one does longer by a notable share in most steps, is an excess all the same.
    """
    found: dict[int, dict[tuple[int, int], int]] = {}
    segments, least = total.shape[1], _NAMED * total.sum() / len(pieces) / 2
    for number, label in enumerate(labels):
        table = np.zeros(total.shape, np.int64) if label in _VAGUE else _spent(pieces, number, segments)
        if table.sum() < least or label in _VAGUE:
            continue
        usual = _half_of_the_others(table, count)
        more = table - usual
        notable = (more > np.maximum(_MIN_STEADY_NS, _NAMED * total)) & (usual > np.maximum(_MIN_NS, _SHARED * more))
        notable &= notable.sum(axis=1, keepdims=True) >= max(_MIN_STEPS, steps / 2)
        for rank, segment in np.argwhere(notable).tolist():
            found.setdefault(segment, {})[rank, number] = int(more[rank, segment])
    return found


def _peers(model: Model) -> list[_Peers]:
    """Return who is compared with whom, and where.

    Where all ranks take part in some collectives, all are compared between the launches of these. Stages of a pipeline,
    and ranks whose collectives are all of smaller groups, are compared with those that launch the same collectives in
    the same order; the starts of the steps serve where there are none.
    """
    launched = _launches(model)
    shared = np.flatnonzero((launched < _NEVER).all(axis=1))
    everyone = tuple(range(len(model.processes)))
    is_pipeline = any(len(timeline.actions) for timeline in model.run.timelines)
    if len(shared) and not is_pipeline:
        shared = shared[np.argsort(launched[shared].min(axis=1), kind="stable")]
        # Threads may launch collectives in another order on a rank: a point never lies before the one before it.
        times = np.maximum.accumulate(launched[shared].T, axis=1)
        return [_Peers(everyone, times, np.broadcast_to(shared, times.shape))]
    orders = [np.argsort(own, kind="stable")[: int((own < _NEVER).sum())] for own in launched.T]
    kinds = model.run.cross_rank.matches.kind
    programs: dict[tuple[str, ...], list[int]] = {}
    for index, order in enumerate(orders):
        programs.setdefault(tuple(kinds[order].tolist()), []).append(index)
    if set(programs) == {()}:
        count = min(len(process.host.marks) for process in model.processes)
        starts = np.stack([process.host.start_ns[process.host.marks[:count]] for process in model.processes])
        return [_Peers(everyone, starts, np.full(starts.shape, -1))]
    found = []
    for own in (ranks for program, ranks in programs.items() if program and len(ranks) > 1):
        instance = np.stack([orders[index] for index in own])
        times = np.stack([launched[orders[index], index] for index in own])
        found.append(_Peers(tuple(own), times, instance))
    return found


def _launches(model: Model) -> Int64:
    """Return when each process launched each matched collective, or _NEVER: collectives × processes."""
    transfers = model.transfers
    owner = model.graph.process[transfers.arrival]
    launched = np.full((len(model.run.cross_rank.matches), len(model.processes)), _NEVER)
    for index, (process, own) in enumerate(zip(model.processes, members(owner, len(model.processes)), strict=True)):
        by = process.device.launched_by[transfers.arrival[own] - process.interval_tasks[:1].sum()]
        own, by = own[by >= 0], by[by >= 0]
        launched[transfers.match[transfers.instance[own]], index] = process.host.start_ns[by]
    return launched


def _half_of_the_others(total: Int64, count: Int64) -> Int64:
    """Return for each rank what half of the other ranks take at most; of two, the other one.

    Args:
        count: how many ranks take as long as each, with itself.

    >>> _half_of_the_others(np.array([[10], [50], [12]]), np.array([1, 1, 1])).tolist()
    [[12], [10], [10]]
    >>> _half_of_the_others(np.array([[10], [50], [12]]), np.array([1, 1, 3])).tolist()
    [[12], [12], [12]]
    """
    first = np.cumsum(count) - count
    total = np.repeat(total, count, axis=0)
    order = np.argsort(total, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(total))[:, None], axis=0)
    ranked = np.take_along_axis(total, order, axis=0)
    # The lower median of all but one: where that one is below it, it is one further up.
    half = (len(total) - 2) // 2
    usual: Int64 = np.where(place <= half, ranked[half + 1], ranked[half])[first]
    return usual


_Label = tuple[str, str, str]
"""Cause, what, where."""
_MANY: _Label = ("slower_host", "", "")
_VAGUE: tuple[_Label, ...] = (_MANY, ("nothing_recorded", "", ""))
"""Labels of whatever has no name: not one thing that all ranks do."""


class _Pieces(msgspec.Struct, frozen=True):
    """Pieces of a rank's own work, sorted by segment; one entry per piece in each array."""

    length_ns: Int64
    segment: Int64
    """Number of program points before it."""
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    label: Int64
    """Number of what it is spent on, the same on all ranks."""

    @classmethod
    def sorted(cls, length_ns: Int64, segment: Int64, index: Int64, twin: Int64, label: Int64) -> _Pieces:
        """Sort pieces by segment."""
        order = np.argsort(segment, kind="stable")
        return cls(*(column[order] for column in (length_ns, segment, index, twin, label)))


_PiecesOf = Callable[[Model, int, Int64, dict[_Label, int]], _Pieces]
"""Returns the pieces of a process between its program points, and numbers the labels that are new."""


def _joined(pieces: Sequence[_Pieces], segment: int) -> tuple[_Pieces, Int64]:
    """Return the pieces of all ranks in one segment, and the rank of each."""
    bounds = [np.searchsorted(own.segment, (segment, segment + 1)).tolist() for own in pieces]
    columns = (
        np.concatenate([getattr(own, name)[low:high] for own, (low, high) in zip(pieces, bounds, strict=True)])
        for name in _Pieces.__struct_fields__
    )
    return _Pieces(*columns), np.repeat(np.arange(len(pieces)), [high - low for low, high in bounds])


def _spent(pieces: Sequence[_Pieces], label: int, segments: int) -> Int64:
    """Return what each rank spends on one thing in each segment, in ns: ranks × segments."""
    rows = []
    for own in pieces:
        chosen = own.label == label
        rows.append(np.bincount(own.segment[chosen], own.length_ns[chosen], segments))
    return np.stack(rows).astype(np.int64)


def _cut(
    own: _Pieces, rank: Int64, extra: Int64, count: Int64, steady: Mapping[tuple[int, int], int]
) -> tuple[Int64, Int64]:
    """Return the pieces of a segment that are cut, and by how much: of what a rank does longer, the longest first.

    Args:
        own: the pieces of all ranks, which *rank* tells apart.
        extra: what each rank takes longer in all.
        count: for how many ranks each is replayed.
        steady: what ranks take longer for one thing in most steps, which others may hide.
    """
    labels, label = np.unique(own.label, return_inverse=True)
    of = rank * len(labels) + label
    spent = np.bincount(of, own.length_ns, len(extra) * len(labels)).astype(np.int64).reshape(len(extra), -1)
    rest = np.maximum(spent - _half_of_the_others(spent, count), 0)
    known = np.zeros_like(rest)
    for (late, number), ns in steady.items():
        place = np.searchsorted(labels, number)
        known[late, place], rest[late, place] = ns, 0
    left = np.maximum(np.maximum(extra, 0) - known.sum(axis=1), 0)
    share = np.minimum(1.0, left / np.maximum(rest.sum(axis=1), 1))
    ns = known + np.rint(rest * share[:, None]).astype(np.int64)
    ns[(extra <= _MIN_NS) & ~known.any(axis=1)] = 0
    chosen = np.flatnonzero(ns.reshape(-1)[of])
    cut = cut_pieces(own.length_ns[chosen], of[chosen], ns.reshape(-1))
    return chosen[cut > 0], cut[cut > 0]


def _parts(cuts: _Cuts) -> Iterator[Excess]:
    """Divide the cuts of a segment by rank and label; many small ones are a slower host, or slower compute."""
    for low, high in pairwise([*np.flatnonzero(np.diff(cuts.rank, prepend=-1)).tolist(), len(cuts.rank)]):
        number, cut = cuts.label[low:high], cuts.cut_ns[low:high]
        labels, first, of = np.unique(number, return_index=True, return_inverse=True)
        by_label = np.bincount(of, cut)
        small = by_label < _NAMED * by_label.sum()
        parts: dict[_Label, list[int]] = {}
        for place in np.argsort(first).tolist():
            name = cuts.labels[labels[place]]
            if small[place]:
                name = ("compute", "", "") if name[0] == "compute" else _MANY
            parts.setdefault(name, []).append(place)
        for name, numbers in parts.items():
            own = low + np.flatnonzero(np.isin(of, numbers))
            yield Excess(
                int(cuts.rank[low]), int(cuts.instance[low]), *name, cuts.index[own], cuts.twin[own], cuts.cut_ns[own]
            )


def _host_pieces(model: Model, rank: int, points: Int64, labels: dict[_Label, int]) -> _Pieces:
    """Return the calls, pauses and hand-overs of a process, by what its host did in the middle of each."""
    process, graph = model.processes[rank], model.graph
    pieces = host_pieces(model, process)
    number = process.timelines[0][0]
    host, clocks = model.run.timelines[number].host, model.run.cross_rank.clocks
    known = [labels.setdefault(_named(one, model.run.on_cpu), len(labels)) for one in host.labels]
    middle = (pieces.start_ns + pieces.end_ns) // 2
    # From the shared clock back to the rank's own.
    place = np.searchsorted(host.start_ns, 2 * middle - clocks.align(number, middle), side="right") - 1
    label = np.zeros(len(middle), np.int64)
    if known:
        label = np.where(place >= 0, np.array(known)[host.label[np.maximum(place, 0)]], 0)
    if model.run.on_cpu:
        operator = np.flatnonzero((pieces.index >= 0) & (graph.kind[np.maximum(pieces.index, 0)] == TaskKind.COMPUTE))
        names = graph.name[pieces.index[operator]]
        for n in unique(names).tolist():
            # What requests a collective computes nothing.
            own = _MANY if graph.names[n].startswith(C10D_PREFIX) else ("compute", graph.names[n], "")
            label[operator[names == n]] = labels.setdefault(own, len(labels))
    segment = np.searchsorted(points, pieces.at_ns)
    return _Pieces.sorted(pieces.length_ns, segment, pieces.index, pieces.twin, label)


def _named(label: HostLabel, on_cpu: bool) -> _Label:
    """Return the cause of a piece with a label."""
    cause = HOST_CAUSES.get(HostCause(label.cause), "nothing_recorded")
    if on_cpu and cause == "host_bound":
        # What an autograd node does outside of its operators is Python's: a hook.
        return ("python", label.what, label.where) if label.what.startswith(WRAPPER) else ("compute", label.what, "")
    if cause == "host_bound" and not label.what:
        return _MANY
    return cause, label.what, label.where


def _kernels(model: Model, rank: int, points: Int64, labels: dict[_Label, int]) -> _Pieces:
    """Return the kernels and copies of a process, by their launch."""
    graph, process = model.graph, model.processes[rank]
    task = process.interval_tasks
    task = task[is_one_of(graph.kind[task], (TaskKind.COMPUTE, TaskKind.MEMORY))]
    by = process.device.launched_by[task - process.interval_tasks[:1].sum()]
    task, by = task[by >= 0], by[by >= 0]
    names, label = np.unique(graph.name[task], return_inverse=True)
    copies = {graph.name[one] for one in task[graph.kind[task] == TaskKind.MEMORY]}
    causes = ["memory_copies" if name in copies else "compute" for name in names.tolist()]
    known = [
        labels.setdefault((cause, graph.names[name], ""), len(labels))
        for cause, name in zip(causes, names.tolist(), strict=True)
    ]
    segment = np.searchsorted(points, process.host.start_ns[by])
    label = np.array(known, np.int64)[label]
    return _Pieces.sorted(graph.duration_ns[task], segment, task, np.full(len(task), -1), label)
