"""What one change gains, with its range."""

from __future__ import annotations

import dptrace
from dptrace.replay.gains.device_time import HiddenCollectives
from dptrace.replay.gains.measure import Measurer
from dptrace.replay.simulation.changes import Compute


def test_a_gain_is_that_of_a_what_if(run: dptrace.Run) -> None:
    """The gain of a change and its median step are those that a what-if of the same change has."""
    measured, answer = Measurer(run.replay).measure(Compute(2)).gain, run.whatif(compute=2)

    assert answer.step_gain_ns == measured.ns
    assert answer.measured_step_ns - answer.predicted_step_ns == measured.median_step_ns


def test_a_change_by_nothing_gains_nothing(run: dptrace.Run) -> None:
    """The unchanged run ends when it did; the range has the least error of a replay."""
    gain = Measurer(run.replay).measure(Compute(1)).gain

    assert (0, 0, 8_000) == (gain.ns, gain.low_ns, gain.high_ns)


def test_hidden_collectives_leave_the_links_their_time(run: dptrace.Run) -> None:
    """An all-reduce of 100 µs under compute: all of it comes back, and the links need no more than that."""
    change = HiddenCollectives("all_reduce")

    assert 100_000 == Measurer(run.replay).measure(change).gain.ns
    assert 100_000 == change.least_step_ns(run.replay.model)
