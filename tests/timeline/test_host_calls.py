"""The host's calls: depth and parent against brute force, kinds, threads, and what launched each interval."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.load.open import open_run
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import OPERATOR_CALLS, CallKind, Flame, HostCalls, OperatorCalls, host_calls, nesting
from dptrace.timeline.model import UNKNOWN
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.layered_files import layered_file
from tests.support.real_traces import needs_real_traces, real

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def in_order(events: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Sort (thread, start, length) as a trace is: by thread, start, longer ones first."""
    return sorted(events, key=lambda event: (event[0], event[1], -event[2]))


def parents_by_search(events: list[tuple[int, int, int]]) -> list[int]:
    """Return for each event the last one before it on its thread that ends after its start, or -1."""
    found = []
    for i, (thread, start, _) in enumerate(events):
        around = [j for j in range(i) if events[j][0] == thread and sum(events[j][1:]) > start]
        found.append(around[-1] if around else -1)
    return found


@pytest.mark.heavy
@given(EVENTS)
def test_depth_and_parent_are_those_of_a_search(given_events: list[tuple[int, int, int]]) -> None:
    """Of any events, nested or overlapping, of any length; a depth is that of the parent plus one."""
    events = in_order(given_events)
    group, start, length = np.array(events, np.int64).reshape(-1, 3).T
    depth, parent = nesting(start, start + length, group)
    expected = parents_by_search(events)

    assert expected == parent.tolist()
    assert [0 if above < 0 else depth[above] + 1 for above in expected] == depth.tolist()


def read(file: KinetoFile, folder: Path) -> HostCalls:
    return host_calls(read_trace(file.write(folder / "a.json"), detailed=True))


def kinds(calls: HostCalls) -> dict[str, CallKind]:
    return {calls.names[name]: CallKind(kind) for name, kind in zip(calls.name, calls.kind, strict=True)}


