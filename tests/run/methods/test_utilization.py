"""The frame of what a run's steps compute."""

from __future__ import annotations

import pytest

from dptrace.run.methods.utilization import UtilizationTables
from dptrace.run.run import Run
from tests.support.builders import two_rank_timelines


def test_what_is_given_takes_the_place_of_the_file() -> None:
    """6 · 1e6 · 8,000 FLOPs are shared by two ranks: 24 GFLOP in each step of 100 µs are half of 480 TFLOP/s."""
    run = Run("job", two_rank_timelines(), world_size=2)

    table = UtilizationTables.utilization(run, parameters=1e6, tokens=8000, peak_tflops=480)

    assert [(0, 100_000)] * 2 + [(1, 100_000)] * 2 == list(zip(table["rank"], table["wall_ns"], strict=True))
    assert pytest.approx([0.5] * 4) == table["mfu"].tolist()
    assert table["hfu"].isna().all()
    assert {} == run.efficiency_dict()
