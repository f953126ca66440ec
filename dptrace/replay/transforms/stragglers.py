"""What each rank does longer than the others between two program points: the one definition of a delay.

::

    own time of a segment   rank 0  ██████            calls, pauses and hand-overs without waits; kernels launched there
                            rank 1  ██████░░░░░░      ░ excess: beyond what half of the other ranks take at most
                            rank 2  ██████

Program points are the launches of collectives. Findings on stragglers, their gains and
``--no-straggler`` take the same pieces out of the same graph, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from dptrace.analysis.cross_rank.stragglers import HOST_CAUSES
from dptrace.core.intervals import Int64, unique
from dptrace.errors import DptraceError
from dptrace.readers.communication import C10D_PREFIX
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
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
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        for one in self.excesses:
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
        return WithoutExcesses(self.describe(), excesses(model)).apply(model)


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
    if len(model.processes) < 2:
        raise DptraceError(
            f"{model.run.path}: --no-straggler compares ranks, and the run has one. Add the other ranks' traces."
        )
    return tuple(
        excess
        for peers in _peers(model)
        for pieces_of in (_host_pieces, _kernels)
        for excess in _excesses_of(model, peers, pieces_of)
    )


def _excesses_of(model: Model, peers: _Peers, pieces_of: Callable[[Model, int, Int64], _Pieces]) -> Iterator[Excess]:
    pieces = [pieces_of(model, rank, times) for rank, times in zip(peers.processes, peers.times_ns, strict=True)]
    points = peers.times_ns.shape[1]
    total = np.stack([np.bincount(own.segment, own.length_ns, points + 1) for own in pieces]).astype(np.int64)
    extra = total - _half_of_the_others(total)
    steady = _steady_excesses(pieces, total, len(model.run.timelines[0].windows))
    for segment in sorted({*np.flatnonzero((extra > _MIN_NS).any(axis=0)).tolist(), *steady}):
        here = [own.within(segment) for own in pieces]
        spent = [own.by_label() for own in here]
        known = steady.get(segment, {})
        for rank in sorted({*np.flatnonzero(extra[:, segment] > _MIN_NS).tolist(), *known}):
            instance = int(peers.instance[rank, segment]) if segment < points else -1
            cut = _cut(here[rank], max(0, int(extra[rank, segment])), spent, rank, known.get(rank, {}))
            yield from _parts(here[rank], cut, peers.processes[rank], instance)


def _steady_excesses(pieces: Sequence[_Pieces], total: Int64, steps: int) -> dict[int, dict[int, dict[_Label, int]]]:
    """Return what ranks take longer for one thing in step after step, by segment, rank and label, in ns.

    Two ranks that are late for different things between the same two collectives hide each other: their own times are
    alike. What all of them do, and one does longer by a notable share in most steps, is an excess all the same.
    """
    found: dict[int, dict[int, dict[_Label, int]]] = {}
    labels = dict.fromkeys(label for own in pieces for label in own.labels if label not in _VAGUE)
    for label in labels:
        table = np.stack([own.of(label, total.shape[1]) for own in pieces])
        if table.sum() < _NAMED * total.sum() / len(pieces) / 2:
            continue
        usual = _half_of_the_others(table)
        more = table - usual
        notable = (more > np.maximum(_MIN_STEADY_NS, _NAMED * total)) & (usual > np.maximum(_MIN_NS, _SHARED * more))
        notable &= notable.sum(axis=1, keepdims=True) >= max(_MIN_STEPS, steps / 2)
        for rank, segment in np.argwhere(notable).tolist():
            found.setdefault(segment, {}).setdefault(rank, {})[label] = int(more[rank, segment])
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
    for index, process in enumerate(model.processes):
        own = np.flatnonzero(owner == index)
        by = process.device.launched_by[transfers.arrival[own] - process.interval_tasks[:1].sum()]
        own, by = own[by >= 0], by[by >= 0]
        launched[transfers.match[transfers.instance[own]], index] = process.host.start_ns[by]
    return launched


def _half_of_the_others(total: Int64) -> Int64:
    """Return for each rank what half of the other ranks take at most; of two, the other one.

    >>> _half_of_the_others(np.array([[10], [50], [12]])).tolist()
    [[12], [10], [10]]
    """
    order = np.argsort(total, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(total))[:, None], axis=0)
    ranked = np.take_along_axis(total, order, axis=0)
    # The lower median of all but one: where that one is below it, it is one further up.
    half = (len(total) - 2) // 2
    usual: Int64 = np.where(place <= half, ranked[half + 1], ranked[half])
    return usual


_Label = tuple[str, str, str]
"""Cause, what, where."""
_MANY: _Label = ("slower_host", "", "")
_VAGUE: tuple[_Label, ...] = (_MANY, ("nothing_recorded", "", ""))
"""Labels of whatever has no name: not one thing that all ranks do."""


class _Pieces(msgspec.Struct, frozen=True):
    """Pieces of a rank's own work; one entry per piece in each array."""

    length_ns: Int64
    segment: Int64
    """Number of program points before it."""
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    label: Int64
    """Index into ``labels``."""
    labels: tuple[_Label, ...]

    def of(self, label: _Label, segments: int) -> Int64:
        """Return what the rank spends on one thing in each segment, in ns."""
        chosen = self.label == (self.labels.index(label) if label in self.labels else -1)
        return np.bincount(self.segment[chosen], self.length_ns[chosen], segments).astype(np.int64)

    def within(self, segment: int) -> _Pieces:
        own = np.flatnonzero(self.segment == segment)
        length, index, twin, label = (column[own] for column in (self.length_ns, self.index, self.twin, self.label))
        return _Pieces(length, self.segment[own], index, twin, label, self.labels)

    def by_label(self) -> dict[_Label, int]:
        total = np.bincount(self.label, self.length_ns, len(self.labels)).astype(np.int64)
        return {self.labels[number]: int(total[number]) for number in np.flatnonzero(total).tolist()}


