"""Another schedule of the gradients' all-reduces: one after the other, as they become ready, or in buckets.

The recorded all-reduces of a step become carriers of the new ones. Where there are more buckets than carriers, a
carrier takes several in a row; with t_i the time of bucket i and r_i the end of its last gradient on the last rank,

    end = max over i of (r_i + t_i + t_(i+1) + … + t_last)

which edges with a lag express exactly: bucket i may begin as long after the carrier as the buckets before it take.
"""

from __future__ import annotations

import json
import math
from typing import ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import EMPTY, Int64
from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.model.alpha_beta import Line, bucket_ends
from dptrace.readers.trace import Trace
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import Edge, EdgeKind, Edges, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.options import SCHEDULES
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.links import all_reduce_line, copy_ns, copy_tasks, no_sized_all_reduce
from dptrace.run.run import Run
from dptrace.timeline.host_calls import SecondPass, reading
from dptrace.timeline.model import Kind, Phase

# Which gradients each step has: when each is ready, its bytes, and the all-reduces that carry them.


_NAME = "torch::autograd::AccumulateGrad"
_ITEM_BYTES = {"double": 8, "float": 4, "c10::half": 2, "c10::bfloat16": 2}
_SIZES = "Record with dptrace record, or with record_shapes=True, so that the trace has the shapes of gradients."


class AccumulatedGradients(Columns, frozen=True):
    """When autograd had each gradient of a rank, in order of time; one entry per gradient in each column."""

    end_ns: Int64
    bytes: Int64
    """0 where the file has no shapes."""


def collect_gradients(trace: Trace) -> AccumulatedGradients:
    """Collect the gradients of a trace that was read with operators."""
    assert trace.operators is not None
    calls = np.flatnonzero(trace.named(_NAME))
    exact = np.fromiter((name == _NAME for name in trace.names), np.bool_, len(trace.names))
    calls = calls[exact[trace.name[calls]]]
    calls = calls[np.argsort(trace.end_ns[calls], kind="stable")]
    table = [_bytes(one.dims, one.dtypes) for one in trace.operators.table]
    inputs = trace.operators.inputs[calls].tolist()
    sizes = np.array([table[one] if one >= 0 else 0 for one in inputs], np.int64)
    return AccumulatedGradients(trace.end_ns[calls], sizes)


def _bytes(dims: str, dtypes: str) -> int:
    """Return the bytes of the first input; 0 where they are not known.

    >>> _bytes("[[8, 512]]", '["float"]')
    16384
    """
    try:
        shape, dtype = json.loads(dims)[0], json.loads(dtypes)[0]
        return int(math.prod(shape)) * _ITEM_BYTES.get(str(dtype).lower(), 0)
    except (ValueError, IndexError, KeyError, TypeError):
        return 0


ACCUMULATED = SecondPass("gradients", AccumulatedGradients, reading(collect_gradients, operators=True))
"""Reads the gradients of a rank's file."""


class GradientStep(msgspec.Struct, frozen=True):
    """The gradients of one step, in the order in which they become ready, and the all-reduces in that of launches."""

    ready: Int64
    """Task at whose end each gradient is ready on each process: processes × gradients."""
    bytes: Int64
    """Of each by its recorded shape, 0 without one; unless they were found in another way."""
    exact: bool = True
    """Whether the bytes are known; otherwise the gradients of an all-reduce share its bytes equally."""
    meetings: Int64 = EMPTY[0]
    """Task of each all-reduce: where its ranks meet."""


def ready_gradients(model: Model) -> tuple[GradientStep, ...]:
    """Find the gradients of each step; a step may have none.

    Raises:
        DptraceError: the run shows none.
    """
    ready = [_ready_by_step(model, process, timeline_at) for process, timeline_at in model.first_timelines]
    counts = {len(tasks) for rank in ready for tasks, _ in rank}
    if not counts or counts == {0}:
        raise DptraceError(
            f"{model.run.path}: the trace has no AccumulateGrad operators, which show when each gradient is ready. "
            "Record operators too (activities=[CPU, CUDA])."
        )
    found = []
    for step in range(min(len(rank) for rank in ready)):
        per_rank = [rank[step] for rank in ready]
        count = min(len(tasks) for tasks, _ in per_rank)
        tasks = np.stack([own[len(own) - count :] for own, _ in per_rank])
        shapes = per_rank[0][1]
        found.append(GradientStep(tasks, shapes[len(shapes) - count :]))
    return tuple(found)


