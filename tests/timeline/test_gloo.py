"""Which operator requested each of gloo's events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import Collective, Phase, Timeline
from tests.support.kineto_files import KinetoFile
from tests.support.modes import CASES, run_of


def step() -> KinetoFile:
    return KinetoFile(backend="gloo").label("ProfilerStep#1", 0, 1000).op("aten::linear", 1, 2)


def request(file: KinetoFile, name: str, at: float, dims: list[Any]) -> KinetoFile:
    """Add the operator that requests a collective; it takes 2 µs."""
    types = ["TensorList" if dim and isinstance(dim[0], list) else "float" if dim else "" for dim in dims]
    shapes: dict[str, Any] = {"Input Dims": dims, "Input type": types}
    return file.op(f"c10d::{name}", at, at + 2, **shapes)


def execute(file: KinetoFile, name: str, start: float, end: float, *dims: list[int], tid: int = 9) -> KinetoFile:
    """Add an event of gloo, on its own thread."""
    shapes: dict[str, Any] = {"Input Dims": [*dims], "Input type": ["float"] * len(dims)}
    return file.label(f"gloo:{name}", start, end, tid, **shapes)


def read(file: KinetoFile, folder: Path) -> Timeline:
    (timeline,) = build_timelines(read_trace(file.write(folder / "t.json")), 0)
    return timeline


def summary(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(comm.kind, comm.bytes, comm.group_size) for comm in timeline.collectives]


@pytest.mark.parametrize(
    ("operator", "dims", "gloo", "did", "expected"),
    [
        ("_allgather_base_", [[40], [10], [], [], []], "all_gather", [10], ("all_gather", 160, 4)),
        ("_reduce_scatter_base_", [[10], [40], [], [], [], []], "all_reduce", [40], ("reduce_scatter", 160, 4)),
        ("allgather_into_tensor_coalesced_", [[[8, 4]], [[4, 4]], []], "all_gather", [4, 4], ("all_gather", 128, 2)),
        ("reduce_scatter_tensor_coalesced_", [[[2, 4]], [[4, 4]]], "all_reduce", [4, 4], ("reduce_scatter", 64, 2)),
        ("allreduce_", [[[10]], [], [], [], [], []], "all_reduce", [10], ("all_reduce", 40, 0)),
        ("allgather_", [[], [[10]], [], [], []], "all_gather", [10], ("all_gather", 40, 0)),
        ("alltoall_base_", [[8], [8], [], [], []], "all_to_all", [8], ("all_to_all", 32, 0)),
        ("broadcast_", [[[33, 32]], [], []], "broadcast", [33, 32], ("broadcast", 4224, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_collective_is_what_was_asked_for(
    operator: str, dims: list[Any], gloo: str, did: list[int], expected: tuple[str, int, int], tmp_path: Path
) -> None:
    """Gloo runs a reduce-scatter as an all-reduce, and records only the input of an all-gather."""
    file = execute(request(step(), operator, 10, dims), gloo, 12, 30, did)

    assert [expected] == summary(read(file, tmp_path))


def test_groups_that_overtake_each_other_are_separated_by_their_sizes(tmp_path: Path) -> None:
    """Each group has its own queue, so the first request may start last. Kinds, labels and phases are right."""
    file = step().label("FSDP::all_gather (0)", 10, 20).label("dptrace::backward", 25, 60)
    request(file, "_allgather_base_", 11, [[40], [10]])
    request(file, "_reduce_scatter_base_", 30, [[10], [40]])
    request(file, "allreduce_", 40, [[[10]]])
    execute(file, "all_reduce", 41, 90, [10], tid=7)
    execute(file, "all_reduce", 50, 80, [40], tid=8)
    execute(file, "all_gather", 70, 75, [10])
    timeline = read(file, tmp_path)

    assert [("all_reduce", 40, 0), ("reduce_scatter", 160, 4), ("all_gather", 160, 4)] == summary(timeline)
    phases = timeline.phase[timeline.collective >= 0].tolist()
    assert [Phase.BACKWARD, Phase.BACKWARD, Phase.FORWARD] == phases
    assert ["", "", "FSDP::all_gather (0)"] == [comm.label for comm in timeline.collectives]


def test_what_was_asked_for_before_the_recording_stays_what_gloo_calls_it(tmp_path: Path) -> None:
    """With one more all-reduce than requests, they can't be matched; the broadcast still is."""
    file = execute(step(), "all_reduce", 3, 9, [10])
    execute(request(file, "_reduce_scatter_base_", 10, [[5], [10]]), "all_reduce", 13, 20, [10])
    execute(request(file, "broadcast_", 30, [[[7]]]).label("dptrace::optimizer", 29, 40), "broadcast", 45, 50, [7])
    timeline = read(file, tmp_path)

    assert [("all_reduce", 40, 0), ("all_reduce", 40, 0), ("broadcast", 28, 0)] == summary(timeline)
    assert Phase.OPTIMIZER == timeline.phase[timeline.collective == 2]


