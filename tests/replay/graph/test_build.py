"""The graph of a run: its tasks and their order, where ranks meet, what waits for what, and pieces of host time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dptrace
from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.device import figures_of
from dptrace.readers.formats import pieces
from dptrace.readers.kineto import reader
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.replay.graph.build import Members, Model, Transfers, add_rendezvous, build_model, residuals
from dptrace.replay.graph.events import NOT_RECORDED, read_sync_events
from dptrace.replay.graph.model import NEVER, NO_PROCESS, Edge, EdgeKind, Edges, TaskKind, order_tasks
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.schedule import simulate
from dptrace.replay.graph.tasks import KEPT_NS, WORK, cut_longest, host_pieces, modules_of_tasks
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import KinetoFile
from tests.support.nsight_files import NsightFile, process_id, training
from tests.support.paths import ROOT
from tests.support.replay_files import job_rank, write_job_with_modules


@pytest.fixture(scope="module")
def model(run: dptrace.Run) -> Model:
    return build_model(run)


def edges(model: Model, kind: EdgeKind) -> set[tuple[str, str]]:
    """List the names at both ends of the edges of a kind."""
    graph = model.graph
    names = np.array(graph.names, object)[graph.name]
    chosen = np.flatnonzero(graph.edge.of(kind))
    return set(zip(names[graph.edge.src[chosen]], names[graph.edge.dst[chosen]], strict=True))


def test_every_task_starts_as_its_edges_allow(model: Model) -> None:
    """In a job whose times follow from its dependencies, nothing is unexplained and no edge is contradicted."""
    assert not residuals(model.graph).any()
    assert 0 == model.graph.contradicted
    assert model.graph.start_ns.tolist() == simulate(model.graph).start_ns.tolist()


def test_a_collective_waits_for_what_computes_its_input(model: Model) -> None:
    """The wait in its operator makes it wait for the last kernel of the stream that its thread launches on."""
    assert {("backward", "ncclDevKernel_AllReduce_Sum_f32")} == edges(model, EdgeKind.PRODUCE)


def test_the_next_kernel_after_a_wait_joins_the_collective(model: Model) -> None:
    """A wait outside the operator makes the thread's next kernel wait for the transfer of the collective."""
    assert {("all_reduce", "optimizer")} == edges(model, EdgeKind.JOIN)


def test_a_synchronizing_call_returns_after_the_last_kernel(model: Model) -> None:
    """The wait for the device is an edge, and no part of what the host does."""
    graph = model.graph
    calls = graph.of(TaskKind.CALL) & (graph.name == graph.names.index("cudaDeviceSynchronize"))

    assert {("optimizer", "cudaDeviceSynchronize")} == edges(model, EdgeKind.SYNCHRONIZE)
    assert not graph.duration_ns[calls].any()


def test_ranks_meet_once_for_each_collective(model: Model) -> None:
    """The two ranks' arrivals lead to one transfer, which takes as long as the one that arrived last took."""
    graph = model.graph
    transfers = graph.of(TaskKind.TRANSFER)

    assert [100_000] * 4 == graph.duration_ns[transfers].tolist()
    assert 8 == int(graph.edge.of(EdgeKind.RENDEZVOUS).sum())


def test_an_absent_rank_arrives_as_recorded(tmp_path: Path) -> None:
    """Without rank 1, rank 0's wait is that of ranks which were not recorded, after the previous collective."""
    job_rank(0, 300, 623).write(tmp_path / "rank0.json")
    model = build_model(dptrace.open(tmp_path / "rank0.json", cache=False))

    times = simulate(model.graph)
    assert model.transfers.absent.all()
    assert model.graph.end_ns.max() == times.end_ns.max()


