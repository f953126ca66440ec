"""Figures of one GPU."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.device import figures_of
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.timeline.model import Kind, Phase
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder
from tests.support.synthetic import training_run

TIMELINE = training_run(2_000).timelines[0]


def test_without_its_other_intervals_the_figures_stay() -> None:
    """Only communication is kept, with its exposed and overlapped time; the split is that of the whole timeline."""
    whole = figures_of(TIMELINE)
    thin = whole.only_communication()

    assert {int(Kind.COMMUNICATION)} == set(thin.timeline.kind.tolist())
    assert whole.split == thin.split
    assert int(whole.exposed_ns.sum()) == int(thin.exposed_ns.sum())
    assert np.array_equal(thin.exposed_ns + thin.overlapped_ns, thin.timeline.end_ns - thin.timeline.start_ns)


def test_the_first_steps_have_the_figures_of_the_whole() -> None:
    """Cut figures equal those of the cut timeline; a count of 0, or of all, cuts nothing."""
    whole = figures_of(TIMELINE)
    for count in range(1, len(TIMELINE.windows)):
        cut_device, anew_device = whole.first_steps(count), figures_of(select_steps(TIMELINE, 0, count - 1))
        cut, anew = cut_device.split, anew_device.split
        assert np.array_equal(cut_device.exposed_ns, anew_device.exposed_ns)
        assert cut_device.arrivals.launch_ns.tolist() == anew_device.arrivals.launch_ns.tolist()
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


def test_a_rank_is_reported_everywhere() -> None:
    """The timeline and its split have the same rank."""
    other = figures_of(TIMELINE).with_rank(7)

    assert (7, 7) == (other.timeline.rank, other.split.rank)


def test_backward_recompute_and_search_are_reported_by_step() -> None:
    """Start and end of backward, recompute, the search for unused parameters and its exposed part."""
    build = TimelineBuilder(bounds=(0, 100, 200)).compute(0, 30).compute(40, 60, Phase.BACKWARD)
    timeline = build.compute(70, 90, Phase.BACKWARD).compute(100, 200).build()
    search = (np.array([25]), np.array([45]))
    device = figures_of(replace(timeline, recompute=np.array([False, True, False, False]), parameter_search=search))

    assert ([40, 0], [90, 0]) == (device.backward_start_ns.tolist(), device.backward_end_ns.tolist())
    assert [20, 0] == device.recompute_ns.tolist()
    assert ([20, 0], [10, 0]) == (device.parameter_search_ns.tolist(), device.parameter_search_idle_ns.tolist())
    assert device.timeline.filter(device.timeline.recompute).recompute.all()
