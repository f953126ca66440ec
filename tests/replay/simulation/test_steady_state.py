"""The length of a step in the long run, by host and by device."""

from __future__ import annotations

import dptrace
from dptrace.replay.simulation.steady_state import SteadyState, steady_state


def test_host_and_device_each_set_a_length(run: dptrace.Run) -> None:
    """What the slower of host and device needs alone is the least that a step takes in the long run."""
    device_ns = 400_000 + 1_000 + 200_000 + 2_000 + 100_000 + 2_000 + 50_000 + 1_000

    steady = steady_state(run.replay.model)

    assert SteadyState(host_ns=20_000 + 90_000, device_ns=device_ns) == steady
    assert device_ns == steady.step_ns
