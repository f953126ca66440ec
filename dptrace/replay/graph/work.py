"""What identifies equal work: the kernel, its grid and block, and the shapes of the operator that launched it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.source import Source
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.collectives import last_enclosing, launches
from dptrace.timeline.host_calls import SecondPass

__all__ = ["WORK", "Work", "work_of"]


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


def _read(source: Source, patterns: Sequence[str]) -> Work:
    # Few commands read a file again.
    from dptrace.readers.kineto.reader import read_trace

    return work_of(read_trace(source, comm_patterns=patterns, detailed=True))


WORK = SecondPass("equal work", Work, _read)
"""Reads the work of a rank's file."""
