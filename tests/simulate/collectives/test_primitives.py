"""The other collectives, each against what NumPy says it means."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.simulate.collectives.primitives import broadcast
from dptrace.simulate.settings import Settings
from tests.support.explanations import ONE_GB, explained, replay

RANKS = pytest.mark.parametrize("ranks", range(2, 10))


def own(ranks: int) -> list[list[float]]:
    """What rank r has in chunk c, as the simulation numbers it."""
    return [[10.0 * (rank + 1) + chunk for chunk in range(ranks)] for rank in range(ranks)]


def ends(name: str, ranks: int) -> list[list[float]]:
    """Return what each rank ends with; -1 where it holds nothing."""
    return [[values[0] if values else -1 for values in row] for row in replay(explained(name, ranks))]


@RANKS
def test_broadcast_copies_the_tensor_of_rank_0(ranks: int) -> None:
    """All ranks end with it, after as many rounds as the doubling takes."""
    assert [[10.0]] * ranks == ends("broadcast", ranks)
    assert (ranks - 1).bit_length() == len(explained("broadcast", ranks).steps)


@RANKS
def test_reduce_sums_on_rank_0(ranks: int) -> None:
    """Rank 0 alone has the result."""
    assert sum(10.0 * (rank + 1) for rank in range(ranks)) == ends("reduce", ranks)[0][0]
    states = [row[0].state for row in explained("reduce", ranks).steps[-1].after]
    assert "done" == states[0]
    assert "done" not in states[1:]


@RANKS
def test_scatter_gives_rank_r_chunk_r(ranks: int) -> None:
    """Of rank 0's tensor."""
    assert own(ranks)[0] == [row[rank] for rank, row in enumerate(ends("scatter", ranks))]


@RANKS
def test_gather_collects_on_rank_0(ranks: int) -> None:
    """The chunk of each rank, in the order of ranks."""
    assert [own(ranks)[rank][rank] for rank in range(ranks)] == ends("gather", ranks)[0]


@RANKS
def test_all_gather_collects_on_all_ranks(ranks: int) -> None:
    """As gather, for every rank."""
    assert [[own(ranks)[rank][rank] for rank in range(ranks)]] * ranks == ends("all-gather", ranks)


@RANKS
def test_reduce_scatter_leaves_chunk_r_of_the_sum_on_rank_r(ranks: int) -> None:
    """Rank 0 chunk 0, as torch.distributed does."""
    assert np.sum(own(ranks), axis=0).tolist() == [row[rank] for rank, row in enumerate(ends("reduce-scatter", ranks))]


@RANKS
def test_all_to_all_transposes(ranks: int) -> None:
    """Rank j ends with chunk j of every rank."""
    received = [row[ranks:] for row in ends("all-to-all", ranks)]

    assert np.transpose(own(ranks)).tolist() == received


@pytest.mark.parametrize(
    ("name", "messages", "share"),
    [
        ("broadcast", 2, 2.0),
        ("reduce", 2, 2.0),
        ("scatter", 2, 0.75),
        ("gather", 2, 0.75),
        ("all-gather", 3, 0.75),
        ("reduce-scatter", 3, 0.75),
        ("all-to-all", 3, 0.75),
    ],
)
def test_costs_of_the_guide(name: str, messages: int, share: float) -> None:
    """Guide "Distributed Training", section 4.4, for four ranks; broadcast and reduce forward whole messages."""
    cost = explained(name, 4, 1e6).cost

    assert messages == cost.messages
    assert messages * 10e-6 + share * 1e-3 == pytest.approx(cost.seconds)


def test_broadcast_has_one_column() -> None:
    """The whole tensor."""
    assert ("tensor",) == broadcast(Settings(2, 8.0, ONE_GB, ONE_GB)).columns
