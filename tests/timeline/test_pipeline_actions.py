"""A pipeline's actions, from the labels around what was launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from dptrace.core.array_file import dumps, loads
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import NO_ACTIONS, Action, Actions, Phase, Timeline
from dptrace.timeline.pipeline_actions import actions_of, with_actions
from dptrace.timeline.steps import select_steps
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import KinetoFile, training_step

NODE = "autograd::engine::evaluate_function: MmBackward0"


class Row(NamedTuple):
    """An action's row; times in µs from the file's origin."""

    name: str
    start: float
    end: float
    busy: float


def rows(timeline: Timeline) -> list[Row]:
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

    assert [Row("1F0", 40, 60, 15), Row("1B0", 120, 160, 40)] == rows(timeline)
    assert [0, 0] == timeline.actions.step.tolist()


def test_a_label_of_backward_makes_backward_of_what_no_node_launches(tmp_path: Path) -> None:
    """The weights' part counts as backward; a forward label alone changes nothing."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).op(NODE, 280, 290, 2)
    for at, label in ((10, "PP:0F0"), (40, "PP:0I0"), (70, "PP:0W0"), (100, "Backward 0")):
        file.label(label, at, at + 20).kernel(f"k{at}", at + 1, at + 9, at)
    timeline = build(file, tmp_path)

    forward, backward = Phase.FORWARD, Phase.BACKWARD
    assert [forward, backward, backward, forward] == timeline.phase.tolist()
    assert ["0F0", "0I0", "0W0"] == [row.name for row in rows(timeline)]


def test_overlapping_forward_and_backward_are_separated(tmp_path: Path) -> None:
    """Under a label of two actions the autograd engine's work is the backward's, and overlapping time counts once."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("PP:(3F1;0B0)OVERLAP_F_B", 10, 100).op(NODE, 30, 60, 2)
    file.kernel("forward", 20, 80, 12).kernel("backward", 50, 120, 40, 2, stream=9)
    timeline = build(file, tmp_path)

    assert [Row("3F1", 20, 80, 30), Row("0B0", 50, 120, 70)] == rows(timeline)


def test_labels_that_name_no_stage_count_where_messages_pass(tmp_path: Path) -> None:
    """``Forward 1`` may be any label; in a run with sends or receives it is GPipe's."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("Forward 1", 10, 30).kernel("gemm", 40, 50, 20)

    assert not len(build(file, tmp_path).actions)
    assert [Row("-1F1", 40, 50, 10)] == rows(build(message(file, 60, 70, 55), tmp_path))


def test_labels_that_name_stages_go_before_those_that_do_not(tmp_path: Path) -> None:
    """dptrace's stages label their work inside GPipe's labels: it does not count twice."""
    file = KinetoFile().label("ProfilerStep#3", 0, 300).label("Forward 1", 10, 30).label("PP:2F1", 15, 28)

    assert [Row("2F1", 40, 50, 10)] == rows(build(file.kernel("gemm", 40, 50, 20), tmp_path))


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

    assert ["0F1", "0F2"] == [row.name for row in rows(last)]
    assert [0, 1] == last.actions.step.tolist()
    assert rows(timeline) == rows(again)


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
