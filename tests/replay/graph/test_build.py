"""The graph of a run: its tasks, and that its edges explain the recorded times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.replay.graph.build import Model, build_model
from dptrace.replay.graph.inferred import residuals
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.simulation.simulate import simulate
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
