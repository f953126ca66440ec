"""Where steps start and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

import dptrace
from dptrace.core.array_file import dumps, loads
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import AFTER_LAST, BEFORE_FIRST, NO_ACTIONS, Action, Actions, Phase, Timeline
from dptrace.timeline.steps import (
    WHOLE_TRACE,
    CpuSteps,
    actions_of,
    cpu_steps,
    device_windows,
    phases,
    select_steps,
    with_actions,
)
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step
from tests.support.real_traces import needs_real_traces, real


def steps_of(starts: list[int], end: int) -> CpuSteps:
    return CpuSteps(tuple(f"ProfilerStep#{k}" for k in range(len(starts))), np.array(starts, np.int64), end)


def windows(starts: list[int], end: int, rows: list[tuple[int, int, int]]) -> list[int]:
    """Compute windows from rows of (step that launched, start, end)."""
    start, stop = np.array([a for _, a, _ in rows], np.int64), np.array([b for _, _, b in rows], np.int64)
    step = np.array([k for k, _, _ in rows], np.int32)
    return [int(edge) for edge in device_windows(steps_of(starts, end), start, stop, step).bounds]


def test_marks_on_the_cpu_become_steps(tmp_path: Path) -> None:
    """Steps come from annotations on the CPU, not from their copies on the GPU, and have the profiler's names."""
    file = KinetoFile().label("ProfilerStep#5", 100, 190).label("ProfilerStep#4", 0, 90)
    file.event("gpu_user_annotation", "ProfilerStep#4", 20, 95, tid=7).kernel("k", 10, 20, 5)

    steps = cpu_steps(read_trace(file.write(tmp_path / "t.json")))

    assert ("ProfilerStep#4", "ProfilerStep#5") == steps.names
    assert [0, 100_000] == (steps.start_ns - BASE_NS).tolist()
    assert 190_000 == steps.end_ns - BASE_NS


def test_a_time_lies_in_the_step_that_began_last() -> None:
    """Between two marks the earlier step continues; before the first and after the last there is no step."""
    steps = steps_of([10, 20], 30)

    assert [BEFORE_FIRST, 0, 0, 1, AFTER_LAST] == steps.index_at(np.array([9, 10, 19, 29, 30])).tolist()


def test_work_that_runs_behind_the_cpu_counts_in_its_own_step() -> None:
    """Step 1 begins on the device when the work of step 0 ends, not when the CPU starts step 1."""
    assert [0, 130, 210] == windows([0, 100], 200, [(0, 10, 130), (1, 130, 210)])


def test_a_device_that_waits_begins_its_step_with_the_cpu() -> None:
    """When the device has no work left, the step starts on the CPU and the wait is idle time in it."""
    assert [0, 100, 200] == windows([0, 100], 200, [(0, 10, 50), (1, 120, 150)])


def test_early_work_of_a_step_on_another_stream_begins_it() -> None:
    """A copy of the next step that overlaps this one's tail moves the edge to its own start."""
    assert [0, 110, 200] == windows([0, 100], 200, [(0, 10, 130), (1, 110, 180)])


def test_a_step_without_device_work_is_cut_by_the_cpu() -> None:
    """A step in which nothing was launched has the CPU's edges, and the last ends with its mark."""
    assert [0, 100, 200, 300] == windows([0, 100, 200], 300, [(0, 10, 50), (2, 220, 250)])


def test_without_marks_the_whole_trace_is_one_window() -> None:
    """From the first device start to the last end."""
    cut = device_windows(steps_of([], 0), np.array([5, 7]), np.array([50, 9]), np.zeros(2, np.int32))

    assert ((WHOLE_TRACE,), [5, 50]) == (cut.names, cut.bounds.tolist())


rows = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 400), st.integers(0, 100)), min_size=1, max_size=12)


@given(rows)
def test_windows_ascend_and_the_definition_holds(raw: list[tuple[int, int, int]]) -> None:
    """Each edge equals the definition, computed one by one, and edges ascend."""
    starts, end = [0, 100, 200, 300], 390
    cut = windows(starts, end, [(k, a, a + length) for k, a, length in raw])

    previous = None
    for k, cpu_start in enumerate(starts):
        before = [a + length for step, a, length in raw if step < k]
        own = [a for step, a, _ in raw if step == k]
        edge = max([cpu_start, *before])
        edge = min([edge, *own])
        edge = edge if previous is None else max(edge, previous)
        assert edge == cut[k]
        previous = edge
    last = [a + length for step, a, length in raw if step == 3]
    assert cut[-1] >= max([end, *last])
    assert sorted(cut) == cut


