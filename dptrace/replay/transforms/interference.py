"""Compute that is slower while communication runs: how much, by the trace, and what of it a what-if changes.

A task with the share f of its time under communication takes ``w·(1 + (c - 1)·f)``, where w is its time without any and
c the factor of its kind of work. c is measured on work of one kind that ran both ways: 90 % or more of its time under
communication, and none. What a what-if moves out of communication gets faster, what it moves into it slower::

    recorded     compute │ a      │ b   │        c = 1.2: b takes 1/1.2 of its time
                 messages│        │─────│
    predicted    compute │ a        │ b  │      a takes 1.2 times its time, for the part under communication
                 messages│   │─────│
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, covered, members, union
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.schedule import Times, schedule_of
from dptrace.replay.graph.tasks import WORK, Work
from dptrace.replay.simulation import with_times

Floats = NDArray[np.float64]
_OVERLAPPED = 0.9
"""Share of its time under communication from which a task counts as overlapped."""
_MIN_TASKS = 4
"""Tasks of one kind that must have run each way."""
_MAX_SPREAD = 1.5
"""Ratio of the 90th to the 10th percentile of its times without communication beyond which a kind is not one kind of
work."""
_MIN_COMPARED = 0.2
"""Share of the overlapped compute that must be comparable."""
_MIN_RATIO, _MAX_RATIO = 2 / 3, 3.0
"""Ratios beyond which a kind is not one kind of work either: no link slows compute so much, or speeds it up."""
_ON_CPU = 0.5
"""By how much of its time a transfer of gloo is longer under compute: between nothing, with cores to spare, and all of
it, where its thread shares a core with compute."""
_PASSES = 3
"""What overlaps what changes with the durations of the pass before."""
_SHORTEST_NS = 1_000
"""Shorter tasks say little of a rate."""


class Factor(msgspec.Struct, frozen=True):
    """How many times as long compute takes under communication, on average, and the range of kinds."""

    ratio: float
    low: float
    high: float
    compared: int
    """Overlapped kernels whose work also ran without communication; 0 for a factor that was not measured."""
    share: float
    """Share of the overlapped compute time that they are."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: round(value, 4) for name, value in msgspec.structs.asdict(self).items()}


ASSUMED = Factor(1.13, 1.0, 1.38, 0, 0.0)
"""Mean and range of what kernels show that ran both ways in traces of other machines: H100 1.38, A100 1.02, V100 1.06
and 1.07."""


class Interference(msgspec.Struct, frozen=True):
    """The factors of a run."""

    factor: Factor
    by_task: Floats
    """Factor of each task; 1 for what is no compute."""
    transfer: float
    """By how much of its time a transfer is longer under compute."""

    def variants(self) -> tuple[Interference, ...]:
        """Return it, and it without any slowdown and with the largest."""
        one = self.factor
        scale = (one.high - 1) / (one.ratio - 1) if one.ratio > 1 else 0.0
        most = Interference(one, 1 + (self.by_task - 1) * scale, 2 * self.transfer)
        return self, Interference(one, np.ones_like(self.by_task), 0.0), most

    def sentence(self) -> str:
        """Describe what was measured, or assumed."""
        one = self.factor
        if not one.compared:
            return (
                f"No work ran both with and without communication, so compute is assumed to take "
                f"{one.ratio:g} times as long under it (traces of other machines show {one.low:g} to {one.high:g})."
            )
        return (
            f"Compute takes {one.ratio:.2f} times as long under communication, by {one.compared:,} kernels whose work "
            f"also ran without ({one.share:.0%} of the overlapped compute)."
        )


