"""What one run tells step by step, ready to stand beside another: its steady steps, the same on all its GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.significance import Float, steady
from dptrace.core.intervals import Int64
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Timeline

__all__ = ["DeviceId", "RunSample", "devices_by_id", "kernel_name", "sample_run"]

DeviceId = tuple[int, int]
"""A rank, and which of its GPUs: 0 unless it has several."""


@dataclass(frozen=True)
class RunSample:
    """One of the two runs: some of its GPUs, and of each the same steps."""

    run: Run
    device_ids: tuple[DeviceId, ...]
    devices: tuple[DeviceFigures, ...]
    """In the order of the places."""
    steps: tuple[str, ...]
    left_out: tuple[tuple[str, int], ...]
    """Steps that are no measure of the others, with their wall time in ns."""
    step_index: Int64
    """Index of each step in each device's own steps: devices by steps."""
    notes: tuple[str, ...]

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Give each figure and each cause of idling: ns, devices by steps."""
        found = {name: self._chosen([device.split.figures[name] for device in self.devices]) for name in FIGURES}
        return found | {name: self._chosen([d.idle_causes[name] for d in self.devices]) for name in CAUSES}

    def _chosen(self, columns: list[Int64]) -> Int64:
        return np.stack([column[at] for column, at in zip(columns, self.step_index, strict=True)])

    def kernels(self) -> dict[tuple[str, str], Float]:
        """Give for each kind (compute or memory) and name: ns and count in each step, the mean over the GPUs."""
        found: dict[tuple[str, str], Float] = {}
        for timeline, step in self._stepped():
            for kind, word in ((Kind.COMPUTE, "compute"), (Kind.MEMORY, "memory")):
                chosen = (timeline.kind == kind) & (step >= 0)
                time = (timeline.end_ns - timeline.start_ns)[chosen]
                sums = self._sums(timeline.name[chosen], step[chosen], len(timeline.names), time)
                for index in np.flatnonzero(sums[1].any(axis=1)):
                    key = word, kernel_name(timeline.names[index])
                    found[key] = found.get(key, 0) + sums[:, index] / len(self.devices)
        return found

    def collectives(self) -> dict[Collective, Float]:
        """Give for each sort of collective: count, ns, exposed and overlapped ns in each step, the GPUs' mean.

        One sort is of one kind, in one group, of one size; its sequence number is left out.
        """
        found: dict[Collective, Float] = {}
        for device, (timeline, step) in zip(self.devices, self._stepped(), strict=True):
            chosen = (timeline.collective >= 0) & (step >= 0)
            time = (timeline.end_ns - timeline.start_ns)[chosen]
            values = time, device.exposed_ns[chosen], device.overlapped_ns[chosen]
            sums = self._sums(timeline.collective[chosen], step[chosen], len(timeline.collectives), *values)
            for index in np.flatnonzero(sums[-1].any(axis=1)):
                c = timeline.collectives[index]
                key = Collective(c.kind, c.bytes, c.dtype, c.group, c.group_size)
                found[key] = found.get(key, 0) + sums[:, index] / len(self.devices)
        return found

    def _stepped(self) -> Iterator[tuple[Timeline, NDArray[np.int64]]]:
        """Give each timeline, and of each interval which of the chosen steps launched it; -1 for none."""
        for device, at in zip(self.devices, self.step_index, strict=True):
            place = np.full(len(device.timeline.windows) + 2, -1, np.int64)  # the last two: before and after the steps
            place[at] = np.arange(len(at))
            yield device.timeline, place[device.timeline.step]

    def _sums(self, code: Any, step: NDArray[np.int64], codes: int, *values: Int64) -> Float:
        """Add up values, and count, by code and step: values and count, by codes, by steps."""
        cell = code.astype(np.int64) * len(self.steps) + step
        shape = codes, len(self.steps)
        sums = [np.bincount(cell, weights, codes * len(self.steps)).reshape(shape) for weights in values]
        count = np.bincount(cell, minlength=codes * len(self.steps)).reshape(shape)
        return np.stack([*sums, count]).astype(np.float64)


def devices_by_id(run: Run) -> dict[DeviceId, DeviceFigures]:
    """Give the GPUs of a run by rank and which of the rank's it is."""
    found: dict[DeviceId, DeviceFigures] = {}
    for device in run.devices:
        rank = device.timeline.rank
        found[rank, sum(place[0] == rank for place in found)] = device
    return found


def sample_run(run: Run, chosen: Collection[DeviceId], every_step: bool = False) -> RunSample:
    """Take these GPUs of a run, and the steps that all of them have and that are like each other.

    Args:
        every_step: keep the outliers too.
    """
    chosen_devices = {place: device for place, device in devices_by_id(run).items() if place in chosen}
    devices = tuple(chosen_devices.values())
    names, at, notes = _common([device.split.names for device in devices])
    wall = np.stack([d.split.figures["wall_ns"][row] for d, row in zip(devices, at, strict=True)])
    wall = wall.mean(axis=0)
    kept = np.ones(len(names), np.bool_) if every_step else steady(wall)
    return RunSample(
        run=run,
        device_ids=tuple(chosen_devices),
        devices=devices,
        steps=tuple(name for name, keep in zip(names, kept, strict=True) if keep),
        left_out=tuple((name, int(w)) for name, w, keep in zip(names, wall, kept, strict=True) if not keep),
        step_index=at[:, kept],
        notes=notes,
    )


def _common(names: list[tuple[str, ...]]) -> tuple[tuple[str, ...], Int64, tuple[str, ...]]:
    """Find the steps that all GPUs have, by name, and where in each; by their order where names agree nowhere."""
    shared = [name for name in dict.fromkeys(names[0]) if all(name in other for other in names[1:])]
    if shared:
        at = [[own.index(name) for name in shared] for own in names]
        most = max(len(own) for own in names)
        fewer = (f"Only the {len(shared)} steps that all its ranks have are compared.",) if len(shared) < most else ()
        return tuple(shared), np.array(at, np.int64), fewer
    count = min(len(own) for own in names)
    at = [list(range(count)) for _ in names]
    return names[0][:count], np.array(at, np.int64), ("Its ranks' steps have no name in common: taken by their order.",)


_NEEDLESS = re.compile(r"^void |\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::| \[clone [^\]]*\]$")


def kernel_name(name: str) -> str:
    """Give a kernel's name without what compilers spell differently; its template arguments stay.

    >>> kernel_name("void at::(anonymous namespace)::copy<float, 4>(int)  [clone .kd]")
    'at::copy<float, 4>(int)'
    """
    return " ".join(_NEEDLESS.sub("", name).split()) or name
