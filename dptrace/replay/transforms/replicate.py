"""From one recorded rank to many: data parallelism whose all-reduces of the gradients are inserted into its steps.

Each step gets the all-reduces of a schedule, one after the other on their own stream::

    compute    │ forward │ backward          │             │ optimizer │
    inserted   │         │      bucket 0 │ bucket 1 │ …    │
                               └ starts when its last gradient is ready and the one before it is over

A transfer takes what the links of the what-if take for its bytes, by the formula of the algorithm. The other ranks are
not shown: they do what the recorded one does, at the same time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from dptrace.core.intervals import Int64
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model, Transfers
from dptrace.replay.graph.model import NO_PROCESS, Edge, EdgeKind, Edges, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.links import (
    Communication,
    LinkBandwidth,
    LinkChange,
    OtherLink,
    TransferCosts,
    WorldSize,
    all_reduce_costs,
    copy_ns,
    with_transfers,
)
from dptrace.replay.transforms.schedule import (
    RESUME_NS,
    GradientStep,
    Reschedule,
    first_after,
    optimizer_ns,
    sized_gradients,
)
from dptrace.timeline.model import COLUMNS, Collective, Kind, Phase, Timeline

SHARED = 1.25
"""How many times as long compute takes on a CPU at most, where ranks of one machine share its memory and power: 1.13 to
1.18 on two cores. It widens the range only."""
_REQUEST_NS = 100_000
"""What the host takes to request an all-reduce on a GPU: a small model, whose steps the host sets, takes 94 µs longer
for each on 2 A100s and 113 µs on 4 (benchmarks/reference_steps.py)."""
_NAME = "all_reduce"


class Replicate(Change, frozen=True):
    """The job of one recorded rank runs on many, each with the batch of the recorded one."""

    ranks: int
    links: tuple[LinkChange, ...]
    """What a transfer costs: the link, and what changes its messages."""
    schedule: Reschedule = Reschedule()
    collectives: ClassVar[bool] = True
    host: ClassVar[bool] = True

    def describe(self) -> str:
        parts = (f"{self.ranks} ranks", *(part.describe() for part in self.links), self.schedule.describe())
        return ", ".join(parts)

    def apply(self, model: Model) -> Model:
        if not any(isinstance(part, (OtherLink, LinkBandwidth)) for part in self.links):
            raise DptraceError(
                f"{model.run.path}: one rank was recorded, so the time of a message is not known. Add --link NAME, "
                "--link LATENCY:BANDWIDTH (5us:12.5GB/s), or --link FILE from dptrace links -o FILE."
            )
        plan = _Plan(model)
        for number, step in enumerate(sized_gradients(model)):
            if len(step.bytes):
                plan.send(step, number, self.schedule)
        return self._priced(plan.model(self.ranks))

    def _priced(self, model: Model) -> Model:
        transfers = model.transfers
        hops, share = all_reduce_costs(self.ranks)
        count, zero = len(transfers), np.zeros(len(transfers))
        of = TransferCosts(
            task=transfers.task,
            latency_ns=zero,
            moving_ns=zero,
            bytes=transfers.bytes.astype(np.float64),
            hops=np.full(count, hops),
            share=np.full(count, share),
        )
        for part in self.links:
            of = part.change(model, of)
        return with_transfers(model, of)

    def doubts(self, model: Model) -> tuple[str, ...]:
        text = (
            "All ranks are assumed to be as fast as the recorded one and ready at the same time, so nothing waits "
            "for a slower rank, and ranks do not share their machine's memory, cores and power."
        )
        found = [text]
        if not all(step.exact for step in sized_gradients(model)):
            found.append("The trace has no shapes: gradients are assumed to be of equal size, 4 bytes per parameter.")
        if self.schedule.schedule == "overlap-optimizer":
            found.append("The optimizer is assumed to step gradient by gradient, which needs one that steps in hooks.")
        return (*found, *(text for part in self.links for text in part.doubts(model)))


def with_replication(model: Model, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes with :class:`Replicate` in place of another number of ranks, if one rank was recorded.

    That change takes the links and the schedule with it.
    """
    if model.run.world_size > 1 or len(model.transfers):
        return tuple(changes)
    ranks = [part.ranks for change in changes for part in _parts(change) if isinstance(part, WorldSize)]
    if not ranks:
        return tuple(changes)
    links = tuple(part for change in changes for part in _parts(change) if not isinstance(part, WorldSize))
    schedule = next((change for change in changes if isinstance(change, Reschedule)), Reschedule())
    made, found = Replicate(ranks[0], links, schedule), list[Change]()
    for change in changes:
        if isinstance(change, Communication):
            found.append(made)
        elif not isinstance(change, Reschedule):
            found.append(change)
    return tuple(found)