def measure(model: Model) -> Interference:
    """Measure how much compute was slowed under communication as recorded, kind of work by kind."""
    task, kind = _kinds(model)
    length = model.graph.duration_ns[task].astype(np.float64)
    recorded = Times(model.graph.start_ns, model.graph.end_ns)
    under = _under(model, recorded, len(model.graph))[task]
    useful = length >= _SHORTEST_NS
    task, kind, length, under = task[useful], kind[useful], length[useful], under[useful]
    compute = np.where(model.graph.of(TaskKind.COMPUTE), 1.0, 0.0)
    transfer = _ON_CPU if model.run.on_cpu else 0.0
    ratios = _ratios(kind, length, under >= _OVERLAPPED, under == 0)
    overlapped = under >= _OVERLAPPED
    compared = overlapped & (ratios[kind] > 0) if len(kind) else overlapped
    total = float(length[overlapped].sum())
    if not compared.any() or length[compared].sum() < _MIN_COMPARED * total:
        return Interference(ASSUMED, 1 + (ASSUMED.ratio - 1) * compute, transfer)
    own = ratios[kind[compared]]
    alone = length[compared] / own
    mean = float(max(1.0, length[compared].sum() / alone.sum()))
    low, high = _range(own, alone, mean)
    factor = Factor(mean, low, high, int(compared.sum()), float(length[compared].sum() / total))
    by_task = 1 + (mean - 1) * compute
    known = ratios[kind] > 0
    by_task[task[known]] = np.clip(ratios[kind[known]], 1.0, _MAX_RATIO)
    return Interference(factor, by_task, transfer)


def _range(ratio: Floats, weight: Floats, mean: float) -> tuple[float, float]:
    """Return the range of the mean factor, by drawing the kernels again."""
    drawn = np.random.default_rng(0).integers(len(ratio), size=(200, len(ratio)))
    means = np.sort((ratio[drawn] * weight[drawn]).sum(axis=1) / weight[drawn].sum(axis=1))
    low, high = float(means[10]), float(means[189])
    return max(1.0, min(low, mean)), max(1.0, high, mean)


def _kinds(model: Model) -> tuple[Int64, Int64]:
    """Return the compute tasks whose work is known, and the number of its kind, from 0.

    Ranks differ in their data and their clocks: each has kinds of its own.
    """
    tasks, kinds, first = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for process, number in model.first_timelines:
        work = model.run.read_again(model.run.timelines[number], WORK)
        if work is None:
            continue
        own, kind = _operators(model, process, number, work) if process.on_cpu else _kernels(process, work)
        compute = model.graph.of(TaskKind.COMPUTE)[own]
        tasks.append(own[compute])
        distinct, which = np.unique(kind[compute], return_inverse=True)
        kinds.append(first + which.reshape(-1))
        first += len(distinct)
    return np.concatenate(tasks), np.concatenate(kinds)


def _kernels(process: Process, work: Work) -> tuple[Int64, Int64]:
    if len(work.interval) != len(process.interval_tasks):
        return process.interval_tasks[:0], process.interval_tasks[:0]
    return process.interval_tasks, work.interval


def _operators(model: Model, process: Process, number: int, work: Work) -> tuple[Int64, Int64]:
    """Find the operators that are tasks among those of the file, by start and name."""
    computing = np.flatnonzero(process.host.kind == TaskKind.COMPUTE)
    known = {name: i for i, name in enumerate(work.names)}
    names = np.array([known.get(name, -1) for name in process.names], np.int64)[process.host.name[computing]]
    start = model.run.cross_rank.clocks.align(number, work.start_ns)
    _, at = np.unique(np.append(start, process.host.start_ns[computing]), return_inverse=True)
    key = at.reshape(-1) * (len(work.names) + 1) + np.append(work.name, names)
    theirs, first = np.unique(key[: len(start)], return_index=True)
    place = np.minimum(np.searchsorted(theirs, key[len(start) :]), max(0, len(theirs) - 1))
    found = theirs[place] == key[len(start) :] if len(theirs) else np.zeros(len(computing), np.bool_)
    return process.host_tasks.begin[computing[found]], work.operator[first[place[found]]]


