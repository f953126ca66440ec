"""Sample one run for a comparison: its steady steps, the same on all its GPUs."""

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
from dptrace.core.units import plural
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Timeline

__all__ = ["DeviceId", "RunSample", "devices_by_id", "kernel_name", "sample_run"]

DeviceId = tuple[int, int]
"""A rank, and the index of its GPU: 0 unless the rank has several."""


@dataclass(frozen=True)
class RunSample:
    """One of the two runs: some of its GPUs, with the same steps for each."""

    run: Run
    device_ids: tuple[DeviceId, ...]
    devices: tuple[DeviceFigures, ...]
    """In the order of ``device_ids``."""
    steps: tuple[str, ...]
    left_out: tuple[tuple[str, int], ...]
    """Outlier steps, with their wall time in ns."""
    step_index: Int64
    """Index of each step in each device's own steps: devices by steps."""
    notes: tuple[str, ...]

    def index(self, device_id: DeviceId) -> int:
        """Return the index of a GPU in ``devices``."""
        return self.device_ids.index(device_id)

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Each figure and idle cause by name: ns, devices by steps."""
        figures = {name: self._in_steps([device.split.figures[name] for device in self.devices]) for name in FIGURES}
        return figures | {name: self._in_steps([d.idle_causes[name] for d in self.devices]) for name in CAUSES}

    def _in_steps(self, columns: list[Int64]) -> Int64:
        return np.stack([column[index] for column, index in zip(columns, self.step_index, strict=True)])

    def kernels(self) -> dict[tuple[str, str], Float]:
        """Compute, by kind (compute or memory) and name: ns and count in each step, as means over the GPUs."""
        kernels: dict[tuple[str, str], Float] = {}
        for timeline, step in self._sampled_steps():
            for kind, word in ((Kind.COMPUTE, "compute"), (Kind.MEMORY, "memory")):
                chosen = (timeline.kind == kind) & (step >= 0)
                time = (timeline.end_ns - timeline.start_ns)[chosen]
                sums = self._sums(timeline.name[chosen], step[chosen], len(timeline.names), time)
                for index in np.flatnonzero(sums[1].any(axis=1)):
                    key = word, kernel_name(timeline.names[index])
                    kernels[key] = kernels.get(key, 0) + sums[:, index] / len(self.devices)
        return kernels

    def collectives(self) -> dict[Collective, Float]:
        """Compute, by kind, group and size: ns, exposed ns, overlapped ns and count in each step, as means over GPUs.

        The keys have no sequence number.
        """
        collectives: dict[Collective, Float] = {}
        for device, (timeline, step) in zip(self.devices, self._sampled_steps(), strict=True):
            chosen = (timeline.collective >= 0) & (step >= 0)
            time = (timeline.end_ns - timeline.start_ns)[chosen]
            values = time, device.exposed_ns[chosen], device.overlapped_ns[chosen]
            sums = self._sums(timeline.collective[chosen], step[chosen], len(timeline.collectives), *values)
            for index in np.flatnonzero(sums[-1].any(axis=1)):
                c = timeline.collectives[index]
                key = Collective(c.kind, c.bytes, c.dtype, c.group, c.group_size)
                collectives[key] = collectives.get(key, 0) + sums[:, index] / len(self.devices)
        return collectives

    def _sampled_steps(self) -> Iterator[tuple[Timeline, NDArray[np.int64]]]:
        """Yield each timeline, and the index of the sampled step that launched each interval; -1 for no such step."""
        for device, index in zip(self.devices, self.step_index, strict=True):
            sampled = np.full(
                len(device.timeline.windows) + 2, -1, np.int64
            )  # the last two: before and after the steps
            sampled[index] = np.arange(len(index))
            yield device.timeline, sampled[device.timeline.step]

    def _sums(self, code: Any, step: NDArray[np.int64], codes: int, *values: Int64) -> Float:
        """Sum values, and count, by code and step; shape: values and count, by codes, by steps."""
        cell = code.astype(np.int64) * len(self.steps) + step
        shape = codes, len(self.steps)
        sums = [np.bincount(cell, weights, codes * len(self.steps)).reshape(shape) for weights in values]
        count = np.bincount(cell, minlength=codes * len(self.steps)).reshape(shape)
        return np.stack([*sums, count]).astype(np.float64)


def devices_by_id(run: Run) -> dict[DeviceId, DeviceFigures]:
    """Return the GPUs of a run by rank and index among the rank's GPUs."""
    devices: dict[DeviceId, DeviceFigures] = {}
    for device in run.devices:
        rank = device.timeline.rank
        devices[rank, sum(other == rank for other, _ in devices)] = device
    return devices


def sample_run(run: Run, chosen: Collection[DeviceId], every_step: bool = False) -> RunSample:
    """Sample the chosen GPUs of a run in the steps that all of them have, without outliers.

    Args:
        every_step: keep the outliers too.
    """
    chosen_devices = {device_id: device for device_id, device in devices_by_id(run).items() if device_id in chosen}
    devices = tuple(chosen_devices.values())
    names, step_index, notes = _common([device.split.names for device in devices])
    wall = np.stack([d.split.figures["wall_ns"][row] for d, row in zip(devices, step_index, strict=True)])
    wall = wall.mean(axis=0)
    kept = np.ones(len(names), np.bool_) if every_step else steady(wall)
    return RunSample(
        run=run,
        device_ids=tuple(chosen_devices),
        devices=devices,
        steps=tuple(name for name, keep in zip(names, kept, strict=True) if keep),
        left_out=tuple((name, int(w)) for name, w, keep in zip(names, wall, kept, strict=True) if not keep),
        step_index=step_index[:, kept],
        notes=notes,
    )


def _common(names: list[tuple[str, ...]]) -> tuple[tuple[str, ...], Int64, tuple[str, ...]]:
    """Find the steps that all GPUs have, by name, and their indices in each; by order where no name is shared."""
    shared = [name for name in dict.fromkeys(names[0]) if all(name in other for other in names[1:])]
    if shared:
        index = [[gpu_names.index(name) for name in shared] for gpu_names in names]
        most = max(map(len, names))
        fewer = (f"Only the {plural(len(shared), 'step')} that all ranks have are compared.",)
        return tuple(shared), np.array(index, np.int64), fewer if len(shared) < most else ()
    count = min(map(len, names))
    index = [list(range(count)) for _ in names]
    return names[0][:count], np.array(index, np.int64), ("The ranks share no step name: steps are paired by order.",)


_COMPILER_SPELLING = re.compile(r"^void |\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::| \[clone [^\]]*\]$")


def kernel_name(name: str) -> str:
    """Return a kernel's name without parts that compilers spell differently; template arguments stay.

    >>> kernel_name("void at::(anonymous namespace)::copy<float, 4>(int)  [clone .kd]")
    'at::copy<float, 4>(int)'
    """
    return " ".join(_COMPILER_SPELLING.sub("", name).split()) or name
