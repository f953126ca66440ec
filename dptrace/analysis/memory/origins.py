"""What the host did when memory was allocated or freed: step, phase, operator and module of each event."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.memory.usage import NOWHERE, Origins
from dptrace.core.intervals import Int64, mask_of
from dptrace.readers.communication import METADATA_PREFIXES
from dptrace.readers.trace import Category, MemoryEvents, Trace
from dptrace.timeline.collectives import last_enclosing, outermost
from dptrace.timeline.steps import MARK, WRAPPER, CpuSteps, phases

__all__ = ["optimizer_steps", "origins_of"]

_STEP_MARK, _OPTIMIZER_STEP = "ProfilerStep#", ("Optimizer.step", f"{MARK}optimizer")
_LABELS = (_STEP_MARK, "Optimizer.", "DistributedDataParallel.", WRAPPER)
"""Starts of the names of operators that only surround others, older torch's labels among them."""
_COMMUNICATES = (
    *METADATA_PREFIXES,
    *("c10d_functional::", "_c10d_functional_autograd::", "torch.distributed.ddp", "torch::distributed::reducer"),
    *("FSDP::all_gather", "FSDP::post_backward_reduce", "fsdp::", "FullyShardedDataParallel._all_gather"),
)
"""Starts of the names of events in which buffers of collectives are allocated."""
_MODULE = re.compile("nn.Module: ")


def origins_of(trace: Trace, steps: CpuSteps, events: MemoryEvents) -> Origins:
    """Return what surrounds each event on its thread."""
    thread, time = events.thread, events.time_ns
    operators = trace.category == Category.CPU_OP
    outer = outermost(trace, np.flatnonzero(operators & ~trace.named(*_LABELS)))
    labels = (trace.category == Category.ANNOTATION) & ~trace.named(_STEP_MARK, MARK, "DistributedDataParallel.")
    on_cpu = operators | (trace.category == Category.ANNOTATION)
    collectives = last_enclosing(trace, on_cpu & trace.named(*_COMMUNICATES), thread, time)
    return Origins(
        step=steps.index_at(time),
        phase=phases(trace, steps, thread, time),
        operator=_name(trace, last_enclosing(trace, mask_of(outer, len(trace)), thread, time)),
        module=_module(trace, labels, thread, time),
        communicates=collectives >= 0,
    )


def _module(trace: Trace, labels: NDArray[np.bool_], thread: NDArray[np.int32], time: Int64) -> NDArray[np.int32]:
    """Return the name of the innermost module around each event, else of the innermost label."""
    is_module = np.fromiter((bool(_MODULE.match(name)) for name in trace.names), np.bool_, len(trace.names))
    modules = (trace.category == Category.PYTHON) & trace.events_named(is_module)
    module = _name(trace, last_enclosing(trace, modules, thread, time))
    label = _name(trace, last_enclosing(trace, labels, thread, time))
    return np.where(module >= 0, module, label).astype(np.int32)


def _name(trace: Trace, event: Int64) -> NDArray[np.int32]:
    return np.where(event >= 0, trace.name[event], NOWHERE).astype(np.int32)


def optimizer_steps(trace: Trace) -> Int64:
    """Return when each step of an optimizer began, ascending; empty where no label shows it."""
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    return np.sort(trace.start_ns[on_cpu & trace.named(*_OPTIMIZER_STEP)])