def test_kinds_follow_from_category_and_name(tmp_path: Path) -> None:
    """Allocator calls and synchronization differ from other calls, .item() and old marks from operators."""
    file = training_step(KinetoFile(), 1, 0)
    names = ("cudaMalloc", "cudaFree", "hipMalloc", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync")
    for place, name in enumerate(names):
        file.event("cuda_runtime", name, 91 + place, 91.5 + place)
    file.op("aten::item", 98, 99).op("aten::_local_scalar_dense", 98.2, 98.8)
    file.event("python_function", "nn.Module: Linear_0", 1, 50).event("python_function", "train.py(3): step", 1, 60)
    found = kinds(read(file, tmp_path))

    assert [CallKind.ALLOCATOR] * 3 + [CallKind.SYNCHRONIZING] * 2 + [CallKind.RUNTIME] == [found[n] for n in names]
    assert CallKind.SYNCHRONIZING is found["aten::item"] is found["aten::_local_scalar_dense"]
    assert (CallKind.OPERATOR, CallKind.RUNTIME) == (found["aten::linear"], found["cudaLaunchKernel"])
    assert CallKind.ANNOTATION is found["ProfilerStep#1"] is found["Optimizer.step#SGD.step"]
    assert (CallKind.MODULE, CallKind.PYTHON) == (found["nn.Module: Linear_0"], found["train.py(3): step"])


def test_threads_are_those_that_launch(tmp_path: Path) -> None:
    """The loop's thread is main, the one of autograd's engine is called so, a third has its id; others are left out."""
    file = training_step(KinetoFile(), 1, 0).kernel("other", 70, 80, 61, tid=77)
    file.op("aten::idle", 1, 2, tid=5)
    calls = read(file, tmp_path)

    assert {"main", "autograd", "77"} == set(calls.threads)
    assert "aten::idle" not in kinds(calls)


def test_flames_nest_apart(tmp_path: Path) -> None:
    """An annotation around an operator does not make it deeper; the launch is a level below its operator."""
    calls = read(training_step(KinetoFile(), 1, 0), tmp_path)
    place = {calls.names[name]: i for i, name in enumerate(calls.name)}
    linear, optimizer = place["aten::linear"], place["Optimizer.step#SGD.step"]
    launch = next(i for i in range(len(calls)) if calls.parent[i] == linear)

    assert (0, 1) == (calls.depth[linear], calls.depth[launch])
    assert "cudaLaunchKernel" == calls.names[calls.name[launch]]
    assert (1, Flame.LABELS) == (calls.depth[optimizer], calls.flame[optimizer])
    assert place["ProfilerStep#1"] == calls.parent[optimizer]


def test_each_interval_is_linked_to_its_launch(tmp_path: Path) -> None:
    """By the correlation id; a kernel whose launch is not in the file has none."""
    file = training_step(KinetoFile(), 1, 0).kernel("orphan", 95, 97, None)
    path = file.write(tmp_path / "a.json")
    trace = read_trace(path, detailed=True)
    (timeline,), calls = build_timelines(trace, 0), host_calls(trace)
    device = calls.device_index(timeline)
    launch = calls.device_call[device]

    assert (device >= 0).all()
    assert ["orphan"] == [timeline.names[timeline.name[i]] for i in np.flatnonzero(launch < 0)]
    known = launch >= 0
    assert timeline.launch_ns[known].tolist() == calls.start_ns[launch[known]].tolist()
    assert trace.correlation[trace.stream >= 0].tolist() == calls.device_correlation.tolist()


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    "name", ["straggler_v100_4ranks/21147.pt.trace.json.gz", "ddp_a100_rank0of2/nccl_data.json.gz"]
)
def test_links_of_real_recordings_are_those_of_the_timeline(name: str) -> None:
    """Every interval is found, and its call begins when the timeline says that it was launched."""
    trace = read_trace(Path(real(name)), detailed=True)
    (timeline,), calls = build_timelines(trace, 0), host_calls(trace)
    device = calls.device_index(timeline)
    launch = calls.device_call[device]

    assert (device >= 0).all()
    assert ((launch < 0) == (timeline.launch_ns == UNKNOWN)).all()
    assert (calls.start_ns[launch] == timeline.launch_ns)[launch >= 0].all()


def test_a_gloo_run_links_collectives_to_their_operators() -> None:
    """On CPU, an operator is its own launch, and gloo's event that of the operator that requested it."""
    path = Path(__file__).parents[2] / "traces" / "ddp_cpu_2ranks" / "rank0.pt.trace.json.gz"
    trace = read_trace(path, detailed=True)
    (timeline,), calls = build_timelines(trace, 0), host_calls(trace)
    launch = calls.device_call[calls.device_index(timeline)]
    names = {calls.names[calls.name[i]] for i in launch[timeline.collective >= 0]}

    assert {"c10d::allreduce_"} == names
    compute = timeline.collective < 0
    assert timeline.start_ns[compute].tolist() == calls.start_ns[launch[compute]].tolist()
    assert timeline.end_ns[compute].tolist() == calls.end_ns[launch[compute]].tolist()


# The calls of a rank with the inputs and numbers of its operators are read once more, and cached.


def read_operator_calls(folder: Path) -> OperatorCalls:
    run = open_run([str(folder)])
    found = run.read_again(run.timelines[0], OPERATOR_CALLS)
    assert found is not None
    return found


def test_only_operators_have_inputs(tmp_path: Path) -> None:
    """Labels and launches are calls too."""
    layered_file(steps=1).write(tmp_path / "rank0.json")
    found = read_operator_calls(tmp_path)
    names = {found.calls.names[name] for name in found.calls.name[found.is_operator]}

    assert {"aten::linear", "aten::mm", "aten::relu", "aten::add_", "MmBackward0"} < names
    assert not {"cudaLaunchKernel", "ProfilerStep#0", "nn.Module: Block_0", "Optimizer.step#SGD.step"} & names


# A run reads its files again for what a command asks.
