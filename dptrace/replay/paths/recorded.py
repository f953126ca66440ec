"""Where a recording has the pieces of a critical path: on which device, in which interval, and when."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.paths.path import Links
from dptrace.replay.simulation.simulate import Times

__all__ = ["NOWHERE", "RecordedPath", "recorded_path"]

NOWHERE = -1


class RecordedPath(msgspec.Struct, frozen=True):
    """The places of a path's pieces in the recording; one entry per piece in each column."""

    timeline: Int64
    """Number of the timeline in the whole run: the device's, of the host the first one of its process, of a transfer
    that of the last rank to arrive; NOWHERE where no recorded rank has it."""
    interval: Int64
    """Index of the interval that the piece is the time of; NOWHERE for calls, pauses and latencies."""
    start_ns: Int64
    """On the timeline's own clock, as recorded; the length is that of the replay."""
    end_ns: Int64
    before: NDArray[np.bool_]
    """Whether the piece lies before its task, as the pause before a call, and is not the task's own time."""


def recorded_path(model: Model, times: Times, links: Links) -> RecordedPath:
    """Find the pieces of a path of the unchanged run in its recording."""
    timeline, interval = _owners(model)
    task = _of_a_rank(model, times)[links.task]
    # A lag's piece lies before its task.
    own = links.start_ns >= times.start_ns[links.task]
    number = np.where(task >= 0, timeline[task], NOWHERE)
    moved = model.graph.end_ns[links.task] - times.end_ns[links.task]
    start, end = links.start_ns + moved, links.end_ns + moved
    for place in np.unique(number[number >= 0]).tolist():
        chosen = number == place
        start[chosen], end[chosen] = (_on_own_clock(model, place, column[chosen]) for column in (start, end))
    return RecordedPath(number, np.where(own & (task >= 0), interval[task], NOWHERE), start, end, ~own)


def _owners(model: Model) -> tuple[Int64, Int64]:
    """Return the timeline of each task, and its interval there, or NOWHERE."""
    first = np.array([process.timelines[0][0] for process in model.processes] + [NOWHERE], np.int64)
    timeline = first[model.graph.process]
    interval = np.full(len(model.graph), NOWHERE, np.int64)
    for number, (_, tasks) in enumerate(model.place):
        placed = np.flatnonzero(tasks >= 0)
        timeline[tasks[placed]], interval[tasks[placed]] = number, placed
    return timeline, interval


def _of_a_rank(model: Model, times: Times) -> Int64:
    """Return each task, and in place of a transfer the last arrival at it, or -1."""
    transfers = model.transfers
    task = np.where(model.graph.of(TaskKind.TRANSFER), -1, np.arange(len(model.graph)))
    # The arrival that ends last comes last, and stays.
    order = np.argsort(times.end_ns[transfers.arrival], kind="stable")
    task[transfers.task[transfers.instance[order]]] = transfers.arrival[order]
    return task


def _on_own_clock(model: Model, number: int, time: Int64) -> Int64:
    """Convert times on the shared clock to the clock of a timeline, from its intervals on both."""
    timeline, (_, tasks) = model.run.timelines[number], model.place[number]
    placed = np.flatnonzero(tasks >= 0)
    if not len(placed):
        return time
    shared = model.graph.start_ns[tasks[placed]]
    offset = timeline.start_ns[placed] - shared
    # Relative to the first ones: times since 1970 in ns do not fit the digits of a float.
    drift = np.interp((time - shared[0]).astype(np.float64), shared - shared[0], offset - offset[0])
    own: Int64 = time + offset[0] + np.rint(drift).astype(np.int64)
    return own