def test_a_hand_over_between_threads_is_found(tmp_path: Path) -> None:
    """A thread that goes on right after a call of another thread waits for it, not for its own last call."""
    file = KinetoFile()
    file.label("ProfilerStep#0", 0, 1000)
    file.kernel("forward", 20, 60, 10)
    file.kernel("backward", 310, 330, 300, tid=2)
    file.kernel("optimizer", 330, 350, 320)
    model = build_model(dptrace.open(file.write(tmp_path / "rank0.json"), cache=False))

    assert 2 == int(model.graph.edge.of(EdgeKind.THREAD).sum())


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    """A replay reads the files again, and says so where one can't be read."""
    path = KinetoFile().kernel("forward", 20, 60, 10).write(tmp_path / "rank0.json")
    opened = dptrace.open(path, cache=False)
    path.unlink()

    with pytest.raises(dptrace.DptraceError, match="rank0"):
        build_model(opened)


@pytest.mark.heavy
def test_runs_on_cpu_are_explained() -> None:
    """The graph of a recording with gloo ends within half a percent of what was recorded."""
    for name in ("naive_cpu_2ranks", "interleaved_cpu_2ranks", "ddp_cpu_2ranks", "single_cpu"):
        model = build_model(dptrace.open(ROOT / "traces" / name))
        graph, times = model.graph, simulate(model.graph)
        length = graph.end_ns.max() - graph.start_ns.min()
        assert abs(times.end_ns.max() - graph.end_ns.max()) < 0.005 * length


# Where ranks meet, and when each leaves.


LATE = 1_000_000
ALL_REDUCE = Collective("all_reduce", 4096, "float", "default_pg", 2)


def meeting(*spans: tuple[int, int], comm: Collective = ALL_REDUCE, on_cpu: bool = False) -> tuple[Transfers, Edge]:
    """Let one collective of each rank, with this start and end, meet; the tasks are numbered by rank."""
    ranks = [TimelineBuilder(rank, bounds=(0, 9 * LATE)).collective(*span, comm) for rank, span in enumerate(spans)]
    matches = match([figures_of(rank.build()) for rank in ranks], len(ranks))
    members, edges = Members(matches.device.astype(np.int64), matches.start_ns, matches.end_ns), Edges()
    return add_rendezvous(edges, matches, members, len(spans), partial=False, on_cpu=on_cpu), edges.table()


def test_a_synchronizing_collective_is_one_transfer() -> None:
    """It starts as the last rank arrives, takes what that rank took, and ends for both."""
    transfers, edges = meeting((0, LATE + 300), (LATE, LATE + 310))

    assert [310] == transfers.duration_ns.tolist()
    assert [LATE] == transfers.arrived_ns.tolist()
    assert [2, 2] == transfers.ends(2).tolist()
    assert [(0, 2), (1, 2)] == list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


def test_on_cpus_each_rank_leaves_when_it_gets_a_core() -> None:
    """With gloo, the ranks meet at once and each has a transfer of its own length."""
    transfers, edges = meeting((0, LATE + 300), (LATE, LATE + 700), on_cpu=True)

    assert [0, 300, 700] == transfers.duration_ns.tolist()
    assert [3, 4] == transfers.ends(2).tolist()
    assert {(0, 2), (1, 2), (2, 3), (2, 4)} == set(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


def test_a_root_that_leaves_early_waits_for_nobody() -> None:
    """A rank of a broadcast that is gone before the last arrives is not held up; the others come after its start."""
    comm = Collective("broadcast", 4096, "float", "default_pg", 2)

    transfers, edges = meeting((0, 300), (LATE, LATE + 200), comm=comm)

    assert [1] == transfers.arrival.tolist()
    assert [0, 3] == transfers.ends(2).tolist()
    assert [False] == edges.from_end[edges.src == 0].tolist()


def test_a_message_without_a_known_peer_takes_what_it_took() -> None:
    """It meets nobody: waiting and moving can't be told apart."""
    comm = Collective("send", 4096, "float", "default_pg", 3)

    transfers, edges = meeting((0, 900), (LATE, LATE + 300), (7, 57), comm=comm)

    assert [50, 300, 900] == sorted(transfers.duration_ns.tolist())
    assert not edges.of(EdgeKind.PEER).any()


def test_the_lateness_of_an_absent_rank_is_an_edge() -> None:
    """A collective that takes longer than others of its size waited for a rank that was not recorded."""
    for late, peers in ((0, 0), (400, 1)):
        rank = TimelineBuilder(0, bounds=(0, 9 * LATE)).collective(0, 100_000, ALL_REDUCE)
        rank.collective(200_000, 300_000 + 1000 * late, ALL_REDUCE)
        matches, edges = match([figures_of(rank.build())], 2), Edges()
        members = Members(np.arange(2), matches.start_ns, matches.end_ns)
        transfers = add_rendezvous(edges, matches, members, 2, partial=True, on_cpu=False)
        edge = edges.table()
        assert [100_000, 100_000] == transfers.duration_ns.tolist()
        # Where it did not come last, it may have come as late as the last: an edge that holds only if that is asked.
        assert peers == int((edge.of(EdgeKind.PEER) & (edge.lag_ns > NEVER)).sum())
        assert 1 == int(edge.of(EdgeKind.PEER).sum())


# Pieces of host time, and what is cut from them.


@pytest.mark.heavy
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, 10**10))
def test_what_is_cut_comes_from_the_longest(lengths: list[int], ns: int) -> None:
    """All that is asked for is cut, as far as 20 µs of each piece remain; no shorter piece loses before a longer."""
    length = np.array(lengths, np.int64)
    cut = cut_longest(length, np.zeros(len(length), np.int64), np.array([ns]))
    room = np.maximum(length - KEPT_NS, 0)

    assert min(ns, int(room.sum())) == int(cut.sum())
    assert (cut <= room).all()
    assert (cut >= 0).all()
    touched = cut > 0
    assert not touched.any() or (cut[length > length[touched].min()] == room[length > length[touched].min()]).all()