def _cut(
    own: _Pieces, extra: int, spent: Sequence[Mapping[_Label, int]], rank: int, steady: Mapping[_Label, int]
) -> Int64:
    """Return what to take from each piece: from what this rank does longer than the others, the longest first.

    Args:
        extra: what it takes longer in all.
        spent: what each rank spends on what.
        steady: what it takes longer for one thing in most steps, which others may hide.
    """
    others = [one for number, one in enumerate(spent) if number != rank]
    more = {}
    for label, ns in spent[rank].items():
        usual = sorted(one.get(label, 0) for one in others)[(len(others) - 1) // 2]
        if ns > usual:
            more[label] = ns - usual
    left = extra - sum(steady.values())
    rest = {label: ns for label, ns in more.items() if label not in steady}
    scale = min(1.0, max(0, left) / max(1, sum(rest.values())))
    cut = np.zeros(len(own.index), np.int64)
    for label, ns in (*steady.items(), *((label, round(ns * scale)) for label, ns in rest.items())):
        places = np.flatnonzero(own.label == own.labels.index(label))
        cut[places] = cut_pieces(own.length_ns[places], ns)
    return cut


def _parts(own: _Pieces, cut: Int64, rank: int, instance: int) -> list[Excess]:
    """Divide a cut by label; many small ones are a slower host, or slower compute."""
    by_label = np.bincount(own.label, cut, len(own.labels))
    small = by_label < _NAMED * by_label.sum()
    parts: dict[_Label, list[int]] = {}
    for place in np.flatnonzero(cut).tolist():
        name = own.labels[own.label[place]]
        if small[own.label[place]]:
            name = ("compute", "", "") if name[0] == "compute" else _MANY
        parts.setdefault(name, []).append(place)
    return [
        Excess(rank, instance, *name, own.index[places], own.twin[places], cut[places])
        for name, places in parts.items()
    ]


def _host_pieces(model: Model, rank: int, points: Int64) -> _Pieces:
    """Return the calls, pauses and hand-overs of a process, by what its host did in the middle of each."""
    process, graph = model.processes[rank], model.graph
    pieces = host_pieces(model, process)
    number = process.timelines[0][0]
    host, clocks = model.run.timelines[number].host, model.run.cross_rank.clocks
    labels: dict[_Label, int] = {_MANY: 0}
    known = [labels.setdefault(_named(one, model.run.on_cpu), len(labels)) for one in host.labels]
    middle = (pieces.start_ns + pieces.end_ns) // 2
    # From the shared clock back to the rank's own.
    place = np.searchsorted(host.start_ns, 2 * middle - clocks.align(number, middle), side="right") - 1
    label = np.zeros(len(middle), np.int64)
    if known:
        label = np.where(place >= 0, np.array(known)[host.label[np.maximum(place, 0)]], 0)
    if model.run.on_cpu:
        operator = np.flatnonzero((pieces.index >= 0) & graph.of(TaskKind.COMPUTE)[np.maximum(pieces.index, 0)])
        names = graph.name[pieces.index[operator]]
        for n in unique(names).tolist():
            # What requests a collective computes nothing.
            own = _MANY if graph.names[n].startswith(C10D_PREFIX) else ("compute", graph.names[n], "")
            label[operator[names == n]] = labels.setdefault(own, len(labels))
    segment = np.searchsorted(points, pieces.at_ns)
    return _Pieces(pieces.length_ns, segment, pieces.index, pieces.twin, label, tuple(labels))


def _named(label: HostLabel, on_cpu: bool) -> _Label:
    """Return the cause of a piece with a label."""
    cause = HOST_CAUSES.get(HostCause(label.cause), "nothing_recorded")
    if on_cpu and cause == "host_bound":
        # What an autograd node does outside of its operators is Python's: a hook.
        return ("python", label.what, label.where) if label.what.startswith(WRAPPER) else ("compute", label.what, "")
    if cause == "host_bound" and not label.what:
        return _MANY
    return cause, label.what, label.where


def _kernels(model: Model, rank: int, points: Int64) -> _Pieces:
    """Return the kernels and copies of a process, by their launch."""
    graph, process = model.graph, model.processes[rank]
    task = process.interval_tasks[graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)[process.interval_tasks]]
    by = process.device.launched_by[task - process.interval_tasks[:1].sum()]
    task, by = task[by >= 0], by[by >= 0]
    names, label = np.unique(graph.name[task], return_inverse=True)
    copies = {graph.name[one] for one in task[graph.of(TaskKind.MEMORY)[task]]}
    causes = ["memory_copies" if name in copies else "compute" for name in names.tolist()]
    labels = tuple((cause, graph.names[name], "") for cause, name in zip(causes, names.tolist(), strict=True))
    segment = np.searchsorted(points, process.host.start_ns[by])
    return _Pieces(graph.duration_ns[task], segment, task, np.full(len(task), -1), label, labels)
