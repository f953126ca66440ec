"""Which change takes a finding away."""

from __future__ import annotations

from typing import Any

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.errors import DptraceError
from dptrace.replay.gains.context import GainContext
from dptrace.replay.gains.counterfactual import counterfactual

KINDS: dict[str, dict[str, Any]] = {
    "exposed_comm": {"collective": "all_reduce"},
    "host_bound": {},
    "synchronizing": {},
    "launch_latency": {},
    "waiting": {},
    "copies": {},
    "short_kernels": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_these_kinds_have_a_change_that_only_shortens(run: dptrace.Run, kind: str) -> None:
    """A change takes time away and adds none, so that no gain is negative."""
    model = run.replay.model
    change = counterfactual(Finding(kind, "", "", 1, 0.1, KINDS[kind]), GainContext(run, model))
    assert not isinstance(change, str)
    after = change.apply(model)

    assert change.describe()
    assert (after.graph.duration_ns <= model.graph.duration_ns).all()
    assert (after.graph.edge.lag_ns <= model.graph.edge.lag_ns).all()


@pytest.mark.parametrize("kind", ["bubble", "allocator", "data_loading", "unused_parameters", "recompute"])
def test_what_a_run_does_not_have_has_a_reason(run: dptrace.Run, kind: str) -> None:
    """A job without such calls, and schedules that a replay keeps, have no counterfactual."""
    found = counterfactual(Finding(kind, "", "", 1, 0.1), GainContext(run, run.replay.model))

    assert isinstance(found, str)
    assert found.endswith(".")


def test_a_smaller_first_bucket_needs_gradients(run: dptrace.Run) -> None:
    """Without recorded gradients no other buckets can be predicted, which is an error with its reason."""
    with pytest.raises(DptraceError):
        counterfactual(Finding("first_bucket", "", "", 1, 0.1), GainContext(run, run.replay.model))
