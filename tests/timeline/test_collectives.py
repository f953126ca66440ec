"""The collective of each communication kernel."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.collectives import holding, last_enclosing, launches, outermost
from dptrace.timeline.model import Collective, Phase, Timeline
from tests.support.kineto_files import BASE_NS, KinetoFile


def read(file: KinetoFile, folder: Path) -> Timeline:
    (timeline,) = build_timelines(read_trace(file.write(folder / "t.json")), 0)
    return timeline


def collective(file: KinetoFile, folder: Path) -> Collective:
    (only,) = read(file, folder).collectives
    return only


GENERIC = "ncclDevKernel_Generic(x)"
"""RCCL gives every kernel this name."""
GATHERED: dict[str, Any] = {
    "Collective name": "_allgather_base",
    "In msg nelems": 10,
    "Out msg nelems": 80,
    "dtype": "BFloat16",
    "Group size": 8,
    "Process Group Name": "3",
    "Seq": 7,
}
REDUCED: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Float"}
SHAPES: dict[str, Any] = {"Input Dims": [[40]]}
SENT: dict[str, Any] = {
    "Collective name": "send",
    "In msg nelems": 8,
    "Out msg nelems": 8,
    "dtype": "Half",
    "Group size": 2,
    "Process Group Name": "5",
    "Process Group Description": "mesh_pp",
    "Process Group Ranks": "[1, 5]",
    "Dst Rank": 5,
}
FSDP, TP, PP = "FSDP::all_gather (layers.3)", "TP::all_reduce (3.mlp)", "PP:0SEND_F1"


def accumulating(function: str) -> KinetoFile:
    """Launch an all-reduce in a function of autograd's engine, as DDP's hooks do."""
    return KinetoFile().op(f"autograd::engine::evaluate_function: {function}", 1, 9).op("c10d::allreduce_", 2, 8)


KNOWN: dict[str, tuple[KinetoFile, Collective]] = {
    # Metadata on the kernel comes first; bytes are the larger side times the element size.
    "kernel": (
        KinetoFile().kernel("ncclDevKernel_Generic", 10, 20, 5, **GATHERED),
        Collective("all_gather", 160, "BFloat16", "3", 8, 7),
    ),
    "message": (
        KinetoFile().kernel("ncclDevKernel_SendRecv", 10, 20, 5, **SENT),
        Collective("send", 16, "Half", "5", 2, -1, (1, 5), "mesh_pp", 5),
    ),
    # Else what encloses the launch: its metadata, or its name alone. Shapes are one rank's and give no bytes.
    "operator": (
        KinetoFile().op("c10d::allreduce_", 1, 9).op("record_param_comms", 2, 8, **REDUCED).kernel(GENERIC, 10, 20, 5),
        Collective("all_reduce", 12, "Float"),
    ),
    "name": (
        KinetoFile().op("c10d::broadcast_", 1, 9, **SHAPES).kernel(GENERIC, 10, 20, 5),
        Collective("broadcast"),
    ),
    "nothing": (KinetoFile().kernel(GENERIC, 1, 2, None), Collective("other")),
    "gradient": (
        accumulating("torch::autograd::AccumulateGrad").kernel(GENERIC, 10, 20, 5),
        Collective("all_reduce", gradients=True),
    ),
    "layer's own": (accumulating("SyncBatchNormBackward").kernel(GENERIC, 10, 20, 5), Collective("all_reduce")),
    # The trainer's own label, around c10d's operators, the functional ones that DTensor uses, and gloo's.
    "FSDP": (
        KinetoFile().label(FSDP, 1, 9).op("c10d::_allgather_base_", 2, 8).kernel("ncclDevKernel_AllGather", 10, 20, 5),
        Collective("all_gather", label=FSDP),
    ),
    "TP": (
        KinetoFile()
        .label(TP, 1, 12)
        .op("_c10d_functional::all_reduce", 2, 9)
        .op("c10d::allreduce_", 3, 8)
        .kernel(GENERIC, 10, 20, 5),
        Collective("all_reduce", label=TP),
    ),
    "PP": (
        KinetoFile(backend="gloo")
        .label(PP, 1, 9)
        .op("c10d::send", 2, 8)
        .label("gloo:send", 3, 7, tid=9)
        .op("aten::add", 20, 30),
        Collective("send", label=PP),
    ),
    "batch": (
        KinetoFile().op("c10d::batch_isend_irecv", 2, 8).kernel("ncclDevKernel_SendRecv(x)", 10, 20, 5),
        Collective("send_recv"),
    ),
    # Without metadata the kernel's name shows the kind, and whether all ranks wait in it for all others.
    "dispatch": (
        KinetoFile().kernel("void deep_ep::intranode::dispatch<8>(int4*)", 10, 20, 5),
        Collective("dispatch", synchronizes=True),
    ),
    "all-to-all": (
        KinetoFile().kernel("c10d::nvshmem_extension::allToAllV(void*)", 10, 20, 5),
        Collective("all_to_all", synchronizes=False),
    ),
}


def test_a_collective_is_what_the_file_shows_of_it(tmp_path: Path) -> None:
    """From the kernel's metadata, else from what encloses its launch, else from its name."""
    expected = {case: comm for case, (_, comm) in KNOWN.items()}

    assert expected == {case: collective(file, tmp_path) for case, (file, _) in KNOWN.items()}


