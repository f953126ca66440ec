"""Nodes whose ranks are all late for one cause: a fault of the machine, one finding instead of one for each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from dptrace.core.intervals import median

_OF_RANKS = ("compute", "memory_copies", "slower_host")
"""Causes that are of one rank, as its own key says."""
_NOTABLE = 0.4
"""Share of what the middle rank of a node loses that all but a quarter of its ranks lose at least."""
_MORE = 2.0
"""By how many times the middle rank of a late node loses more than that of the others; a rank that loses more than its
node by this factor is late by itself."""


def by_node(
    keys: Sequence[tuple[object, ...]],
    ranks: Sequence[Sequence[int]],
    ns: Sequence[int],
    nodes: Mapping[str, Sequence[int]],
) -> list[tuple[object, ...]]:
    """Give the delays of a node whose ranks are all late one key: their cause and the node.

    Args:
        keys: what identifies the root cause of each delay: its cause and the rank, for those that are of one rank.
        ranks: the ranks that have each delay.
        ns: how long each is.
        nodes: the ranks of each node.
    """
    lost = defaultdict[object, defaultdict[int, int]](lambda: defaultdict(int))
    for key, own, one in zip(keys, ranks, ns, strict=True):
        if key[0] in _OF_RANKS:
            for rank in own:
                lost[key[0]][rank] += one
    late = dict[tuple[object, int], str]()
    for cause, by_rank in lost.items():
        of_node = {node: np.sort([by_rank[rank] for rank in own]) for node, own in nodes.items()}
        middle = {node: float(median(lost_ns)) for node, lost_ns in of_node.items()}
        for node, lost_ns in of_node.items():
            others = [value for other, value in middle.items() if other != node]
            level = _NOTABLE * middle[node]
            if len(lost_ns) < 2 or not level or lost_ns[len(lost_ns) // 4] < level:
                continue
            if middle[node] > _MORE * float(median(np.array(others))):
                late |= {(cause, rank): node for rank in nodes[node] if by_rank[rank] <= _MORE * middle[node]}
    return [
        (key[0], node) if key[0] in _OF_RANKS and (node := late.get((key[0], own[0]), "")) else key
        for key, own in zip(keys, ranks, strict=True)
    ]


def node_of(ranks: Sequence[int], nodes: Mapping[str, Sequence[int]]) -> str:
    """Return the node that several ranks are those of, but for a quarter of them; empty where there is none."""
    for node, own in nodes.items():
        if len(ranks) > 1 and set(ranks) <= set(own) and 4 * len(ranks) >= 3 * len(own):
            return node
    return ""
