"""How MFU changed between two runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.comparison.compare import Comparison, compare
from dptrace.comparison.thresholds import parse
from dptrace.run.run import Run
from dptrace.run.utilization import Workload
from tests.support.jobs import job


def known(run: Run, parameters: float = 1e6) -> Run:
    """Return a run with the FLOPs of a step, and a peak."""
    return replace(run, workload=Workload(parameters=parameters, tokens=1e6, peak_tflops=100))


@pytest.fixture(scope="module")
def slower() -> Comparison:
    """Backward 10 % longer, beyond noise, with the same work."""
    return compare(known(job()), known(job(seed=1, factors={"backward": 1.1})))


def test_mfu_falls_as_the_step_grows(slower: Comparison) -> None:
    """By the inverse of the wall time, with its verdict; the interval holds the difference."""
    mfu, wall = slower.mfu, slower.change("wall_ns")

    assert mfu is not None
    assert pytest.approx(wall.a / wall.b) == mfu.b / mfu.a
    assert pytest.approx(100 * slower.a.run.efficiency.mfu, rel=0.02) == mfu.a  # type: ignore[operator]
    assert ("beyond noise", True) == (mfu.verdict, (mfu.low or 0) < mfu.delta < (mfu.high or 0) < 0)
    assert "mfu_percent" == mfu.name
    assert pytest.approx(mfu.delta) == slower.to_dict()["mfu"]["delta_percent"]


@pytest.mark.parametrize(
    ("limit", "failed"), [("mfu < -2%", True), ("mfu < -20%", False), ("MFU < 99%", True), ("mfu > 99%", False)]
)
def test_a_limit_on_mfu(slower: Comparison, limit: str, failed: bool) -> None:
    """In percent of A's, or of the peak in B."""
    assert failed == parse(limit).check(slower).failed


def test_other_work_is_judged_by_the_interval() -> None:
    """Twice the parameters in the same time double MFU, beyond the noise of the steps."""
    found = compare(known(job()), known(job(seed=1), 2e6)).mfu

    assert found is not None
    assert pytest.approx(2, rel=0.02) == found.b / found.a
    assert "beyond noise" == found.verdict


def test_without_a_peak_a_limit_is_not_checked() -> None:
    """The text names the options."""
    crossing = parse("mfu < -2%").check(compare(job(), job(seed=1)))

    assert not crossing.failed
    assert "--peak-tflops" in crossing.text
