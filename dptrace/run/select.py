"""Select ranks and steps of a run; their figures stay those of the whole run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.stragglers import Stragglers
from dptrace.analysis.cross_rank.transfers import Latency, Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.core.intervals import Int64
from dptrace.core.notes import SELECTED
from dptrace.core.table import step_number
from dptrace.core.units import ranks_text
from dptrace.errors import UsageError
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import select_steps


def numbers_of_ranks(path: str, devices: Sequence[DeviceFigures], ranks: Collection[int]) -> tuple[int, ...]:
    """Return the indices of the devices of these ranks.

    Raises:
        UsageError: none of the ranks is there; the message lists those of the run.
    """
    numbers = tuple(number for number, device in enumerate(devices) if device.timeline.rank in ranks)
    if not numbers:
        known = ", ".join(str(rank) for rank in sorted({device.timeline.rank for device in devices}))
        raise UsageError(f"{path}: none of the selected ranks is in the run. Choose from {known}.")
    return numbers


class KeptDevice(msgspec.Struct, frozen=True):
    """A device of a run, as far as it is selected."""

    number: int
    """Its index in the run that it was selected from."""
    device: DeviceFigures
    steps: slice
    calls: NDArray[np.bool_]
    """Which of its collectives are kept."""


def all_steps(number: int, device: DeviceFigures) -> KeptDevice:
    """Keep a device whole."""
    calls = np.ones(int((device.timeline.collective >= 0).sum()), np.bool_)
    return KeptDevice(number, device, slice(None), calls)


def with_steps(path: str, devices: Sequence[DeviceFigures], steps: tuple[int, int]) -> tuple[KeptDevice, ...]:
    """Cut the devices to the steps with these numbers; devices without any of them are left out.

    Raises:
        UsageError: no step has such a number; the message names those of the run.
    """
    kept = [*filter(None, (_selected_steps(number, device, *steps) for number, device in enumerate(devices)))]
    if not kept:
        known = _known_steps(devices[0].timeline)
        typed = f"{steps[0]}" if steps[0] == steps[1] else f"from {steps[0]} to {steps[1]}"
        raise UsageError(f"{path}: no step has a number {typed}. {known}")
    return tuple(kept)


def selection_note(first: int, last: int) -> str:
    """Return the note on the selected steps, so that a part is not mistaken for the whole run."""
    which = f"step {first} is" if first == last else f"steps {first} to {last} are"
    return f"{SELECTED}{which} selected."


def ranks_note(ranks: Sequence[int]) -> str:
    """Return the note on the selected ranks: what others do is in no finding."""
    verb = "is" if len(ranks) == 1 else "are"
    return f"{SELECTED}{ranks_text(ranks)} {verb} selected: findings on other ranks are left out."


def _known_steps(timeline: Timeline) -> str:
    names = timeline.windows.names
    if not names:
        return "The run has no steps."
    return f"The run has {names[0]} to {names[-1]}." if len(names) > 1 else f"The run has one step: {names[0]}."


def _selected_steps(number: int, device: DeviceFigures, first: int, last: int) -> KeptDevice | None:
    """Cut a device to the steps with the selected numbers; None where it has no such step."""
    timeline = device.timeline
    numbers = [step_number(name) for name in timeline.windows.names]
    kept = [index for index, own in enumerate(numbers) if own is not None and first <= own <= last]
    if not kept:
        return None
    return cut_to_steps(number, device, kept[0], kept[-1])


def cut_to_steps(number: int, device: DeviceFigures, first: int, last: int) -> KeptDevice:
    """Cut a device to the steps at these places."""
    timeline, intervals = select_steps(device.timeline, first, last)
    calls = intervals[device.timeline.collective >= 0]
    return KeptDevice(number, figures_of(timeline), slice(first, last + 1), calls)


# The analysis of a part of a run, from that of all: who waits for whom does not depend on what is looked at.


def restrict_analysis(whole: CrossRankAnalysis, parts: Sequence[KeptDevice]) -> CrossRankAnalysis:
    """Return the analysis of some devices and steps; figures remain those of the whole run.

    Args:
        parts: the devices to keep, in the order of their numbers.
    """
    kept, offsets = _Kept(whole.matches, parts), whole.clock_rows()
    return replace(
        whole,
        devices=tuple(part.device for part in parts),
        matches=kept.matches(),
        clocks=kept.clocks(whole.clocks),
        timing=kept.timing(whole.timing),
        exposed_waits=tuple(whole.exposed_waits[part.number].select(part.steps, part.calls) for part in parts),
        buckets=replace(whole.buckets, bucket=whole.buckets.bucket[kept.instances]) if whole.buckets else None,
        names=tuple(name for name, stays in zip(whole.names, kept.instances.tolist(), strict=True) if stays),
        latencies=tuple(latency for latency in map(kept.latency, whole.latencies) if len(latency.instances)),
        stragglers=kept.stragglers(whole.stragglers),
        offsets=tuple(offsets[part.number] for part in parts),
    )


class _Kept:
    """What stays of the matches of all devices, and under which number."""

    def __init__(self, matches: Matches, parts: Sequence[KeptDevice]) -> None:
        self._whole, self._numbers = matches, np.array([part.number for part in parts], np.int64)
        self._device = np.full(len(matches.device_ids) + 1, -1, np.int32)  # -1 stays -1
        self._device[self._numbers] = np.arange(len(parts))
        self._steps = {name for part in parts for name in part.device.timeline.windows.names}
        self._index = np.full(len(matches.index), -1, np.int32)
        for part in parts:
            own = matches.device == part.number
            self._index[own] = np.where(part.calls, np.cumsum(part.calls) - 1, -1)[matches.index[own]]
        self.members: NDArray[np.bool_] = self._index >= 0
        count = np.add.reduceat(self.members.astype(np.int64), matches.first[:-1]) if len(matches) else np.empty(0, int)
        self.instances: NDArray[np.bool_] = count > 0
        self._count = count[self.instances]
        self._instance = np.where(self.instances, np.cumsum(self.instances) - 1, -1)

    def matches(self) -> Matches:
        whole, rows, members = self._whole, self.instances, self.members
        device_notes = [(int(self._device[device]), note) for device, note in whole.device_notes]
        columns = ("kind", "bytes", "group", "step", "phase", "synchronizing", "size", "complete")
        return replace(
            whole,
            device_ids=tuple(whole.device_ids[number] for number in self._numbers.tolist()),
            collectives=tuple(c for c, stays in zip(whole.collectives, rows.tolist(), strict=True) if stays),
            **{column: getattr(whole, column)[rows] for column in columns},
            first=np.concatenate((np.zeros(1, np.int64), np.cumsum(self._count))),
            device=self._device[whole.device[members]],
            index=self._index[members],
            **{column: getattr(whole, column)[members] for column in ("start_ns", "end_ns")},
            unmatched=tuple(whole.unmatched[number] for number in self._numbers.tolist()),
            device_notes=tuple((device, note) for device, note in device_notes if device >= 0),
        )

    def clocks(self, whole: Clocks) -> Clocks:
        """Return the kept clocks; one whose reference is not kept has itself as reference, with the same offset."""
        reference = self._device[whole.reference[self._numbers]]
        columns = ("offset_ns", "drift_ppm", "at_ns", "uncertainty_ns", "collectives", "corrected", "misfit")
        return replace(
            whole,
            **{column: getattr(whole, column)[self._numbers] for column in columns},
            reference=np.where(reference >= 0, reference, np.arange(len(reference), dtype=np.int32)),
        )

    def timing(self, whole: Timing) -> Timing:
        rows, members = self.instances, self.members
        return replace(
            whole,
            **{column: getattr(whole, column)[rows] for column in ("transfer_ns", "algbw", "busbw")},
            **{column: getattr(whole, column)[members] for column in ("wait_ns", "late_ns", "late_known", "unsure_ns")},
            last=self._device[whole.last[rows]],
        )

    def latency(self, whole: Latency) -> Latency:
        chosen = self.instances[whole.instances]
        instances: Int64 = self._instance[whole.instances[chosen]]
        return replace(whole, instances=instances, transfer_ns=whole.transfer_ns[chosen], slow=whole.slow[chosen])

    def stragglers(self, whole: Stragglers) -> Stragglers:
        """Return the late arrivals of the kept devices in the kept steps."""
        in_steps = np.isin(self._whole.step.astype(str), [*self._steps])
        kept = whole.take((self._device[whole.device] >= 0) & (self.instances & in_steps)[whole.instance])
        return replace(kept, instance=self._instance[kept.instance], device=self._device[kept.device])
