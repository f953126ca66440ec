"""The mean step of a run, which headlines and tables are of."""

from __future__ import annotations

import pytest

from dptrace.run.mean_step import mean_step
from dptrace.run.run import Run
from tests.support.jobs import job


def test_parts_of_the_mean_step_add_up() -> None:
    """Whatever a single step takes; a step whose length is far from the median is named."""
    found = mean_step(job(steps=3, first=4).cross_rank)

    assert found is not None
    parts = sum(ns for name, ns in found.figures_ns.items() if name not in ("wall_ns", "overlapped_comm_ns"))
    assert found.wall_ns == pytest.approx(parts)
    assert found.figures_ns["exposed_comm_ns"] == pytest.approx(sum(found.exposed_ns.values()))
    assert ("ProfilerStep#4", ["ProfilerStep#4"]) == (found.longest, list(found.apart_ns))
    assert found.wall_ns == pytest.approx(2 * found.median_ns, rel=0.05)
    assert {} == mean_step(job(steps=3).cross_rank).apart_ns  # type: ignore[union-attr]


def test_ranks_without_a_step_have_no_mean() -> None:
    """Nor is there one in the JSON."""
    run = Run("r", ())

    assert mean_step(run.cross_rank) is None
    assert run.to_dict()["mean_step"] is None
