"""The bars of kernels add up to their time, by phase and kind."""

from __future__ import annotations

import pytest

from dptrace.run.kernels import kernel_summary
from dptrace.run.run import Run
from dptrace.viewers.base.marks import Box
from dptrace.viewers.views.compute.kernels import kernels, kernels_table
from tests.support.synthetic import training_timeline


@pytest.fixture
def run() -> Run:
    return Run("runs/made", (training_timeline(0, 600), training_timeline(1, 600)), world_size=2)


def test_boxes_are_the_time_of_each_kernel(run: Run) -> None:
    """Mean per device and step."""
    drawn = sum(mark.right - mark.left for mark in kernels(run).marks if isinstance(mark, Box))
    totals = kernel_summary(run, "kernel").totals

    assert sum(one["total_ns"] for one in totals.values()) / 6 == pytest.approx(drawn)


def test_the_table_has_a_row_for_each_kernel(run: Run) -> None:
    """Most time first, with its short name."""
    rows = kernels_table(run).rows

    assert "vectorized_elementwise_kernel(CUDAFunctor_add<float>)" in [row[0] for row in rows]
    assert sorted((float(row[3].replace(",", "")) for row in rows), reverse=True) == [
        float(row[3].replace(",", "")) for row in rows
    ]
