"""Two runs step by step on one axis: where each step of either begins there, and what time one saves over the other.

::

    A  |===== step 4 ======|===== step 5 =====|
    B  |== step 11 ==|free |== step 12 ==|free|      free: saved, where B is the shorter; lost, where A is

Steps are paired by their order. A step of a run is as long as its ranks need for it together: from the first one's
beginning to the last one's end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.comparison.differences import incomparable
from dptrace.comparison.samples import devices_by_id, sample_run
from dptrace.core.intervals import Int64
from dptrace.errors import DptraceError
from dptrace.run.run import Run

__all__ = ["AlignedSteps", "RunSteps", "TimeSaved", "align_steps", "run_steps"]

_MAX_START_SPREAD = 0.5
"""Share of a step by which ranks' own starts may differ before they are taken for clocks that differ."""


@dataclass(frozen=True)
class RunSteps:
    """Some steps of one run, those that all its GPUs have, in the order in which they ran."""

    run: Run
    devices: tuple[DeviceFigures, ...]
    names: tuple[str, ...]
    step_index: Int64
    """Index of each step in each device's own steps: devices by steps."""
    start_ns: Int64
    """When each step began on each device, in that device's own time: devices by steps."""
    end_ns: Int64
    clocks_apart: bool
    """Whether the ranks' clocks lie so far apart that each is taken to begin each step with the others."""

    @property
    def origin_ns(self) -> Int64:
        """Give what each device's clock showed when the run's step began: devices by steps."""
        first = self.start_ns if self.clocks_apart else self.start_ns.min(axis=0, keepdims=True)
        return np.broadcast_to(first, self.start_ns.shape)

    @property
    def length_ns(self) -> Int64:
        """Give how long the run was at each step: to the end of the last of its ranks."""
        longest: Int64 = (self.end_ns - self.origin_ns).max(axis=0)
        return longest

    def first(self, count: int) -> RunSteps:
        """Keep the first *count* steps."""
        kept = {name: getattr(self, name)[:, :count] for name in ("step_index", "start_ns", "end_ns")}
        return replace(self, names=self.names[:count], **kept)


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """A stretch of the axis in which one run is done with a step, or with all, and the other is not."""

    run: int
    """The run that is done: 0 for A, 1 for B."""
    from_ns: int
    to_ns: int
    saved_ns: int
    """What B takes less than A; negative where it takes more."""
    share: float
    """Of what A takes."""


@dataclass(frozen=True)
class AlignedSteps:
    """Two runs on one axis, which begins at 0."""

    a: RunSteps
    b: RunSteps
    by_step: bool
    """Whether each pair of steps begins at one place; else the runs do, and go on as they ran."""
    slots_ns: Int64
    """Where each pair of steps begins and, last, the end of the axis; of both runs' first and end, unless by step."""
    place_ns: tuple[Int64, Int64]
    """Where each step of A and of B begins on the axis."""
    notes: tuple[str, ...]
    incomparable: str = ""
    """Why neither saves anything against the other; nothing where one does."""

    @property
    def runs(self) -> tuple[RunSteps, RunSteps]:
        """Give A and B."""
        return self.a, self.b

    def shifts(self, which: int) -> Int64:
        """Give what a device's time must be moved by to come to its place on the axis: devices by steps, in ns."""
        moved: Int64 = self.place_ns[which][np.newaxis] - self.runs[which].origin_ns
        return moved

    def total_ns(self) -> tuple[int, int]:
        """Give what A and B took: the sum of their steps, or from the first's beginning to the last's end."""
        taken = [int(self._ends(which)[-1]) for which in (0, 1)]
        if self.by_step:
            taken = [int(one.length_ns.sum()) for one in self.runs]
        return taken[0], taken[1]

    def saved_ns(self) -> int:
        """Give what B takes less than A; negative when it takes more."""
        a, b = self.total_ns()
        return a - b

    def time_saved(self) -> tuple[TimeSaved, ...]:
        """Give the stretches in which one run is done and the other is not; none where they can't be compared."""
        if self.incomparable:
            return ()
        ends = self._ends(0), self._ends(1)
        if not self.by_step:
            ends = ends[0][-1:], ends[1][-1:]
        starts = self.slots_ns[:-1]
        found = []
        for begin, a, b in zip(starts.tolist(), ends[0].tolist(), ends[1].tolist(), strict=True):
            if a != b:
                share = (a - b) / (a - begin) if a > begin else 0.0
                found.append(TimeSaved(1 if a > b else 0, min(a, b), max(a, b), a - b, share))
        return tuple(found)

    def _ends(self, which: int) -> Int64:
        return self.place_ns[which] + self.runs[which].length_ns