def test_pieces_are_the_calls_and_pauses_of_a_host(run: dptrace.Run) -> None:
    """A job's hosts call for 5 µs each and pause between; the wait for the device is no piece."""
    model = run.replay.model
    pieces = host_pieces(model, model.processes[0])

    assert 10_000 in pieces.length_ns.tolist()
    assert int(pieces.length_ns.max()) < 100_000
    assert (pieces.end_ns >= pieces.start_ns).all()


# The module that each task of a graph belongs to.


def test_a_kernel_is_of_the_same_module_on_all_ranks(tmp_path: Path) -> None:
    """Both ranks' forward kernels are of ``layers.0``."""
    run = dptrace.open(write_job_with_modules(tmp_path), cache=False)
    modules = modules_of_tasks(run.replay.model)
    forward = run.replay.model.graph.names.index("forward")
    tasks = run.replay.model.graph.name == forward

    assert ("layers.0", "layers.1") == modules.names
    assert {0} == set(modules.module[tasks].tolist())


# Which work is equal, on files of a small GPU job and of a CPU.


def test_work_is_a_kernel_with_its_grid_and_the_shapes_of_its_operator(tmp_path: Path) -> None:
    """Four kernels of one name: only those with equal grid, block and shapes are equal, in all files."""
    path = _written(tmp_path / "rank0.json")
    run = dptrace.open(path, cache=False)
    work = run.read_again(run.timelines[0], WORK)
    again = dptrace.open(_written(tmp_path / "other.json"), cache=False)
    other = again.read_again(again.timelines[0], WORK)

    assert work is not None
    assert other is not None
    first, same, other_grid, other_shape = work.interval.tolist()
    assert first == same
    assert 3 == len({first, other_grid, other_shape})
    assert work.interval.tolist() == other.interval.tolist()


def _written(path: Path) -> Path:
    file = KinetoFile(0, 1)
    file.label("ProfilerStep#0", 0, 400)
    for i, (grid, shape) in enumerate([(1, 8), (1, 8), (2, 8), (1, 16)]):
        at = 10 + 50 * i
        inputs: dict[str, Any] = {"Input Dims": [[shape, shape]], "Input type": ["float"]}
        file.event("cpu_op", "aten::mm", at, at + 20, **inputs)
        file.event("cuda_runtime", "cudaLaunchKernel", at + 5, at + 8, correlation=i + 1)
        args = {"grid": [grid, 1, 1], "block": [32, 1, 1]}
        file.event("kernel", "gemm", at + 20, at + 40, tid=7, device=0, stream=7, correlation=i + 1, **args)
    file.write(path)
    return path


