"""The cost of a pipeline's bubble."""

from __future__ import annotations

import pytest
from msgspec.structs import force_setattr

from dptrace.analysis.findings.detect import Finding
from dptrace.run.run import Run
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, one_forward_one_backward, run_of


def bubble_of(run: Run) -> Finding:
    return next(finding for finding in run.cross_rank.findings if finding.kind == "bubble")


def test_the_bubble_is_reported_beside_the_schedules_own() -> None:
    """Filling the pipeline takes one of five parts of the time: the measured bubble equals the formula's."""
    run = run_of(gpipe(2, 4), 100, 200)
    finding = bubble_of(run)

    assert 300 == finding.cost_ns
    assert "20.0 % of its ranks' time; the gpipe schedule implies 20.0 %." in finding.text
    assert "micro-batches (now 4)" in finding.advice
    assert "interleave" in finding.advice
    assert {"step": "ProfilerStep#0", "micro_batches": 4, "schedule": "gpipe"}.items() <= finding.evidence.items()


@pytest.mark.parametrize("first", [0, 1])
def test_a_stage_that_takes_longer_is_named(first: int) -> None:
    """The others wait for it: the advice is to rebalance the layers."""
    run = run_of(one_forward_one_backward(2, 4), 100, 200)
    slow = run.timelines[first].actions
    force_setattr(slow, "busy_ns", slow.busy_ns // 4)
    finding = bubble_of(run)

    assert f"The stages of rank {1 - first} compute 1.6 times as long as the mean." in finding.text
    assert finding.advice.startswith("Rebalance the layers")


def test_without_a_wait_there_is_none() -> None:
    """A single stage that never waits has no bubble."""
    plain = run_of(gpipe(1, 1), 10, 10)

    assert all(finding.kind != "bubble" for finding in plain.cross_rank.findings)
