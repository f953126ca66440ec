"""Timelines built from a file's columns."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from dptrace.analysis.per_gpu.split import split
from dptrace.core.notes import MARKS, OPERATORS
from dptrace.errors import TraceError
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import CPU, build_timelines
from dptrace.timeline.model import BEFORE_FIRST, Kind, Phase, Timeline
from tests.support.kineto_files import KinetoFile, training_step


def build(file: KinetoFile, folder: Path, *patterns: str) -> tuple[Timeline, ...]:
    return build_timelines(read_trace(file.write(folder / "t.json")), 0, patterns)


def test_a_training_step_splits_as_it_was_drawn(tmp_path: Path) -> None:
    """Forward 20 µs, backward 30, all-reduce 10 overlapped and 15 exposed, optimizer 10, the rest idle."""
    (timeline,) = build(training_step(KinetoFile(), 3, 0), tmp_path)

    expected = {
        "forward_ns": 20_000,
        "backward_ns": 30_000,
        "optimizer_ns": 10_000,
        "other_ns": 0,
        "exposed_comm_ns": 15_000,
        "overlapped_comm_ns": 10_000,
        "exposed_memory_ns": 0,
        "idle_ns": 25_000,
        "wall_ns": 100_000,
        "compute_ns": 60_000,
    }
    assert expected == split(timeline).total()
    assert [4_000] == split(timeline).comm["all_reduce"].bytes.tolist()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            KinetoFile().op("aten::mm", 0, 9).event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=5),
            "the recording failed",
        ),
        (KinetoFile().label("ProfilerStep#1", 0, 100), "nothing to split"),
    ],
)
def test_a_file_without_work_is_an_error(file: KinetoFile, message: str, tmp_path: Path) -> None:
    """GPU calls without kernels, for which figures of the CPU would be shown, and labels alone."""
    with pytest.raises(TraceError, match=message):
        build(file, tmp_path)


@pytest.mark.parametrize(("kept", "fails"), [(0, True), (50, True), (97, False)])
def test_a_file_that_is_cut_before_the_gpus_records_is_an_error(kept: int, fails: bool, tmp_path: Path) -> None:
    """torch.profiler writes operators first: without their kernels the GPU would look idle, or like a CPU."""
    file = KinetoFile()
    for at in range(0, 20_000, 10):
        file.op("aten::mm", at, at + 9)
    for at in range(0, 200 * kept, 10):
        file.kernel("gemm", at + 2, at + 8, at + 1)
    file.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    (tmp_path / "rank0.json").write_text(file.text().partition("\n]")[0])

    trace = read_trace(tmp_path / "rank0.json")

    with pytest.raises(TraceError, match="records last") if fails else nullcontext():
        assert 1 == len(build_timelines(trace, 0))


def test_missing_steps_and_operators_are_reported(tmp_path: Path) -> None:
    """One window from the first device start to the last end; without operators and launches, no phase is known."""
    (timeline,) = build(KinetoFile().kernel("a", 10, 20, 5).kernel("b", 40, 50, 6), tmp_path)

    assert 40_000 == timeline.windows.bounds[-1] - timeline.windows.bounds[0]
    assert {Phase.OTHER} == set(timeline.phase.tolist())
    assert (OPERATORS, MARKS) == timeline.lacks[::-1]
    for words, note in zip(("no ProfilerStep marks", "phases are unknown"), timeline.notes, strict=True):
        assert words in str(note)


def test_each_device_of_a_file_is_a_timeline(tmp_path: Path) -> None:
    """A process with two GPUs has two timelines, each with its own windows."""
    file = KinetoFile().label("ProfilerStep#1", 0, 100).op("aten::mm", 4, 6)
    first, second = build(file.kernel("a", 10, 20, 5).kernel("b", 30, 120, 6, device=1), tmp_path)

    assert (0, 1) == (first.device, second.device)
    assert (100_000, 120_000) == tuple(int(t.windows.bounds[-1] - t.windows.bounds[0]) for t in (first, second))


def test_kernels_are_memory_communication_or_compute(tmp_path: Path) -> None:
    """Copies and sets are memory, whatever launched them; what matches a pattern communicates; an orphan is other."""
    file = KinetoFile().kernel("Memcpy HtoD", 1, 5, 0, category="gpu_memcpy").kernel("my_ring", 8, 9, 0)
    file.kernel("Memset", 6, 7, 5, category="gpu_memset").kernel("orphan", 10, 12, None)
    (timeline,) = build(file.label("ProfilerStep#3", 0, 100), tmp_path, "my_ring")

    assert [Kind.MEMORY, Kind.MEMORY, Kind.COMMUNICATION, Kind.COMPUTE] == timeline.kind.tolist()
    assert (Phase.OTHER, BEFORE_FIRST) == (timeline.phase[3], timeline.step[3])
    assert "1 of 4 device events have no launch" in " ".join(map(str, timeline.notes))


def test_a_cpu_run_counts_outermost_operators_once(tmp_path: Path) -> None:
    """Wrappers and operators that enqueue collectives are not compute, their contents are; gloo communicates."""
    file = KinetoFile(backend="gloo").label("ProfilerStep#1", 0, 100)
    file.op("aten::linear", 0, 30).op("aten::addmm", 5, 25)
    file.op("autograd::engine::evaluate_function: MulBackward0", 30, 60).op("MulBackward0", 32, 50)
    file.op("c10d::allreduce_", 52, 58).op("aten::div_", 53, 55)
    file.label("gloo:all_reduce", 40, 80, tid=9, **{"Input Dims": [[250, 2]], "Input type": ["float"]})
    (timeline,) = build(file, tmp_path)

    total = split(timeline).total()
    assert CPU == timeline.device
    assert ["aten::linear", "MulBackward0", "gloo:all_reduce", "aten::div_"] == [
        timeline.names[i] for i in timeline.name
    ]
    assert (30_000, 20_000) == (total["forward_ns"], total["backward_ns"])
    assert (12_000, 28_000) == (total["overlapped_comm_ns"], total["exposed_comm_ns"])
    assert [2_000] == split(timeline).comm["all_reduce"].bytes.tolist()


def test_an_operator_that_waits_for_a_collective_in_it_does_not_compute_meanwhile(tmp_path: Path) -> None:
    """In an autograd function that runs an all-to-all, the operators are compute; its wait is exposed."""
    file = KinetoFile(backend="gloo").label("ProfilerStep#1", 0, 100)
    file.op("_Exchange", 0, 90).op("aten::new_empty", 1, 5).op("c10d::alltoall_base_", 6, 9).op("aten::add", 85, 89)
    file.label("gloo:all_to_all", 10, 80, tid=9)
    (timeline,) = build(file, tmp_path)

    total = split(timeline).total()
    assert ["aten::new_empty", "gloo:all_to_all", "aten::add"] == [timeline.names[i] for i in timeline.name]
    assert (8_000, 70_000, 0) == (total["forward_ns"], total["exposed_comm_ns"], total["overlapped_comm_ns"])


@pytest.mark.parametrize("wait", ["_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "Work.wait"])
def test_waiting_for_a_collective_is_not_compute(wait: str, tmp_path: Path) -> None:
    """What a functional all-reduce waits in is exposed, with the wrappers around the wait; what they run is compute."""
    file = KinetoFile(backend="gloo").label("ProfilerStep#1", 0, 100)
    file.op("_c10d_functional::all_reduce", 1, 9).op("c10d::allreduce_", 2, 8)
    file.op("PythonSubclass", 10, 90).op(wait, 12, 80).op("aten::add", 82, 88)
    file.label("gloo:all_reduce", 5, 79, tid=9)
    (timeline,) = build(file, tmp_path)

    total = split(timeline).total()
    assert ["gloo:all_reduce", "aten::add"] == [timeline.names[i] for i in timeline.name]
    assert (6_000, 74_000, 0) == (total["forward_ns"], total["exposed_comm_ns"], total["overlapped_comm_ns"])


@pytest.mark.parametrize(("name", "label"), [("NVIDIA H100", "rank 0 · GPU 0 (NVIDIA H100)"), (" ", "rank 0 · GPU 0")])
def test_a_gpu_whose_name_the_file_lacks_is_named_by_its_number(name: str, label: str, tmp_path: Path) -> None:
    """No empty parentheses."""
    file = training_step(KinetoFile(), 1, 0)
    file.head["deviceProperties"] = [{"id": 0, "name": name}]
    (timeline,) = build(file, tmp_path)

    assert label == timeline.label_with_model
