"""What each rank does longer than the others between two program points: the one definition of a delay.

::

    own time of a segment   rank 0  ██████            calls, pauses and hand-overs without waits; kernels launched there
                            rank 1  ██████░░░░░░      ░ excess: beyond what half of the other ranks take at most
                            rank 2  ██████

Program points are the launches of collectives; ranks of different programs, such as the stages of a pipeline, are
compared by the step. Findings on stragglers, their gains and ``--no-straggler`` take the same pieces out of the same
graph, so that they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np

from dptrace.core.intervals import EMPTY, Int64, members, unique
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.tasks import cut_pieces, level_pieces
from dptrace.replay.simulation import shared_steps, with_times
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.pieces import (
    MANY,
    VAGUE,
    Label,
    Pieces,
    joined,
    pieces_of_device,
    pieces_of_host,
    spent_on,
)
from dptrace.replay.transforms.roles import (
    NEVER,
    Peers,
    half_of_the_others,
    launches,
    lower_median,
    other_programs,
    same_program,
)
from dptrace.replay.transforms.stages import longer_by_step
from dptrace.timeline.steps import WHOLE_TRACE

_MIN_NS = 50_000
"""Smallest excess that counts, as for a late arrival."""
_NAMED = 0.2
"""Smallest share of an excess that is named on its own."""
_MIN_STEADY_NS = 1_000_000
"""In one step, for an excess of a rank that has it in most steps."""
_MIN_STEPS = 3
"""Steps that have such an excess."""
_CUT = ("index", "twin", "cut_ns")
_SHARED = 0.02
"""Least share of a steady excess that the others spend on the same thing: otherwise only its name may differ."""


_SLOWER, _BEYOND_NOISE = 0.02, 4
"""Share of a step that many small excesses are at least together, and of how many standard errors over the steps."""


class Excess(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Time that one rank spends on one thing in a segment beyond the others."""

    process: int
    instance: int
    """The matched collective whose launch ends the segment, or of a step the one launched after its largest piece, or
    its last; -1 after the last of all."""
    step: str
    """In which the rank spends it; empty where it is in none."""
    cause: str
    """One of :data:`~dptrace.analysis.cross_rank.stragglers.CAUSES`."""
    what: str
    where: str
    index: Int64
    """Of the task that each piece is of, or -1 - that of its edge."""
    twin: Int64
    """Of the edge with the same lag after a wait, or -1."""
    cut_ns: Int64

    @cached_property
    def ns(self) -> int:
        """The excess."""
        return int(self.cut_ns.sum())


class WithoutExcesses(Change, frozen=True, eq=False, dict=True):
    """A run without some excesses: these ranks take no longer than the others there."""

    what: str
    excesses: tuple[Excess, ...]
    collectives: ClassVar[bool] = True
    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def apply(self, model: Model) -> Model:
        return without_cuts(model, [self.cuts])

    @cached_property
    def cuts(self) -> tuple[Int64, ...]:
        """What all of them take away."""
        return _all_cuts(self.excesses)


def _all_cuts(cuts: Sequence[Excess | _Cuts]) -> tuple[Int64, ...]:
    """Return the pieces of some cuts: the task or edge of each, the edge with the same lag, and what is taken."""
    return tuple(np.concatenate([EMPTY[0], *(getattr(one, name) for one in cuts)]) for name in _CUT)


def without_cuts(model: Model, cuts: Sequence[tuple[Int64, ...]]) -> Model:
    """Return a model without pieces of the hosts' and devices' time."""
    durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
    for index, twin, cut in cuts:
        of_task, of_twin = index >= 0, twin >= 0
        task, edge, other = index[of_task], -1 - index[~of_task], twin[of_twin]
        np.subtract.at(durations, task, cut[of_task])
        np.subtract.at(lags, edge, cut[~of_task])
        np.subtract.at(lags, other, cut[of_twin])
        # A late rank's excess and what all ranks share may be cut from one pause.
        durations[task] = np.maximum(durations[task], np.minimum(model.graph.duration_ns[task], 0))
        for own in (edge, other):
            lags[own] = np.maximum(lags[own], np.minimum(model.graph.edge.lag_ns[own], 0))
    return with_times(model, durations, lags)


class NoStraggler(Change, frozen=True):
    """No rank takes longer than half of the others between two collectives, or no stage than half of the others."""

    collectives: ClassVar[bool] = True
    host: ClassVar[bool] = True
    what = "no straggler"

    def apply(self, model: Model) -> Model:
        level = without_cuts(model, [_all_cuts(list(_cuts(model)))])
        # What ranks that are not replayed do later than those that stand for them.
        edge = level.graph.edge
        later = edge.of(EdgeKind.RENDEZVOUS)
        return with_times(level, lag_ns=np.where(later, np.minimum(edge.lag_ns, _MIN_NS), edge.lag_ns))


