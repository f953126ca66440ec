"""Tasks of the graph: pieces of the host's work, the modules that tasks belong to, and what they do."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.attribution import (
    Attribution,
    CallTree,
    attribute,
    has_modules,
    module_paths,
    modules_of_calls,
)
from dptrace.core.intervals import Int64, first_pair
from dptrace.readers.trace import Category, Trace
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind, is_one_of
from dptrace.replay.graph.process import Process
from dptrace.run.kernels import operator_calls_of
from dptrace.timeline.collectives import last_enclosing, launches
from dptrace.timeline.host_calls import OperatorCalls, SecondPass, reading

# The host time of a process in pieces: its calls, and the pauses between them, without waits.


KEPT_NS = 20_000
"""What remains of a call or a pause that is cut."""


class HostPieces(msgspec.Struct, frozen=True):
    """Calls, pauses and hand-overs between threads; one entry per piece in each column."""

    start_ns: Int64
    """Recorded start and end, on the shared clock."""
    end_ns: Int64
    length_ns: Int64
    """What it takes in the model."""
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    """Of the edge that has the same lag, after a wait instead of after the event before; or -1."""

    @property
    def at_ns(self) -> Int64:
        """When each call starts, and the call after each pause."""
        return np.where(self.index >= 0, self.start_ns, self.end_ns)


def host_pieces(model: Model, process: Process) -> HostPieces:
    """Return the pieces of a process's host time; on a CPU, operators that compute are among its calls."""
    graph = model.graph
    low, high = process.first_task, process.first_task + len(process)
    kinds = (TaskKind.CALL, TaskKind.COMPUTE) if process.on_cpu else (TaskKind.CALL,)
    task = low + np.flatnonzero(is_one_of(graph.kind[low:high], kinds))
    first, last = graph.first[low], graph.first[high]
    edge_kind = graph.edge.kind[first:last]
    edge = first + np.flatnonzero(is_one_of(edge_kind, (EdgeKind.HOST, EdgeKind.THREAD)))
    # An event within another starts with it, whatever its lag.
    edge = edge[graph.edge.from_end[edge]]
    waits = first + np.flatnonzero(edge_kind == EdgeKind.HIDDEN)
    twin = np.full(len(process), -1, np.int64)
    twin[graph.edge.dst[waits] - low] = waits
    twin = twin[graph.edge.dst[edge] - low]
    before, after = graph.end_ns[graph.edge.src[edge]], graph.start_ns[graph.edge.dst[edge]]
    before = np.where(twin >= 0, graph.end_ns[graph.edge.src[twin]], before)
    return HostPieces(
        np.concatenate((graph.start_ns[task], np.minimum(before, after))),
        np.concatenate((graph.end_ns[task], after)),
        np.maximum(np.concatenate((graph.duration_ns[task], graph.edge.lag_ns[edge])), 0),
        np.concatenate((task, -1 - edge)),
        np.concatenate((np.full(len(task), -1), twin)),
    )


def cut_pieces(length_ns: Int64, group: Int64, ns: Int64) -> Int64:
    """Return what to take from each piece: of a group's longest first, and of all where many short ones took the time.

    Args:
        group: the group of each piece, an index into *ns*.
        ns: what to take from each group.
    """
    cut = cut_longest(length_ns, group, ns)
    left = length_ns - cut
    taken, kept = (np.bincount(group, each, len(ns)).astype(np.int64) for each in (cut, left))
    share = np.minimum(1.0, (ns - taken) / np.maximum(kept, 1))
    both: Int64 = cut + np.floor(left * share[group]).astype(np.int64)
    return both


def cut_longest(length_ns: Int64, group: Int64, ns: Int64) -> Int64:
    """Return what to take from each piece so that *ns* go of each group in all, the longest first.

    Pieces of 5, 1 and 3 ms, 6 ms to go → 5, 0 and 1 ms, except for the 20 µs that remain of each.
    """
    order = np.lexsort((-length_ns, group))
    room = np.maximum(length_ns[order] - KEPT_NS, 0)
    # What the longer ones of its group have room for.
    longer = np.cumsum(room) - room
    longer -= longer[np.searchsorted(group[order], group[order])]
    cut = np.empty_like(length_ns)
    cut[order] = np.clip(ns[group[order]] - longer, 0, room)
    return cut


