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
from dptrace.timeline.model import AFTER_LAST, BEFORE_FIRST, Action, Phase, Timeline
from dptrace.timeline.phase_labels import labeled_phases
from dptrace.timeline.steps import CpuSteps, actions_of, cpu_steps, device_windows, phases, select_steps
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import BASE_NS, KinetoFile
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


def test_a_step_ends_on_the_device_with_its_work() -> None:
    """Steps begin on the CPU at 0, 100 and 200 and end at 300; rows are step, start and end of device work."""
    for rows, bounds in (
        # Step 1 begins when the work of step 0 ends, not when the CPU starts step 1.
        ([(0, 10, 130), (1, 130, 210)], [0, 130, 210, 300]),
        # Where the device has no work left, a step starts on the CPU, and the wait is idle time in it.
        ([(0, 10, 50), (1, 120, 150)], [0, 100, 200, 300]),
        # A copy of the next step that overlaps this one's tail moves the edge to its own start.
        ([(0, 10, 130), (1, 110, 180)], [0, 110, 200, 300]),
        # A step in which nothing was launched has the CPU's edges.
        ([(0, 10, 50), (2, 220, 250)], [0, 100, 200, 300]),
    ):
        assert bounds == windows([0, 100, 200], 300, rows)


rows = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 400), st.integers(0, 100)), min_size=1, max_size=12)


@pytest.mark.heavy
@given(rows)
def test_windows_ascend_and_the_definition_holds(raw: list[tuple[int, int, int]]) -> None:
    """Each edge equals the definition, computed one by one, and edges ascend."""
    starts, end = [0, 100, 200, 300], 390
    cut = windows(starts, end, [(k, a, a + length) for k, a, length in raw])

    previous = 0
    for k, cpu_start in enumerate(starts):
        edge = max([cpu_start, *(a + length for step, a, length in raw if step < k)])
        previous = max(min([edge, *(a for step, a, _ in raw if step == k)]), previous)
        assert previous == cut[k]
    assert cut[-1] >= max([end, *(a + length for step, a, length in raw if step == 3)])
    assert sorted(cut) == cut


# Phases, derived from how work was launched.

WRAPPER = "autograd::engine::evaluate_function: AddmmBackward0"


OPTIMIZER, SGD, LBFGS = (f"Optimizer.step#{name}.step" for name in ("AdamW", "SGD", "LBFGS"))
CLOSURE, MARK = "dptrace::closure", "dptrace::backward"
OPERATORS = (WRAPPER, "aten::linear", "AddmmBackward", "torch::autograd::AccumulateGrad")

