"""Another schedule of the gradients' all-reduces: one after the other, as they become ready, or in buckets.

The recorded all-reduces of a step become carriers of the new ones. Where there are more buckets than carriers, a
carrier takes several in a row; with t_i the time of bucket i and r_i the end of its last gradient on the last rank,

    end = max over i of (r_i + t_i + t_(i+1) + … + t_last)

which edges with a lag express exactly: bucket i may begin as long after the carrier as the buckets before it take.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.errors import UsageError
from dptrace.model.alpha_beta import Line, bucket_ends
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import Edge, EdgeKind, Edges, TaskKind
from dptrace.replay.graph.per_rank.process import Process
from dptrace.replay.simulation.changes import with_times
from dptrace.replay.transforms.bucket_copies import copy_ns, copy_tasks
from dptrace.replay.transforms.gradients import GradientStep, gradient_steps
from dptrace.replay.transforms.transfer_costs import all_reduce_line
from dptrace.timeline.model import Kind, Phase

__all__ = ["MIB", "RESUME_NS", "SCHEDULES", "Reschedule", "first_after", "optimizer_ns"]

MIB = 1 << 20
SCHEDULES = ("naive", "interleaved", "ddp", "overlap-optimizer")
_FIRST_CAP, _CAP = MIB, 25 * MIB
"""DDP's own: the first bucket is small, so that communication begins early (``kDefaultFirstBucketBytes``)."""
RESUME_NS = 20_000
"""What a host takes at least after a wait."""


