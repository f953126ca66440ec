"""Broadcast, reduce, scatter, gather, all-gather, reduce-scatter and all-to-all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptrace.model.collectives import ALGORITHMS
from dptrace.simulate.cluster import Cluster, Numbers, Transfer
from dptrace.simulate.collectives.all_reduce import ring_all_gather, ring_reduce_scatter
from dptrace.simulate.collectives.trees import broadcast_rounds, broadcast_tree, reduce_rounds, reduce_tree
from dptrace.simulate.costs import cost_of
from dptrace.simulate.explanation import Cost, Outcome
from dptrace.simulate.settings import Settings

__all__ = ["all_gather", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]


def _cost(cluster: Cluster, counted: str, algorithm: str, note: str = "") -> Cost:
    """Return the cost with the formula of ``dptrace.model``."""
    named, settings = ALGORITHMS[algorithm], cluster.settings
    return _cost_by(cluster, counted, named.formula, named.hops(settings.ranks), named.share(settings.ranks), note)


def _cost_by(cluster: Cluster, counted: str, formula: str, messages: float, share: float, note: str = "") -> Cost:
    settings = cluster.settings
    expected_s = messages * settings.link.alpha_s + share * settings.size_bytes / settings.link.bytes_per_s
    flat = settings.link == settings.between
    notes = [note] if note else []
    return cost_of(cluster.steps, settings, counted, formula, notes, None, expected_s if flat else None)


def broadcast(settings: Settings) -> Outcome:
    """Copy the tensor of rank 0 to all ranks, along a binomial tree."""
    cluster = Cluster(settings, 1)
    cluster.fill(0, [0])
    cluster.copies_are_results = True
    expected = cluster.vectors()[0]
    broadcast_tree(cluster, [range(settings.ranks)])
    cluster.check_equal([expected] * settings.ranks, "the broadcast")
    note = "NCCL pipelines large messages around a ring instead: (P-1)·alpha + n·beta."
    cost = _cost(cluster, "bytes of the tensor", "binomial-tree broadcast", note)
    return cluster.outcome(cost, f"All {settings.ranks} ranks end with rank 0's tensor.")


def reduce(settings: Settings) -> Outcome:
    """Sum the tensors of all ranks on rank 0, along a binomial tree."""
    cluster = Cluster(settings, 1)
    for rank in range(settings.ranks):
        cluster.fill(rank, [0])
    expected = np.sum(cluster.vectors(), axis=0)
    reduce_tree(cluster, [range(settings.ranks)])
    cluster.check_equal([expected, *[None] * (settings.ranks - 1)], "the reduce")
    cost = _cost(cluster, "bytes of each rank's tensor", "binomial-tree broadcast")
    return cluster.outcome(
        cost, f"Rank 0 ends with NumPy's sum over the ranks, {expected[0, 0]:g}; the others keep no result."
    )


_TREE = "log2(P)·alpha + (P-1)/P·n·beta"


def scatter(settings: Settings) -> Outcome:
    """Send each rank its chunk of the tensor of rank 0, along a binomial tree."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    cluster.fill(0, range(ranks))
    cluster.copies_are_results = True
    whole = cluster.vectors()[0]
    for sends in broadcast_rounds(ranks):
        transfers = [Transfer(source, target, _subtree(source, target, ranks)) for source, target in sends]
        cluster.step("scatter", "each sender passes on the chunks of half of its ranks", transfers)
    own = [cluster.vectors()[rank][rank] for rank in range(ranks)]
    for rank, chunk in enumerate(own):
        if not np.array_equal(chunk, whole[rank]):
            raise AssertionError(f"rank {rank} ends without chunk {rank} of rank 0's tensor")
    cost = _cost_by(cluster, "bytes of rank 0's tensor", _TREE, (ranks - 1).bit_length(), (ranks - 1) / ranks)
    return cluster.outcome(
        cost, f"Each of the {ranks} ranks ends with its chunk of rank 0's tensor, as numpy.split gives it."
    )


