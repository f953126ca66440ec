"""Forward, backward, optimizer or other: derived from how work was launched, never from its name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.launches import enclosing
from dptrace.timeline.model import Phase
from dptrace.timeline.pipeline_actions import backward_actions
from dptrace.timeline.steps import CpuSteps

__all__ = ["MARK", "WRAPPER", "phases"]

MARK = "dptrace::"
"""Start of the labels that dptrace's recorder puts around a phase: ``dptrace::forward`` …"""
WRAPPER = "autograd::engine::evaluate_function"
"""Start of the name of the event in which the autograd engine runs one node."""

_SHARDS_BACKWARD = (
    # Labels of the hooks of fully_shard and FSDP1; the last of them run after autograd's last node.
    *("FSDP::pre_backward", "FSDP::post_backward", "FSDP::root_post_backward"),
    *("FullyShardedDataParallel._pre_backward", "FullyShardedDataParallel._post_backward"),
)
_NODE = re.compile(r"(?:Backward\d*|^torch::autograd::AccumulateGrad)$")


def phases(trace: Trace, steps: CpuSteps, thread: NDArray[np.int32], time: Int64) -> NDArray[np.uint8]:
    """Return the phase of the work launched at each (thread, time).

    The first match counts: a mark of dptrace's recorder; ``Optimizer.*``; a node of the autograd engine, a pipeline's
    backward label, or a label of FSDP's backward hooks; else, in a step with backward work, forward if launched before
    the step's last backward function ended and other after it; forward in a trace without backward.
    """
    backward = _backward_functions(trace)
    phase = _by_order(trace, steps, np.flatnonzero(backward), time)
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    backward |= backward_actions(trace) | (on_cpu & trace.named(*_SHARDS_BACKWARD))
    phase[enclosing(trace, backward, thread, time) >= 0] = Phase.BACKWARD
    phase[enclosing(trace, on_cpu & trace.named("Optimizer."), thread, time) >= 0] = Phase.OPTIMIZER
    labels = {f"{MARK}{phase.name.lower()}": phase for phase in Phase}
    marks = on_cpu & trace.events_named(np.array([name in labels for name in trace.names], np.bool_))
    mark = enclosing(trace, marks, thread, time)
    marked = np.flatnonzero(mark >= 0)
    meaning = np.array([labels.get(name, Phase.OTHER) for name in trace.names], np.uint8)
    phase[marked] = meaning[trace.name[mark[marked]]]
    return phase


def _backward_functions(trace: Trace) -> NDArray[np.bool_]:
    ops: NDArray[np.bool_] = trace.category == Category.CPU_OP
    wrapped = ops & trace.named(WRAPPER)
    if wrapped.any():
        return wrapped
    # Before torch 1.9 the engine had no event of its own: the nodes' operators replace it.
    return ops & trace.events_named(np.array([bool(_NODE.search(name)) for name in trace.names], np.bool_))


def _by_order(trace: Trace, steps: CpuSteps, backward: Int64, time: Int64) -> NDArray[np.uint8]:
    """Separate forward from other by launch time, for work without other evidence."""
    if not len(backward):
        return np.full(len(time), Phase.FORWARD, np.uint8)
    # The times before the first step and after the last are two more steps, last and second to last.
    last_end = np.full(len(steps) + 2, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last_end, steps.index_at(trace.start_ns[backward]), trace.end_ns[backward])
    return np.where(time < last_end[steps.index_at(time)], Phase.FORWARD, Phase.OTHER).astype(np.uint8)
