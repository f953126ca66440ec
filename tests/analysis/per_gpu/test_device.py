"""Figures of one GPU."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.device import ExpertLoad, expert_loads, figures_of, middle_step, step_grid
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.timeline.model import Phase, Timeline, Windows
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.synthetic import training_run

TIMELINE = training_run(2_000).timelines[0]


def test_the_first_steps_have_the_figures_of_the_whole() -> None:
    """Cut figures equal those of the cut timeline; a count of 0, or of all, cuts nothing."""
    whole = figures_of(TIMELINE)
    for count in range(1, len(TIMELINE.windows)):
        cut_device, anew_device = whole.first_steps(count), figures_of(select_steps(TIMELINE, 0, count - 1)[0])
        cut, anew = cut_device.split, anew_device.split
        assert np.array_equal(cut_device.exposed_ns, anew_device.exposed_ns)
        assert cut.names == anew.names
        for column in (
            "backward_start_ns",
            "backward_end_ns",
            "recompute_ns",
            "parameter_search_ns",
            "parameter_search_idle_ns",
        ):
            assert np.array_equal(getattr(cut_device, column), getattr(anew_device, column))
        assert all(np.array_equal(cut.figures[name], anew.figures[name]) for name in FIGURES)
        assert cut.comm.keys() == anew.comm.keys()
        for kind, figures in cut.comm.items():
            assert np.array_equal(figures.exposed_ns, anew.comm[kind].exposed_ns)
            assert np.array_equal(figures.bytes, anew.comm[kind].bytes)
    assert whole is whole.first_steps(0)
    assert whole is whole.first_steps(len(TIMELINE.windows))


def test_backward_recompute_and_search_are_reported_by_step() -> None:
    """Start and end of backward, recompute, the search for unused parameters and its exposed part."""
    build = TimelineBuilder(bounds=(0, 100, 200)).compute(0, 30).compute(40, 60, Phase.BACKWARD)
    timeline = build.compute(70, 90, Phase.BACKWARD).compute(100, 200).build()
    search = (np.array([25]), np.array([45]))
    device = figures_of(replace(timeline, recompute=np.array([False, True, False, False]), parameter_search=search))

    assert ([40, 0], [90, 0]) == (device.backward_start_ns.tolist(), device.backward_end_ns.tolist())
    assert [20, 0] == device.recompute_ns.tolist()
    assert ([20, 0], [10, 0]) == (device.parameter_search_ns.tolist(), device.parameter_search_idle_ns.tolist())
    assert device.timeline.take(device.timeline.recompute).recompute.all()


# Distribution of tokens over experts.


def test_shares_are_of_the_tokens_of_a_layer() -> None:
    """Shares sum to 1 in each layer; the first among equals is named."""
    first, second = expert_loads({"options": {"expert_load": [[10, 30, 20, 20], [5, 5, 0, 0]]}})

    assert ExpertLoad(0, (0.125, 0.375, 0.25, 0.25)) == first
    assert (1, 0, 0.25) == (first.most_loaded, first.least_loaded, first.even_share)
    assert (1, 0, 2) == (second.layer, second.most_loaded, second.least_loaded)


def test_what_is_no_load_is_left_out() -> None:
    """Runs without experts, layers without tokens, and malformed run.json files."""
    malformed: list[object] = [[], [0, 0], ["a"], [1, -1], [True, 2], [0.5], 7]
    unloaded: tuple[object, ...] = (None, [], {}, {"expert_load": 3}, {"expert_load": malformed})
    for options in unloaded:
        assert () == expert_loads({"options": options}) == expert_loads({})


def test_ranks_with_other_layers_complete_each_other() -> None:
    """Of a mesh with stages each rank has its own layers; with a capacity, the share of dropped tokens is known."""
    first = {"layers": [0], "expert_load": [[6, 2]], "expert_dropped": [[2, 0]]}
    second = {"layers": [1, 2], "expert_load": [[4, 4], [0, 0]], "expert_dropped": [[0, 0], [0, 0]]}
    ranks = [
        {"experts": second},
        {"experts": first},
        {"experts": second},
        {"experts": {"layers": 3}},
        {"experts": None},
    ]

    assert (ExpertLoad(0, (0.75, 0.25), 0.25), ExpertLoad(1, (0.5, 0.5), 0.0)) == expert_loads({"ranks": ranks})


# Figures by GPU and step, with different steps per GPU.


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


def test_the_middle_step_is_one_that_all_have() -> None:
    """The middle step has the median length among those that most GPUs have."""
    bounds = (0, 100, 210, 1_000)
    long = TimelineBuilder(0, bounds=bounds).compute(10, 60).build()
    short = TimelineBuilder(1, bounds=bounds[:3]).compute(10, 60).build()

    assert "ProfilerStep#1" == middle_step([figures_of(long)])
    assert middle_step([figures_of(long), figures_of(short)]) in ("ProfilerStep#0", "ProfilerStep#1")
