"""The algorithms of an all-reduce compared: time, steps, and what the busiest rank sends and receives.

Formulas of the guide "Distributed Training", sections 3.1 to 3.6; see dptrace.model.collectives. The naive one gathers
all tensors at one rank and sends the sum to each. Hierarchical: reduce-scatter within each node, all-reduce of the
shards between nodes, all-gather within each node.
"""

from __future__ import annotations

import math

import msgspec

from dptrace.model.collectives import ALGORITHMS
from dptrace.model.training.layout import ranks_per_node
from dptrace.model.training.network import Network, collective_seconds

__all__ = ["AllReduce", "all_reduces"]


class AllReduce(msgspec.Struct, frozen=True):
    """One algorithm for one tensor among some ranks."""

    algorithm: str
    steps: float
    """One after the other."""
    sent_bytes: float
    """By the busiest rank, which receives as much."""
    seconds: float


def all_reduces(network: Network, size: float, ranks: int) -> list[AllReduce]:
    """Compare the algorithms, fastest first; those without levels run over the slowest link that they cross.

    >>> from dptrace.model.training.network import Link
    >>> pcie = Network(Link("PCIe", 5e-6, 25e9), Link("PCIe", 5e-6, 25e9))
    >>> {one.algorithm: one.sent_bytes / 1e6 for one in all_reduces(pcie, 208e6, 4)}["ring"]
    312.0

    Args:
        size: bytes of the tensor.
    """
    local = ranks_per_node(1, ranks, network.gpus_per_node)
    link = network.within if local == ranks else network.between
    depth = math.ceil(math.log2(ranks))
    sent = {"naive": ranks - 1.0, "tree": float(depth), "ring": 2 * (ranks - 1) / ranks}
    sent["halving-doubling"] = sent["ring"]
    found = []
    for name, share in sent.items():
        algorithm = ALGORITHMS[f"{name} all-reduce"]
        found.append(AllReduce(name, algorithm.hops(ranks), share * size, link.seconds(algorithm, size, ranks)))
    if 1 < local < ranks:
        nodes = -(-ranks // local)
        steps = 2 * (local - 1) + 2 * math.ceil(math.log2(nodes))
        share = 2 * (local - 1) / local + 2 * (nodes - 1) / nodes / local
        seconds = collective_seconds(network, "all_reduce", size, ranks)
        found.append(AllReduce("hierarchical", steps, share * size, seconds))
    return sorted(found, key=lambda one: one.seconds)