def _under(model: Model, times: Times, tasks: int) -> Floats:
    """Return the share of each of the first *tasks* tasks that communication of its process covers."""
    graph = model.graph
    share = np.zeros(tasks)
    comm = _by_process(model, graph.of(TaskKind.ARRIVAL, TaskKind.COMMUNICATION))
    compute = _by_process(model, graph.of(TaskKind.COMPUTE)[:tasks])
    for mine, own in zip(comm, compute, strict=True):
        busy = union(times.start_ns[mine], times.end_ns[model.over[mine]])
        start, end = times.start_ns[own], times.end_ns[own]
        share[own] = (covered(busy, end) - covered(busy, start)) / np.maximum(end - start, 1)
    return share


def _by_process(model: Model, chosen: NDArray[np.bool_]) -> list[Int64]:
    """Return the chosen tasks of each process, in their order."""
    tasks = np.flatnonzero(chosen)
    return [tasks[own] for own in members(model.graph.process[tasks], len(model.processes))]


def _ratios(kind: Int64, length: Floats, overlapped: NDArray[np.bool_], free: NDArray[np.bool_]) -> Floats:
    """Return for each kind its time under communication over that without, 0 where it is not known."""
    kinds = int(kind.max(initial=-1)) + 1
    both = np.minimum(*(np.bincount(kind[chosen], minlength=kinds) for chosen in (overlapped, free)))
    ratios = np.zeros(kinds)
    of_kind = members(kind, kinds)
    for one in np.flatnonzero(both >= _MIN_TASKS).tolist():
        own = of_kind[one]
        low, middle, high = np.percentile(length[own[free[own]]], (10, 50, 90))
        ratio = float(np.median(length[own[overlapped[own]]]) / middle)
        if high <= _MAX_SPREAD * low and _MIN_RATIO <= ratio <= _MAX_RATIO:
            ratios[one] = ratio
    return ratios


def with_interference(before: Model, replayed: Times, after: Model, interference: Interference) -> Model:
    """Return a changed model whose compute is slowed as far as communication covers it, instead of as it was.

    Durations and overlap depend on each other: a few turns bring them together.

    Args:
        before: the model as it was; *after* has its tasks, perhaps followed by others.
        replayed: times of its replay.
    """
    tasks, transfers = len(before.graph), after.transfers.task
    extra, slower = interference.by_task - 1, interference.transfer
    was = 1 + extra * _under(before, replayed, tasks)
    carried = before.transfers.task
    length = replayed.end_ns[carried] - replayed.start_ns[carried]
    # What a message takes was learned from those that were recorded, under compute for this share of their time.
    usual = 1.0
    if slower and length.any():
        usual += slower * float(np.average(_under_compute(before, replayed), weights=length))
    given, slowed = after.graph.duration_ns, after
    schedule = schedule_of(after.graph)
    for _ in range(_PASSES):
        times = schedule.run(slowed.graph.duration_ns, after.graph.edge.lag_ns).times
        now = 1 + extra * _under(after, times, tasks)
        durations = given.copy()
        durations[:tasks] = np.rint(given[:tasks] * (now / was)).astype(np.int64)
        if slower:
            busy = 1 + slower * _under_compute(after, times)
            durations[transfers] = np.rint(given[transfers] * (busy / usual)).astype(np.int64)
        slowed = with_times(after, durations)
    return slowed


def _under_compute(model: Model, times: Times) -> Floats:
    """Return the share of each transfer that compute covers, on the mean process."""
    graph, task = model.graph, model.transfers.task
    start, end = times.start_ns[task], times.end_ns[task]
    share = np.zeros(len(task))
    for own in _by_process(model, graph.of(TaskKind.COMPUTE) & (times.end_ns > times.start_ns)):
        busy = union(times.start_ns[own], times.end_ns[own])
        share += (covered(busy, end) - covered(busy, start)) / np.maximum(end - start, 1)
    return share / max(1, len(model.processes))
