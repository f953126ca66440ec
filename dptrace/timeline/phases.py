"""Forward, backward, optimizer or other: derived from how work was launched, never from its name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dptrace.core.arrays import mask_of
from dptrace.core.intervals import Int64
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.launches import last_enclosing
from dptrace.timeline.model import Phase
from dptrace.timeline.pipeline_actions import backward_actions
from dptrace.timeline.steps import CpuSteps

__all__ = ["MARK", "WRAPPER", "backward_starts", "phases"]

MARK = "dptrace::"
"""Start of the labels that dptrace's recorder puts around a phase: ``dptrace::forward`` …"""
WRAPPER = "autograd::engine::evaluate_function"
"""Start of the name of the event in which the autograd engine runs one node."""

_SHARDS_BACKWARD = (
    # Labels of the hooks of fully_shard and FSDP1; the last of them run after autograd's last node.
    *("FSDP::pre_backward", "FSDP::post_backward", "FSDP::root_post_backward"),
    *("FullyShardedDataParallel._pre_backward", "FullyShardedDataParallel._post_backward"),
)
_OPTIMIZER, _OPTIMIZER_STEP = "Optimizer.", "Optimizer.step"
"""Starts of the labels that torch puts around all that an optimizer does, and around its step."""
_MARKED = {f"{MARK}{phase.name.lower()}": phase for phase in Phase} | {f"{MARK}evaluation": Phase.OTHER}
_CLOSURE = f"{MARK}closure"
"""The recorder's mark around each call of a closure by ``Optimizer.step``: the code inside is like the loop's own."""
_NODE = re.compile(r"(?:Backward\d*|^torch::autograd::AccumulateGrad)$")


def phases(trace: Trace, steps: CpuSteps, thread: NDArray[np.int32], time: Int64) -> NDArray[np.uint8]:
    """Return the phase of the work launched at each (thread, time).

    The first match counts:

    1. a mark of dptrace's recorder;
    2. of a node of the autograd engine, a pipeline's or FSDP's backward label, ``Optimizer.*``, and the mark of a
       closure that ``Optimizer.step`` calls, the innermost; directly inside a closure, rules 4 and 5 decide;
    3. inside an ``Optimizer.step`` whose closures are not marked, but before the end of the last backward function
       that began within it: forward, by the closure that the step calls;
    4. in a step with backward work: forward if launched before the step's last backward function ended, else other;
    5. in a trace without backward: forward.
    """
    functions = _backward_functions(trace)
    phase = _by_order(trace, steps, np.flatnonzero(functions), time)
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    backward = functions | backward_actions(trace) | (on_cpu & trace.named(*_SHARDS_BACKWARD))
    optimizer = on_cpu & trace.named(_OPTIMIZER)
    closure = on_cpu & trace.named(_CLOSURE)
    innermost = last_enclosing(trace, backward | optimizer | closure, thread, time)
    found = (innermost >= 0) & ~closure[innermost]
    in_optimizer = found & optimizer[innermost]
    in_closure = in_optimizer & (time < _closure_end(trace, functions, backward, optimizer, closure)[innermost])
    phase[found & ~in_optimizer] = Phase.BACKWARD
    phase[in_optimizer] = Phase.OPTIMIZER
    phase[in_closure] = Phase.FORWARD
    marks = on_cpu & trace.events_named(np.array([name in _MARKED for name in trace.names], np.bool_))
    mark = last_enclosing(trace, marks, thread, time)
    marked = np.flatnonzero(mark >= 0)
    meaning = np.array([_MARKED.get(name, Phase.OTHER) for name in trace.names], np.uint8)
    phase[marked] = meaning[trace.name[mark[marked]]]
    return phase


def _closure_end(
    trace: Trace,
    functions: NDArray[np.bool_],
    backward: NDArray[np.bool_],
    optimizer: NDArray[np.bool_],
    closure: NDArray[np.bool_],
) -> Int64:
    """Return for each event when the closure that it calls ends its last backward function, in ns.

    The functions may run on the engine's own threads, so time alone shows which began within an ``Optimizer.step``.
    Events that are no ``Optimizer.step``, or call no closure, have the smallest time. So do steps whose closures are
    marked, and those that run inside backward: they are in a gradient hook, and other threads of the engine go on.
    """
    until = np.full(len(trace), np.iinfo(np.int64).min)
    begun = np.flatnonzero(functions)
    steps = np.flatnonzero(optimizer & trace.named(_OPTIMIZER_STEP))
    if not len(begun) or not len(steps):
        return until
    steps = steps[last_enclosing(trace, backward, trace.thread[steps], trace.start_ns[steps]) < 0]
    marks = np.flatnonzero(closure)
    around_marks = last_enclosing(trace, optimizer, trace.thread[marks], trace.start_ns[marks])
    steps = steps[~mask_of(around_marks, len(trace))[steps]]
    first = np.searchsorted(trace.start_ns[begun], trace.start_ns[steps])
    last = np.searchsorted(trace.start_ns[begun], trace.end_ns[steps], side="right")
    # The latest end of those within; one entry beyond all for reduceat, which returns it where there is none.
    ends = np.append(trace.end_ns[begun], until[:1])
    latest = np.maximum.reduceat(ends, np.stack((first, last), axis=1).reshape(-1))[::2]
    until[steps[last > first]] = latest[last > first]
    return until


def _backward_functions(trace: Trace) -> NDArray[np.bool_]:
    ops: NDArray[np.bool_] = trace.category == Category.CPU_OP
    wrapped = ops & trace.named(WRAPPER)
    if wrapped.any():
        return wrapped
    # Before torch 1.9 the engine had no event of its own: the nodes' operators replace it.
    return ops & trace.events_named(np.array([bool(_NODE.search(name)) for name in trace.names], np.bool_))


def backward_starts(trace: Trace) -> Int64:
    """Return when each backward function began, ascending."""
    return trace.start_ns[_backward_functions(trace)]


def _by_order(trace: Trace, steps: CpuSteps, backward: Int64, time: Int64) -> NDArray[np.uint8]:
    """Separate forward from other by launch time, for work without other evidence."""
    if not len(backward):
        return np.full(len(time), Phase.FORWARD, np.uint8)
    # The times before the first step and after the last are two more steps, last and second to last.
    last_end = np.full(len(steps) + 2, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last_end, steps.index_at(trace.start_ns[backward]), trace.end_ns[backward])
    return np.where(time < last_end[steps.index_at(time)], Phase.FORWARD, Phase.OTHER).astype(np.uint8)
