"""Place the steps of two runs on one time axis, and compute the time that one saves over the other.

::

    A  |===== step 4 ======|===== step 5 =====|
    B  |== step 11 ==|free |== step 12 ==|free|      free: saved where B is shorter, lost where A is

Steps are paired by their order. A step is drawn from the start of its first rank to the end of its last; how long it
takes, and what a run saves, is the mean of its GPUs, as everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.comparison.compare import compare, shared_notes
from dptrace.comparison.sides import Signature, devices_by_id, incomparable, sample_run
from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.errors import DptraceError
from dptrace.run.run import Run

if TYPE_CHECKING:
    from dptrace.comparison.compare import Comparison

_MAX_START_SPREAD = 0.5
"""Share of a step by which the ranks' starts may differ; beyond it, their clocks are assumed to differ."""


@dataclass(frozen=True)
class RunSteps:
    """Steps of one run that all its GPUs have, in the order in which they ran."""

    run: Run
    devices: tuple[DeviceFigures, ...]
    names: tuple[str, ...]
    step_index: Int64
    """Index of each step in each device's own steps: devices by steps."""
    start_ns: Int64
    """Start of each step on each device, on the clock that the devices share: devices by steps."""
    end_ns: Int64
    signatures: tuple[Signature, ...]
    """What each step does."""
    clocks_apart: bool
    """Whether the clocks differ so much that each rank is assumed to start every step together with the others."""

    @property
    def origin_ns(self) -> Int64:
        """Start of the run's step on each device: devices by steps."""
        first = self.start_ns if self.clocks_apart else self.start_ns.min(axis=0, keepdims=True)
        return np.broadcast_to(first, self.start_ns.shape)

    @property
    def length_ns(self) -> Int64:
        """How long each step of the run is drawn: to the end of its last rank."""
        longest: Int64 = (self.end_ns - self.origin_ns).max(axis=0)
        return longest

    @property
    def mean_ns(self) -> NDArray[np.float64]:
        """How long each step takes: the mean of the GPUs."""
        means: NDArray[np.float64] = (self.end_ns - self.start_ns).mean(axis=0)
        return means

    def first(self, count: int) -> RunSteps:
        """Keep the first *count* steps."""
        kept = {name: getattr(self, name)[:, :count] for name in ("step_index", "start_ns", "end_ns")}
        return replace(self, names=self.names[:count], signatures=self.signatures[:count], **kept)


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """A stretch of the axis in which one run has finished a step, or all of them, and the other has not."""

    run: int
    """The run that has finished: 0 for A, 1 for B."""
    from_ns: int
    to_ns: int
    saved_ns: float
    """A's time minus B's, means of their GPUs; negative where B takes longer."""
    share: float
    """``saved_ns`` as a share of A's time."""
    certain: bool = False
    """Whether the difference is beyond noise."""