def level_pieces(length_ns: Int64, group: Int64, ns: Int64) -> Int64:
    """Return what to take from each piece so that *ns* go of each group in all, and its longest become equally long.

    Pieces of 35, 35 and 5 ms, 60 ms to go → 30, 30 and 0 ms, except for the 20 µs that remain of each.
    """
    order = np.lexsort((-length_ns, group))
    length, of = length_ns[order], group[order]
    first = np.searchsorted(of, of)
    place = np.arange(len(of)) - first
    total = np.cumsum(length)
    total -= (total - length)[first]
    # With the k longest at the length of the next: what that takes. The last for which it is not too much holds.
    longer = total - (place + 1) * length <= ns[of]
    count = np.bincount(of, longer, len(ns)).astype(np.int64)
    kept = np.bincount(of, length * (place < count[of]), len(ns)).astype(np.int64) - ns
    level = np.maximum(kept // np.maximum(count, 1), KEPT_NS)
    cut = np.empty_like(length_ns)
    cut[order] = np.where(place < count[of], np.maximum(length - level[of], 0), 0)
    return cut


# The module that each task of a graph belongs to, as tables of kernels attribute time to modules.
#
# A kernel belongs to the module around its launch, in backward to that of the forward operator that it differentiates;
# a call of the host to the module around itself; a transfer to that of the collective of the first rank that knows one.
# An operator on a CPU belongs to the module that most of its time is of.


class TaskModules(msgspec.Struct, frozen=True):
    """The modules of a run's tasks."""

    names: tuple[str, ...]
    """Paths of modules: ``layers.3.attn``, ``GPT_0/Block_3/Linear_1``."""
    module: Int64
    """Index of each task's module, or -1."""


def modules_of_tasks(model: Model) -> TaskModules:
    """Read the operators and labels of all ranks that recorded modules, and attribute the tasks of a graph to them.

    Raises:
        DptraceError: a file can't be read again.
    """
    numbers: dict[str, int] = {}
    module = np.full(len(model.graph), -1, np.int64)
    for process in model.processes:
        if not has_modules(process.names):
            continue
        recorded = operator_calls_of(model.run, model.run.timelines[process.timelines[0][0]])
        paths, path = module_paths(recorded, CallTree(recorded.calls))
        # Paths by the number that all ranks share; the last entry is for what is in no module.
        shared = np.array([*(numbers.setdefault(name, len(numbers)) for name in paths), -1], np.int64)
        of_call = np.append(shared[path], -1)
        _set_host(module, model, process, recorded, of_call)
        for number, tasks in process.timelines:
            pieces = attribute(model.run.timelines[number], recorded)
            found = _of_intervals(pieces, of_call[pieces.module], len(tasks), len(numbers))
            placed = tasks >= 0
            module[tasks[placed]] = found[placed]
    _set_transfers(module, model)
    return TaskModules(tuple(numbers), module)


def _set_host(module: Int64, model: Model, process: Process, recorded: OperatorCalls, of_call: Int64) -> None:
    """Set the modules of host calls, and of the returns of those that block."""
    calls, host = recorded.calls, process.host
    align = model.run.cross_rank.clocks.align
    number = process.timelines[0][0]
    call = first_pair((align(number, calls.start_ns), align(number, calls.end_ns)), (host.start_ns, host.end_ns))
    found = of_call[modules_of_calls(recorded, call)]
    module[process.host_tasks.begin] = found
    module[process.host_tasks.finish] = found


def _of_intervals(pieces: Attribution, module: Int64, intervals: int, modules: int) -> Int64:
    """Return the module of each interval: that of most of its time, or -1."""
    found = np.full(intervals, -1, np.int64)
    known = module >= 0
    pairs, which = np.unique(pieces.interval[known] * max(1, modules) + module[known], return_inverse=True)
    ns = np.bincount(which.reshape(-1), pieces.ns[known], len(pairs))
    # The module with most time comes last, and stays.
    order = np.argsort(ns, kind="stable")
    found[pairs[order] // max(1, modules)] = pairs[order] % max(1, modules)
    return found


def _set_transfers(module: Int64, model: Model) -> None:
    """Set the modules of transfers to those of the collectives that meet in them."""
    transfers = model.transfers
    of_arrival = module[transfers.arrival]
    known = np.flatnonzero(of_arrival >= 0)[::-1]
    module[transfers.task[transfers.instance[known]]] = of_arrival[known]


# What identifies equal work: the kernel, its grid and block, and the shapes of the operator that launched it.


class Work(msgspec.Struct, frozen=True):
    """Numbers of a file's work; two kernels, or two operators of a CPU, with one number do the same, in all files."""

    interval: Int64
    """Of each device interval, in the order of the file."""
    operator: Int64
    """Of each operator, sorted by start."""
    start_ns: Int64
    """Start of each operator, on the file's own clock."""
    name: NDArray[np.int32]
    """Index of each operator's name."""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.interval) + len(self.operator)


def work_of(trace: Trace) -> Work:
    """Number the work of a trace that was read with details."""
    device = np.flatnonzero(trace.category >= Category.KERNEL)
    operators = np.flatnonzero(trace.category == Category.CPU_OP)
    launch = launches(trace, device)
    owner = last_enclosing(trace, trace.category == Category.CPU_OP, trace.thread[launch], trace.start_ns[launch])
    shapes = np.where((launch >= 0) & (owner >= 0), trace.detail[owner], -1)
    return Work(
        _numbers(trace, device, shapes),
        _numbers(trace, operators, trace.detail[operators]),
        trace.start_ns[operators],
        trace.name[operators],
        trace.names,
    )


def _numbers(trace: Trace, events: Int64, shapes: NDArray[Any]) -> Int64:
    """Number events by their name, their grid and block, and the shapes of an event; -1 for none."""
    rows = np.stack((trace.name[events], trace.detail[events], shapes), axis=1).astype(np.int64)
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    return np.array([_number(trace, *row) for row in distinct.tolist()], np.int64)[which.reshape(-1)]


def _number(trace: Trace, name: int, own: int, shapes: int) -> int:
    mine, outer = trace.details[own], trace.details[shapes] if shapes >= 0 else None
    inputs = (outer.shapes, outer.dtypes) if outer is not None else ("", "")
    text = "\0".join((trace.names[name], mine.grid, mine.block, *inputs))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


WORK = SecondPass("equal work", Work, reading(work_of, detailed=True))
"""Reads the work of a rank's file."""