def test_operators_of_a_cpu_are_equal_by_shape() -> None:
    """Five linear layers of different shapes, in four steps."""
    run = dptrace.open(ROOT / "traces" / "single_cpu")
    work = run.read_again(run.timelines[0], WORK)

    assert work is not None
    linear = work.operator[work.name == work.names.index("aten::linear")]
    assert [4] * 5 == np.unique(linear, return_counts=True)[1].tolist()


# The order of tasks, and edges that contradict it.


def model_edges(*pairs: tuple[int, int, EdgeKind]) -> Edge:
    table = np.array(pairs, np.int64).reshape(-1, 3)
    zero = np.zeros(len(table), np.int64)
    return Edge(table[:, 0], table[:, 1], zero, zero.astype(np.bool_), table[:, 2].astype(np.uint8))


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=24), st.permutations(range(8)))
def test_every_task_comes_once_and_after_what_it_waits_for(pairs: list[tuple[int, int]], start: list[int]) -> None:
    """Whatever cycles the edges form, the order has all tasks, and respects the edges that remain."""
    wanted = model_edges(*((a, b, EdgeKind.STREAM) for a, b in pairs if a != b))

    kept, first, order = order_tasks(wanted, np.array(start, np.int64))

    place = np.argsort(order)
    assert list(range(8)) == sorted(order.tolist())
    assert (place[kept.src] < place[kept.dst]).all()
    assert [int((kept.dst == task).sum()) for task in range(8)] == np.diff(first).tolist()


def test_no_edge_is_left_out_without_a_cycle() -> None:
    """Edges that point back in recorded time, as clocks that differ let them, are kept."""
    kept, _, _ = order_tasks(model_edges((1, 0, EdgeKind.LAUNCH), (2, 1, EdgeKind.HOST)), np.array([1, 2, 3], np.int64))

    assert 2 == len(kept)


def test_the_uncertain_edge_of_a_cycle_is_left_out() -> None:
    """Of two edges that close a cycle, the one that was inferred from time goes, even if both point back."""
    times = np.array([5, 5], np.int64)
    kept, _, _ = order_tasks(model_edges((1, 0, EdgeKind.TIMED), (0, 1, EdgeKind.STREAM)), times)

    assert [EdgeKind.STREAM] == kept.kind.tolist()


# The tasks of one process.


@pytest.fixture(params=[0, 1])
def process(run: dptrace.Run, request: pytest.FixtureRequest) -> Process:
    """One of the two processes of the job."""
    found: Process = run.replay.model.processes[request.param]
    return found


def test_processes_meet_only_in_transfers(run: dptrace.Run) -> None:
    """Both ends of every other edge are tasks of the same process."""
    graph = run.replay.model.graph
    ends = np.stack((graph.process[graph.edge.src], graph.process[graph.edge.dst]))

    assert (len(set(ends[0])), True) == (3, (ends[0] == ends[1])[(ends != NO_PROCESS).all(axis=0)].all())


def test_every_interval_of_a_device_is_a_task(run: dptrace.Run, process: Process) -> None:
    """Each interval of the timeline has a task of its own, whose time is that of the interval or of its transfer."""
    ((number, tasks),) = process.timelines
    model, timeline = run.replay.model, run.timelines[number]

    assert (tasks >= 0).all()
    assert len(tasks) == len(np.unique(tasks))
    ended = model.graph.end_ns[model.over[tasks]] - model.graph.start_ns[tasks]
    assert (timeline.end_ns - timeline.start_ns).tolist() == ended.tolist()


# Waits that the trace records: synchronization events of CUPTI.


def two_streams(folder: Path, sync: bool = True) -> Path:
    """Write a rank whose stream 20 waits for the first of two kernels of stream 7, and a host that waits for it."""
    file = KinetoFile().label("ProfilerStep#0", 0, 1000)
    file.kernel("first", 20, 100, 10)
    file.event("cuda_runtime", "cudaEventRecord", 12, 13, correlation=900)
    file.kernel("second", 101, 300, 14)
    file.event("cuda_runtime", "cudaStreamWaitEvent", 16, 17, correlation=901)
    file.kernel("side", 190, 230, 180, stream=20)
    file.event("cuda_runtime", "cudaStreamSynchronize", 185, 320, correlation=902)
    if sync:
        about = {"device": 0, "stream": 20}
        waits = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 900}
        file.event("cuda_sync", "Stream Wait Event", 16, 17, tid=20, correlation=901, **about, **waits)
        file.event("cuda_sync", "Stream Synchronize", 185, 320, tid=20, correlation=902, **about)
    return file.write(folder / "rank0.json")


