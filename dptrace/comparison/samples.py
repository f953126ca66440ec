"""Sample one run for a comparison: its steady steps, the same on all its GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.significance import FEWEST_FOR_OUTLIERS, inlier_steps
from dptrace.comparison.step_noise import Float
from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Timeline

__all__ = [
    "COLLECTIVE_VALUES",
    "DeviceId",
    "RunSample",
    "Signature",
    "devices_by_id",
    "kernel_name",
    "matched_times",
    "sample_run",
]

DeviceId = tuple[int, int]
"""A rank, and the index of its GPU: 0 unless the rank has several."""


class Signature(NamedTuple):
    """What a step does: steps with equal signatures are of one kind."""

    optimizer: bool
    """Whether any compute is of the optimizer."""
    collectives: tuple[tuple[str, int], ...]
    """Number of collectives of each kind on the first device, sorted by kind; kinds without any are left out."""


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
    place: Int64
    """Number of each step among those that all devices have, also counting outliers."""
    signatures: tuple[Signature, ...]
    """What each step does."""

    def keep(self, chosen: NDArray[np.bool_]) -> RunSample:
        """Keep some of the steps."""
        kept = np.flatnonzero(chosen)
        return replace(
            self,
            steps=tuple(self.steps[k] for k in kept),
            signatures=tuple(self.signatures[k] for k in kept),
            step_index=self.step_index[:, kept],
            place=self.place[kept],
        )

    @property
    def wall(self) -> Float:
        """The wall time of each step in ns, mean over the devices."""
        wall: Float = self.figures["wall_ns"].mean(axis=0)
        return wall

    def index(self, device_id: DeviceId) -> int:
        """Return the index of a GPU in ``devices``."""
        return self.device_ids.index(device_id)

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Each figure and idle cause by name: ns, devices by steps."""
        figures = {name: self._in_steps([device.split.figures[name] for device in self.devices]) for name in FIGURES}
        return figures | {name: self._in_steps([d.idle_causes[name] for d in self.devices]) for name in CAUSES}

    @cached_property
    def exposed_wait(self) -> Int64 | None:
        """The part of exposed communication that is waiting: ns, devices by steps; None where it is unknown."""
        waits = self.run.cross_rank.exposed_waits
        numbers = {id(device): number for number, device in enumerate(self.run.devices)}
        own = [waits[numbers[id(device)]] for device in self.devices]
        if not all(wait.known[index].all() for wait, index in zip(own, self.step_index, strict=True)):
            return None
        return self._in_steps([wait.wait_ns for wait in own])

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
        """Compute, by kind, group and size, in each step, as means over GPUs: the values of COLLECTIVE_VALUES.

        The keys have no sequence number.
        """
        collectives: dict[Collective, Float] = {}
        times = matched_times(self.run)
        for device, (timeline, step) in zip(self.devices, self._sampled_steps(), strict=True):
            comm = timeline.collective >= 0
            inside = (step >= 0)[comm]
            chosen = comm & (step >= 0)
            time = (timeline.end_ns - timeline.start_ns)[chosen]
            matched = (column[inside] for column in times[id(device)])
            values = time, device.exposed_ns[chosen], device.overlapped_ns[chosen], *matched
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


COLLECTIVE_VALUES = ("duration", "exposed", "overlapped", "transfer", "wait", "matched", "count")
"""Times in ns, and numbers of calls; transfer and wait are those of matched calls only."""


def matched_times(run: Run) -> dict[int, tuple[Int64, Int64, Int64]]:
    """Return transfer and wait of each communication interval in ns, and whether it is matched, by id of the device.

    As the cross-rank analysis has them: the transfer is the shortest duration among the ranks, the wait is the rest.
    Intervals of collectives that lack a rank, or that do not synchronize the ranks, count as not matched.
    """
    matches, timing = run.cross_rank.matches, run.cross_rank.timing
    usable = (matches.complete & matches.synchronizing)[matches.instance]
    found = {}
    for number, device in enumerate(run.devices):
        transfer, wait, matched = np.zeros((3, int((device.timeline.collective >= 0).sum())), np.int64)
        of_device = usable & (matches.device == number)
        index = matches.index[of_device]
        transfer[index] = timing.transfer_ns[matches.instance[of_device]]
        wait[index] = timing.wait_ns[of_device]
        matched[index] = 1
        found[id(device)] = transfer, wait, matched
    return found


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
    signatures = _signatures(devices, step_index)
    kept = np.ones(len(names), np.bool_) if every_step else _steady_by_kind(wall, signatures)
    whole = RunSample(
        run=run,
        device_ids=tuple(chosen_devices),
        devices=devices,
        steps=names,
        left_out=tuple((name, int(w)) for name, w, keep in zip(names, wall, kept, strict=True) if not keep),
        step_index=step_index,
        notes=notes,
        place=np.arange(len(names)),
        signatures=signatures,
    )
    return whole.keep(kept)


def _signatures(devices: Sequence[DeviceFigures], step_index: Int64) -> tuple[Signature, ...]:
    optimizer = np.stack([d.split.figures["optimizer_ns"][row] for d, row in zip(devices, step_index, strict=True)])
    comm = devices[0].split.comm
    counts = {kind: comm[kind].count[step_index[0]] for kind in sorted(comm)}
    return tuple(
        Signature(bool(optimizer[:, k].any()), tuple((kind, int(n[k])) for kind, n in counts.items() if n[k]))
        for k in range(step_index.shape[1])
    )


def _steady_by_kind(wall: Float, signatures: Sequence[Signature]) -> NDArray[np.bool_]:
    """Return which steps have a length like the others of their kind, or, of rare kinds, like all others."""
    kept = inlier_steps(wall)
    for signature in set(signatures):
        same = np.array([other == signature for other in signatures], np.bool_)
        if same.sum() >= FEWEST_FOR_OUTLIERS:
            kept[same] = inlier_steps(wall[same])
    return kept


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