# What happens: (event, start, end, thread), thread 1 by default; launches in order: µs, or (µs, thread); their phases.
PHASES: dict[str, tuple[list[tuple[Any, ...]], list[Any], str]] = {
    "nodes of autograd are backward, on their own thread": ([(WRAPPER, 10, 30, 2)], [(15, 2), 16], "backward forward"),
    "clipping after the last of them is other, the next step's forward is forward": (
        [(WRAPPER, 10, 30), ("ProfilerStep#2", 100, 200), (WRAPPER, 120, 130)],
        [40, 105, 180],
        "other forward other",
    ),
    "labels of a schedule that splits backward, launched outside autograd and after its last node": (
        [("attn(F)", 5, 9), (WRAPPER, 10, 30, 2), ("mlp(B)", 12, 20), ("attn(F)", 40, 50), ("mlp(W)", 60, 70)],
        [7, (15, 2), 15, 45, 65, 80],
        "forward backward backward forward backward other",
    ),
    "what backward recomputes under a label of forward stays backward": (
        [(WRAPPER, 10, 30), ("attn(F)", 15, 20), ("attn(B)", 40, 60), ("mlp(F)", 45, 50)],
        [17, 47],
        "backward backward",
    ),
    "autograd's nodes and the optimizer within a label of forward": (
        [("mlp(F)", 5, 50), (WRAPPER, 10, 30), (SGD, 35, 40)],
        [7, 20, 37],
        "forward backward optimizer",
    ),
    "the mark of the recorder wins over labels": ([("dptrace::forward", 5, 9), ("mlp(W)", 6, 8)], [7], "forward"),
    "without any backward all is forward, as in inference": ([("aten::linear", 5, 9)], [6], "forward"),
    "an optimizer in a hook of backward": ([(WRAPPER, 10, 30), (SGD, 12, 20)], [15], "optimizer"),
    "the innermost mark of the recorder wins over all": (
        [(MARK, 5, 50), (WRAPPER, 10, 30), ("dptrace::other", 14, 18), ("dptrace::nonsense", 60, 90)],
        [15, 40, 70],
        "other backward other",
    ),
    "an evaluation is other, though it looks like forward": (
        [("dptrace::evaluation", 5, 50), ("aten::linear", 10, 20), (WRAPPER, 60, 70)],
        [15],
        "other",
    ),
    "before autograd had its own event, its nodes' operators replace it": (
        [("AddmmBackward", 10, 20, 2), ("torch::autograd::AccumulateGrad", 20, 25, 2)],
        [3, (12, 2), (22, 2)],
        "forward backward backward",
    ),
    "FSDP reduces the first block's gradients in a callback at backward's very end": (
        [
            (WRAPPER, 10, 30, 2),
            ("FSDP::root_post_backward_callback", 31, 50, 2),
            ("FSDP::post_backward_reduce (0)", 33, 45, 2),
        ],
        [(35, 2), (48, 2), 55],
        "backward backward other",
    ),
    # Lightning's steps: what a closure runs before its backward ends is forward, and only the rest is optimizer.
    "a closure in the optimizer's step": (
        [
            (OPTIMIZER, 5, 90),
            ("Optimizer.zero_grad#AdamW.zero_grad", 20, 24),
            (WRAPPER, 30, 40, 2),
            (WRAPPER, 42, 50, 2),
        ],
        [10, 22, 26, (35, 2), 55, 60, 92],
        "forward optimizer forward backward optimizer optimizer other",
    ),
    "on CPU autograd runs nodes on the thread that calls backward": (
        [(OPTIMIZER, 5, 90), (WRAPPER, 30, 40)],
        [10, 35, 60],
        "forward backward optimizer",
    ),
    "L-BFGS evaluates its closure several times": (
        [(LBFGS, 5, 90), (WRAPPER, 20, 30, 2), (WRAPPER, 50, 60, 2)],
        [10, 40, 70],
        "forward forward optimizer",
    ),
    "a marked closure is like the loop's own code, and what is around and between its calls is optimizer": (
        [
            *((LBFGS, 5, 90), (CLOSURE, 10, 35), (CLOSURE, 50, 70), ("Optimizer.zero_grad#LBFGS.zero_grad", 11, 13)),
            *((WRAPPER, 20, 30), (WRAPPER, 55, 60, 2)),
        ],
        [7, 12, 15, 25, 32, 40, 52, 65, 80, 95],
        "optimizer optimizer forward backward forward optimizer forward other optimizer other",
    ),
    "a marked closure without backward, as a loss that is only evaluated": (
        [(WRAPPER, 2, 4, 2), (SGD, 5, 90), (CLOSURE, 10, 35)],
        [15, 50],
        "other optimizer",
    ),
    "an optimizer in a gradient hook, while another thread of the engine begins its next function": (
        [(WRAPPER, 10, 40, 2), (OPTIMIZER, 12, 30, 2), (WRAPPER, 15, 35, 3)],
        [(20, 2), (35, 2)],
        "optimizer backward",
    ),
    "two optimizers in turn, as of a GAN: neither calls a closure": (
        [(WRAPPER, 10, 20, 2), (OPTIMIZER, 25, 35), (WRAPPER, 50, 60, 2), (OPTIMIZER, 65, 75)],
        [30, 40, 70],
        "optimizer forward optimizer",
    ),
    # Traces of 2021 to 2024 are rounded to µs: both ends of an interval belong to it, and the later one has the edge.
    "a launch where backward ends": ([(WRAPPER, 10, 30)], [30, 31], "backward other"),
    "a launch where a mark ends": ([(MARK, 10, 30)], [30, 31], "backward forward"),
    "a launch where the optimizer ends": ([(OPTIMIZER, 10, 30)], [30, 31], "optimizer forward"),
    "a launch where two intervals touch": (
        [(WRAPPER, 10, 30), (OPTIMIZER, 30, 50), (WRAPPER, 50, 60)],
        [30, 50],
        "optimizer backward",
    ),
}


@pytest.mark.heavy
def test_phases_follow_from_what_encloses_the_launch(tmp_path: Path) -> None:
    """Of each launch, in their order."""
    for case in PHASES:
        events, launched, expected = PHASES[case]
        file = KinetoFile().label("ProfilerStep#1", 0, 100)
        for name, start, end, *thread in events:
            (file.op if name in OPERATORS else file.label)(name, start, end, *thread)
        for launch in launched:
            time, thread = launch if isinstance(launch, tuple) else (launch, 1)
            file.kernel(f"k{time}", 200 + time, 201 + time, time, thread)
        trace = read_trace(file.write(tmp_path / "t.json"))
        calls = np.flatnonzero(trace.category == Category.LAUNCH)
        found = phases(trace, cpu_steps(trace), trace.thread[calls], trace.start_ns[calls], labeled_phases(trace))
        assert expected.split() == [Phase(value).name.lower() for value in found], case


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
    received: dict[str, Any] = {"Collective name": "recv", "In msg nelems": 4, "Out msg nelems": 4, "Src Rank": "1"}
    return file.kernel("ncclDevKernel_SendRecv", start, end, launch, stream=20, dtype="Float", **received)


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
    """The weights' part counts as backward, too."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).op(NODE, 280, 290, 2)
    for at, label in ((10, "PP:0F0"), (40, "PP:0I0"), (70, "PP:0W0"), (100, "Backward 0")):
        file.label(label, at, at + 20).kernel(f"k{at}", at + 1, at + 9, at)
    timeline = build(file, tmp_path)

    forward, backward = Phase.FORWARD, Phase.BACKWARD
    assert [forward, backward, backward, backward] == timeline.phase.tolist()
    assert ["0F0", "0I0", "0W0"] == [row.name for row in pipeline_action_rows(timeline)]


def test_overlapping_forward_and_backward_are_separated(tmp_path: Path) -> None:
    """Under a label of two actions the autograd engine's work is the backward's, and overlapping time counts once."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("PP:(3F1;0B0)OVERLAP_F_B", 10, 100).op(NODE, 30, 60, 2)
    file.kernel("forward", 20, 80, 12).kernel("backward", 50, 120, 40, 2, stream=9)
    timeline = build(file, tmp_path)

    assert [Row("3F1", 20, 80, 30), Row("0B0", 50, 120, 70)] == pipeline_action_rows(timeline)


