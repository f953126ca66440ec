"""Device time belongs to the operator, module and forward operator that launched it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.analysis.kernels.attribution import (
    Attribution,
    CallTree,
    Labels,
    attribute,
    host_rows,
    launch_figures,
    module_paths,
    queue_depth,
)
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import CallKind, HostCalls, OperatorCalls, nesting, operator_calls
from dptrace.timeline.model import Kind, Phase, Timeline
from tests.support.kineto_files import KinetoFile
from tests.support.layered_files import layered_file
from tests.support.real_traces import needs_real_traces, real


def read(path: Path) -> tuple[Timeline, OperatorCalls, Attribution]:
    trace = read_trace(path, operators=True)
    timeline, recorded = build_timelines(trace, 0)[0], operator_calls(trace)
    return timeline, recorded, attribute(timeline, recorded)


def test_kernels_have_their_operators_and_modules(tmp_path: Path) -> None:
    """By their launch; in backward by the number that forward and backward share."""
    timeline, recorded, found = read(layered_file(steps=1).write(tmp_path / "rank0.json"))
    names, paths = recorded.calls.names, module_paths(recorded, CallTree(recorded.calls))

    def name(call: int) -> str:
        return names[recorded.calls.name[call]] if call >= 0 else ""

    rows = [
        (
            timeline.names[timeline.name[interval]],
            name(found.owner[piece]),
            name(found.outermost[piece]),
            name(found.forward[piece]),
            paths[0][paths[1][found.module[piece]]] if found.module[piece] >= 0 else "",
        )
        for piece, interval in enumerate(found.interval)
    ]

    assert [
        ("gemm_kernel", "aten::mm", "aten::linear", "", "Block_0/Linear_0"),
        ("Memset (Device)", "aten::mm", "aten::linear", "", "Block_0/Linear_0"),
        ("relu_kernel", "aten::relu", "aten::relu", "", "Block_0"),
        ("gemm_kernel", "aten::mm", "MmBackward0", "aten::mm", "Block_0/Linear_0"),
        ("add_kernel", "aten::add_", "aten::add_", "", ""),
        (
            "ncclDevKernel_AllReduce_Sum_f32",
            *["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"] * 2,
            "",
            "",
        ),
        ("sgd_kernel", "", "", "", ""),
    ] == rows


def test_linear_counts_only_without_a_product_inside(tmp_path: Path) -> None:
    """aten::linear has a FLOP formula, but the product that it calls has the same."""
    file = KinetoFile().op("aten::linear", 0, 10).kernel("fused", 20, 30, 1)
    file.op("aten::linear", 40, 60).op("aten::addmm", 45, 55).kernel("gemm", 70, 80, 50).kernel("copy", 81, 82, 57)
    _, recorded, found = read(file.write(tmp_path / "rank0.json"))
    calls = recorded.calls

    assert ["aten::linear", "aten::addmm", "aten::linear"] == [calls.names[calls.name[call]] for call in found.owner]
    starts = (calls.start_ns - calls.start_ns.min())[[*found.owner, *found.operator]]
    assert {0, 40_000, 45_000} == {*starts.tolist()} - {55_000}


def test_operators_on_a_cpu_have_their_own_time(tmp_path: Path) -> None:
    """Each without the operators inside it, so that all add up to the compute of the timeline."""
    file = KinetoFile(backend="gloo").label("ProfilerStep#0", 0, 100)
    file.op("aten::linear", 10, 50).op("aten::addmm", 20, 45).op("aten::copy_", 30, 35).op("aten::relu", 60, 61)
    timeline, recorded, found = read(file.write(tmp_path / "rank0.json"))
    names = [recorded.calls.names[recorded.calls.name[call]] for call in found.operator]

    assert {"aten::linear": 15_000, "aten::addmm": 20_000, "aten::copy_": 5_000, "aten::relu": 1_000} == dict(
        zip(names, found.ns.tolist(), strict=True)
    )
    assert int((timeline.end_ns - timeline.start_ns).sum()) == int(found.ns.sum())


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=25)


def calls_of(spans: list[tuple[int, int]]) -> HostCalls:
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    start, length = (
        (np.array(column, np.int64) for column in zip(*ordered, strict=True)) if spans else (np.empty(0, np.int64),) * 2
    )
    none = np.zeros(len(start), np.int32)
    depth, parent = nesting(start, start + length, none.astype(np.int64))
    return HostCalls(
        ("x",), ("main",), (), start, start + length, none, none.astype(np.uint8), none, depth, parent, none
    )


@pytest.mark.heavy
@given(intervals)
def test_own_times_add_up_to_the_outermost_calls(spans: list[tuple[int, int]]) -> None:
    """However calls nest or overlap, none has less than no time of its own."""
    calls = calls_of(spans)
    own = CallTree(calls).self_ns()

    assert (own >= 0).all()
    assert int((calls.end_ns - calls.start_ns)[calls.parent < 0].sum()) == int(own.sum())


@pytest.mark.heavy
@given(intervals, st.integers(0, 60))
def test_what_a_call_inherits_is_found_by_walking_up(spans: list[tuple[int, int]], seed: int) -> None:
    """Innermost, outermost and contained calls equal a search from each call, one by one."""
    calls = calls_of(spans)
    chosen = np.random.default_rng(seed).random(len(calls)) < 0.4
    tree = CallTree(calls)

    def chain(call: int) -> list[int]:
        return [] if call < 0 else [call, *chain(int(calls.parent[call]))]

    chains = [[one for one in chain(call) if chosen[one]] for call in range(len(calls))]

    assert [(found or [-1])[0] for found in chains] == tree.innermost(chosen).tolist()
    assert [(found or [-1])[-1] for found in chains] == tree.outermost(chosen).tolist()
    inside = {one for call in np.flatnonzero(chosen) for one in chain(int(calls.parent[call]))}
    assert [call in inside for call in range(len(calls))] == tree.holds(chosen).tolist()


@pytest.mark.heavy
@given(intervals, st.integers(0, 60))
def test_the_label_around_an_instant_is_the_innermost(spans: list[tuple[int, int]], time: int) -> None:
    """It is the last to start among those that contain it; both ends belong to a label."""
    calls = calls_of(spans)
    labels = msgspec.structs.replace(calls, kind=np.full(len(calls), CallKind.ANNOTATION, np.uint8))
    found = Labels(labels).around(np.zeros(1, np.int32), np.array([time], np.int64))[0]
    holding = [i for i in range(len(calls)) if calls.start_ns[i] <= time <= calls.end_ns[i]]

    assert bool(holding) == (found >= 0)
    assert found < 0 or found in holding


COVERAGE = {
    # By sequence number, by module; percent of backward's compute.
    "ddp_a100_rank0of2": (98.3, 98.3),
    "ddp_mi300_rank0of8": (96.6, 96.3),
    "ns_v100_1gpu": (99.2, 99.2),
    "perparam_v100_rank1of2": (93.4, 0.0),
    "odd/rocm_mi250_tiny_train.json.gz": (81.2, 0.0),
}


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("name", COVERAGE)
def test_backward_of_real_traces_has_its_forward(name: str) -> None:
    """The shares that an independent program found."""
    path = Path(real(name))
    timeline, _, found = read(path if path.is_file() else next(path.glob("*.json.gz")))
    backward = (timeline.kind[found.interval] == Kind.COMPUTE) & (timeline.phase[found.interval] == Phase.BACKWARD)
    whole = found.ns[backward].sum()

    def percent(chosen: np.ndarray) -> float:
        return round(float(100 * found.ns[backward & chosen].sum() / whole), 1)

    assert COVERAGE[name] == (percent((found.forward >= 0) | found.recompute), percent(found.module >= 0))


# The launch side: delays, queues, graphs, synchronizing calls, and the time of the host.


def read_launches(file: KinetoFile, folder: Path) -> tuple[Timeline, OperatorCalls]:
    trace = read_trace(file.write(folder / "rank0.json"), operators=True)
    return build_timelines(trace, 0)[0], operator_calls(trace)


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20, unique_by=lambda pair: pair[0]))
def test_the_queue_is_what_was_launched_and_not_started(pairs: list[tuple[int, int]]) -> None:
    """Counted one by one; work may start as it is launched."""
    launch, delay = (
        (np.array(column, np.int64) for column in zip(*pairs, strict=True)) if pairs else (np.empty(0, int),) * 2
    )
    start = launch + delay
    expected = [sum(other < own <= begun for other, begun in zip(launch, start, strict=True)) for own in launch]

    assert expected == queue_depth(launch, start).tolist()


def test_launch_figures_of_a_step(tmp_path: Path) -> None:
    """Seven launches of a step; the host waits twice, once for a number."""
    file = layered_file(steps=1)
    file.event("cuda_runtime", "cudaStreamSynchronize", 130, 140)
    file.op("aten::item", 142, 150).event("cuda_runtime", "cudaMemcpy", 144, 149)
    file.event("cuda_runtime", "cudaGraphLaunch", 152, 153, correlation=900)
    file.kernel("graph_kernel", 160, 170, None)
    file.events[-1]["args"]["correlation"] = 900
    figures = launch_figures(*read_launches(file, tmp_path))

    assert (8, 1) == (figures.launches, figures.graph_kernels)
    assert round(10 / 88, 6) == figures.graph_share
    assert (2, 18_000) == (figures.synchronizing_calls, figures.synchronizing_ns)
    assert 17_000 == figures.delay_p50_ns


def test_host_time_adds_up(tmp_path: Path) -> None:
    """Self times are without the calls inside; a launch counts for its call and for its operator."""
    timeline, recorded = read_launches(layered_file(steps=1), tmp_path)
    rows = {row["call"]: row for row in host_rows([timeline], [recorded])}

    assert (1, 2_000, 8_000) == tuple(rows["aten::linear"][name] for name in ("count", "self_ns", "total_ns"))
    assert (2, 11_000, 14_000, 3) == tuple(rows["aten::mm"][n] for n in ("count", "self_ns", "total_ns", "launches"))
    assert (7, 7_000, 7) == tuple(rows["cudaLaunchKernel"][name] for name in ("count", "self_ns", "launches"))
    assert 8 + 5 + 20 + 9 + 1 == sum(row["self_ns"] for row in rows.values()) / 1_000