def excesses(model: Model) -> tuple[Excess, ...]:
    """Return all excesses of a run, in the order of the program.

    Raises:
        DptraceError: the run has one process, so that there is nothing to compare.
    """
    return tuple(excess for cuts in _cuts(model) for excess in _parts(model, cuts))


class _Cuts(msgspec.Struct, frozen=True, eq=False):
    """What is taken from the pieces of ranks in one segment; one entry per piece in each array."""

    rank: Int64
    """Index of its process, ascending."""
    instance: Int64
    step: Int64
    index: Int64
    twin: Int64
    label: Int64
    labels: tuple[Label, ...]
    cut_ns: Int64


def _cuts(model: Model) -> Iterator[_Cuts]:
    """Yield what ranks spend beyond the others, segment by segment: first of one program, then of different ones."""
    if len(model.processes) < 2:
        raise DptraceError(
            f"{model.run.path}: --no-straggler compares ranks, and the run has one. Add the other ranks' traces."
        )
    launched = launches(model)
    among = [cuts for peers in same_program(model, launched) for cuts in _cuts_of_all(model, peers, launched)]
    yield from among
    others = other_programs(model, launched)
    level = without_cuts(model, [_all_cuts(among)]) if others else model
    for peers in others:
        yield from _cuts_of_all(level, peers, launched)


def _cuts_of_all(model: Model, peers: Peers, launched: Int64) -> Iterator[_Cuts]:
    shared = shared_steps(model.run.timelines)
    for pieces_of in (pieces_of_host, pieces_of_device):
        labels: dict[Label, int] = {MANY: 0}
        pieces = [
            _in_steps(model.processes[rank], shared, pieces_of(model, rank, times, labels))
            for rank, times in zip(peers.processes, peers.times_ns, strict=True)
        ]
        count = model.ranks[list(peers.processes)]
        if peers.by_step:
            found = _by_step(pieces, labels, peers, count)
        else:
            steps = max(len(timeline.windows) for timeline in model.run.timelines)
            names = model.run.cross_rank.matches.step[peers.instance[0]]
            step = np.array([shared.index(name) if name in shared else -1 for name in names.tolist()], np.int64)
            found = _by_collective(pieces, labels, peers, count, steps, step)
        yield from _named(list(found), peers, launched, labels)


def _in_steps(process: Process, shared: Sequence[str], pieces: Pieces) -> Pieces:
    """Return the pieces outside of steps that some rank has not recorded, or not whole: waits may be among those."""
    if {*process.step_names} <= {*shared} or not {*process.step_names} & {*shared}:
        return pieces
    return pieces.take(np.isin(np.array([*process.step_names, shared[0]], object)[pieces.step], shared))


_Found = tuple[int, Pieces, Int64, Int64]
"""A segment, the pieces that are cut in it, the place of each one's rank among the peers, and what is cut, in ns."""


def _by_step(pieces: Sequence[Pieces], labels: Sized, peers: Peers, count: Int64) -> Iterator[_Found]:
    longer = longer_by_step(pieces, peers, count, len(labels))
    for segment, own, rank in joined(pieces, np.flatnonzero((longer.sum(axis=2) > _MIN_NS).any(axis=1)).tolist()):
        yield segment, *_cut(own, rank, longer[segment], level_pieces)


def _by_collective(
    pieces: Sequence[Pieces], labels: Collection[Label], peers: Peers, count: Int64, steps: int, step: Int64
) -> Iterator[_Found]:
    """Yield what ranks take longer between two collectives.

    Args:
        step: of each collective, the number of its step, or -1.
    """
    segments = peers.times_ns.shape[1] + 1
    total = np.stack([np.bincount(own.segment, own.length_ns, segments) for own in pieces]).astype(np.int64)
    extra = total - half_of_the_others(total, count)
    longer = np.where(extra > _MIN_NS, extra, 0)
    longer[:, : len(step)] += _many_small(extra[:, : len(step)], step, peers.times_ns)
    steady = _steady_excesses(pieces, labels, total, count, steps)
    if len(pieces) == 2:
        # Late before such a collective, and as much earlier after it: which of two ranks is as it should be?
        steady = {segment: own for segment, own in steady.items() if segment not in set(peers.beside.tolist())}
    for segment, own, rank in joined(pieces, sorted({*np.flatnonzero(longer.any(axis=0)).tolist(), *steady})):
        ns = _longer(own, rank, longer[:, segment], len(labels), count, steady.get(segment, {}))
        yield segment, *_cut(own, rank, ns, cut_pieces)


