"""What one change gains: how much earlier the run ends per step, with its range, and why it is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.findings.finding import Gain
from dptrace.core.intervals import Int64, median
from dptrace.core.units import duration, share
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import INFERRED
from dptrace.replay.paths.path import path_of_run
from dptrace.replay.simulation.changes import Change
from dptrace.replay.simulation.samples import WALL, StepSelection, mean_range
from dptrace.replay.simulation.simulate import Schedule, Times
from dptrace.replay.simulation.steady_state import SteadyState, steady_state
from dptrace.replay.simulation.timelines import step_bounds, timeline_at
from dptrace.replay.transforms.stragglers import WithoutExcesses
from dptrace.replay.whatif import Replay

__all__ = ["GainEstimate", "Measurer"]


_NOTABLE = 0.01
"""Share of a step from which a shorter one is compared with its steady state."""


class _Steps(msgspec.Struct, frozen=True):
    """The steps of a simulated run."""

    times: Times
    length_ns: Int64
    """From the end of one to the end of the next: timelines × steps."""
    ended_ns: Int64
    """When the last one ends on each timeline."""


class GainEstimate(msgspec.Struct, frozen=True):
    """What a change gains, and what then sets the length of a step."""

    gain: Gain
    pace: str
    """In words; empty where that is not known."""


class Measurer:
    """Measures changes of one run, each in one replay where nothing of the graph was inferred from times."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    @cached_property
    def _base(self) -> tuple[_Steps, ...]:
        replay = self.replay
        found = [_Steps(replay.base.times, replay.base.by_end[:, :, WALL], replay.base.ended_ns)]
        if self._inferred:
            found.append(_Steps(replay.strict.times, replay.strict.by_end[:, :, WALL], replay.strict.ended_ns))
        return tuple(found)

    @property
    def _inferred(self) -> bool:
        """Whether waits are in the graph that only times suggest: the range is then that with and without them."""
        return bool(self.replay.model.graph.edge.of(*INFERRED).any())

    @property
    def steps(self) -> int:
        """Number of steps from the start of the recording to the last that findings are about."""
        return max(int(places[-1]) for places in self.replay.chosen.places) + 1

    @property
    def step_ns(self) -> float:
        """Median length of a step of the mean rank, as recorded."""
        return float(median(self.replay.measured[:, :, WALL].mean(axis=0)))

    @property
    def mean_step_ns(self) -> float:
        """Mean length of a step of the mean rank, as recorded."""
        return float(self.replay.measured[:, :, WALL].mean())

    def gain_ns(self, *changes: Change) -> int:
        """Return how much earlier the run ends per step with some changes, as ``dptrace whatif`` says it.

        Those that cut certain pieces come first, as they would otherwise find them cut.
        """
        model = self.replay.model
        for change in sorted(changes, key=lambda one: not isinstance(one, WithoutExcesses)):
            model = change.apply(model)
        return self._at_the_end(self._base[0], simulated_steps(model, self.replay.chosen))

    def measure(self, change: Change) -> GainEstimate:
        """Replay a change.

        Raises:
            DptraceError: the run does not have what would change.
        """
        replay = self.replay
        models = [change.apply(replay.model)]
        after = [simulated_steps(models[0], replay.chosen)]
        # The range of what is not worth a finding needs no second replay.
        if self._inferred and self._at_the_end(self._base[0], after[0]) >= _NOTABLE * self.step_ns:
            after.append(simulated_steps(change.apply(replay.strict.model), replay.chosen))
        gained = [self._per_step(old, new) for old, new in zip(self._base, after, strict=False)]
        return self._answer(change, models[0], after[0], gained)

    def _answer(
        self, change: Change, model: Model, after: _Steps, gained: Sequence[NDArray[np.float64]]
    ) -> GainEstimate:
        """Bind a gain by what hosts, devices and links need, and by the doubts about it.

        Args:
            model: the changed model, with all waits.
            gained: how much shorter each step is, with all waits, and without those that only times suggest.
        """
        replay, measured = self.replay, self.replay.measured[:, :, WALL].mean(axis=0)
        step, predicted = (round(float(median(table))) for table in (measured, measured - gained[0]))
        # A step that stays about as long is above what hosts and devices need, as it was.
        steady = replay.steady if predicted > (1 - _NOTABLE) * step else steady_state(model)
        least = replay.bound(steady), float(getattr(change, "least_step_ns", _nothing)(replay.model))
        doubts = replay.doubts_about((change,), predicted, least[0], steady)
        gain = Gain(change.describe(), doubts=tuple(dict.fromkeys(doubt.kind for doubt in doubts)))
        if refused := [doubt.text for doubt in doubts if doubt.refuses]:
            return GainEstimate(replace(gain, reason=refused[0]), "")
        beyond, ended = max(0, round(max(least) - predicted)), self._at_the_end(self._base[0], after)
        low, high = self._range(gained, ended, beyond, predicted)
        ns, shorter = _less(ended, beyond), _less(step - predicted, beyond)
        gain = replace(gain, ns=ns, low_ns=min(low, ns), high_ns=max(high, ns), median_step_ns=shorter)
        return GainEstimate(gain, _pace(model, after.times, steady, least if beyond else None))

    def _per_step(self, before: _Steps, after: _Steps) -> NDArray[np.float64]:
        """Return how much shorter each step is, of the mean timeline."""
        less: NDArray[np.float64] = (before.length_ns - after.length_ns).mean(axis=0)
        return less

    def _at_the_end(self, before: _Steps, after: _Steps) -> int:
        """Return how much earlier the last step ends, per step from the start of the recording."""
        return round(round(float((before.ended_ns - after.ended_ns).mean())) / self.steps)

    def _range(self, gained: Sequence[NDArray[np.float64]], ns: int, beyond: int, predicted_ns: int) -> tuple[int, int]:
        """Return the range of the gain at the end: of the mean over resampled steps, and by the replay's error."""
        ranges = [mean_range(one - gained[0].mean()) for one in gained]
        error = self.replay.error_ns(max(0, predicted_ns))
        low = ns + min(low for low, _ in ranges) - error
        high = ns + max(high for _, high in ranges) + error
        return _less(round(low), beyond) if ns < 0 else max(0, round(low) - beyond), _less(round(high), beyond)


