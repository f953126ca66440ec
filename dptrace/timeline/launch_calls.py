"""Why work that was launched began late, as far as calls show it: its launching call still ran, or its stream waited.

::

    host   launch b ▒▒▒▒▒▒▒▒▒▒▒▒       wait for another stream, launch c
    GPU    ├──── launching ────┤ ██ b                           ├─ depending ─┤ ██ c
"""

from __future__ import annotations

import re

import numpy as np

from dptrace.core.intervals import EMPTY, Int64, IntervalSet, union, unique
from dptrace.readers.trace import Category, Trace

LAUNCH_NS = 20_000
"""Work launched to a free stream starts within this, and the call that launches it returns: launches take 3 to 15 µs on
GPUs since 2016."""
WAIT_CALL = re.compile(r"(cuda|hip|cu)StreamWaitEvent(_ptsz)?$")
"""Calls that let a stream wait for another."""


def late_starts(trace: Trace, events: Int64, launch: Int64) -> tuple[IntervalSet, IntervalSet]:
    """Return of the gaps that last on after the launch of what ends them when they are explained.

    Args:
        events: the work of one device, ascending.
        launch: the call that launched each, or -1.

    Returns:
        When the launching call still ran, where it took longer than launches do; and all of the gap after the launch
        where a wait for another stream was called just before.
    """
    start, reach = trace.start_ns[events], np.maximum.accumulate(trace.end_ns[events])
    ended = np.append(np.iinfo(np.int64).min, reach[:-1])
    since = np.maximum(ended, trace.start_ns[launch])
    late = np.flatnonzero((launch >= 0) & (start - since > LAUNCH_NS))
    if not len(late):
        return EMPTY, EMPTY
    since, until, call = since[late], start[late], launch[late]
    returned = np.minimum(trace.end_ns[call], until)
    slow = returned - since > LAUNCH_NS
    waits = np.isin(call, _after_waits(trace, launch))
    return union(since[slow], returned[slow]), union(since[waits], until[waits])


def _after_waits(trace: Trace, launch: Int64) -> Int64:
    """Return the launching calls that follow, on their thread, a call that lets a stream wait for another."""
    waits = np.flatnonzero((trace.category == Category.LAUNCH) & trace.matching(WAIT_CALL.match))
    calls = unique(launch[launch >= 0])
    found = [EMPTY[0]]
    for thread in unique(trace.thread[waits]).tolist():
        own = calls[trace.thread[calls] == thread]
        place = np.searchsorted(own, waits[trace.thread[waits] == thread])
        found.append(own[place[place < len(own)]])
    return np.concatenate(found)
