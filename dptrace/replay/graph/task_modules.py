"""The module that each task of a graph belongs to, as tables of kernels attribute time to modules.

A kernel belongs to the module around its launch, in backward to that of the forward operator that it differentiates; a
call of the host to the module around itself; a transfer to that of the collective of the first rank that knows one. An
operator on a CPU belongs to the module that most of its time is of.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.analysis.kernels.attribution import (
    Attribution,
    CallTree,
    attribute,
    has_modules,
    module_paths,
    modules_of_calls,
)
from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.per_rank.process import Process
from dptrace.run.kernels import operator_calls_of
from dptrace.timeline.host_calls import OperatorCalls

__all__ = ["TaskModules", "modules_of_tasks"]


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
        if not has_modules(process.events.names):
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
    call = _same((align(number, calls.start_ns), align(number, calls.end_ns)), (host.start_ns, host.end_ns))
    found = of_call[modules_of_calls(recorded, call)]
    module[process.host_tasks.begin] = found
    module[process.host_tasks.finish] = found


def _same(known: tuple[Int64, Int64], wanted: tuple[Int64, Int64]) -> Int64:
    """Return the index of a known interval with the start and end of each wanted one, or -1."""
    count = len(known[0])
    if not count:
        return np.full(len(wanted[0]), -1, np.int64)
    # Start and end become one number: those of both sides are numbered together, 7 and 9 of [5, 7, 9] → 1·3 + 2.
    ends, end = np.unique(np.append(known[1], wanted[1]), return_inverse=True)
    _, start = np.unique(np.append(known[0], wanted[0]), return_inverse=True)
    key = start * len(ends) + end
    keys, first = np.unique(key[:count], return_index=True)
    place = np.minimum(np.searchsorted(keys, key[count:]), len(keys) - 1)
    return np.where(keys[place] == key[count:], first[place], -1)


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
