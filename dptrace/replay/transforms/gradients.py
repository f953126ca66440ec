"""Which gradients each step has: when each is ready, its bytes, and the all-reduces that carry them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.errors import DptraceError
from dptrace.readers.source import Source
from dptrace.readers.trace import Trace
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.per_rank.process import Process
from dptrace.timeline.host_calls import SecondPass

__all__ = [
    "ACCUMULATED",
    "AccumulatedGradients",
    "GradientStep",
    "ReadyGradients",
    "collect_gradients",
    "gradient_steps",
    "ready_gradients",
    "sized_gradients",
]

_NAME = "torch::autograd::AccumulateGrad"
_ITEM_BYTES = {"double": 8, "float": 4, "c10::half": 2, "c10::bfloat16": 2}
_SIZES = "Record with dptrace record, or with record_shapes=True, so that the trace has the shapes of gradients."


class AccumulatedGradients(msgspec.Struct, frozen=True):
    """When autograd had each gradient of a rank, in order of time; one entry per gradient in each column."""

    end_ns: Int64
    bytes: Int64
    """0 where the file has no shapes."""

    def __len__(self) -> int:
        return len(self.end_ns)


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


def _read(source: Source, patterns: Sequence[str]) -> AccumulatedGradients:
    # Few commands read a file again.
    from dptrace.readers.kineto.reader import read_trace

    return collect_gradients(read_trace(source, comm_patterns=patterns, operators=True))


ACCUMULATED = SecondPass("gradients", AccumulatedGradients, _read)
"""Reads the gradients of a rank's file."""


class GradientStep(msgspec.Struct, frozen=True):
    """The gradients of one step, in the order in which they become ready, and the all-reduces in that of launches."""

    ready: Int64
    """Task at whose end each gradient is ready on each process: processes × gradients."""
    bytes: Int64
    exact: bool
    """Whether the bytes are known; otherwise the gradients of an all-reduce share its bytes equally."""
    meetings: Int64
    """Task of each all-reduce: where its ranks meet."""


class ReadyGradients(msgspec.Struct, frozen=True):
    """The gradients of one step, in the order in which they become ready."""

    ready: Int64
    """Task at whose end each gradient is ready on each process: processes × gradients."""
    shapes: Int64
    """Bytes of each by its recorded shape; 0 where there is none."""


def ready_gradients(model: Model) -> tuple[ReadyGradients, ...]:
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
        found.append(ReadyGradients(tasks, shapes[len(shapes) - count :]))
    return tuple(found)


def sized_gradients(model: Model) -> tuple[GradientStep, ...]:
    """Find the gradients of each step of a run without collectives; a step may have none.

    Their bytes are those of their shapes. Without shapes, they share those of the parameters in ``run.json`` equally.

    Raises:
        DptraceError: the run does not show them, or not their sizes.
    """
    steps = ready_gradients(model)
    if all((step.shapes > 0).all() for step in steps):
        return tuple(GradientStep(step.ready, step.shapes, True, step.shapes[:0]) for step in steps)
    parameters = model.run.metadata.get("parameters")
    if not isinstance(parameters, int) or parameters <= 0:
        raise DptraceError(f"{model.run.path}: the sizes of gradients are not known. {_SIZES}")
    return tuple(
        GradientStep(step.ready, np.full(count, max(1, 4 * parameters // max(1, count))), False, step.shapes[:0])
        for step in steps
        for count in [step.ready.shape[1]]
    )


def gradient_steps(model: Model) -> tuple[GradientStep, ...]:
    """Find the gradients of each step and their all-reduces.

    Raises:
        DptraceError: the run does not show them.
    """
    found = []
    for step, meetings in zip(ready_gradients(model), _meetings_by_step(model), strict=False):
        if step.ready.shape[1] and len(meetings):
            sizes, exact = _bytes_of(model, step.shapes, step.ready[0], meetings)
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
    if process.events.on_cpu:
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