def sized_gradients(model: Model) -> tuple[GradientStep, ...]:
    """Find the gradients of each step of a run without collectives; a step may have none.

    Their bytes are those of their shapes. Without shapes, they share those of the parameters in ``run.json`` equally.

    Raises:
        DptraceError: the run does not show them, or not their sizes.
    """
    steps = ready_gradients(model)
    if all((step.bytes > 0).all() for step in steps):
        return steps
    parameters = model.run.metadata.get("parameters")
    if not isinstance(parameters, int) or parameters <= 0:
        raise DptraceError(f"{model.run.path}: the sizes of gradients are not known. {_SIZES}")
    return tuple(
        GradientStep(step.ready, np.full_like(step.bytes, max(1, 4 * parameters // max(1, len(step.bytes)))), False)
        for step in steps
    )


def gradient_steps(model: Model) -> tuple[GradientStep, ...]:
    """Find the gradients of each step and their all-reduces.

    Raises:
        DptraceError: the run does not show them.
    """
    found = []
    for step, meetings in zip(ready_gradients(model), _meetings_by_step(model), strict=False):
        if step.ready.shape[1] and len(meetings):
            sizes, exact = _bytes_of(model, step.bytes, step.ready[0], meetings)
            found.append(GradientStep(step.ready, sizes, exact, meetings))
    if not found:
        raise DptraceError(f"{model.run.path}: no step has both gradients and all-reduces of them.")
    return tuple(found)


def _ready_by_step(model: Model, process: Process, number: int) -> list[tuple[Int64, Int64]]:
    """Return the tasks at whose ends the gradients of each step are ready, and their bytes."""
    timeline = model.run.timelines[number]
    gradients = model.run.read_again(timeline, ACCUMULATED)
    if gradients is None:
        raise DptraceError(f"{timeline.path or model.run.path}: can't be read again, which its gradients need.")
    at = model.run.cross_rank.clocks.align(number, gradients.end_ns)
    tasks = _last_before(process, at)
    marks = process.host.start_ns[process.host.marks]
    step = np.searchsorted(marks, at, side="right") - 1
    known = tasks >= 0
    steps = max(1, len(marks) - 1)
    within = np.clip(step, 0, None) if not len(marks) else step
    return [(tasks[known & (within == i)], gradients.bytes[known & (within == i)]) for i in range(steps)]


def _last_before(process: Process, at: Int64) -> Int64:
    """Return the task that is last launched before each time: its end is when the gradient is there; or -1."""
    host, device = process.host, process.device
    if process.on_cpu:
        computing = np.flatnonzero(host.kind == TaskKind.COMPUTE)
        order = computing[np.argsort(host.end_ns[computing], kind="stable")]
        place = np.searchsorted(host.end_ns[order], at, side="right") - 1
        return np.where(place >= 0, np.append(process.host_tasks.begin[order], -1)[place], -1)
    launched = np.flatnonzero(~device.communication & (device.launched_by >= 0))
    launched = launched[np.argsort(device.launched_by[launched], kind="stable")]
    place = np.searchsorted(host.start_ns[device.launched_by[launched]], at) - 1
    return np.where(place >= 0, np.append(process.interval_tasks[launched], -1)[place], -1)


def _meetings_by_step(model: Model) -> list[Int64]:
    """Return the tasks in which ranks meet for the all-reduces launched in each step, in the order of arrivals."""
    graph, edge, transfers = model.graph, model.graph.edge, model.transfers
    meets = edge.of(EdgeKind.RENDEZVOUS) & (graph.kind[edge.src] == TaskKind.ARRIVAL)
    arrival, meeting = edge.src[meets], edge.dst[meets]
    kind = dict(
        zip(transfers.task.tolist(), zip(transfers.kind.tolist(), transfers.bytes.tolist(), strict=True), strict=True)
    )
    wanted = np.array([kind[one][0] == "all_reduce" and kind[one][1] > 0 for one in meeting.tolist()], np.bool_)
    first = model.processes[0]
    mine = wanted & (graph.process[arrival] == 0)
    arrival, meeting = arrival[mine], meeting[mine]
    by = first.device.launched_by[arrival - first.interval_tasks[0]] if len(arrival) else arrival
    at = np.where(by >= 0, first.host.start_ns[by], graph.start_ns[arrival])
    order = np.argsort(at, kind="stable")
    marks = first.host.start_ns[first.host.marks]
    step = np.searchsorted(marks, at[order], side="right") - 1
    if not len(marks):
        return [meeting[order]]
    return [meeting[order][step == i] for i in range(len(marks) - 1)]


def _bytes_of(model: Model, shapes: Int64, ready: Int64, meetings: Int64) -> tuple[Int64, bool]:
    """Return the bytes of each gradient, and whether they are exact.

    They are known by its shape, or by an all-reduce of its own. Otherwise it shares the all-reduce that is launched
    next with the others that became ready before that.

    Raises:
        DptraceError: there are all-reduces before which no gradient became ready.
    """
    graph, transfers = model.graph, model.transfers
    if (shapes > 0).all():
        return shapes, True
    own, start = transfers.bytes[meetings - int(transfers.task[0])], graph.start_ns[meetings]
    if len(own) == len(ready):
        # After backward they are in the order of the parameters, in backward in that of the gradients.
        return (own[::-1] if start.min() > graph.end_ns[ready[-1]] else own), True
    # Ends 1 4 6, starts 5 9 → the first two share the first all-reduce.
    next_one = np.minimum(np.searchsorted(np.maximum.accumulate(start), graph.end_ns[ready]), len(own) - 1)
    shared = np.bincount(next_one, minlength=len(own))
    if (shared == 0).any():
        raise DptraceError(f"{model.run.path}: the sizes of {plural(len(ready), 'gradient')} are not known. {_SIZES}")
    return np.maximum(own // shared, 1)[next_one], False


MIB = 1 << 20
_FIRST_CAP, _CAP = MIB, 25 * MIB
"""DDP's own: the first bucket is small, so that communication begins early (``kDefaultFirstBucketBytes``)."""
RESUME_NS = 20_000
"""What a host takes at least after a wait."""


class Reschedule(Change, frozen=True):
    """The gradients are reduced by another schedule, or in buckets of another size."""

    schedule: str = "ddp"
    cap_bytes: int | None = None
    """Size at which a bucket of DDP is closed; DDP's own sizes by default."""

    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True
    host: ClassVar[bool] = True

    def describe(self) -> str:
        if self.cap_bytes is None:
            return f"schedule {self.schedule}"
        return f"{'' if self.schedule == 'ddp' else self.schedule + ', '}buckets of {self.cap_bytes / MIB:g} MB"

    def check(self, run: Run) -> None:
        matches = run.cross_rank.matches
        if len(matches) and not ((matches.kind == "all_reduce") & (matches.bytes > 0)).any():
            raise no_sized_all_reduce(run)

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
        found = ["The time of a bucket is that of the run's all-reduces by size."]
        if self.schedule == "overlap-optimizer":
            found.append("The optimizer is assumed to step gradient by gradient, which needs one that steps in hooks.")
        if not all(step.exact for step in gradient_steps(model)):
            found.append("The trace has no shapes: gradients of one all-reduce are assumed to be equally large.")
        if model.lacks_ranks:
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
        edge = replace(self._of.graph.edge, lag_ns=self._lags).take(~self._gone)
        return with_times(self._of, self._durations).with_edges(Edge.concat([edge, self._edges.table()]))

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
                resume = self._back_ns + (RESUME_NS if process.on_cpu else 0)
                self._edges.add(own, np.full(len(own), task), resume, EdgeKind.JOIN)
                continue
            optimizer = optimizer_ns(self._of, index) / process.step_count
            passed = 0.0
            for number, chunk in enumerate(chunks):
                mine = over[number] if len(over[number]) == 1 else over[number][_own_of(self._of, over[number], index)]
                self._edges.add(mine, np.full(len(mine), task), -round(passed * optimizer), EdgeKind.JOIN)
                passed += float(share[chunk].sum())

    def _first_after(self, process: Process, ended: int, ready: int) -> int:
        """Return the first work of a process that the all-reduces of a step were over for, or -1."""
        graph = self._of.graph
        if process.on_cpu:
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
"""A longer pause of a host is taken for a wait for the recorded messages."""


def _own_of(model: Model, over: Int64, process: int) -> NDArray[np.bool_]:
    """Return which of these transfers are a process's own, where each rank leaves on its own."""
    arrivals = np.flatnonzero(np.isin(model.over, over) & (model.graph.kind == TaskKind.ARRIVAL))
    return np.isin(over, model.over[arrivals[model.graph.process[arrivals] == process]])


def first_after(model: Model, process: Process, ready: int) -> int:
    """Return the first work that a process does after the task with which its last gradient is ready, or -1.

    On a GPU it is what is launched next on any stream, on a CPU the operator that starts next.
    """
    graph = model.graph
    if process.on_cpu:
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