# Phases, derived from how work was launched.


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


# A pipeline's actions, from the labels around what was launched.


NODE = "autograd::engine::evaluate_function: MmBackward0"


class Row(NamedTuple):
    """An action's row; times in µs from the file's origin."""

    name: str
    start: float
    end: float
    busy: float


def pipeline_action_rows(timeline: Timeline) -> list[Row]:
    base = 1_700_000_000_000_000_000
    a = timeline.actions
    times: list[Any] = [(a.start_ns - base) / 1000, (a.end_ns - base) / 1000, a.busy_ns / 1000]
    columns = zip(*(column.tolist() for column in (a.stage, a.kind, a.micro_batch, *times)), strict=True)
    return [Row(f"{stage}{Action(kind).name}{micro}", *times) for stage, kind, micro, *times in columns]


def build(file: KinetoFile, folder: Path) -> Timeline:
    (timeline,) = build_timelines(read_trace(file.write(folder / "t.json")), 0)
    return timeline


def message(file: KinetoFile, start: float, end: float, launch: float) -> KinetoFile:
    metadata: dict[str, Any] = {
        "Collective name": "recv",
        "In msg nelems": 4,
        "Out msg nelems": 4,
        "dtype": "Float",
        "Src Rank": "1",
    }
    return file.kernel("ncclDevKernel_SendRecv", start, end, launch, stream=20, **metadata)


def test_an_action_is_the_compute_launched_under_its_label(tmp_path: Path) -> None:
    """From the first to the last compute on the device, launched on any thread; not the receive before it."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("PP:1F0", 10, 30)
    message(file, 12, 40, 11)
    file.kernel("gemm", 40, 50, 20).kernel("gemm", 55, 60, 22).label("PP:1B0", 100, 150).op(NODE, 110, 140, 2)
    file.kernel("dgrad", 120, 160, 112, 2).kernel("scale", 200, 210, 170)
    timeline = build(file, tmp_path)

    assert [Row("1F0", 40, 60, 15), Row("1B0", 120, 160, 40)] == pipeline_action_rows(timeline)
    assert [0, 0] == timeline.actions.step.tolist()


def test_a_label_of_backward_makes_backward_of_what_no_node_launches(tmp_path: Path) -> None:
    """The weights' part counts as backward; a forward label alone changes nothing."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).op(NODE, 280, 290, 2)
    for at, label in ((10, "PP:0F0"), (40, "PP:0I0"), (70, "PP:0W0"), (100, "Backward 0")):
        file.label(label, at, at + 20).kernel(f"k{at}", at + 1, at + 9, at)
    timeline = build(file, tmp_path)

    forward, backward = Phase.FORWARD, Phase.BACKWARD
    assert [forward, backward, backward, forward] == timeline.phase.tolist()
    assert ["0F0", "0I0", "0W0"] == [row.name for row in pipeline_action_rows(timeline)]


def test_overlapping_forward_and_backward_are_separated(tmp_path: Path) -> None:
    """Under a label of two actions the autograd engine's work is the backward's, and overlapping time counts once."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("PP:(3F1;0B0)OVERLAP_F_B", 10, 100).op(NODE, 30, 60, 2)
    file.kernel("forward", 20, 80, 12).kernel("backward", 50, 120, 40, 2, stream=9)
    timeline = build(file, tmp_path)

    assert [Row("3F1", 20, 80, 30), Row("0B0", 50, 120, 70)] == pipeline_action_rows(timeline)


def test_labels_that_name_no_stage_count_where_messages_pass(tmp_path: Path) -> None:
    """``Forward 1`` may be any label; in a run with sends or receives it is GPipe's."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("Forward 1", 10, 30).kernel("gemm", 40, 50, 20)

    assert not len(build(file, tmp_path).actions)
    assert [Row("-1F1", 40, 50, 10)] == pipeline_action_rows(build(message(file, 60, 70, 55), tmp_path))


