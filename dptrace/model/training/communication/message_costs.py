"""What every collective of one message takes, by alpha, beta and gamma: terms, regimes, volumes and crossovers.

The extended model t = k·alpha + m·beta + c·gamma of the guide "Distributed Training", sections 5.1 to 5.5; the term
that takes longest names the regime. On several nodes all run over the slower link, except the hierarchical all-reduce.
"""

from __future__ import annotations

import math
from typing import Any

from dptrace.core.numbers import COUNT, Number
from dptrace.model.all_reduce_volume import ALL_REDUCES, AllReduceVolume, all_reduce_volume, crossing_bytes
from dptrace.model.collectives import KINDS, algorithm_of
from dptrace.model.training.communication.all_reduce import SHARDED
from dptrace.model.training.communication.network import Link, Network
from dptrace.model.training.communication.roofline import crossover_bytes
from dptrace.model.training.layout import ranks_per_node

__all__ = ["GAMMA_PS", "message_costs"]

SCHEMA = 1
_RANKS, _BYTES, GAMMA_PS = Number(2, 1 << 20, whole=True), Number(above=0, most=1e18), Number(0, 1e12)
REGIMES = ("latency-bound", "bandwidth-bound", "compute-bound")
"""By the largest term: messages, bytes, additions."""


def message_costs(network: Network, size: float, ranks: int, gamma_s_per_byte: float) -> dict[str, Any]:
    """Return the contents of ``dptrace predict --bytes --json``.

    Args:
        network: links as they are reached; nothing is taken off.
        size: bytes of the message, as nccl-tests counts them.
        gamma_s_per_byte: time to add one byte to another.

    Raises:
        UsageError: there are fewer than two ranks, or the message is empty.
    """
    _RANKS.check(ranks, "--gpus")
    COUNT.check(network.gpus_per_node, "--gpus-per-node")
    _BYTES.check(size, "--bytes")
    GAMMA_PS.check(gamma_s_per_byte * 1e12, "--gamma")
    local = ranks_per_node(1, ranks, network.gpus_per_node)
    link = network.within if local == ranks else network.between
    volumes = {
        name: all_reduce_volume(name, ranks, local if local < ranks else None)
        for name in ALL_REDUCES
        if name != "hierarchical" or local < ranks
    }
    return {
        "schema": SCHEMA,
        "kind": "message_costs",
        "size_bytes": size,
        "ranks": ranks,
        "gpus_per_node": network.gpus_per_node,
        "gamma_s_per_byte": gamma_s_per_byte,
        "links": [_link(one, size) for one in dict.fromkeys((network.within, network.between))],
        "slowest_link": link.name,
        "collectives": [_collective(kind, link, size, ranks, gamma_s_per_byte) for kind in KINDS],
        "all_reduce": _all_reduces(volumes, network, size, ranks, gamma_s_per_byte),
        "crossovers": _crossovers(volumes, link, gamma_s_per_byte),
    }


def _link(link: Link, size: float) -> dict[str, Any]:
    regime = REGIMES[0] if size < crossover_bytes(link) else REGIMES[1]
    return {
        "name": link.name,
        "alpha_s": link.alpha_s,
        "bytes_per_s": link.bytes_per_s,
        "crossover_bytes": crossover_bytes(link),
        "regime": regime,
    }


def _collective(kind: str, link: Link, size: float, ranks: int, gamma: float) -> dict[str, Any]:
    """Return one collective by NCCL's algorithm for large messages."""
    algorithm = algorithm_of("nccl", kind)
    share, hops = algorithm.share(ranks), algorithm.hops(ranks)
    terms = _terms(hops * link.alpha_s, share * size / link.bytes_per_s, algorithm.adds(ranks) * size * gamma)
    # Of the whole collective: where its messages take as long as its bytes.
    crossover = hops * link.alpha_s / (share / link.bytes_per_s)
    about = {"kind": kind, "algorithm": algorithm.name, "formula": algorithm.formula, "hops": hops, "share": share}
    return about | terms | {"crossover_bytes": crossover}