def test_an_orphan_is_of_the_kind_of_all_other_kernels_of_its_name(tmp_path: Path) -> None:
    """SendRecv carries out an all-to-all and messages: its name does not tell which."""
    for second, orphan in (("c10d::alltoall_", "all_to_all"), ("c10d::send", "send_recv")):
        file = KinetoFile().kernel("ncclDevKernel_SendRecv(x)", 1, 2, None)
        file.op("c10d::alltoall_", 10, 15).kernel("ncclDevKernel_SendRecv(x)", 16, 19, 11)
        file.op(second, 30, 35).kernel("ncclDevKernel_SendRecv(x)", 36, 39, 31)
        assert [orphan, "all_to_all"] == [one.kind for one in read(file, tmp_path).collectives[:2]]


def test_a_shortened_list_of_ranks_is_filled_in_where_it_is_even(tmp_path: Path) -> None:
    """torch omits the middle of more than 30 ranks; a list that does not fit the group's size stays as it is."""
    for text, size, ranks in (
        ("[0, 2, 4, ..., 126]", 64, tuple(range(0, 128, 2))),
        ("[0, 2, 4, ..., 126]", 60, (0, 2, 4, 126)),
        ("[0, 2, 5, ..., 126]", 64, (0, 2, 5, 126)),
        ("[]", 1, ()),
        (7, 1, ()),
    ):
        args: dict[str, Any] = {"Collective name": "allreduce", "Process Group Ranks": text, "Group size": size}
        file = KinetoFile().kernel("ncclDevKernel_AllReduce", 10, 20, 5, **args)
        assert ranks == collective(file, tmp_path).ranks


def test_functional_collectives_are_known_on_gloo(tmp_path: Path) -> None:
    """DTensor's: the wait is not compute, and kind and bytes are those of the operator that enqueued it."""
    file = KinetoFile(backend="gloo").op("_c10d_functional::all_reduce", 1, 9)
    execute(request(file, "allreduce_", 2, [[[32, 64]]]), "all_reduce", 11, 17, [32, 64])
    timeline = read(file.op("_c10d_functional::wait_tensor", 10, 20), tmp_path)

    assert ("gloo:all_reduce",) == timeline.names
    assert (Collective("all_reduce", 8192, "float"),) == timeline.collectives


# Which operator requested each of gloo's events.


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


def summary(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(comm.kind, comm.bytes, comm.group_size) for comm in timeline.collectives]