def test_nothing_is_done_before_it_was_asked_for(tmp_path: Path) -> None:
    """If clocks or a truncated file suggest it, gloo's own metadata counts."""
    file = request(execute(step(), "all_reduce", 10, 20, [10]), "_reduce_scatter_base_", 30, [[5], [10]])

    assert [("all_reduce", 40, 0)] == summary(read(file, tmp_path))


def test_without_shapes_the_kind_must_do(tmp_path: Path) -> None:
    """The n-th event of a kind belongs to the n-th request; a barrier has no shape."""
    file = step().label("dptrace::backward", 10, 20).op("c10d::_reduce_scatter_base_", 11, 12)
    file.op("c10d::barrier", 30, 31).label("gloo:all_reduce", 13, 25, tid=9).label("gloo:barrier", 32, 33, tid=9)
    timeline = read(file, tmp_path)

    assert [("reduce_scatter", 0, 0), ("barrier", 0, 0)] == summary(timeline)
    assert Phase.BACKWARD == timeline.phase[timeline.collective == 0]


def test_shapes_say_nothing_of_what_nccl_did(tmp_path: Path) -> None:
    """They describe one rank's operator; the bytes of kernels come from their own metadata only."""
    file = KinetoFile().label("ProfilerStep#1", 0, 100)
    request(file, "_allgather_base_", 10, [[40], [10]]).kernel("ncclDevKernel_Generic", 20, 30, launch=11)
    (timeline,) = build_timelines(read_trace(file.write(tmp_path / "t.json")), 0)

    assert (Collective("all_gather"),) == timeline.collectives


@pytest.mark.spawn
@pytest.mark.parametrize("prefetch", [(), ("--prefetch", "none")], ids=["default", "none"])
def test_each_block_of_a_sharded_model_is_named(prefetch: tuple[str, ...]) -> None:
    """In a recorded run, each block is gathered in forward and again in backward, where its gradients are scattered."""
    case = next(case for case in CASES if (case.mode, case.ranks, case.options) == ("fsdp", 2, prefetch))
    (timeline, _) = dptrace.open(run_of(case)).timelines
    layers = ("0", "2", "4", "6")
    gathers = [f"FSDP::all_gather ({layer})" for layer in layers]
    reductions = [f"FSDP::post_backward_reduce ({layer})" for layer in layers]

    for step in range(2):
        found: dict[tuple[str, int], list[str]] = {}
        for row in np.flatnonzero((timeline.step == step) & (timeline.collective >= 0)).tolist():
            one = timeline.collectives[timeline.collective[row]]
            found.setdefault((one.kind, int(timeline.phase[row])), []).append(one.label)
        assert found == {
            ("all_gather", Phase.FORWARD): gathers,
            ("all_gather", Phase.BACKWARD): gathers[::-1],
            ("reduce_scatter", Phase.BACKWARD): reductions[::-1],
        }