@dataclass(frozen=True)
class AlignedSteps:
    """Two runs on one axis, which starts at 0."""

    a: RunSteps
    b: RunSteps
    by_step: bool
    """Whether each pair of steps starts at the same place; otherwise only the runs do."""
    slots_ns: Int64
    """Start of each pair of steps, then the end of the axis; only the start and end of the axis unless ``by_step``."""
    place_ns: tuple[Int64, Int64]
    """Start of each step of A and of B on the axis."""
    notes: tuple[str, ...]
    incomparable: str = ""
    """Why the times of the runs cannot be compared; empty where they can."""
    comparison: Comparison | None = None
    """The comparison of the runs, which says whether the drawn difference is more than noise."""
    names: tuple[str, str] = ("A", "B")

    def certain(self, saved_ns: float, pair: int | None = None) -> bool:
        """Return whether time that B saves (or loses, if negative) is a difference beyond noise, not chance.

        Args:
            pair: number of the pair of steps; None for all together.
        """
        if self.comparison is None or not (self.alike.all() if pair is None else self.alike[pair]):
            return False
        wall = self.comparison.change("wall_ns")
        return wall.beyond and saved_ns * wall.delta < 0

    @property
    def runs(self) -> tuple[RunSteps, RunSteps]:
        """A and B."""
        return self.a, self.b

    @property
    def alike(self) -> NDArray[np.bool_]:
        """Whether each pair's steps do the same, as far as the runs' steps are of the same kinds."""
        a, b = self.a.signatures, self.b.signatures
        one_kind = self.comparison is None or not self.comparison.kinds
        if one_kind and len(set(a)) == len(set(b)) == 1:
            return np.ones(len(a), np.bool_)
        by_optimizer = set(a) != set(b)
        return np.array([x.optimizer == y.optimizer if by_optimizer else x == y for x, y in zip(a, b, strict=True)])

    def shifts(self, which: int) -> Int64:
        """Return the ns to add to a device's times to place them on the axis: devices by steps."""
        return self.place_ns[which][np.newaxis] - self.runs[which].origin_ns

    def mean_ns(self) -> tuple[float, float]:
        """Return how long a step of A and of B takes: the mean of the drawn steps."""
        return float(self.a.mean_ns.mean()), float(self.b.mean_ns.mean())

    def saved_ns(self) -> float:
        """Return A's step minus B's; negative when B takes longer."""
        a, b = self.mean_ns()
        return a - b

    def time_saved(self) -> tuple[TimeSaved, ...]:
        """Return the stretches in which one run has finished and the other has not; empty for incomparable runs.

        There is none where the run that ends first takes longer in the mean of its GPUs.
        """
        if self.incomparable:
            return ()
        ends, took = [self._ends(which) for which in (0, 1)], [one.mean_ns for one in self.runs]
        if not self.by_step:
            ends, took = [end[-1:] for end in ends], [one.sum(keepdims=True) for one in took]
        stretches = []
        rows = zip(*(column.tolist() for column in (*ends, *took)), strict=True)
        for pair, (a, b, before, after) in enumerate(rows):
            saved = before - after
            if (a - b) * saved > 0:
                certain = self.certain(saved, pair if self.by_step else None)
                stretches.append(TimeSaved(1 if a > b else 0, min(a, b), max(a, b), saved, saved / before, certain))
        return tuple(stretches)

    def _ends(self, which: int) -> Int64:
        return self.place_ns[which] + self.runs[which].length_ns


_UNLIKE = "Some pairs of steps do different work: their difference is not time saved or lost."


def run_steps(
    run: Run, step_names: Collection[str] | None = None, devices: Sequence[DeviceFigures] | None = None
) -> RunSteps:
    """Find the steps that all GPUs of a run have.

    Args:
        step_names: only steps with these names.
        devices: only these devices of the run.

    Raises:
        DptraceError: there is no such step.
    """
    chosen = run.devices if devices is None else tuple(devices)
    chosen = tuple(device for device in chosen if len(device.timeline.windows))
    if not chosen:
        raise DptraceError(f"{run.path}: there is no step to draw.")
    # The run itself where it is whole: a copy would lose its cross-rank analysis.
    part = (
        replace(run, timelines=tuple(d.timeline for d in chosen), devices=chosen)
        if len(chosen) < len(run.devices)
        else run
    )
    sample = sample_run(part, devices_by_id(part), every_step=True)
    kept = np.array([step_names is None or name in step_names for name in sample.steps], np.bool_)
    if not kept.any():
        raise DptraceError(f"{run.path}: its ranks have no step in common, so it cannot be drawn next to another run.")
    index = sample.step_index[:, kept]
    shifts = {(t.rank, t.device): shift for t, shift in zip(part.timelines, part.shifts, strict=True)}
    timelines = [device.timeline for device in sample.devices]
    own = [(shifts[timeline.rank, timeline.device], timeline.windows) for timeline in timelines]
    start = np.stack([shift(windows.start_ns)[steps] for (shift, windows), steps in zip(own, index, strict=True)])
    end = np.stack([shift(windows.end_ns)[steps] for (shift, windows), steps in zip(own, index, strict=True)])
    apart = bool((np.ptp(start, axis=0) > _MAX_START_SPREAD * (end - start).max(axis=0)).any())
    names = tuple(name for name, keep in zip(sample.steps, kept, strict=True) if keep)
    signatures = tuple(one for one, keep in zip(sample.signatures, kept, strict=True) if keep)
    return RunSteps(part, sample.devices, names, index, start, end, signatures, apart)