def test_a_collective_is_what_was_asked_for(tmp_path: Path) -> None:
    """Gloo runs a reduce-scatter as an all-reduce, and records only the input of an all-gather."""
    asked: list[tuple[str, list[Any], str, list[int], tuple[str, int, int]]] = [
        ("_allgather_base_", [[40], [10], [], [], []], "all_gather", [10], ("all_gather", 160, 4)),
        ("_reduce_scatter_base_", [[10], [40], [], [], [], []], "all_reduce", [40], ("reduce_scatter", 160, 4)),
        ("allgather_into_tensor_coalesced_", [[[8, 4]], [[4, 4]], []], "all_gather", [4, 4], ("all_gather", 128, 2)),
        ("reduce_scatter_tensor_coalesced_", [[[2, 4]], [[4, 4]]], "all_reduce", [4, 4], ("reduce_scatter", 64, 2)),
        ("allreduce_", [[[10]], [], [], [], [], []], "all_reduce", [10], ("all_reduce", 40, 0)),
        ("allgather_", [[], [[10]], [], [], []], "all_gather", [10], ("all_gather", 40, 0)),
        ("alltoall_base_", [[8], [8], [], [], []], "all_to_all", [8], ("all_to_all", 32, 0)),
        ("broadcast_", [[[33, 32]], [], []], "broadcast", [33, 32], ("broadcast", 4224, 0)),
    ]
    for operator, dims, gloo, did, expected in asked:
        file = execute(request(step(), operator, 10, dims), gloo, 12, 30, did)
        assert (operator, [expected]) == (operator, summary(read(file, tmp_path)))


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


def test_a_lost_event_and_a_lost_request_leave_the_others_together(tmp_path: Path) -> None:
    """As many of each, but not of the same collectives: an event is of the last request before it, if of any."""
    file = step()
    for number in range(10):
        if number != 3:
            request(file, "allreduce_", 10 + 20 * number, [[[10]]])
        if number != 6:
            execute(file, "all_reduce", 13 + 20 * number, 20 + 20 * number, [10])
    timeline = read(file, tmp_path)

    own = timeline.collective >= 0
    assert [3_000] * 3 + [0] + [3_000] * 5 == (timeline.start_ns - timeline.launch_ns)[own].tolist()


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


# Launches and enclosing events, compared with a brute-force search.


def nested(draw: st.DrawFn, start: int, end: int, level: int = 0) -> list[tuple[int, int]]:
    """Draw properly nested intervals inside [start, end)."""
    found, at = [], start
    while at < end and level < 4 and draw(st.booleans()):
        a = draw(st.integers(at, end))
        b = draw(st.integers(a, end))
        found.append((a, b))
        found += nested(draw, a, b, level + 1)
        at = b + 1
    return found


@st.composite
def threads(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    return [(thread, a, b) for thread in range(draw(st.integers(1, 3))) for a, b in nested(draw, 0, 30)]


def trace_of(events: list[tuple[int, int, int]]) -> Trace:
    """Make a trace of annotations, sorted as the reader sorts them."""
    rows = sorted(events, key=lambda row: (row[1], -row[2]))
    count = len(rows)
    zeros = np.zeros(count, np.int32)
    return Trace(
        path="",
        rank=0,
        world_size=1,
        start_ns=np.array([a for _, a, _ in rows], np.int64),
        end_ns=np.array([b for _, _, b in rows], np.int64),
        category=np.full(count, Category.ANNOTATION, np.uint8),
        name=zeros,
        names=("label",),
        thread=np.array([thread for thread, _, _ in rows], np.int32),
        correlation=np.full(count, -1, np.int64),
        device=zeros,
        stream=zeros.astype(np.int64),
        comm={},
    )


@pytest.mark.heavy
@given(threads(), st.data())
def test_holding_finds_what_begins_and_ends_within(events: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Equal to a search through all pairs on the event's own thread."""
    trace = trace_of(events)
    inner = np.array(sorted(data.draw(st.sets(st.integers(0, len(events) - 1)))) if events else [], np.int64)
    ended = trace.start_ns[inner] + np.array([data.draw(st.integers(0, 20)) for _ in inner], np.int64)
    others = np.setdiff1d(np.arange(len(events)), inner)

    found = holding(trace, others, inner, ended)
    for event, held in zip(others, found, strict=True):
        within = [
            trace.start_ns[event] <= trace.start_ns[i] < trace.end_ns[event]
            and trace.thread[i] == trace.thread[event]
            and end <= trace.end_ns[event]
            for i, end in zip(inner, ended, strict=True)
        ]
        assert any(within) == held


any_events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)).map(lambda e: (e[0], e[1], e[1] + e[2])),
    max_size=40,
)


