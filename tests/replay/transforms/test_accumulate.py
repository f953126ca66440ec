"""Micro-steps, on a job whose step of 800 µs has an all-reduce of 100 and an optimizer of 50."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.errors import UsageError
from tests.support.paths import ROOT


def test_micro_steps_leave_out_all_reduce_and_optimizer() -> None:
    """Four are shorter than four steps, by about three times what exposed all-reduces and the optimizer take."""
    run = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")
    one, four = run.whatif(accumulate=1), run.whatif(accumulate=4)

    assert one.measured_step_ns == one.predicted_step_ns
    saved = 4 * one.predicted_step_ns - four.predicted_step_ns
    exposed = one.measured["exposed_comm_ns"] + one.measured["optimizer_ns"]
    assert saved == pytest.approx(3 * exposed, rel=0.3)
    assert four.predicted_ns_per_micro_step == pytest.approx(four.predicted_step_ns / 4, abs=1)


def test_none_is_wrong_use(run: dptrace.Run) -> None:
    """A step has one micro-step at least."""
    with pytest.raises(UsageError):
        run.whatif(accumulate=0)
