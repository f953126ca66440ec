"""Arrows between the members of a collective, the only way to link slices in Chrome's format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dptrace.export.aligned_run import AlignedRun
from dptrace.export.tracks import Track
from dptrace.run.run import Run

__all__ = ["Flows"]

_NONE, _START, _STEP, _END = range(4)
_PHASE = {_START: b"s", _STEP: b"t", _END: b"f"}


class Flows:
    """For each collective, arrows from the rank that starts first to the next, and so on to the last.

    A Chrome flow event binds to the slice that runs on its thread at its time, so each is placed at the start of its
    slice. A reader follows them by time: the first must be a start and the last an end.
    """

    def __init__(self, run: Run, aligned_run: AlignedRun) -> None:
        instances, starts, processes = [], [], []
        for number, (timeline, members, shift) in enumerate(
            zip(run.timelines, aligned_run.members, aligned_run.shifts, strict=True), start=1
        ):
            # An arrow cannot bind to a slice of zero length.
            interval = members.interval
            lasting = (members.instance > 0) & (timeline.end_ns[interval] > timeline.start_ns[interval])
            instances.append(members.instance[lasting])
            starts.append(shift(timeline.start_ns[interval[lasting]]))
            processes.append(np.full(np.count_nonzero(lasting), number))
        instance, start, process = (
            np.concatenate([*columns, np.empty(0, np.int64)]) for columns in (instances, starts, processes)
        )
        order = np.lexsort((process, start, instance))
        instance, process = instance[order], process[order]
        first = np.append(True, instance[1:] != instance[:-1])[: len(instance)]
        last = np.append(first[1:], True)[: len(instance)]
        role = np.where(first, _START, np.where(last, _END, _STEP))
        self.roles = np.full((len(run.timelines) + 1, int(instance.max(initial=0)) + 1), _NONE, np.int8)
        self.roles[process, instance] = np.where(first & last, _NONE, role)

    def arrows(self, track: Track, pid: int, tid: int, base: int) -> Iterator[bytes]:
        """Yield the arrows' events on a track, each as one line."""
        if track.link is None or not np.any(track.link):
            return
        index = np.flatnonzero(track.link > 0)
        index = index[track.end_ns[index] > track.start_ns[index]]
        head = b'"name":"collective","cat":"collective","pid":%d,"tid":%d,"bp":"e","ts":' % (pid, tid)
        for number, start in zip(track.link[index].tolist(), (track.start_ns[index] - base).tolist(), strict=True):
            role = int(self.roles[pid, number])
            if role:
                yield b'{"ph":"%b",%b%d.%03d,"id":%d}' % (_PHASE[role], head, *divmod(start, 1000), number)