def _terms(latency_s: float, transfer_s: float, adding_s: float) -> dict[str, Any]:
    terms = (latency_s, transfer_s, adding_s)
    return {
        "latency_s": latency_s,
        "transfer_s": transfer_s,
        "adding_s": adding_s,
        "seconds": sum(terms),
        "regime": REGIMES[terms.index(max(terms))],
    }


def _all_reduces(
    volumes: dict[str, AllReduceVolume], network: Network, size: float, ranks: int, gamma: float
) -> list[dict[str, Any]]:
    """Return all algorithms, fastest first."""
    local = ranks_per_node(1, ranks, network.gpus_per_node)
    link = network.within if local == ranks else network.between
    rows = [_all_reduce(volume, network, link, size, ranks, gamma) for volume in volumes.values()]
    if 1 < local < ranks:
        rows.append(_sharded(network, local, size, ranks, gamma))
    return sorted(rows, key=lambda row: float(row["seconds"]))


def _sharded(network: Network, local: int, size: float, ranks: int, gamma: float) -> dict[str, Any]:
    """Return the hierarchy in which each rank all-reduces its shard between nodes, through a port of its own."""
    nodes, near, far = -(-ranks // local), network.within, network.between
    inside, across = (local - 1) / local, (nodes - 1) / nodes / local
    rounds = math.ceil(math.log2(nodes))
    latency = 2 * (local - 1) * near.alpha_s + 2 * rounds * far.alpha_s
    transfer = 2 * inside * size / near.bytes_per_s + 2 * across * size / far.bytes_per_s
    formula = "2(G-1)·alpha + 2(G-1)/G·n·beta + 2·log2(N)·alpha' + 2(N-1)/N/G·n·beta', N nodes of G ranks"
    sent = 2 * (inside + across) * size
    return {
        "algorithm": SHARDED,
        "formula": formula,
        "steps": 2.0 * (local - 1 + rounds),
        "sent_bytes": sent,
        "received_bytes": sent,
        "busiest_bytes": 2 * sent,
        "total_bytes": 2.0 * (ranks - 1) * size,
        **_terms(latency, transfer, (inside + across) * size * gamma),
    }


def _all_reduce(
    volume: AllReduceVolume, network: Network, link: Link, size: float, ranks: int, gamma: float
) -> dict[str, Any]:
    latency, transfer = volume.hops * link.alpha_s, volume.share * size / link.bytes_per_s
    if volume.algorithm == "hierarchical":
        latency, transfer = _levels(volume, network, size, ranks)
    sent = volume.sent_share * size
    return {
        "algorithm": volume.algorithm,
        "formula": volume.formula,
        "steps": volume.hops,
        "sent_bytes": sent,
        "received_bytes": sent,
        "busiest_bytes": 2 * sent,
        "total_bytes": volume.total_share * size,
        **_terms(latency, transfer, volume.adds * size * gamma),
    }


def _levels(volume: AllReduceVolume, network: Network, size: float, ranks: int) -> tuple[float, float]:
    """Return latency and transfer of trees within nodes and a ring across them, each over its own link."""
    nodes = -(-ranks // network.gpus_per_node)
    hops, share = 2 * (nodes - 1), 2 * (nodes - 1) / nodes
    near, far = network.within, network.between
    latency = (volume.hops - hops) * near.alpha_s + hops * far.alpha_s
    return latency, (volume.share - share) * size / near.bytes_per_s + share * size / far.bytes_per_s


def _crossovers(volumes: dict[str, AllReduceVolume], link: Link, gamma: float) -> list[dict[str, Any]]:
    """List from which size on the ring is faster than an algorithm with fewer messages."""
    found, ring = [], volumes["ring"]
    for name, volume in volumes.items():
        size = crossing_bytes(ring, volume, link.alpha_s, 1 / link.bytes_per_s, gamma)
        if name not in ("ring", "hierarchical") and size is not None:
            found.append({"below": name, "above": "ring", "bytes": size})
    return found