def test_labels_that_name_stages_go_before_those_that_do_not(tmp_path: Path) -> None:
    """dptrace's stages label their work inside GPipe's labels: it does not count twice."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("Forward 1", 10, 30).label("PP:2F1", 15, 28)

    assert [Row("2F1", 40, 50, 10)] == pipeline_action_rows(build(file.kernel("gemm", 40, 50, 20), tmp_path))


@pytest.mark.parametrize("label", ["PP:0SEND_F1", "PP:2RECV_B1", "PP:1UNSHARD", "PP:0REDUCE_GRAD", "Forward pass 1"])
def test_other_labels_are_no_actions(label: str, tmp_path: Path) -> None:
    """Messages, gathering and reducing are not a stage's forward or backward."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label(label, 10, 30).kernel("gemm", 40, 50, 20)

    assert not len(build(message(file, 60, 70, 55), tmp_path).actions)


def test_a_run_without_a_pipeline_has_none(tmp_path: Path) -> None:
    """Its timeline is the same object: nothing is computed."""
    path = training_step(KinetoFile(), 3, 0).write(tmp_path / "t.json")
    trace = read_trace(path)
    (timeline,) = build_timelines(trace, 0)

    assert timeline is with_actions(trace, timeline)


def test_actions_go_with_the_steps_and_into_the_cache(tmp_path: Path) -> None:
    """A selection of steps keeps their actions with new step indices; serializing changes nothing."""
    file = KinetoFile()
    for step in range(3):
        at = 100 * step
        file.label(f"ProfilerStep#{step}", at, at + 100).label(f"PP:0F{step}", at + 10, at + 30)
        file.kernel("gemm", at + 20, at + 40, at + 12)
    timeline = build(file, tmp_path)
    last = select_steps(timeline, 1, 2)
    again = loads(b"".join(bytes(part) for part in dumps(timeline)), Timeline)

    assert ["0F1", "0F2"] == [row.name for row in pipeline_action_rows(last)]
    assert [0, 1] == last.actions.step.tolist()
    assert pipeline_action_rows(timeline) == pipeline_action_rows(again)


labels = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 10), st.sampled_from(["0F1", "0B1", "1I0", "1W0", "(0F2;1B3)OVERLAP_F_B"])
    ),
    min_size=1,
    max_size=6,
)
works = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 20), st.integers(0, 90), st.booleans(), st.booleans()), max_size=10
)


