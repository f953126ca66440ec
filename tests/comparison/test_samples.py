"""The samples of one run."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.samples import COLLECTIVE_VALUES, devices_by_id, kernel_name, sample_run
from dptrace.timeline.model import Windows
from tests.support.jobs import job, run_of


def test_figures_are_those_of_the_split() -> None:
    """By rank and step, and the causes of idling with them."""
    run = job(steps=4)
    one = sample_run(run, devices_by_id(run))

    assert {*FIGURES, *CAUSES} == set(one.figures)
    assert (2, 4) == one.figures["wall_ns"].shape
    assert run.splits[1].figures["backward_ns"].tolist() == one.figures["backward_ns"][1].tolist()


def test_kernels_add_up_to_the_phases() -> None:
    """One stream without overlap: the compute kernels' time is the step's compute time."""
    run = job(steps=4)
    one = sample_run(run, devices_by_id(run))
    kernels = one.kernels()
    compute = sum(one.figures[name].mean(axis=0) for name in FIGURES[:4])

    assert {("compute", name) for name in ("gemm<float>(int)", "gemm_backward", "relu", "adam")} == set(kernels)
    assert np.allclose(compute, sum(values[0] for values in kernels.values()))
    assert all((values[1] == 1).all() for values in kernels.values())


def test_collectives_add_up_to_the_communication() -> None:
    """Exposed and overlapped time of the one sort of collective are the step's."""
    run = job(steps=4)
    one = sample_run(run, devices_by_id(run))
    ((sort, values),) = one.collectives().items()

    assert ("all_reduce", 4096, -1) == (sort.kind, sort.bytes, sort.seq)
    assert np.allclose(values[1], one.figures["exposed_comm_ns"].mean(axis=0))
    assert np.allclose(values[2], one.figures["overlapped_comm_ns"].mean(axis=0))
    assert np.allclose(values[0], values[1] + values[2])
    named = dict(zip(COLLECTIVE_VALUES, values, strict=True))
    assert [1.0] * 4 == named["count"].tolist() == named["matched"].tolist()
    assert np.allclose(named["transfer"] + named["wait"], named["duration"])


def test_only_the_steps_that_all_ranks_have_are_taken() -> None:
    """A note says how many there are."""
    a, b = job(steps=6).timelines
    b = replace(b, windows=Windows(b.windows.names[:4], b.windows.bounds[:5]), step=np.where(b.step > 3, -2, b.step))
    run = run_of([a, b])
    one = sample_run(run, devices_by_id(run))

    assert ("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7") == one.steps
    assert "Only the 4 steps" in one.notes[0]
    assert [4, 4] == [kernels.shape[1] for kernels in list(one.kernels().values())[:2]]


def test_steps_without_a_common_name_are_taken_by_their_order() -> None:
    """As when each rank counts from where its own recording began."""
    a, b = job(steps=3).timelines
    b = replace(b, windows=replace(b.windows, names=("x", "y", "z")))
    one = sample_run(run_of([a, b]), {(0, 0), (1, 0)})

    assert 3 == len(one.steps)
    assert "by order" in one.notes[0]


def test_an_outlier_is_left_out_unless_asked_for() -> None:
    """With its length."""
    run = job(steps=6, first=2)
    one, whole = sample_run(run, devices_by_id(run)), sample_run(run, devices_by_id(run), every_step=True)

    assert ["ProfilerStep#4"] == [name for name, _ in one.left_out]
    assert 5 == len(one.steps)
    assert (6, ()) == (len(whole.steps), whole.left_out)
    assert one.left_out[0][1] > 1.9 * one.figures["wall_ns"].mean()


def test_several_gpus_of_a_rank_are_distinguished() -> None:
    """By their order."""
    a, b = job(steps=3).timelines
    run = run_of([a, replace(b, rank=0)])

    assert [(0, 0), (0, 1)] == list(devices_by_id(run))


def test_names_are_compared_without_what_compilers_spell_differently() -> None:
    """Template arguments stay, since they distinguish kernels."""
    assert kernel_name("void a::(anonymous namespace)::k<4>(int)") == kernel_name("a::<unnamed>::k<4>(int)")
    assert kernel_name("k<4>()") != kernel_name("k<8>()")
    assert "Cijk_Ailk" == kernel_name("Cijk_Ailk [clone .kd]")
    assert "void " == kernel_name("void ")
