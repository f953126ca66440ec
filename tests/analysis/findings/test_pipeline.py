"""What a pipeline's bubble costs."""

from __future__ import annotations

import pytest

from dptrace.analysis.findings.detect import Finding
from dptrace.run.run import Run
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, one_forward_one_backward, run_of


def bubble_of(run: Run) -> Finding:
    return next(finding for finding in run.cross_rank.findings if finding.kind == "bubble")


def test_the_bubble_is_told_beside_the_schedules_own() -> None:
    """Of 5 parts of the time one passes until the first micro-batch is at the second stage; more of them dilute it."""
    run = run_of(gpipe(2, 4), 100, 200)
    finding = bubble_of(run)

    assert 300 == finding.cost_ns
    assert "20.0 % of its ranks' time; the gpipe schedule implies 20.0 %." in finding.text
    assert "micro-batches (now 4)" in finding.advice
    assert "interleave" in finding.advice
    assert {"step": "ProfilerStep#0", "micro_batches": 4, "schedule": "gpipe"}.items() <= finding.evidence.items()


@pytest.mark.parametrize("first", [0, 1])
def test_a_stage_that_takes_longer_is_named(first: int) -> None:
    """The others wait for it: layers are to be dealt out anew."""
    run = run_of(one_forward_one_backward(2, 4), 100, 200)
    slow = run.timelines[first].actions
    object.__setattr__(slow, "busy_ns", slow.busy_ns // 4)
    finding = bubble_of(run)

    assert f"The stages of rank {1 - first} compute 1.6 times as long as the mean." in finding.text
    assert finding.advice.startswith("Rebalance the layers")


def test_without_a_wait_there_is_none() -> None:
    """One stage that waits for nobody leaves no bubble worth the name."""
    plain = run_of(gpipe(1, 1), 10, 10)

    assert all(finding.kind != "bubble" for finding in plain.cross_rank.findings)