def simulated_steps(model: Model, chosen: StepSelection) -> _Steps:
    """Simulate a model; only the lengths of its steps are computed."""
    times = Schedule(model.graph).run()
    length, ended = [], []
    for number, places in zip(chosen.timelines, chosen.places, strict=True):
        bounds = step_bounds(model, number, times, timeline_at(model, number, times))
        length.append(np.diff(bounds)[places])
        ended.append(bounds[places[-1] + 1])
    return _Steps(times, np.stack(length), np.array(ended, np.int64))


def _less(ns: int, beyond: int) -> int:
    """Return a gain without what the steady state does not allow."""
    return ns if ns <= 0 else max(0, ns - beyond)


def _nothing(model: Model) -> float:
    return 0.0


def _pace(model: Model, times: Times, steady: SteadyState, least: tuple[float, float] | None) -> str:
    """Describe what sets the length of a step once the change is made.

    Args:
        least: the shortest step of hosts and devices alone, and that of the links; None where neither decides.
    """
    if least is not None and least[1] > least[0]:
        return f"the links alone need {duration(least[1])} a step"
    if least is not None:
        side, needs = max((steady.device_ns, "devices"), (steady.host_ns, "hosts"))[::-1]
        return f"the {side} alone need {duration(needs)} a step"
    by_kind = path_of_run(model, times).by_kind()
    kind = max(by_kind, key=lambda kind: by_kind[kind])
    return f"{_PACES.get(kind, kind)} {share(by_kind[kind] / max(1, sum(by_kind.values())))} of the critical path"


_PACES = {
    "compute": "compute is",
    "memory": "copies are",
    "transfer": "transfers are",
    "host": "the host is",
    "launch": "launch latency is",
    "stream": "gaps between kernels are",
    "wait": "returns of waits are",
    "absent_ranks": "ranks that were not recorded are",
    "unexplained": "waits without a recorded reason are",
}
