"""Where ranks meet, and when each leaves."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.analysis.matching.match import match
from dptrace.analysis.per_gpu.device import figures_of
from dptrace.replay.graph.model import Edge, EdgeKind, Edges
from dptrace.replay.graph.rendezvous import Members, Transfers, add_rendezvous
from dptrace.timeline.model import Collective
from tests.support.builders import TimelineBuilder

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