def two_streams_of_nsight(folder: Path) -> Path:
    """Write the same as an export, with an event of another process, and a wait for one that is not in the file."""
    file, main, pid = NsightFile(), (100, 1), process_id(100)
    file.range(*main, 0, 1_000_000, "step 0")
    file.kernel(*main, 10_000, 20_000, 100_000, "first")
    record = file.call(*main, 12_000, 13_000, "cudaEventRecord_v3020")
    file.kernel(*main, 14_000, 101_000, 300_000, "second")
    wait = file.call(*main, 16_000, 17_000, "cudaStreamWaitEvent_v3020")
    unknown = file.call(*main, 17_000, 18_000, "cudaStreamWaitEvent_v3020")
    file.kernel(*main, 180_000, 190_000, 230_000, "side", stream=20)
    synchronize = file.call(*main, 185_000, 320_000, "cudaStreamSynchronize_v3020")
    file.rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] = [
        (16_000, 17_000, 0, 20, wait, pid, 2, 5),
        (17_000, 18_000, 0, 7, unknown, pid, 2, 6),
        (185_000, 320_000, 0, 20, synchronize, pid, 3, 0),
    ]
    file.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = [(20, record, process_id(99), 5), (7, record, pid, 5)]
    return file.write(folder / "report.sqlite")


def waits_edges(model: Model, kind: EdgeKind) -> list[tuple[str, str]]:
    graph = model.graph
    bare = [name.removeprefix("void ").removesuffix("<float>(int)") for name in graph.names]
    names = np.array(bare, object)[graph.name]
    chosen = np.flatnonzero(graph.edge.of(kind))
    return list(zip(names[graph.edge.src[chosen]], names[graph.edge.dst[chosen]], strict=True))


@pytest.mark.parametrize("write", [two_streams, two_streams_of_nsight])
def test_recorded_events_say_who_waits_for_what(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """A stream for the kernel before the recorded event, not for the last of its stream; the host for that stream."""
    model = build_model(dptrace.open(write(tmp_path), cache=False))

    assert [("first", "side")] == waits_edges(model, EdgeKind.JOIN)
    assert [("side", "cudaStreamSynchronize")] == waits_edges(model, EdgeKind.SYNCHRONIZE)


def test_recorded_events_are_noticed_wherever_a_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is searched for them while it is read: they may lie across two pieces of its text."""
    assert not read_trace(two_streams(tmp_path, sync=False)).has_syncs
    path = two_streams(tmp_path)
    assert read_trace(path).has_syncs
    *first, last = pieces(path)
    text = b"".join([*(piece.text for piece in first), last.text])
    begin = text.rindex(b"cuda_sync")

    for cut in range(begin, begin + 10):
        cut_up = [replace(last, text=text[:cut], last=False), replace(last, text=text[cut:])]
        monkeypatch.setattr(reader, "pieces", lambda source, cut_up=cut_up: iter(cut_up))
        assert read_trace(path).has_syncs


def test_without_events_nothing_is_recorded(tmp_path: Path) -> None:
    """Most traces have none; odd values count as absent."""
    assert 0 == len(read_sync_events(Source.of(two_streams(tmp_path, sync=False))))
    plain = training().write(tmp_path / "report.sqlite")
    assert 0 == len(read_sync_events(Source.of(plain)))

    file = KinetoFile().event("cuda_sync", "Stream Wait Event", 1, 2, correlation="x", stream=[1], wait_on_stream=7)
    odd = read_sync_events(Source.of(file.write(tmp_path / "odd.json")))

    assert [NOT_RECORDED] == odd.correlation.tolist() == odd.stream.tolist()
    assert [7] == odd.wait_on_stream.tolist()
