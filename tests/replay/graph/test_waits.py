"""What a kernel waited for: its launch, or the end of other work."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.api import whatif
from tests.support.real_traces import REAL

PIPELINE = REAL.parent / "inputs" / "scale" / "pp4"


@pytest.mark.heavy
@pytest.mark.skipif(not PIPELINE.exists(), reason=f"the inputs are not here ({PIPELINE})")
def test_a_message_that_waits_for_compute_has_no_long_launch() -> None:
    """Hosts launch a stage's messages up to 15 ms before they start; with compute twice as fast, a step takes half.

    In the simulation that wrote these traces, 93 % of a step is compute on the critical path.
    """
    answer = whatif(dptrace.open(PIPELINE, cache=False), compute=2)

    assert answer.predicted_step_ns == pytest.approx(0.535 * answer.measured_step_ns, rel=0.02)
    assert answer.path_ns["launch"] < 0.01 * answer.predicted_step_ns
