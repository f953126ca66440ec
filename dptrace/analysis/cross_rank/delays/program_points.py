"""Points of the program that all ranks of a group pass: between two of them, all run the same code."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, median
from dptrace.timeline.model import UNKNOWN

__all__ = ["ProgramPoints"]


class ProgramPoints(msgspec.Struct, frozen=True, dict=True):
    """Step starts, launches of the group's collectives, and returns of blocking calls: points × devices, ascending."""

    own_ns: Int64
    """On each device's own host clock."""
    aligned_ns: Int64
    """On the reference's clock."""
    of_row: NDArray[np.int64]
    """The point of each collective's launch; -1 where a launch is not recorded."""
    _launch_aligned_ns: Int64

    def __len__(self) -> int:
        return len(self.own_ns)

    @classmethod
    def of(
        cls, devices: Sequence[DeviceFigures], numbers: Sequence[int], launch_ns: Int64, clocks: Clocks | None
    ) -> ProgramPoints:
        """Find the points of a group.

        Args:
            devices: the figures of the group's devices.
            numbers: their indices into the clocks.
            launch_ns: launches of the group's collectives on each host's own clock, rows × devices.
            clocks: offsets of the clocks; None to use each device's own.
        """

        def align(own: Int64) -> Int64:
            columns = [clocks.align(n, own[:, i]) if clocks else own[:, i] for i, n in enumerate(numbers)]
            return np.stack(columns, axis=1)

        known = np.flatnonzero((launch_ns != UNKNOWN).all(axis=1))
        points = np.concatenate([_step_starts(devices), launch_ns[known]])
        row = np.concatenate([np.full(len(points) - len(known), -1), known])
        order = np.argsort(median(align(points), axis=1), kind="stable")
        points, row = _with_returns(devices, points[order], row[order])
        of_row = np.full(len(launch_ns), -1, np.int64)
        of_row[row[row >= 0]] = np.flatnonzero(row >= 0)
        return cls(points, align(points), of_row, align(launch_ns))

    def segment(self, point: int, column: int) -> tuple[int, int]:
        """Return start and end of the segment that ends at a point, on a device's own clock; 0, 0 if there is none."""
        if point < 0 or not len(self):
            return 0, 0
        return int(self.own_ns[max(point - 1, 0), column]), int(self.own_ns[point, column])

    def queued_ns(self, row: int, start_ns: Int64) -> Int64:
        """Return how long after its launch a collective started on each device; *start_ns* are on aligned clocks."""
        queued: Int64 = start_ns - self._launch_aligned_ns[row]
        return queued


def _step_starts(devices: Sequence[DeviceFigures]) -> Int64:
    """Return the starts on the host of the steps that all devices have, steps × devices."""
    starts = []
    for device in devices:
        host, names = device.timeline.host, device.timeline.windows.names
        starts.append(dict(zip(names, host.step_ns.tolist(), strict=False)))
    common = [name for name in starts[0] if all(name in others for others in starts[1:])]
    rows = [[own[name] for own in starts] for name in common]
    return np.array(rows, np.int64).reshape(-1, len(devices))


def _with_returns(
    devices: Sequence[DeviceFigures], points: Int64, row: NDArray[np.int64]
) -> tuple[Int64, NDArray[np.int64]]:
    """Add the returns of blocking calls between two points where all devices have equally many: hosts become level."""
    if not len(points):
        return points, row
    returned = [device.timeline.host.returned_ns for device in devices]
    passed = np.stack([np.searchsorted(r, points[:, i], side="right") for i, r in enumerate(returned)], axis=1)
    count = np.diff(passed, axis=0)
    level = np.flatnonzero((count == count[:, :1]).all(axis=1) & (count[:, 0] > 0))
    if not len(level):
        return points, row
    times = count[level, 0]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    index = np.repeat(passed[level], times, axis=0) + nth[:, None]
    calls = np.stack([r[index[:, i]] for i, r in enumerate(returned)], axis=1)
    after = np.repeat(level, times) + 1  # np.insert places each before this point, in order
    return np.insert(points, after, calls, axis=0), np.insert(row, after, -1)
