"""Kernels that become one, launches at once, and work that is not repeated."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.errors import DptraceError, UsageError
from tests.support.paths import ROOT


def test_fused_kernels_take_as_long_as_the_longest(run: dptrace.Run) -> None:
    """Forward and backward, 400 and 200 µs and 1 µs apart, become one kernel of 400 on the slower rank."""
    answer = run.whatif(fuse="forward|backward")

    assert 800_000 - 200_000 - 1_000 == answer.predicted_step_ns
    assert "16 kernels become 8" in next(doubt.text for doubt in answer.doubts if doubt.kind == "assumed")


@pytest.mark.parametrize("pattern", ["optimizer", "no such", "("])
def test_nothing_to_fuse_is_wrong_use(run: dptrace.Run, pattern: str) -> None:
    """A kernel alone, a name that is not there, and a pattern that is none."""
    with pytest.raises(UsageError):
        run.whatif(fuse=pattern)


def test_graphs_save_the_host_and_not_the_device(run: dptrace.Run) -> None:
    """The host alone needs less; the device, which sets the step, what it needed."""
    before, after = run.whatif(), run.whatif(cuda_graphs=True)

    assert after.steady.host_ns < before.steady.host_ns
    assert before.steady.device_ns == after.steady.device_ns
    assert before.predicted_step_ns == after.predicted_step_ns


def test_graphs_on_a_cpu_are_refused() -> None:
    """A CPU launches nothing."""
    with pytest.raises(DptraceError):
        dptrace.open(ROOT / "traces" / "single_cpu").whatif(cuda_graphs=True)


def test_without_recomputation_there_is_nothing_to_leave_out(run: dptrace.Run) -> None:
    """A run that repeats no forward work says so."""
    with pytest.raises(DptraceError):
        run.whatif(no_recompute=True)


# Micro-steps, on a job whose step of 800 µs has an all-reduce of 100 and an optimizer of 50.


def test_micro_steps_leave_out_all_reduce_and_optimizer() -> None:
    """Four are shorter than four steps, by about three times what exposed all-reduces and the optimizer take."""
    run = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")
    one, four = run.whatif(accumulate=1), run.whatif(accumulate=4)

    assert one.measured_step_ns == one.predicted_step_ns
    saved = 4 * one.predicted_step_ns - four.predicted_step_ns
    exposed = one.measured["exposed_comm_ns"] + one.measured["optimizer_ns"]
    assert saved == pytest.approx(3 * exposed, rel=0.3)
    assert four.predicted_ns_per_micro_step == pytest.approx(four.predicted_step_ns / 4, abs=1)