@pytest.mark.heavy
@given(any_events, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 45)), max_size=20))
def test_enclosing_takes_the_last_to_begin_where_events_overlap_in_part(
    events: list[tuple[int, int, int]], queries: list[tuple[int, int]]
) -> None:
    """For any events it is the last to start of those around the time, by brute force."""
    trace = trace_of(events)
    thread = np.array([t for t, _ in queries], np.int32)
    time = np.array([t for _, t in queries], np.int64)

    found = last_enclosing(trace, np.ones(len(trace), np.bool_), thread, time)

    for (on, at), index in zip(queries, found, strict=True):
        around = [i for i in range(len(trace)) if trace.thread[i] == on and trace.start_ns[i] <= at <= trace.end_ns[i]]
        starts = [int(trace.start_ns[i]) for i in around]
        assert (max(starts) if starts else None) == (int(trace.start_ns[index]) if index >= 0 else None)
        assert index == -1 or index in around


@pytest.mark.heavy
@given(any_events)
def test_outermost_events_are_those_in_no_earlier_one(events: list[tuple[int, int, int]]) -> None:
    """Events inside an earlier event on the thread are dropped; those that reach beyond it are kept."""
    trace = trace_of(events)

    kept = outermost(trace, np.arange(len(trace)))

    assert kept.tolist() == [
        i
        for i in range(len(trace))
        if not any(trace.thread[j] == trace.thread[i] and trace.end_ns[i] <= trace.end_ns[j] for j in range(i))
    ]


def test_a_stack_ten_thousand_deep_costs_no_more_than_a_flat_one() -> None:
    """The cost does not grow with depth: 10,000 nested labels and as many queries take well under a second."""
    count = 10_000
    trace = trace_of([(0, i, 3 * count - i) for i in range(count)])
    time = np.arange(count, dtype=np.int64) * 2 + count

    begin = process_time()
    found = last_enclosing(trace, np.ones(count, np.bool_), np.zeros(count, np.int32), time)

    assert process_time() - begin < 0.5
    assert [min(3 * count - at, count - 1) for at in time.tolist()] == found.tolist()


CALLS = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cudaMemcpyAsync", "cudaMemsetAsync"),
    *("cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyAsync"),
    *("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"),
)


def launched(file: KinetoFile, folder: Path) -> list[tuple[str, float] | None]:
    """Return the launch of each kernel: the call's name and its start in µs."""
    trace = read_trace(file.write(folder / "t.json"))
    found = launches(trace, np.flatnonzero(trace.category == Category.KERNEL))
    return [(trace.names[trace.name[i]], (trace.start_ns[i] - BASE_NS) / 1000) if i >= 0 else None for i in found]


@pytest.mark.heavy
def test_every_kind_of_call_launches(tmp_path: Path) -> None:
    """The id links them, whatever the call's name and category; all kernels of a graph share the id of its launch."""
    for call, category in product(CALLS, ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")):
        file = KinetoFile().event(category, call, 5, 6, correlation=7)
        for k in range(3):
            file.event("kernel", f"k{k}", 10 + k, 11 + k, correlation=7, stream=k)
        assert [(call, 5)] * 3 == launched(file, tmp_path), category


def test_a_kernel_without_a_call_of_its_id_has_no_launch(tmp_path: Path) -> None:
    """Nor has one of id 0; kernels of two devices, which draw ids from one counter, have their own."""
    file = KinetoFile().kernel("a", 10, 20, launch=5, device=0).kernel("b", 11, 21, launch=6, device=1)
    file.kernel("c", 20, 30, launch=None).event("kernel", "d", 40, 50, correlation=0)
    file.event("cuda_runtime", "cudaLaunchKernel", 38, 39, correlation=0)

    assert [("cudaLaunchKernel", 5), ("cudaLaunchKernel", 6), None, None] == launched(file, tmp_path)


def test_of_calls_with_one_id_the_last_before_the_kernel_launches_it(tmp_path: Path) -> None:
    """Ids wrap, or two processes share them; of a runtime call and the driver call inside it, it is the outer one."""
    file = KinetoFile()
    for at in (100, 200, 300):
        file.event("cuda_driver", "cuLaunchKernel", at + 1, at + 2, correlation=7)
        file.event("cuda_runtime", "cudaLaunchKernel", at, at + 5, correlation=7)
    for begin in (50, 101.5, 150, 250, 900):
        file.event("kernel", "k", begin, begin + 1, correlation=7)

    assert [("cudaLaunchKernel", at) for at in (100, 100, 100, 200, 300)] == launched(file, tmp_path)
