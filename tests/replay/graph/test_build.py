"""The graph of a run: its tasks, and that its edges explain the recorded times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.device import figures_of
from dptrace.replay.graph.build import Members, Model, Transfers, add_rendezvous, build_model, residuals
from dptrace.replay.graph.model import Edge, EdgeKind, Edges, TaskKind
from dptrace.replay.simulation import simulate
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT
from tests.support.replay_files import job_rank


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


@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "interleaved_cpu_2ranks", "ddp_cpu_2ranks", "single_cpu"])
def test_runs_on_cpu_are_explained(name: str) -> None:
    """The graph of a recording with gloo ends within half a percent of what was recorded."""
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


@pytest.mark.parametrize(("late", "peers"), [(0, 0), (400, 1)])
def test_the_lateness_of_an_absent_rank_is_an_edge(late: int, peers: int) -> None:
    """A collective that takes longer than others of its size waited for a rank that was not recorded."""
    comm = Collective("all_reduce", 4096, "float", "default_pg", 2)
    rank = TimelineBuilder(0, bounds=(0, 9 * LATE)).collective(0, 100_000, comm)
    rank.collective(200_000, 300_000 + 1000 * late, comm)
    matches = match([figures_of(rank.build())], 2)
    edges = Edges()

    transfers = add_rendezvous(
        edges, matches, Members(np.arange(2), matches.start_ns, matches.end_ns), 2, partial=True, on_cpu=False
    )

    assert [100_000, 100_000] == transfers.duration_ns.tolist()
    assert peers == int(edges.table().of(EdgeKind.PEER).sum())