def gather(settings: Settings) -> Outcome:
    """Collect a chunk of each rank on rank 0, along a binomial tree."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, [rank])
    cluster.copies_are_results = True
    expected = np.sum(cluster.vectors(), axis=0)  # each column has one owner
    for sends in reduce_rounds(ranks):
        transfers = [Transfer(source, target, _subtree(target, source, ranks)) for source, target in sends]
        cluster.step("gather", "each sender passes on all chunks that it has", transfers)
    cluster.check_equal([expected, *[None] * (ranks - 1)], "the gather")
    counted = "bytes of the gathered tensor, all ranks' chunks together"
    cost = _cost_by(cluster, counted, _TREE, (ranks - 1).bit_length(), (ranks - 1) / ranks)
    return cluster.outcome(cost, "Rank 0 ends with the chunks of all ranks, as numpy.concatenate gives them.")


def _subtree(parent: int, child: int, ranks: int) -> range:
    """Return the ranks at and below a child in the binomial tree: as many as it is away from its parent."""
    return range(child, min(child + (child - parent), ranks))


def all_gather(settings: Settings) -> Outcome:
    """Collect a chunk of each rank on all ranks, around a ring."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, [rank])
    cluster.copies_are_results = True
    expected = np.sum(cluster.vectors(), axis=0)  # each column has one owner
    ring_all_gather(cluster, range(ranks), shift=-1)
    cluster.check_equal([expected] * ranks, "the all-gather")
    cost = _cost(cluster, "bytes of the gathered tensor, all ranks' parts together", "ring all-gather")
    return cluster.outcome(
        cost, f"All {ranks} ranks end with the chunks of all ranks, as numpy.concatenate gives them."
    )


def reduce_scatter(settings: Settings) -> Outcome:
    """Sum the tensors of all ranks, and leave chunk r of the sum on rank r, around a ring."""
    ranks = settings.ranks
    cluster = Cluster(settings, ranks)
    for rank in range(ranks):
        cluster.fill(rank, range(ranks))
    expected = np.sum(cluster.vectors(), axis=0)
    ring_reduce_scatter(cluster, range(ranks), shift=-1)
    for rank, vector in enumerate(cluster.vectors()):
        if not np.allclose(vector[rank], expected[rank]):
            raise AssertionError(f"rank {rank} ends without the sum of chunk {rank}")
    cost = _cost(cluster, "bytes of each rank's whole input", "ring reduce-scatter")
    sums = ", ".join(f"{value:g}" for value in expected[:8, 0])
    return cluster.outcome(
        cost, f"Rank r ends with chunk r of NumPy's sum over the ranks: [{sums}{', …' if ranks > 8 else ''}]."
    )


def all_to_all(settings: Settings) -> Outcome:
    """Send chunk j of each rank i to rank j: a transposition of the matrix of chunks."""
    ranks = settings.ranks
    cluster = Cluster(settings, 2 * ranks, chunks=ranks)
    for rank in range(ranks):
        cluster.fill(rank, range(ranks))
        cluster.held[rank][ranks + rank] = cluster.held[rank][rank]  # its own chunk stays
    cluster.copies_are_results = True
    expected = _transposed(cluster.vectors(), ranks)
    for distance in range(1, ranks):
        transfers = [
            Transfer(rank, (rank + distance) % ranks, [(rank + distance) % ranks], into=ranks + rank)
            for rank in range(ranks)
        ]
        cluster.step("all-to-all", f"each rank sends one chunk to the rank at distance {distance}", transfers)
    cluster.check_equal(expected, "the all-to-all")
    cost = _cost(cluster, "bytes that each rank sends, its own part included", "pairwise all-to-all")
    checked = "The received chunks are NumPy's transposition of the sent ones: chunk i on rank j was j on i."
    names = [f"{word} {rank}" for word in ("to", "from") for rank in range(ranks)]
    return cluster.outcome(cost, checked, names)


def _transposed(vectors: Sequence[Numbers], ranks: int) -> list[Numbers]:
    """Return what each rank must end with: the chunks that it sent, then the transposed matrix's row."""
    sent = np.array([vector[:ranks] for vector in vectors])
    received = np.transpose(sent, (1, 0, 2))
    return [np.concatenate((sent[rank], received[rank])) for rank in range(ranks)]
