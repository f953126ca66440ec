"""Figures by GPU and step, with different steps per GPU."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

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
    """Exact for every GPU and step."""
    devices = [figures_of(timeline) for timeline in two_rank_timelines()]
    grid = step_grid(devices)

    assert ((0, 0), (1, 1)) == grid.device_ids
    assert devices[0].split.names == grid.steps
    for name in FIGURES:
        np.testing.assert_array_equal([device.split.figures[name] for device in devices], grid.figures[name])
    np.testing.assert_allclose(grid.share("idle_ns") * 100_000, grid.figures["idle_ns"])
    assert grid.figures["wall_ns"].sum() == grid.total("wall_ns")


def test_gpus_may_have_different_steps() -> None:
    """Steps are merged in order, and missing ones are marked."""
    grid = step_grid(
        [figures_of(named(0, ("a", "c"))), figures_of(named(1, ("a", "b", "c"))), figures_of(named(2, ("d",)))]
    )

    assert {"a", "b", "c", "d"} == set(grid.steps)
    assert grid.steps.index("a") < grid.steps.index("b") < grid.steps.index("c")
    assert 6 == grid.present.sum()
    assert np.isnan(grid.share("idle_ns")[~grid.present]).all()
    assert [100.0, 100.0, 100.0] == grid.mean("wall_ns").tolist()


def test_numbered_steps_stand_in_the_order_of_their_numbers() -> None:
    """Also if one GPU's recording begins where another's ends."""
    names = ("ProfilerStep#9", "ProfilerStep#10"), ("ProfilerStep#7", "ProfilerStep#8")

    assert (*names[1], *names[0]) == step_grid([figures_of(named(rank, names[rank])) for rank in (0, 1)]).steps


def test_no_gpu_and_no_step() -> None:
    """An empty run has an empty grid and no middle step."""
    grid = step_grid([])

    assert () == grid.device_ids
    assert () == grid.steps
    assert 0 == grid.total("wall_ns")
    assert middle_step([]) is None


def test_the_middle_step_is_one_that_all_have() -> None:
    """The middle step has the median length among those that most GPUs have."""
    bounds = (0, 100, 210, 1_000)
    long = TimelineBuilder(0, bounds=bounds).compute(10, 60).build()
    short = TimelineBuilder(1, bounds=bounds[:3]).compute(10, 60).build()

    assert "ProfilerStep#1" == middle_step([figures_of(long)])
    assert middle_step([figures_of(long), figures_of(short)]) in ("ProfilerStep#0", "ProfilerStep#1")
