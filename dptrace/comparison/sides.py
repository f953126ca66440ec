"""The two sides of a comparison: one or several recordings each, reduced to steps of the kinds that both have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from dptrace.comparison.samples import COLLECTIVE_VALUES, DeviceId, RunSample, devices_by_id, sample_run
from dptrace.comparison.significance import EQUIVALENT, has_enough_steps
from dptrace.comparison.step_kinds import StepKinds, step_kinds
from dptrace.comparison.step_noise import Float, Steps
from dptrace.core.intervals import Int64
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.timeline.model import Collective

__all__ = ["Side", "Sides", "make_sides"]

_RESOLUTION_NS, _RESOLUTION_SHARE = 1_000, 0.001
"""Differences below 1 µs, or below a thousandth of a step, are within the resolution of a profiler."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Side:
    """The recordings of one side, with the same GPUs each; their steps one after the other."""

    samples: tuple[RunSample, ...]

    @property
    def steps(self) -> int:
        """Number of compared steps in all recordings."""
        return sum(len(sample.steps) for sample in self.samples)

    @cached_property
    def figures(self) -> dict[str, Int64]:
        """Each figure and idle cause by name: ns, devices by steps."""
        names = self.samples[0].figures
        return {name: np.concatenate([s.figures[name] for s in self.samples], axis=1) for name in names}

    @cached_property
    def exposed_wait(self) -> Float | None:
        """The exposed waiting of each step in ns, mean over the devices; None where a recording does not show it."""
        waits = [sample.exposed_wait for sample in self.samples]
        if any(wait is None for wait in waits):
            return None
        return np.concatenate([wait.mean(axis=0) for wait in waits if wait is not None])

    @cached_property
    def kernels(self) -> dict[tuple[str, str], Float]:
        """By kind (compute or memory) and name: ns and count in each step."""
        return _joined([sample.kernels() for sample in self.samples], [len(s.steps) for s in self.samples], 2)

    @cached_property
    def collectives(self) -> dict[Collective, Float]:
        """By kind, group and size: the values of COLLECTIVE_VALUES in each step."""
        steps = [len(sample.steps) for sample in self.samples]
        return _joined([sample.collectives() for sample in self.samples], steps, len(COLLECTIVE_VALUES))

    @property
    def shown(self) -> RunSample:
        """The recording that stands for the side in pictures: the one with the median wall time."""
        walls = [float(sample.wall.mean()) for sample in self.samples]
        return self.samples[int(np.argsort(walls, kind="stable")[(len(walls) - 1) // 2])]


def _joined(tables: Sequence[Mapping[Key, Float]], steps: Sequence[int], values: int) -> dict[Key, Float]:
    keys = dict.fromkeys(key for table in tables for key in table)
    empty = [np.zeros((values, count)) for count in steps]
    pairs = list(zip(tables, empty, strict=True))
    return {key: np.concatenate([table.get(key, none) for table, none in pairs], axis=1) for key in keys}


@dataclass(frozen=True)
class Sides:
    """Both sides, and what each of their steps is."""

    a: Side
    b: Side
    steps: Steps
    """A's steps, then B's."""
    kinds: StepKinds
    shared: tuple[DeviceId, ...]
    """GPUs that every recording has."""
    matching: bool
    """Whether only the shared GPUs are compared; otherwise all GPUs of each side, as means."""

    @property
    def several(self) -> bool:
        """Whether a side has several recordings."""
        return len(self.a.samples) + len(self.b.samples) > 2

    @cached_property
    def floor(self) -> float:
        """Resolution of the comparison in ns."""
        return max(_RESOLUTION_NS, _RESOLUTION_SHARE * self._longer)

    @property
    def margin(self) -> float:
        """Difference that does not matter, in ns."""
        return EQUIVALENT * self._longer

    @cached_property
    def _longer(self) -> float:
        """The longer of the mean steps, so that verdicts do not depend on the order of A and B."""
        return max(float(side.figures["wall_ns"].mean()) for side in (self.a, self.b))

    @cached_property
    def weights(self) -> tuple[Float, Float]:
        """Weight of each step in the mean of A and of B; each sums to 1."""
        weight = self.steps.step_weights(self.steps.kind_weights())
        return weight[self.steps.side == 0], weight[self.steps.side == 1]

    def table(self, of: Callable[[Side], Mapping[Key, Float]], values: int) -> dict[Key, Float]:
        """Join A's and B's values of each key: values by steps; 0 where a side does not have the key."""
        return _joined([of(self.a), of(self.b)], [self.a.steps, self.b.steps], values)


def make_sides(before: Sequence[Run], after: Sequence[Run], every_step: bool = False) -> Sides:
    """Sample the recordings of both sides and keep the steps of the kinds that all of them have.

    If all world sizes are equal, the ranks in all recordings are compared; otherwise those of each side, as means.

    Raises:
        DptraceError: the recordings of one side have no rank in common.
    """
    runs = [*before, *after]
    shared = _shared(runs)
    matching = len({run.world_size for run in runs}) == 1 and bool(shared)
    chosen = [shared if matching else _shared(side) for side in (before, after)]
    for side, ids in zip((before, after), chosen, strict=True):
        if not ids:
            raise DptraceError(f"{side[0].path} and {side[-1].path}: recordings of one side must share a rank.")
    samples = [
        [sample_run(run, ids, every_step) for run in side] for side, ids in zip((before, after), chosen, strict=True)
    ]
    kinds = step_kinds(*samples)
    of_steps = iter(kinds.of_steps)
    kept = [[(sample, next(of_steps)) for sample in side] for side in samples]
    a, b = (Side(tuple(sample.keep(kind >= 0) for sample, kind in side)) for side in kept)
    return Sides(a, b, _steps(kept, a, b, kinds), kinds, tuple(shared), matching)


def _shared(runs: Sequence[Run]) -> list[DeviceId]:
    ids = [devices_by_id(run) for run in runs]
    return [device_id for device_id in ids[0] if all(device_id in other for other in ids[1:])]


def _steps(kept: Sequence[Sequence[tuple[RunSample, Int64]]], a: Side, b: Side, kinds: StepKinds) -> Steps:
    """Describe the kept steps; those of sides without a common kind can't support any claim."""
    kind = np.concatenate([one[one >= 0] for side in kept for _, one in side])
    recordings = [*a.samples, *b.samples]
    counts = [len(sample.steps) for sample in recordings]
    return Steps(
        side=np.repeat([0, 1], [a.steps, b.steps]),
        recording=np.repeat(np.arange(len(recordings)), counts),
        kind=np.unique(kind, return_inverse=True)[1],
        place=np.concatenate([sample.place for sample in recordings]),
        enough=has_enough_steps(a.steps, b.steps) and not kinds.unlike,
        comparable=kinds.comparable,
    )
