"""The algorithms of an all-reduce compared: time, steps, and what the busiest rank sends and receives.

Formulas of the guide "Distributed Training", sections 3.1 to 3.6; see dptrace.model.all_reduce_volume. The naive one
gathers all tensors at one rank and sends the sum to each. Hierarchical and sharded: reduce-scatter within each node,
all-reduce of each rank's shard between nodes, all-gather within each node.
"""

from __future__ import annotations

import math

import msgspec

from dptrace.model.all_reduce_volume import ALL_REDUCES, all_reduce_volume
from dptrace.model.training.communication.network import Network, collective_seconds
from dptrace.model.training.layout import ranks_per_node

__all__ = ["SHARDED", "AllReduce", "all_reduces"]

SHARDED = "hierarchical-sharded"


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

    >>> from dptrace.model.training.communication.network import Link
    >>> pcie = Network(Link("PCIe", 5e-6, 25e9), Link("PCIe", 5e-6, 25e9))
    >>> {one.algorithm: one.sent_bytes / 1e6 for one in all_reduces(pcie, 208e6, 4)}["ring"]
    312.0

    Args:
        size: bytes of the tensor.
    """
    local = ranks_per_node(1, ranks, network.gpus_per_node)
    link = network.within if local == ranks else network.between
    volumes = [all_reduce_volume(name, ranks) for name in ALL_REDUCES if name != "hierarchical"]
    found = [
        AllReduce(one.algorithm, one.hops, one.sent_share * size, one.seconds(size, link.alpha_s, 1 / link.bytes_per_s))
        for one in volumes
    ]
    if 1 < local < ranks:
        nodes = -(-ranks // local)
        steps = 2 * (local - 1) + 2 * math.ceil(math.log2(nodes))
        share = 2 * (local - 1) / local + 2 * (nodes - 1) / nodes / local
        seconds = collective_seconds(network, "all_reduce", size, ranks)
        found.append(AllReduce(SHARDED, steps, share * size, seconds))
    return sorted(found, key=lambda one: one.seconds)
