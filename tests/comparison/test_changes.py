"""Numbers of two runs side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.comparison.changes import (
    PARTS,
    collective_changes,
    figure_changes,
    kernel_changes,
    overlap_change,
)
from dptrace.comparison.compare import Comparison, compare
from dptrace.comparison.limits import parse
from dptrace.comparison.sides import Sides, make_sides
from dptrace.run.run import Run
from dptrace.run.utilization import Workload
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


def sides(a: Run, b: Run) -> Sides:
    return make_sides([a], [b], every_step=True)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.floats(0, 0.3), st.integers(0, 999))
def test_parts_add_up_to_the_wall(steps_a: int, steps_b: int, ranks: int, noise: float, seed: int) -> None:
    """In A, in B and in the difference, to the nanosecond, and the causes to the idle time; each is a rounded mean."""
    found = sides(job(steps_a, ranks, seed, noise), job(steps_b, ranks, seed + 1, noise))
    changes = {change.name: change for change in figure_changes(found)}

    for field in ("a", "b", "delta"):
        value = {name: getattr(change, field) for name, change in changes.items()}
        assert value["wall_ns"] == sum(value[name] for name in PARTS)
        assert value["idle_ns"] == sum(value[name] for name in CAUSES)
    for name, change in changes.items():
        assert change.a == pytest.approx(found.a.figures[name].mean(), abs=8)
        assert change.b_median == np.median(found.b.figures[name])


def test_spreads_are_standard_deviations() -> None:
    """Over steps, of the ranks' means; over ranks, of the steps' means; nothing of one."""
    found = sides(job(steps=5, ranks=3), job(steps=1, ranks=1))
    wall = found.a.figures["wall_ns"]
    change = next(change for change in figure_changes(found) if change.name == "wall_ns")

    assert change.a_step_spread == pytest.approx(np.std(wall.mean(axis=0), ddof=1))
    assert change.a_rank_spread == pytest.approx(np.std(wall.mean(axis=1), ddof=1))
    assert change.b_step_spread is None
    assert change.b_rank_spread is None


def test_one_gpu_is_compared_with_one() -> None:
    """By their places on either side."""
    found = sides(job(noise=0.1), job(noise=0.1, seed=1))
    change = figure_changes(found, (1, 0))[0]

    assert change.a == round(found.a.figures["forward_ns"][1].mean())
    assert change.b == round(found.b.figures["forward_ns"][0].mean())


def test_overlap_is_that_of_all_time() -> None:
    """Not a mean of percentages; and nothing where there is no communication."""
    both = sides(job(), job(factors={"exposed": 2}))
    none = run_of([TimelineBuilder().compute(0, 100).build()])
    found = overlap_change(both)
    hidden, exposed = (both.a.figures[name].sum() for name in ("overlapped_comm_ns", "exposed_comm_ns"))

    assert found is not None
    assert found.a == pytest.approx(100 * hidden / (hidden + exposed))
    assert overlap_change(sides(job(), none)) is None


def test_kernels_that_only_one_run_has_are_rows() -> None:
    """With no time on the other side, and said to be only there; the largest change comes first."""
    a = TimelineBuilder().compute(0, 50, name="old").compute(50, 60, name="both").memory(60, 61)
    b = TimelineBuilder().compute(0, 20, name="new").compute(20, 33, name="both").memory(60, 61)
    rows = kernel_changes(sides(run_of([a.build()]), run_of([b.build()])))

    assert ["old", "new", "both", "Memcpy HtoD"] == [row.time.name for row in rows]
    assert ["A", "B", None, None] == [row.to_dict()["only_in"] for row in rows]
    assert [-50, 20, 3, 0] == [row.time.delta for row in rows]
    assert "memory" == rows[-1].kind


def test_collectives_are_compared_by_kind_group_and_size() -> None:
    """Count, bytes and times in a step; where the groups' names differ they are left out."""
    a = TimelineBuilder().all_reduce(0, 10, bytes=100).all_reduce(20, 30, bytes=100).build()
    b = TimelineBuilder().all_reduce(0, 15, bytes=100).all_reduce(20, 26, bytes=700).compute(0, 5).build()
    rows = {r.collective.bytes: r for r in collective_changes(sides(run_of([a]), run_of([b])))}

    assert (2, 1, "default_pg") == (rows[100].a_count, rows[100].b_count, rows[100].collective.group)
    told = rows[100].to_dict()
    assert (20, 10, -10) == (told["a_exposed_ns"], told["b_exposed_ns"], told["delta_exposed_ns"])
    assert (0, 5) == (told["a_overlapped_ns"], told["b_overlapped_ns"])
    assert (200, 100) == (told["a_bytes_per_step"], told["b_bytes_per_step"])
    assert "B" == rows[700].to_dict()["only_in"]


# How MFU changed between two runs.


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


def test_a_limit_on_mfu(slower: Comparison) -> None:
    """In percent of A's, or of the peak in B."""
    for limit, failed in (("mfu < -2%", True), ("mfu < -20%", False), ("MFU < 99%", True), ("mfu > 99%", False)):
        assert failed == parse(limit).check(slower).failed


@pytest.mark.heavy
def test_other_work_is_judged_by_the_interval() -> None:
    """Twice the parameters in the same time double MFU, beyond the noise of the steps."""
    found = compare(known(job()), known(job(seed=1), 2e6)).mfu

    assert found is not None
    assert pytest.approx(2, rel=0.02) == found.b / found.a
    assert "beyond noise" == found.verdict


@pytest.mark.heavy
def test_without_a_peak_a_limit_is_not_checked() -> None:
    """The text names the options."""
    crossing = parse("mfu < -2%").check(compare(job(), job(seed=1)))

    assert not crossing.failed
    assert "--peak-tflops" in crossing.text
