"""Phases, derived from how work was launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category
from dptrace.timeline.model import Phase
from dptrace.timeline.phases import phases
from dptrace.timeline.steps import cpu_steps
from tests.support.kineto_files import KinetoFile

WRAPPER = "autograd::engine::evaluate_function: AddmmBackward0"


def phase_of(file: KinetoFile, folder: Path) -> list[str]:
    """Return the phases of the launches in *file*, in order of time."""
    trace = read_trace(file.write(folder / "t.json"))
    launches = np.flatnonzero(trace.category == Category.LAUNCH)
    found = phases(trace, cpu_steps(trace), trace.thread[launches], trace.start_ns[launches])
    return [Phase(value).name.lower() for value in found]


def step() -> KinetoFile:
    return KinetoFile().label("ProfilerStep#1", 0, 100)


def test_autograd_nodes_are_backward_on_their_own_thread(tmp_path: Path) -> None:
    """A launch inside the engine's event is backward; one at the same time on another thread is not."""
    file = step().op(WRAPPER, 10, 30, tid=2)
    file.kernel("a", 50, 60, launch=15, tid=2).kernel("b", 60, 70, launch=16, tid=1)

    assert ["backward", "forward"] == phase_of(file, tmp_path)


def test_after_the_last_backward_function_it_is_other(tmp_path: Path) -> None:
    """Clipping after backward is other; the forward of the next step is forward again."""
    file = step().op(WRAPPER, 10, 30).label("ProfilerStep#2", 100, 200).op(WRAPPER, 120, 130)
    file.kernel("clip", 50, 60, launch=40).kernel("next", 120, 130, launch=105).kernel("late", 190, 195, launch=180)

    assert ["other", "forward", "other"] == phase_of(file, tmp_path)


def test_optimizer_wins_over_the_engine(tmp_path: Path) -> None:
    """An optimizer that steps inside backward hooks is optimizer."""
    file = step().op(WRAPPER, 10, 30).label("Optimizer.step#SGD.step", 12, 20).kernel("sgd", 40, 50, launch=15)

    assert ["optimizer"] == phase_of(file, tmp_path)


def test_a_mark_of_the_recorder_wins_over_all(tmp_path: Path) -> None:
    """The innermost mark counts, whatever else encloses the launch."""
    file = step().label("dptrace::backward", 5, 50).op(WRAPPER, 10, 30).label("dptrace::other", 14, 18)
    file.kernel("a", 60, 61, launch=15).kernel("b", 61, 62, launch=40).label("dptrace::nonsense", 60, 90)
    file.kernel("c", 90, 91, launch=70)

    assert ["other", "backward", "other"] == phase_of(file, tmp_path)


def test_without_any_backward_all_is_forward(tmp_path: Path) -> None:
    """Inference is forward, except under events named as an optimizer's."""
    assert ["forward"] == phase_of(step().op("aten::linear", 5, 9).kernel("gemm", 10, 20, launch=6), tmp_path)


def test_old_files_show_backward_by_their_nodes(tmp_path: Path) -> None:
    """Before the engine had its own event, its nodes' operators replace it."""
    file = step().op("AddmmBackward", 10, 20, tid=2).op("torch::autograd::AccumulateGrad", 20, 25, tid=2)
    file.kernel("a", 30, 40, launch=12, tid=2).kernel("b", 40, 50, launch=22, tid=2).kernel("c", 5, 8, launch=3)

    assert ["forward", "backward", "backward"] == phase_of(file, tmp_path)


def test_fsdps_hooks_after_autograds_last_node_are_backward(tmp_path: Path) -> None:
    """The first block's gradients are reduced by a callback at backward's very end; clipping after it is other."""
    file = step().op(WRAPPER, 10, 30, tid=2)
    file.label("FSDP::root_post_backward_callback", 31, 50, tid=2).label(
        "FSDP::post_backward_reduce (0)", 33, 45, tid=2
    )
    file.kernel("a", 50, 60, launch=35, tid=2).kernel("b", 60, 70, launch=48, tid=2).kernel("c", 70, 80, launch=55)

    assert ["backward", "backward", "other"] == phase_of(file, tmp_path)


OPTIMIZER = "Optimizer.step#AdamW.step"


def test_a_closure_in_the_optimizers_step_is_forward_and_backward(tmp_path: Path) -> None:
    """Lightning's steps: what the closure runs before its backward ends is forward, and only the rest is optimizer."""
    file = step().label(OPTIMIZER, 5, 90).label("Optimizer.zero_grad#AdamW.zero_grad", 20, 24)
    file.op(WRAPPER, 30, 40, tid=2).op(WRAPPER, 42, 50, tid=2)
    file.kernel("gemm", 11, 14, launch=10).kernel("zero", 24, 25, launch=22).kernel("loss", 29, 30, launch=26)
    file.kernel("gemm_backward", 44, 60, launch=35, tid=2).kernel("clip", 66, 70, launch=55)
    file.kernel("adamw", 70, 80, launch=60).kernel("ema", 95, 96, launch=92)

    expected = ["forward", "optimizer", "forward", "backward", "optimizer", "optimizer", "other"]
    assert expected == phase_of(file, tmp_path)