def _parts(change: Change) -> tuple[LinkChange, ...]:
    return change.parts if isinstance(change, Communication) else ()


class _Plan:
    """The all-reduces that are inserted, as tasks behind those of the model: arrivals first, then transfers."""

    def __init__(self, model: Model) -> None:
        self._of = model
        self._durations = model.graph.duration_ns.copy()
        self._bytes, self._at, self._step, self._number = list[int](), list[int](), list[int](), list[int]()
        self._waits: list[tuple[Int64, Int64, int, EdgeKind]] = []
        """Source, number of the all-reduce whose arrival waits for it."""
        self._joins: list[tuple[int, int, int]] = []
        """Number of the all-reduce, the task that waits for its end, and the lag."""

    def send(self, step: GradientStep, number: int, schedule: Reschedule) -> None:
        """Insert the all-reduces of a step.

        Args:
            number: that of the step.
        """
        ends = schedule.buckets(step.bytes)
        sizes = np.diff(np.concatenate(([0], np.cumsum(step.bytes)[np.array(ends) - 1])))
        ready = step.ready[:, -1:] if schedule.schedule == "naive" else step.ready[:, np.array(ends) - 1]
        ready = np.broadcast_to(ready, (len(ready), len(ends)))
        first = len(self._bytes)
        self._bytes += sizes.tolist()
        self._step += [number] * len(ends)
        self._number += range(len(ends))
        self._at += self._of.graph.end_ns[ready].max(axis=0).tolist()
        for own in ready:
            self._waits.append((own, first + np.arange(len(ends)), 0, EdgeKind.PRODUCE))
        copied = copy_ns(self._of, step.bytes) if schedule.in_buckets else np.zeros_like(step.bytes)
        for own, process in zip(step.ready, self._of.processes, strict=True):
            np.add.at(self._durations, own, copied)
            if not process.on_cpu:
                self._request(process, own[np.array(ends) - 1])
        self._join(step, first, sizes, int(copied.sum()), divided=schedule.schedule == "overlap-optimizer")

    def _request(self, process: Process, ready: Int64) -> None:
        """Let the host request an all-reduce behind the launch of each of these kernels."""
        call = process.device.launched_by[ready - int(process.interval_tasks[0])]
        np.add.at(self._durations, process.host_tasks.begin[call], _REQUEST_NS)

    def _join(self, step: GradientStep, first: int, sizes: Int64, back_ns: int, *, divided: bool) -> None:
        """Let what follows the last gradient wait for the last all-reduce, or for each as far as it needs it.

        Args:
            first: number of the step's first all-reduce.
            back_ns: what copying the gradients out of their buckets takes.
        """
        for index, process in enumerate(self._of.processes):
            task = first_after(self._of, process, int(step.ready[index, -1]))
            if task < 0:
                continue
            resume = back_ns + (RESUME_NS if process.on_cpu else 0)
            if not divided:
                self._joins.append((first + len(sizes) - 1, task, resume))
                continue
            work = optimizer_ns(self._of, index) / process.step_count
            done = (np.cumsum(sizes) - sizes) / max(1, int(sizes.sum()))
            self._joins += [(first + i, task, resume - round(share * work)) for i, share in enumerate(done.tolist())]

    def model(self, ranks: int) -> Model:
        """Return the model with these tasks, whose transfers take no time yet."""
        of, graph, count = self._of, self._of.graph, len(self._bytes)
        arrival = len(graph) + np.arange(count)
        transfer = arrival + count
        at = np.array(self._at, np.int64)
        names = graph.names if _NAME in graph.names else (*graph.names, _NAME)
        kinds = np.repeat(np.array([TaskKind.ARRIVAL, TaskKind.TRANSFER], np.uint8), count)
        owner = np.repeat(np.array([0, NO_PROCESS], np.int32), count)
        none = np.full(2 * count, -1, np.int32)
        wider = replace(
            graph,
            start_ns=np.concatenate((graph.start_ns, at, at)),
            duration_ns=np.concatenate((self._durations, np.zeros(2 * count, np.int64))),
            end_ns=np.concatenate((graph.end_ns, at, at)),
            kind=np.concatenate((graph.kind, kinds)),
            process=np.concatenate((graph.process, owner)),
            name=np.concatenate((graph.name, np.full(2 * count, names.index(_NAME), np.int32))),
            operator=np.concatenate((graph.operator, none)),
            names=names,
        )
        transfers = self._transfers(arrival, transfer, at)
        timelines, place = self._timelines(arrival, at, ranks)
        run = dataclasses.replace(of.run, timelines=timelines, devices=(), world_size=ranks)
        over = np.concatenate((of.over, transfer, transfer))
        wide = replace(of, run=run, graph=wider, transfers=transfers, over=over, place=place)
        return wide.with_edges(self._edge(arrival, transfer))

    def _edge(self, arrival: Int64, transfer: Int64) -> Edge:
        edges = Edges()
        for source, target, lag, kind in self._waits:
            edges.add(source, arrival[target], lag, kind)
        edges.add(transfer[:-1], arrival[1:], 0, EdgeKind.STREAM)
        edges.add(arrival, transfer, 0, EdgeKind.RENDEZVOUS)
        joins = np.array(self._joins, np.int64).reshape(-1, 3)
        edges.add(transfer[joins[:, 0]], joins[:, 1], joins[:, 2], EdgeKind.JOIN)
        return Edge.concat([self._of.graph.edge, edges.table()])

    def _transfers(self, arrival: Int64, transfer: Int64, at: Int64) -> Transfers:
        count = len(transfer)
        return Transfers(
            arrived_ns=at,
            duration_ns=np.zeros(count, np.int64),
            end_ns=at,
            kind=np.full(count, "all_reduce", object),
            dtype=np.full(count, "Float", object),
            bytes=np.array(self._bytes, np.int64),
            group=np.zeros(count, np.int32),
            absent=np.zeros(count, np.bool_),
            sized=np.ones(count, np.bool_),
            shown=np.ones(count, np.bool_),
            match=np.full(count, -1),
            task=transfer,
            arrival=arrival,
            instance=np.arange(count),
        )

    def _timelines(
        self, arrival: Int64, at: Int64, ranks: int
    ) -> tuple[tuple[Timeline, ...], tuple[tuple[int, Int64], ...]]:
        """Return the timelines with the inserted intervals on the first device, and the task of each interval."""
        of = self._of
        first = of.run.timelines[0]
        index, tasks = of.place[0]
        placed = np.flatnonzero(tasks >= 0)[:1]
        # From the clock that ranks share to that of the timeline.
        start = at + int((first.start_ns[placed] - of.graph.start_ns[tasks[placed]]).sum())
        collectives = tuple(
            Collective(_NAME, size, "Float", "data parallel", ranks, seq, label=f"bucket {number}", gradients=True)
            for seq, (size, number) in enumerate(zip(self._bytes, self._number, strict=True))
        )
        more = {
            "start_ns": start,
            "end_ns": start,
            "name": np.full(len(at), len(first.names)),
            "kind": np.full(len(at), Kind.COMMUNICATION),
            "phase": np.full(len(at), Phase.BACKWARD),
            "step": np.array(self._step),
            "lane": np.full(len(at), int(first.lane.max(initial=0)) + 1),
            "collective": len(first.collectives) + np.arange(len(at)),
            "launch_ns": start,
            "recompute": np.zeros(len(at), np.bool_),
        }
        joined = {
            column: np.concatenate((old := getattr(first, column), more[column].astype(old.dtype)))
            for column in COLUMNS
        }
        wider = replace(first, names=(*first.names, _NAME), collectives=(*first.collectives, *collectives), **joined)
        order = np.argsort(wider.start_ns, kind="stable")
        place = (index, np.concatenate((tasks, arrival))[order])
        return (wider.take(order), *of.run.timelines[1:]), (place, *of.place[1:])
