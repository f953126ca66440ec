"""The chart and the page of a what-if for several values."""

from __future__ import annotations

import pytest

import dptrace
from dptrace.replay.whatif import Sweep
from dptrace.viewers.base.marks import Dot
from dptrace.viewers.pages.whatif_sweep import document, sweep_chart
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    run = dptrace.open(ROOT / "traces" / "ddp_4mb_cpu_2ranks")
    return Sweep.of("bucket-cap-mb", [1, 100], [run.whatif(bucket_cap_mb=cap) for cap in (1, 100)])


@pytest.mark.heavy
def test_the_best_point_has_a_shape_of_its_own(sweep: Sweep) -> None:
    """One of the points, so that color is not all that tells it."""
    dots = [mark for mark in sweep_chart(sweep).marks if isinstance(mark, Dot)]

    assert [(1, "diamond"), (100, "circle")] == [(dot.x, dot.shape) for dot in dots]


@pytest.mark.heavy
def test_the_page_has_chart_and_table(sweep: Sweep) -> None:
    """All values with their steps."""
    page = document(sweep)

    assert "1 (best)" in page
    assert "<svg" in page