def test_autograd_on_the_thread_of_the_optimizers_step_is_backward(tmp_path: Path) -> None:
    """On CPU the engine runs nodes on the thread that calls backward, so they lie inside the closure."""
    file = step().label(OPTIMIZER, 5, 90).op(WRAPPER, 30, 40)
    file.kernel("a", 11, 12, launch=10).kernel("b", 36, 37, launch=35).kernel("c", 61, 62, launch=60)

    assert ["forward", "backward", "optimizer"] == phase_of(file, tmp_path)


def test_each_call_of_a_closure_is_forward_and_backward(tmp_path: Path) -> None:
    """L-BFGS evaluates its closure several times; only what follows the last backward is optimizer."""
    file = step().label("Optimizer.step#LBFGS.step", 5, 90).op(WRAPPER, 20, 30, tid=2).op(WRAPPER, 50, 60, tid=2)
    file.kernel("a", 11, 12, launch=10).kernel("b", 41, 42, launch=40).kernel("c", 71, 72, launch=70)

    assert ["forward", "forward", "optimizer"] == phase_of(file, tmp_path)


CLOSURE = "dptrace::closure"


def test_a_marked_closure_is_like_the_loops_own_code(tmp_path: Path) -> None:
    """Clipping after its backward is other, and what the optimizer does around and between its calls is optimizer."""
    file = step().label("Optimizer.step#LBFGS.step", 5, 90).label(CLOSURE, 10, 35).label(CLOSURE, 50, 70)
    file.label("Optimizer.zero_grad#LBFGS.zero_grad", 11, 13).op(WRAPPER, 20, 30).op(WRAPPER, 55, 60, tid=2)
    times = (7, 12, 15, 25, 32, 40, 52, 65, 80, 95)
    for number, time in enumerate(times):
        file.kernel(f"k{number}", 100 + number, 101 + number, launch=time)

    first = ["optimizer", "optimizer", "forward", "backward", "forward"]
    assert [*first, "optimizer", "forward", "other", "optimizer", "other"] == phase_of(file, tmp_path)


def test_a_marked_closure_without_backward_is_no_optimizer(tmp_path: Path) -> None:
    """A loss that is only evaluated, after the loop's own backward and before that of the next step."""
    file = step().op(WRAPPER, 2, 4, tid=2).label("Optimizer.step#SGD.step", 5, 90).label(CLOSURE, 10, 35)
    file.kernel("loss", 100, 101, launch=15).kernel("update", 101, 102, launch=50)

    assert ["other", "optimizer"] == phase_of(file, tmp_path)


def test_an_optimizer_in_a_gradient_hook_calls_no_closure(tmp_path: Path) -> None:
    """It stays optimizer while another thread of the engine begins its next backward function."""
    file = step().op(WRAPPER, 10, 40, tid=2).label(OPTIMIZER, 12, 30, tid=2).op(WRAPPER, 15, 35, tid=3)
    file.kernel("adamw", 40, 50, launch=20, tid=2).kernel("own", 50, 60, launch=35, tid=2)

    assert ["optimizer", "backward"] == phase_of(file, tmp_path)


def test_backward_before_and_after_the_optimizers_step_is_no_closures(tmp_path: Path) -> None:
    """Two optimizers in turn, as of a GAN: each step without a closure is optimizer throughout."""
    file = step().op(WRAPPER, 10, 20, tid=2).label(OPTIMIZER, 25, 35)
    file.op(WRAPPER, 50, 60, tid=2).label(OPTIMIZER, 65, 75)
    file.kernel("a", 31, 32, launch=30).kernel("b", 71, 72, launch=70).kernel("c", 41, 42, launch=40)

    assert ["optimizer", "forward", "optimizer"] == phase_of(file, tmp_path)


@pytest.mark.parametrize(
    ("label", "expected"), [(WRAPPER, "backward"), ("dptrace::backward", "backward"), (OPTIMIZER, "optimizer")]
)
def test_a_launch_in_the_microsecond_in_which_its_event_ends_belongs_to_it(
    label: str, expected: str, tmp_path: Path
) -> None:
    """Traces of 2021 to 2024 are rounded to microseconds: both ends of an interval belong to it."""
    file = step().op(label, 10, 30).kernel("a", 31, 40, launch=30).kernel("b", 41, 50, launch=31)

    assert expected == phase_of(file, tmp_path)[0]
    assert expected != phase_of(file, tmp_path)[1]


def test_where_two_intervals_touch_the_later_has_the_launch(tmp_path: Path) -> None:
    """A launch where backward ends and the optimizer starts is the optimizer's, and the other way round."""
    file = step().op(WRAPPER, 10, 30).label(OPTIMIZER, 30, 50).op(WRAPPER, 50, 60).kernel("a", 31, 40, launch=30)

    assert ["optimizer", "backward"] == phase_of(file.kernel("b", 51, 55, launch=50), tmp_path)


def test_an_evaluation_is_other(tmp_path: Path) -> None:
    """The recorder's mark around an evaluation counts, though it follows no backward and looks like forward."""
    file = step().label("dptrace::evaluation", 5, 50).op("aten::linear", 10, 20).kernel("gemm", 20, 30, launch=15)

    assert ["other"] == phase_of(file.op(WRAPPER, 60, 70), tmp_path)
