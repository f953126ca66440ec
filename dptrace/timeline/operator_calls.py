"""The host calls of a rank with what ties them to compute: inputs of operators, and the numbers of autograd's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64
from dptrace.readers.sources.source import Source
from dptrace.readers.trace import OperatorInputs, Trace
from dptrace.timeline.host_calls import Flame, HostCalls, indexed_host_calls
from dptrace.timeline.model import Timeline
from dptrace.timeline.second_pass import SecondPass

__all__ = ["OPERATOR_CALLS", "OperatorCalls", "operator_calls"]

_NO_INT32 = np.empty(0, np.int32)


class OperatorCalls(msgspec.Struct, frozen=True, dict=True):
    """Host calls, and for each of them what only operators have; one entry per call in each column."""

    calls: HostCalls = HostCalls()
    inputs: NDArray[np.int32] = msgspec.field(default_factory=lambda: _NO_INT32)
    """Index into ``table``; -1 for calls that are no operators."""
    table: tuple[OperatorInputs, ...] = ()
    sequence: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Autograd's number of the node that the operator creates or runs; -1 without one."""
    forward_thread: NDArray[np.int32] = msgspec.field(default_factory=lambda: _NO_INT32)
    """Autograd's number of the thread that created the node, in backward; 0 elsewhere."""

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def attributed(self) -> dict[int, tuple[Timeline, Any]]:
        """What timelines' intervals belong to among these calls, by the timeline's identity, once it is known."""
        return {}

    @cached_property
    def is_operator(self) -> NDArray[np.bool_]:
        """Which calls are operators; labels that older torch records as operators are not."""
        operators: NDArray[np.bool_] = (self.inputs >= 0) & (self.calls.flame == Flame.CALLS)
        return operators


def operator_calls(trace: Trace) -> OperatorCalls:
    """Collect the calls of a trace that was read with operators."""
    assert trace.operators is not None
    calls, event = indexed_host_calls(trace)
    recorded = trace.operators
    return OperatorCalls(
        calls, recorded.inputs[event], recorded.table, recorded.sequence[event], recorded.forward_thread[event]
    )


def _read(source: Source, patterns: Sequence[str]) -> OperatorCalls:
    from dptrace.readers.kineto.reader import read_trace  # few commands read files again

    return operator_calls(read_trace(source, comm_patterns=patterns, operators=True))


OPERATOR_CALLS = SecondPass("operator calls", OperatorCalls, _read)
"""Reads the operator calls of a rank's file."""