def test_labels_that_name_no_stage_count_where_messages_pass(tmp_path: Path) -> None:
    """``Forward 1`` may be any label; in a run with messages it is GPipe's, and gives way to dptrace's inside it."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("Forward 1", 10, 30).kernel("gemm", 40, 50, 20)

    assert not len(build(file, tmp_path).actions)
    assert [Row("-1F1", 40, 50, 10)] == pipeline_action_rows(build(message(file, 60, 70, 55), tmp_path))
    assert [Row("2F1", 40, 50, 10)] == pipeline_action_rows(build(file.label("PP:2F1", 15, 28), tmp_path))


def test_other_labels_are_no_actions(tmp_path: Path) -> None:
    """Messages, gathering and reducing are not a stage's forward or backward."""
    for label in ("PP:0SEND_F1", "PP:2RECV_B1", "PP:1UNSHARD", "PP:0REDUCE_GRAD", "Forward pass 1"):
        file = KinetoFile().label("ProfilerStep#3", 0, 300).label(label, 10, 30).kernel("gemm", 40, 50, 20)
        assert not len(build(message(file, 60, 70, 55), tmp_path).actions), label


def test_actions_go_with_the_steps_and_into_the_cache(tmp_path: Path) -> None:
    """A selection of steps keeps their actions with new step indices; serializing changes nothing."""
    file = KinetoFile()
    for step in range(3):
        at = 100 * step
        file.label(f"ProfilerStep#{step}", at, at + 100).label(f"PP:0F{step}", at + 10, at + 30)
        file.kernel("gemm", at + 20, at + 40, at + 12)
    timeline = build(file, tmp_path)
    last, _ = select_steps(timeline, 1, 2)
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


# Forward work repeated in backward.

RECOMPUTE_NODE = "autograd::engine::evaluate_function: "


def backward(node: str, *inside: tuple[str, float, float]) -> KinetoFile:
    """A backward node from 100 to 200 µs on the autograd thread, with kernels at its start, middle and end."""
    file = KinetoFile().label("ProfilerStep#1", 0, 300).op("aten::conv2d", 10, 20).kernel("forward", 30, 40, 12)
    file.op(f"{RECOMPUTE_NODE}{node}", 100, 200, 2).op(node, 101, 199, 2)
    for name, start, end in inside:
        file.op(name, start, end, 2)
    return file.kernel("first", 130, 140, 112, 2).kernel("middle", 150, 160, 142, 2).kernel("own", 230, 240, 190, 2)


def test_forward_work_in_a_node_of_backward_is_recompute(tmp_path: Path) -> None:
    """Of what a node launches, that of forward-only operators."""
    checkpointed = [("aten::mm", 110, 120), (f"{RECOMPUTE_NODE}MmBackward0", 185, 195)]
    for node, inside, expected in (
        # A node's launches up to its last forward-only operator are recompute; its own work is not.
        ("ReluBackward0", [("aten::conv2d", 110, 120), ("aten::batch_norm", 140, 150)], ["first", "middle"]),
        # The function's own launches are recompute, those of nested nodes are not.
        ("CheckpointFunctionBackward", checkpointed, ["first", "middle"]),
        # A compiled module's forward graph in backward is recompute, in a compiled backward too.
        ("CompiledFunctionBackward", [("CompiledFunction", 110, 120)], ["first"]),
        # Derivatives, linear() in a user's function and a compiled region do not count.
        ("ConvolutionBackward0", [("aten::convolution_backward", 110, 150)], []),
        ("SomebodysFunctionBackward", [("aten::linear", 110, 150)], []),
        ("CompiledFunctionBackward", [("Torch-Compiled Region: 2/2", 110, 150)], []),
    ):
        timeline = build(backward(node, *inside), tmp_path)
        assert (node, expected) == (node, [timeline.names[i] for i in timeline.name[timeline.recompute]])


@pytest.mark.heavy
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