def _many_small(extra: Int64, step: Int64, times_ns: Int64) -> Int64:
    """Return what ranks take longer in segments too short to show it, if it adds up to a notable time in each step.

    ::

        extra of a rank   ▁▂▁ ▂▁▂▁▂ ▁▂▁▂ ▂    a few µs each: the sum over a step, with those in which it takes less,
        of another        ▁   ▂  ▁▔▁ ▔ ▁▔     is compared with how much these sums vary from step to step

    Args:
        extra: what each rank takes beyond half of the others: ranks × segments.
        step: of each segment, or -1.
        times_ns: when each rank launches the collectives.
    """
    inside, steps = step >= 0, int(step.max(initial=-1)) + 1
    longer = np.zeros_like(extra)
    if steps < _MIN_STEPS:
        return longer
    small, by_step = np.minimum(extra, _MIN_NS) * (extra <= _MIN_NS), np.zeros((steps, len(extra)))
    np.add.at(by_step, step[inside], small[:, inside].T)
    noise = _BEYOND_NOISE * by_step.std(axis=0, ddof=1) / np.sqrt(steps)
    late = np.flatnonzero(by_step.mean(axis=0) > np.maximum(noise, _SLOWER * np.ptp(times_ns) / steps))
    for rank in late.tolist():
        own = np.maximum(small[rank], 0) * inside
        positive = np.bincount(step[inside], own[inside], steps)
        share = np.clip(by_step[:, rank] / np.maximum(positive, 1), 0, 1)
        longer[rank] = np.rint(own * np.append(share, 0)[step])
    return longer


def _named(found: Sequence[_Found], peers: Peers, launched: Int64, labels: Mapping[Label, int]) -> Iterator[_Cuts]:
    """Name what is cut: each thing by what its rank says of most of it, over all segments."""
    said = Counter[tuple[int, int, int]]()
    for _, own, rank, cut in found:
        for key, ns in zip(
            zip(rank.tolist(), own.label.tolist(), own.named.tolist(), strict=True), cut.tolist(), strict=True
        ):
            said[key] += ns
    name = {(rank, label): named for (rank, label, named), _ in reversed(said.most_common())}
    processes = np.array(peers.processes)
    for segment, own, rank, cut in found:
        process = processes[rank]
        if peers.by_step:
            end = peers.times_ns[rank, segment] if segment < peers.times_ns.shape[1] else np.full(len(rank), NEVER)
            instance = _next_launched(launched, process, own.at_ns, end)
        elif segment < peers.times_ns.shape[1]:
            instance = peers.instance[rank, segment]
        else:
            instance = np.full(len(rank), -1)
        label = np.array([name[key] for key in zip(rank.tolist(), own.label.tolist(), strict=True)], np.int64)
        yield _Cuts(process, instance, own.step, own.index, own.twin, label, tuple(labels), cut)


def _next_launched(launched: Int64, process: Int64, at_ns: Int64, end_ns: Int64) -> Int64:
    """Return the collective that each process launched next in a step, or its last one; -1 where it launched none."""
    found = np.full(len(process), -1)
    for one in unique(process).tolist():
        order = np.argsort(launched[:, one], kind="stable")[: int((launched[:, one] < NEVER).sum())]
        if len(order):
            own = process == one
            following, over = (np.searchsorted(launched[order, one], ns[own]) for ns in (at_ns, end_ns))
            found[own] = order[np.maximum(np.minimum(following, over - 1), 0)]
    return found


def _steady_excesses(
    pieces: Sequence[Pieces], labels: Collection[Label], total: Int64, count: Int64, steps: int
) -> dict[int, dict[tuple[int, int], int]]:
    """Return what ranks take longer for one thing in step after step, by segment, and by rank and label, in ns.

    Two ranks that are late for different things between the same two collectives hide each other: their own times are
    alike. What all of them do, and one does longer by a notable share in most steps, is an excess all the same; unless
    it does as much less of something else than most.
    """
    found: dict[int, dict[tuple[int, int], int]] = {}
    less = np.zeros_like(total)
    segments, least = total.shape[1], _NAMED * total.sum() / len(pieces) / 2
    spent = np.sum([np.bincount(own.label, own.length_ns, len(labels)) for own in pieces], axis=0)
    named = [number for number, label in enumerate(labels) if spent[number] >= least and label not in VAGUE]
    for number, table in zip(named, spent_on(pieces, named, segments), strict=True):
        usual = half_of_the_others(table, count)
        if len(pieces) > 2:  # of two ranks, neither is what most do
            most = lower_median(table, count)
            usual = np.maximum(usual, most)
            less += np.maximum(most - table, 0)
        more = table - usual
        notable = (more > np.maximum(_MIN_STEADY_NS, _NAMED * total)) & (usual > np.maximum(_MIN_NS, _SHARED * more))
        notable &= notable.sum(axis=1, keepdims=True) >= max(_MIN_STEPS, steps / 2)
        for rank, segment in np.argwhere(notable).tolist():
            found.setdefault(segment, {})[rank, number] = int(more[rank, segment])
    for segment, own in found.items():
        for rank in {rank for rank, _ in own}:
            every = sum(ns for (other, _), ns in own.items() if other == rank)
            kept = max(0.0, 1 - int(less[rank, segment]) / every)
            own.update({key: round(kept * ns) for key, ns in own.items() if key[0] == rank})
    return found