def align(a: Run, b: Run, by_step: bool = True, compared: bool = True) -> AlignedSteps:
    """Place two runs on one axis; see :func:`align_runs`."""
    return align_runs((a, b), by_step, compared)[0]


LETTERS = "ABCDEFGH"
"""What runs on one axis are called, where they have no other names; so many at most."""


def align_runs(
    runs: Sequence[Run], by_step: bool = True, compared: bool = True, names: Sequence[str] = LETTERS
) -> tuple[AlignedSteps, ...]:
    """Place two or more runs on one axis: return the first one, A, with each of the others; see :func:`align_steps`.

    Args:
        compared: compare A with each where they can be; False where B is a prediction, which no statistics of
            recordings are about.
        names: what the runs are called.

    Raises:
        DptraceError: a run has no step.
    """
    a, *others = map(run_steps, runs)
    pairs: list[AlignedSteps] = []
    for name, other in zip(names[1:], others, strict=False):
        ok = compared and not incomparable(a.run, other.run)
        found = compare(runs[0], runs[len(pairs) + 1], with_kernels=False) if ok else None
        beside = [one for one in others if one is not other]
        pairs.append(align_steps(a, other, by_step, found, beside, (names[0], name)))
    return tuple(pairs)


def align_steps(
    a: RunSteps,
    b: RunSteps,
    by_step: bool = True,
    comparison: Comparison | None = None,
    others: Sequence[RunSteps] = (),
    names: tuple[str, str] = ("A", "B"),
) -> AlignedSteps:
    """Place two runs on one axis, their steps paired in order, as many as both have.

    Args:
        by_step: start each pair of steps at the same place; otherwise only the first pair.
        comparison: the comparison of the runs; without, no time counts as saved or lost beyond noise.
        others: further runs on that axis.
    """
    count = min(len(one.names) for one in (a, b, *others))
    runs = [one.first(count) for one in (a, b, *others)]
    lengths = [steps.length_ns for steps in runs]
    if by_step:
        slots = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.max(lengths, axis=0))))
        place = [slots[:-1]] * len(runs)
    else:
        place = [_starts_as_run(one) for one in runs]
        slots = np.array([0, max(int((p + n).max()) for p, n in zip(place, lengths, strict=True))], np.int64)
    notes, why = tuple(_notes(a, b, count, names)), incomparable(a.run, b.run, names)
    aligned = AlignedSteps(runs[0], runs[1], by_step, slots, (place[0], place[1]), notes, why, comparison, names)
    return aligned if aligned.alike.all() else replace(aligned, notes=(*notes, _UNLIKE))


def _starts_as_run(steps: RunSteps) -> Int64:
    """Return the starts of the steps when the first one starts at 0; by the slowest rank where clocks are apart."""
    periods = np.diff(steps.origin_ns, axis=1).max(axis=0)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(periods)))


def _notes(a: RunSteps, b: RunSteps, count: int, names: tuple[str, str]) -> Iterator[str]:
    if len(a.names) != len(b.names):
        has = f"{names[0]} has {plural(len(a.names), 'step')} and {names[1]} has {len(b.names)}"
        yield (
            f"{has}: steps are paired by order, "
            + ("the first of each." if count == 1 else f"the first {count} of each.")
        )
    yield from shared_notes([_own_notes(a)], [_own_notes(b)], names)
    if any((steps.length_ns > (steps.end_ns - steps.start_ns).max(axis=0)).any() for steps in (a, b)):
        yield "A step is drawn from its first rank's start to its last rank's end, longer than on any one rank."


def _own_notes(steps: RunSteps) -> list[str]:
    notes = []
    if len({len(device.timeline.windows) for device in steps.devices}) > 1:
        notes.append("the ranks recorded different numbers of steps; only shared steps are drawn.")
    if steps.clocks_apart:
        notes.append("the ranks' clocks differ too much, so every rank is drawn as starting each step together.")
    return notes
