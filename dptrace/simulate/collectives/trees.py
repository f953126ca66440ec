"""Reductions and broadcasts along binomial trees, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dptrace.simulate.cluster import Cluster, Transfer

__all__ = ["broadcast_rounds", "broadcast_tree", "reduce_rounds", "reduce_tree"]

Rounds = list[list[tuple[int, int]]]


def reduce_rounds(ranks: int) -> Rounds:
    """Return (source, target) of each round of a reduction to rank 0.

    >>> reduce_rounds(5)
    [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    rounds, distance = [], 1
    while distance < ranks:
        rounds.append([(rank + distance, rank) for rank in range(0, ranks - distance, 2 * distance)])
        distance *= 2
    return rounds


def broadcast_rounds(ranks: int) -> Rounds:
    """Return (source, target) of each round of a broadcast from rank 0: the reduction backwards.

    >>> broadcast_rounds(4)
    [[(0, 2)], [(0, 1), (2, 3)]]
    """
    return [[(target, source) for source, target in sends] for sends in reversed(reduce_rounds(ranks))]


def reduce_tree(cluster: Cluster, groups: Sequence[Sequence[int]], phase: str = "reduce") -> None:
    """Sum whole tensors on the first member of each group, all groups at the same time."""
    title = "of each two ranks that are left, one sends all it has, and the other adds it"
    _carry_out(cluster, groups, reduce_rounds, True, phase, title)


def broadcast_tree(cluster: Cluster, groups: Sequence[Sequence[int]], phase: str = "broadcast") -> None:
    """Copy the tensor of the first member of each group to the others, all groups at the same time."""
    _carry_out(cluster, groups, broadcast_rounds, False, phase, "every rank that has the result sends it on")


def _carry_out(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    rounds_of: Callable[[int], Rounds],
    adds: bool,
    phase: str,
    title: str,
) -> None:
    rounds = [rounds_of(len(group)) for group in groups]
    for turn in range(max(map(len, rounds))):
        transfers = [
            Transfer(group[source], group[target], range(cluster.columns), adds)
            for group, of_group in zip(groups, rounds, strict=True)
            if turn < len(of_group)
            for source, target in of_group[turn]
        ]
        cluster.step(phase, title, transfers)
