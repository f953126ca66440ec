"""Figures by GPU and step, where GPUs have different steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dptrace.analysis.per_gpu.device import figures_of
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.analysis.per_gpu.step_grid import middle_step, step_grid
from dptrace.timeline.model import Timeline, Windows
from tests.support.builders import TimelineBuilder, two_rank_timelines


def named(rank: int, names: tuple[str, ...]) -> Timeline:
    bounds = tuple(range(0, 100 * len(names) + 1, 100))
    timeline = TimelineBuilder(rank, bounds=bounds).compute(10, 60).build()
    return replace(timeline, windows=Windows(names, np.array(bounds, np.int64)))


def test_figures_are_the_splits() -> None:
    """To the nanosecond, GPU by GPU and step by step."""
    devices = [figures_of(timeline) for timeline in two_rank_timelines()]
    told = step_grid(devices)

    assert ((0, 0), (1, 1)) == told.device_ids
    assert devices[0].split.names == told.steps
    for name in FIGURES:
        np.testing.assert_array_equal([device.split.figures[name] for device in devices], told.figures[name])
    np.testing.assert_allclose(told.share("idle_ns") * 100_000, told.figures["idle_ns"])
    assert told.figures["wall_ns"].sum() == told.total("wall_ns")


def test_gpus_may_have_different_steps() -> None:
    """The steps are merged in their order, and what is not there is told."""
    told = step_grid(
        [figures_of(named(0, ("a", "c"))), figures_of(named(1, ("a", "b", "c"))), figures_of(named(2, ("d",)))]
    )

    assert {"a", "b", "c", "d"} == set(told.steps)
    assert told.steps.index("a") < told.steps.index("b") < told.steps.index("c")
    assert 6 == told.present.sum()
    assert np.isnan(told.share("idle_ns")[~told.present]).all()
    assert [100.0, 100.0, 100.0] == told.mean("wall_ns").tolist()


def test_numbered_steps_stand_in_the_order_of_their_numbers() -> None:
    """Also where one GPU's recording began where another's ended."""
    names = ("ProfilerStep#9", "ProfilerStep#10"), ("ProfilerStep#7", "ProfilerStep#8")

    assert (*names[1], *names[0]) == step_grid([figures_of(named(rank, names[rank])) for rank in (0, 1)]).steps


def test_no_gpu_and_no_step() -> None:
    """An empty run has an empty grid, and no step in the middle."""
    told = step_grid([])

    assert () == told.device_ids
    assert () == told.steps
    assert 0 == told.total("wall_ns")
    assert middle_step([]) is None


def test_the_middle_step_is_one_that_all_have() -> None:
    """Of median length, among those that most GPUs have."""
    bounds = (0, 100, 210, 1_000)
    long = TimelineBuilder(0, bounds=bounds).compute(10, 60).build()
    short = TimelineBuilder(1, bounds=bounds[:3]).compute(10, 60).build()

    assert "ProfilerStep#1" == middle_step([figures_of(long)])
    assert middle_step([figures_of(long), figures_of(short)]) in ("ProfilerStep#0", "ProfilerStep#1")