class Reschedule(msgspec.Struct, frozen=True):
    """The gradients are reduced by another schedule, or in buckets of another size."""

    schedule: str = "ddp"
    cap_bytes: int | None = None
    """Size at which a bucket of DDP is closed; DDP's own sizes by default."""
    collectives: bool = True
    host: bool = True

    def describe(self) -> str:
        if self.cap_bytes is None:
            return f"schedule {self.schedule}"
        return f"{'' if self.schedule == 'ddp' else self.schedule + ', '}buckets of {self.cap_bytes / MIB:g} MB"

    def apply(self, model: Model) -> Model:
        if self.schedule not in SCHEDULES:
            raise UsageError(f"--schedule {self.schedule}: choose from {', '.join(SCHEDULES)}.")
        line, steps = all_reduce_line(model), gradient_steps(model)
        rebuilt = _Rebuilt(model, line)
        for step in steps:
            ready = np.repeat(step.ready[:, -1:], len(step.bytes), axis=1) if self.schedule == "naive" else step.ready
            if self.in_buckets:
                rebuilt.copy(step)
            rebuilt.carry(step, ready, self.buckets(step.bytes), self.schedule == "overlap-optimizer")
        after = rebuilt.model()
        if self.in_buckets:
            return after
        # What the host does around a copy's launch is backward's own: only the copies go.
        return with_times(after, np.where(copy_tasks(model), 0, after.graph.duration_ns))

    @property
    def in_buckets(self) -> bool:
        """Whether gradients are reduced in DDP's buckets."""
        return self.schedule not in ("naive", "interleaved")

    def buckets(self, sizes: Int64) -> list[int]:
        """Return where each bucket ends among the gradients."""
        if self.schedule in ("naive", "interleaved") and self.cap_bytes is None:
            return list(range(1, len(sizes) + 1))
        if self.cap_bytes is not None:
            return bucket_ends(sizes.tolist(), self.cap_bytes)
        first = bucket_ends(sizes.tolist(), _FIRST_CAP)[0]
        return [first, *(first + end for end in bucket_ends(sizes[first:].tolist(), _CAP))]

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return what the answer takes for granted."""
        found = ["The time of a bucket is that of the run's all-reduces by size."]
        if self.schedule == "overlap-optimizer":
            found.append("The optimizer is assumed to step gradient by gradient, which needs one that steps in hooks.")
        if not all(step.exact for step in gradient_steps(model)):
            found.append("The trace has no shapes: gradients of one all-reduce are assumed to be equally large.")
        if len(model.run.ranks) < model.run.world_size:
            found.append("Ranks that were not recorded are assumed to have their gradients when the recorded ones do.")
        return tuple(found)


class _Rebuilt:
    """A model whose gradients get other all-reduces, step by step."""

    def __init__(self, model: Model, line: Line) -> None:
        self._of, self._line = model, line
        self._edges = Edges()
        graph, edge = model.graph, model.graph.edge
        self._durations, self._lags = graph.duration_ns.copy(), edge.lag_ns.copy()
        self._gone = np.zeros(len(edge), np.bool_)
        self._back_ns = 0
        self._meeting = np.full(len(graph), -1, np.int64)
        meets = edge.of(EdgeKind.RENDEZVOUS) & (graph.kind[edge.src] == TaskKind.ARRIVAL)
        self._meeting[edge.src[meets]] = edge.dst[meets]

    def model(self) -> Model:
        """Return the model with the new edges."""
        edge = replace(self._of.graph.edge, lag_ns=self._lags).filter(~self._gone)
        return with_times(self._of, self._durations).with_edges(Edge.joined([edge, self._edges.table()]))

    def carry(self, step: GradientStep, ready: Int64, ends: list[int], divided: bool) -> None:
        """Let the all-reduces of a step carry these buckets instead.

        Args:
            ready: task at whose end each gradient can be sent: processes × gradients.
            ends: where each bucket ends among the gradients.
            divided: whether the optimizer takes each gradient as it comes.
        """
        arrivals = [np.flatnonzero(self._meeting == meeting) for meeting in step.meetings.tolist()]
        over = [np.unique(self._of.over[own]) for own in arrivals]
        self._release(np.concatenate(arrivals), step.meetings, np.concatenate(over))
        sizes = np.diff(np.concatenate(([0], np.cumsum(step.bytes)[np.array(ends) - 1])))
        took = np.array([round(self._line.seconds(size) * 1e9) for size in sizes.tolist()], np.int64)
        last = np.array(ends) - 1
        chunks = np.array_split(np.arange(len(ends)), min(len(ends), len(step.meetings)))
        for number, meeting in enumerate(step.meetings.tolist()):
            # Carriers that are not needed pass at the end, without taking time.
            chunk = chunks[number] if number < len(chunks) else chunks[-1][:0]
            before = over[number - 1] if number else step.meetings[:0]
            self._send(ready[:, last[chunk]], took[chunk], meeting, before)
            tasks = over[number]
            self._durations[meeting] = 0
            self._durations[tasks] = int(took[chunk].sum())
            self._arrive(arrivals[number], ready[:, last[chunk[:1]]], before)
        done = over[len(step.meetings) - 1]
        self._consume(step, over, done, sizes / max(1, int(sizes.sum())) if divided else None, took, chunks)

    def copy(self, step: GradientStep) -> None:
        """Let each gradient be copied into its bucket, and back after the last all-reduce."""
        took = copy_ns(self._of, step.bytes)
        for own in step.ready:
            np.add.at(self._durations, own, took)
        self._back_ns = int(took.sum())

    def _release(self, arrivals: Int64, meetings: Int64, over: Int64) -> None:
        """Remove what the recorded all-reduces wait for, and what waits for them."""
        edge = self._of.graph.edge
        meets = edge.of(EdgeKind.RENDEZVOUS)
        mine = np.zeros(len(self._of.graph), np.bool_)
        mine[np.concatenate((arrivals, meetings, over))] = True
        self._gone |= (mine[edge.src] | mine[edge.dst]) & ~meets

    def _send(self, ready: Int64, took: Int64, meeting: int, before: Int64) -> None:
        earlier = np.cumsum(took) - took
        for own in ready:
            self._edges.add(own, np.full(len(own), meeting), -earlier, EdgeKind.PRODUCE)
        self._edges.add(before, np.full(len(before), meeting), 0, EdgeKind.STREAM)

    def _arrive(self, arrivals: Int64, ready: Int64, before: Int64) -> None:
        """Let each rank arrive once its own gradients are ready and the all-reduce before is over."""
        for arrival in arrivals.tolist():
            sources = np.append(ready[self._of.graph.process[arrival]], before)
            self._edges.add(sources, np.full(len(sources), arrival), 0, EdgeKind.PRODUCE)

    def _consume(
        self,
        step: GradientStep,
        over: list[Int64],
        done: Int64,
        share: NDArray[np.float64] | None,
        took: Int64,
        chunks: list[Int64],
    ) -> None:
        """Let what follows the all-reduces of the step wait for the last; or for each, as far as it needs it."""
        recorded = self._of.graph.end_ns
        ended = int(max(recorded[tasks].max() for tasks in over))
        for index, process in enumerate(self._of.processes):
            task = self._first_after(process, ended, int(step.ready[index, -1]))
            if task < 0:
                continue
            own = done if len(done) == 1 else done[_own_of(self._of, done, index)]
            if share is None:
                resume = self._back_ns + (RESUME_NS if process.events.on_cpu else 0)
                self._edges.add(own, np.full(len(own), task), resume, EdgeKind.JOIN)
                continue
            optimizer = optimizer_ns(self._of, index) / max(1, len(process.host.marks) - 1)
            passed = 0.0
            for number, chunk in enumerate(chunks):
                mine = over[number] if len(over[number]) == 1 else over[number][_own_of(self._of, over[number], index)]
                self._edges.add(mine, np.full(len(mine), task), -round(passed * optimizer), EdgeKind.JOIN)
                passed += float(share[chunk].sum())

    def _first_after(self, process: Process, ended: int, ready: int) -> int:
        """Return the first work of a process that the all-reduces of a step were over for, or -1."""
        graph = self._of.graph
        if process.events.on_cpu:
            low = process.first_task
            own = low + np.flatnonzero(process.host.kind == TaskKind.COMPUTE)
        else:
            device = process.device
            own = process.interval_tasks[~device.communication]
        at = graph.start_ns[own]
        later = own[(at > graph.start_ns[ready]) & (at >= ended - RESUME_NS)]
        if not len(later):
            return -1
        task = int(later[np.argmin(graph.start_ns[later])])
        self._unwait(task, int(graph.end_ns[ready]))
        return task

    def _unwait(self, task: int, since: int) -> None:
        """Cut a pause of the host that was a wait for the all-reduces."""
        graph = self._of.graph
        edges = slice(graph.first[task], graph.first[task + 1])
        kind, lag = graph.edge.kind[edges], self._lags[edges]
        long = ((kind == EdgeKind.HOST) | (kind == EdgeKind.THREAD)) & (lag > _LONGEST_PAUSE_NS)
        self._lags[edges] = np.where(long, RESUME_NS, lag)


_LONGEST_PAUSE_NS = 1_000_000


def _own_of(model: Model, over: Int64, process: int) -> NDArray[np.bool_]:
    """Return which of these transfers are a process's own, where each rank leaves on its own."""
    arrivals = np.flatnonzero(np.isin(model.over, over) & (model.graph.kind == TaskKind.ARRIVAL))
    own: NDArray[np.bool_] = np.isin(over, model.over[arrivals[model.graph.process[arrivals] == process]])
    return own


def first_after(model: Model, process: Process, ready: int) -> int:
    """Return the first work that a process does after the task with which its last gradient is ready, or -1.

    On a GPU it is what is launched next on any stream, on a CPU the operator that starts next.
    """
    graph = model.graph
    if process.events.on_cpu:
        own = process.first_task + np.flatnonzero(process.host.kind == TaskKind.COMPUTE)
        later = own[graph.start_ns[own] > graph.start_ns[ready]]
        return int(later[np.argmin(graph.start_ns[later])]) if len(later) else -1
    device = process.device
    by = int(device.launched_by[ready - int(process.interval_tasks[0])])
    later = np.flatnonzero(~device.communication & (device.launched_by > by))
    return int(process.interval_tasks[later[np.argmin(device.launched_by[later])]]) if len(later) else -1


def optimizer_ns(model: Model, process: int) -> int:
    """Return the optimizer's compute on a process's first device."""
    number = next(number for number, (index, _) in enumerate(model.place) if index == process)
    timeline = model.run.timelines[number]
    chosen = (timeline.phase == Phase.OPTIMIZER) & (timeline.kind == Kind.COMPUTE)
    return int((timeline.end_ns - timeline.start_ns)[chosen].sum())