def _longer(
    own: Pieces, rank: Int64, extra: Int64, labels: int, count: Int64, steady: Mapping[tuple[int, int], int]
) -> Int64:
    """Return what each rank takes longer in a segment for each thing, in ns: ranks × labels.

    Args:
        own: the pieces of all ranks, which *rank* tells apart.
        extra: what each rank takes longer in all, or 0 where that does not count.
        labels: number of things that time is spent on.
        count: for how many ranks each is replayed.
        steady: what ranks take longer for one thing in most steps, which others may hide.
    """
    spent = np.bincount(rank * labels + own.label, own.length_ns, len(extra) * labels)
    spent = spent.astype(np.int64).reshape(len(extra), -1)
    rest, own_labels = np.zeros_like(spent), np.flatnonzero(spent.any(axis=0))  # of many, a segment has a few
    rest[:, own_labels] = np.maximum(spent[:, own_labels] - half_of_the_others(spent[:, own_labels], count), 0)
    known = np.zeros_like(rest)
    for (late, number), more in steady.items():
        known[late, number], rest[late, number] = more, max(0, rest[late, number] - more)
    left = np.maximum(np.maximum(extra, 0) - known.sum(axis=1), 0)
    share = np.minimum(1.0, left / np.maximum(rest.sum(axis=1), 1))
    ns: Int64 = known + np.rint(rest * share[:, None]).astype(np.int64)
    ns[(extra <= 0) & ~known.any(axis=1)] = 0
    return ns


def _cut(
    own: Pieces, rank: Int64, ns: Int64, take: Callable[[Int64, Int64, Int64], Int64]
) -> tuple[Pieces, Int64, Int64]:
    """Return the pieces of a segment that are cut, the rank of each, and by how much.

    Args:
        own: the pieces of all ranks, which *rank* tells apart.
        ns: what each rank takes longer for each thing: ranks × labels.
        take: which of the pieces it is taken from.
    """
    of = rank * ns.shape[1] + own.label
    chosen = np.flatnonzero(ns.reshape(-1)[of])
    known, of = np.unique(of[chosen], return_inverse=True)
    cut = take(own.length_ns[chosen], of, ns.reshape(-1)[known])
    chosen = chosen[cut > 0]
    return own.take(chosen), rank[chosen], cut[cut > 0]


def _parts(model: Model, cuts: _Cuts) -> Iterator[Excess]:
    """Divide the cuts of a segment by rank, label and step; many small ones are a slower host, or slower compute."""
    keys, first, of = np.unique(cuts.rank * len(cuts.labels) + cuts.label, return_index=True, return_inverse=True)
    ranks, labels = cuts.rank[first], cuts.label[first]
    ns = np.bincount(of, cuts.cut_ns)
    small = ns < _NAMED * np.bincount(ranks, ns)[ranks]
    parts, part = dict[tuple[int, Label], int](), np.empty(len(keys), np.int64)
    for place in np.lexsort((first, ranks)).tolist():
        name = cuts.labels[labels[place]]
        if small[place]:
            name = ("compute", "", "") if name[0] == "compute" else MANY
        part[place] = parts.setdefault((int(ranks[place]), name), len(parts))
    for (rank, name), own in zip(parts, members(part[of], len(parts)), strict=True):
        recorded = model.processes[rank].step_names
        names = (*recorded, "") if recorded else (WHOLE_TRACE,)
        for step in unique(cuts.step[own]).tolist():
            mine = own[cuts.step[own] == step]
            largest = mine[int(cuts.cut_ns[mine].argmax())]
            yield Excess(
                rank, int(cuts.instance[largest]), names[step], *name, *(getattr(cuts, each)[mine] for each in _CUT)
            )