def run_steps(
    run: Run, step_names: Collection[str] | None = None, devices: Sequence[DeviceFigures] | None = None
) -> RunSteps:
    """Find the steps that all GPUs of a run have.

    Args:
        wanted: only the steps of these names.
        devices: only these of the run's.

    Raises:
        DptraceError: there is none.
    """
    chosen = run.devices if devices is None else tuple(devices)
    chosen = tuple(device for device in chosen if len(device.timeline.windows))
    if not chosen:
        raise DptraceError(f"{run.path}: there is no step to draw.")
    own = replace(run, timelines=tuple(device.timeline for device in chosen), devices=chosen)
    sample = sample_run(own, devices_by_id(own), every_step=True)
    kept = np.array([step_names is None or name in step_names for name in sample.steps], np.bool_)
    if not kept.any():
        raise DptraceError(f"{run.path}: its ranks have no step in common, so none can stand beside another run's.")
    at = sample.step_index[:, kept]
    bounds = [device.timeline.windows.bounds for device in sample.devices]
    start = np.stack([own_bounds[steps] for own_bounds, steps in zip(bounds, at, strict=True)])
    end = np.stack([own_bounds[steps + 1] for own_bounds, steps in zip(bounds, at, strict=True)])
    apart = bool((np.ptp(start, axis=0) > _MAX_START_SPREAD * (end - start).max(axis=0)).any())
    names = tuple(name for name, keep in zip(sample.steps, kept, strict=True) if keep)
    return RunSteps(own, sample.devices, names, at, start, end, apart)


def align_steps(a: RunSteps, b: RunSteps, by_step: bool = True) -> AlignedSteps:
    """Put two runs on one axis, their steps paired in order, as many as both have.

    Args:
        by_step: let each pair of steps begin at one place; else only the first.
    """
    count = min(len(a.names), len(b.names))
    runs = a.first(count), b.first(count)
    lengths = [one.length_ns for one in runs]
    if by_step:
        slots = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.maximum(*lengths))))
        place = slots[:-1], slots[:-1]
    else:
        place = _running(runs[0]), _running(runs[1])
        slots = np.array([0, max(int((p + n).max()) for p, n in zip(place, lengths, strict=True))], np.int64)
    return AlignedSteps(*runs, by_step, slots, place, tuple(_notes(a, b, count)), incomparable(a.run, b.run))


def _running(one: RunSteps) -> Int64:
    """Give where the steps begin when the first one does at 0; with clocks apart, when the slowest rank is there."""
    periods = np.diff(one.origin_ns, axis=1).max(axis=0)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(periods)))


def _notes(a: RunSteps, b: RunSteps, count: int) -> list[str]:
    notes = []
    if len(a.names) != len(b.names):
        notes.append(
            f"A has {len(a.names)} steps and B has {len(b.names)}: paired in their order, "
            + ("the first of each." if count == 1 else f"the first {count} of each.")
        )
    for letter, one in (("A", a), ("B", b)):
        most = max(len(device.timeline.windows) for device in one.devices)
        if len(one.devices) > 1 and any(len(device.timeline.windows) != most for device in one.devices):
            notes.append(
                f"{letter}: its ranks have recorded different numbers of steps; those that all have are drawn."
            )
        if one.clocks_apart:
            notes.append(
                f"{letter}: its ranks' clocks lie apart, so each rank's steps begin where the first rank's do."
            )
    if any((one.length_ns > (one.end_ns - one.start_ns).max(axis=0)).any() for one in (a, b)):
        notes.append("A step lasts from its first rank's start to its last rank's end, so longer than each rank's own.")
    return notes