@pytest.mark.heavy
@given(labels, works)
def test_stretches_against_a_look_at_every_interval(
    labels: list[tuple[int, int, str]], works: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Start, end and busy time of each action equal those of a brute-force search."""
    builder, at, spans = TimelineBuilder(bounds=(0, 200)), 0, []
    for gap, length, name in labels:
        at += gap
        spans.append((at, at + length, name))
        at += length
    works = sorted(works)
    for start, length, _, backward, comm in works:
        if comm:
            builder.all_reduce(start, start + length)
        else:
            builder.compute(start, start + length, Phase.BACKWARD if backward else Phase.FORWARD)
    works.sort(key=lambda work: (work[0], work[0] + work[1]))
    timeline = builder.build()
    force_setattr(timeline, "launch_ns", np.array([work[2] for work in works], np.int64))
    behind = np.array([work[3] for work in works], np.bool_)
    force_setattr(timeline, "phase", np.where(behind, Phase.BACKWARD, Phase.FORWARD).astype(np.uint8))

    found = actions_of(labelled(spans), timeline)

    actions = zip(
        *(getattr(found, name).tolist() for name in ("stage", "kind", "micro_batch", "start_ns", "end_ns", "busy_ns")),
        strict=True,
    )
    assert sorted(brute_force(spans, works)) == sorted(actions)


def labelled(spans: list[tuple[int, int, str]]) -> Trace:
    """Make a trace of labels alone."""
    names = tuple(dict.fromkeys(f"PP:{name}" for _, _, name in spans))
    count = len(spans)
    none = np.full(count, -1, np.int64)
    return Trace(
        path="",
        rank=0,
        world_size=1,
        start_ns=np.array([start for start, _, _ in spans], np.int64),
        end_ns=np.array([end for _, end, _ in spans], np.int64),
        category=np.full(count, 2, np.uint8),
        name=np.array([names.index(f"PP:{name}") for _, _, name in spans], np.int32),
        names=names,
        thread=np.zeros(count, np.int32),
        correlation=none,
        device=none.astype(np.int32),
        stream=none,
        comm={},
    )


def brute_force(
    spans: list[tuple[int, int, str]], works: list[tuple[int, int, int, bool, bool]]
) -> list[tuple[int, int, int, int, int, int]]:
    """Do what actions_of does, an interval and a nanosecond at a time."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for start, length, launch, backward, comm in works:
        for place, (called, returned, name) in enumerate(spans):
            if comm or not called <= launch < returned:
                continue
            parts = ["1B3" if backward else "0F2"] if name.startswith("(") else [name]
            found.setdefault((place, parts[0]), []).append((start, start + length))
    behind = {t for (_, name), own in found.items() if name[1] != "F" for a, b in own for t in range(a, b)}
    ahead = {t for (_, name), own in found.items() if name[1] == "F" for a, b in own for t in range(a, b)} - behind
    actions = []
    for (_, name), own in found.items():
        start, end = min(a for a, _ in own), max(b for _, b in own)
        busy = len((ahead if name[1] == "F" else behind) & set(range(start, end)))
        actions.append((int(name[0]), int(Action[name[1]]), int(name[2]), start, end, busy))
    return actions


def test_actions_of_no_pipeline_are_empty() -> None:
    """Each column is empty and of a file's type."""
    empty = NO_ACTIONS

    assert isinstance(empty, Actions)
    assert 0 == len(empty.filter(np.zeros(0, np.bool_)))


# Forward work repeated in backward.


RECOMPUTE_NODE = "autograd::engine::evaluate_function: "


def again(timeline: Timeline) -> list[str]:
    return [timeline.names[i] for i in timeline.name[timeline.recompute]]


def backward(node: str, *inside: tuple[str, float, float]) -> KinetoFile:
    """A backward node from 100 to 200 µs on the autograd thread, with kernels at its start, middle and end."""
    file = KinetoFile().label("ProfilerStep#1", 0, 300).op("aten::conv2d", 10, 20).kernel("forward", 30, 40, 12)
    file.op(f"{RECOMPUTE_NODE}{node}", 100, 200, 2).op(node, 101, 199, 2)
    for name, start, end in inside:
        file.op(name, start, end, 2)
    return file.kernel("first", 130, 140, 112, 2).kernel("middle", 150, 160, 142, 2).kernel("own", 230, 240, 190, 2)


def test_a_block_repeated_at_the_head_of_a_node_is_recompute(tmp_path: Path) -> None:
    """A node's launches up to its last forward-only operator are recompute; its own work is not."""
    file = backward("ReluBackward0", ("aten::conv2d", 110, 120), ("aten::batch_norm", 140, 150))

    assert ["first", "middle"] == again(build(file, tmp_path))


def test_reentrant_checkpointing_is_recompute_without_its_backward(tmp_path: Path) -> None:
    """The function's own launches are recompute, those of nested nodes are not."""
    file = backward("CheckpointFunctionBackward", ("aten::mm", 110, 120)).op(
        f"{RECOMPUTE_NODE}MmBackward0", 185, 195, 2
    )

    assert ["first", "middle"] == again(build(file, tmp_path))


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("ConvolutionBackward0", "aten::convolution_backward"),
        ("SomebodysFunctionBackward", "aten::linear"),
        ("CompiledFunctionBackward", "Torch-Compiled Region: 2/2"),
    ],
)
def test_ordinary_backward_is_not(node: str, operator: str, tmp_path: Path) -> None:
    """Derivatives, linear() in a user's function and a compiled region do not count."""
    assert [] == again(build(backward(node, (operator, 110, 150)), tmp_path))


def test_a_compiled_block_repeated_in_any_node_is_recompute(tmp_path: Path) -> None:
    """A compiled module's forward graph in backward is recompute, in a compiled backward too."""
    file = backward("CompiledFunctionBackward", ("CompiledFunction", 110, 120))

    assert ["first"] == again(build(file, tmp_path))


@needs_real_traces
def test_the_checkpointed_resnet_does_its_blocks_again() -> None:
    """All 57 forward-only kernels of batch norm that backward launches are recompute."""
    timeline = dptrace.open(real("ddp_mi300_rank0of8")).timelines[0]
    statistics = np.array(["batch_norm_collect_statistics" in name for name in timeline.names])[timeline.name]

    assert 591 == timeline.recompute.sum()
    assert 57 == (statistics & timeline.recompute).sum()


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    "name", ["ddp_a100_rank0of2", "perparam_v100_rank1of2", "dlrm_v100_4ranks", "sharded_h100_8ranks", "ns_v100_1gpu"]
)
def test_jobs_without_checkpointing_do_nothing_again(name: str) -> None:
    """None of their kernels counts as recompute."""
    assert not any(timeline.recompute.any() for timeline in dptrace.open(real(name)).timelines)
