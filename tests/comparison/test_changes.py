"""Numbers of two runs side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.comparison.changes import PARTS, figure_changes, overlap_change, percent_of
from dptrace.comparison.sides import Sides, make_sides
from dptrace.comparison.table_changes import collective_changes, kernel_changes
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


def sides(a: Run, b: Run) -> Sides:
    return make_sides([a], [b], every_step=True)


@pytest.mark.heavy
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


@pytest.mark.parametrize(("delta", "of", "percent"), [(5, 50, 10.0), (-5, 50, -10.0), (0, 0, 0.0), (3, 0, None)])
def test_percent(delta: float, of: float, percent: float | None) -> None:
    """Of A; nothing where there was nothing before."""
    assert percent == percent_of(delta, of)
