"""Links within and between nodes by their names, and the time that a collective takes over both.

A group of ranks on several nodes reduces in steps: a reduce-scatter within each node, the collective of the shards
between nodes, where every GPU uses its own port, and an all-gather within each node (the guide "Distributed Training",
section 3.6; NCCL's rings through all ports move as many bytes over each link).
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from dptrace.core.numbers import COUNT, Number
from dptrace.core.units import nearest
from dptrace.errors import UsageError
from dptrace.model.collectives import (
    ALGORITHMS,
    KINDS,
    PREDICTED,
    Algorithm,
    AllReduceVolume,
    algorithm_of,
    all_reduce_volume,
    crossing_bytes,
)
from dptrace.model.gpu_peaks import BANDWIDTH_GBPS, LATENCY_US, SHORT_NAMES, interconnect_named
from dptrace.model.training.layout import ranks_per_node

WITHIN, BETWEEN = 0.8, 0.7
"""Shares of the nominal bandwidth that collectives reach, within a node and between nodes. They were chosen, with the
constants of dptrace.model.training.step, on vTrain's measurements; NCCL's own are 0.75 to 0.9."""

_CUSTOM = re.compile(r"(-?\d+(?:\.\d+)?)us:(-?\d+(?:\.\d+)?)(?:GB/s)?", re.IGNORECASE)


class Link(msgspec.Struct, frozen=True):
    """One direction of one GPU's link: a message of n bytes takes alpha + n / bytes_per_s."""

    name: str
    alpha_s: float
    bytes_per_s: float

    def derated(self, share: float) -> Link:
        """Return the link with a share of its bandwidth."""
        return Link(self.name, self.alpha_s, self.bytes_per_s * share)

    def seconds(self, algorithm: Algorithm, size: float, ranks: int) -> float:
        """Return the time of a collective of *size* bytes among *ranks* over links like this one."""
        return algorithm.hops(ranks) * self.alpha_s + algorithm.share(ranks) * size / self.bytes_per_s


class Network(msgspec.Struct, frozen=True):
    """The links of a cluster: one within nodes, one port of each GPU between them."""

    within: Link
    between: Link
    gpus_per_node: int = 8


def parse_link(text: str) -> Link:
    """Return a link by its name, or by its latency and bandwidth: ``5us:12.5GB/s``.

    >>> parse_link("ib-hdr").bytes_per_s, parse_link("5us:12.5GB/s").bytes_per_s
    (25000000000.0, 12500000000.0)

    Raises:
        UsageError: it is neither.
    """
    _as_text(text)
    if match := _CUSTOM.fullmatch(text.strip()):
        latency_us, gb_per_s = float(match[1]), float(match[2])
        LATENCY_US.check(latency_us, f"--link {text.strip()}: latency in µs")
        BANDWIDTH_GBPS.check(gb_per_s, f"--link {text.strip()}: bandwidth in GB/s")
        return Link(text.strip(), latency_us * 1e-6, gb_per_s * 1e9)
    if text.strip().lower() not in SHORT_NAMES:
        names = f"{nearest(text, SHORT_NAMES)} Choose from {', '.join(SHORT_NAMES)}"
        raise UsageError(f"--link {text}: is not known.{names}, or give latency and bandwidth: 5us:12.5GB/s.")
    known = interconnect_named(text)
    return Link(known.name, known.alpha_s, known.bytes_per_s)


def is_typed(text: str) -> bool:
    """Return whether a link is described by its latency and bandwidth, which are taken as they are."""
    return _CUSTOM.fullmatch(text.strip()) is not None


def reached_link(text: str, share: float) -> Link:
    """Return a link as collectives reach it: a typed one as it is, a named one with a share of its bandwidth.

    >>> reached_link("5us:12.5GB/s", 0.7).bytes_per_s, reached_link("ib-hdr", 0.7).bytes_per_s
    (12500000000.0, 17500000000.0)

    Raises:
        UsageError: no link is called so.
    """
    link = parse_link(text)
    return link if is_typed(text) else link.derated(share)


def _as_text(link: str) -> str:
    if not isinstance(link, str):
        raise UsageError(f"--link {link!r}: give a name as text, or latency and bandwidth: 5us:12.5GB/s.")
    return link


def nominal_network(links: str, gpus_per_node: int = 8) -> Network:
    """Return the network of a link within nodes and one between nodes, or one for both, at their nominal rates.

    Raises:
        UsageError: a link is not known.
    """
    within, between = within_and_between(links)
    return Network(parse_link(within), parse_link(between), gpus_per_node)


def within_and_between(links: str) -> tuple[str, str]:
    """Return the texts of the link within nodes and of the one between them, which is the same where one is given.

    Raises:
        UsageError: it is no text.
    """
    within, _, between = _as_text(links).partition(",")
    return within, between or within


def collective_seconds(
    network: Network, kind: str, size: float, ranks: int, stride: int = 1, far: float = 1.0
) -> float:
    """Return the time of one collective.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.
        size: bytes as nccl-tests counts them: of the whole tensor.
        ranks: in the group.
        stride: how many ranks lie between neighbors of the group: 1 if they are next to each other.
        far: share of an all-to-all's bytes to other nodes that are sent there once for several ranks.
    """
    if ranks == 1:
        return 0.0
    local = ranks_per_node(stride, ranks, network.gpus_per_node)
    nodes = -(-ranks // local)
    if kind == "send_recv":  # a ring goes as fast as its slowest hop
        link = network.within if nodes == 1 else network.between
        return link.alpha_s + size / link.bytes_per_s
    if kind == "all_to_all":
        return _all_to_all(network, size, ranks, local, far)
    if kind != "all_reduce":
        algorithm = ALGORITHMS[f"ring {kind.replace('_', '-')}"]
        between = network.between.seconds(algorithm, size / local, nodes)
        return network.within.seconds(algorithm, size, local) + between
    within = network.within.seconds(ALGORITHMS["ring all-reduce"], size, local)
    # Trees or halving and doubling: latency grows with the logarithm of the nodes, bytes as in a ring.
    return within + network.between.seconds(ALGORITHMS["halving-doubling all-reduce"], size / local, nodes)


def _all_to_all(network: Network, size: float, ranks: int, local: int, far: float) -> float:
    near = (local - 1) * network.within.alpha_s + size * (local - 1) / ranks / network.within.bytes_per_s
    if far < 1:  # what arrives once is handed on within the node
        near += size * (ranks - local) / ranks / network.within.bytes_per_s
    across = (ranks - local) * (network.between.alpha_s + far * size / ranks / network.between.bytes_per_s)
    return max(near, across)


def sent_by_level(network: Network, kind: str, size: float, ranks: int, stride: int = 1) -> tuple[float, float]:
    """Return what one rank sends over the link within its node, and over its port to other nodes."""
    if ranks == 1:
        return 0.0, 0.0
    local = ranks_per_node(stride, ranks, network.gpus_per_node)
    nodes = -(-ranks // local)
    if kind == "send_recv":
        return (size, 0.0) if nodes == 1 else (0.0, size)
    if kind == "all_to_all":
        return size * (local - 1) / ranks, size * (ranks - local) / ranks
    return sent_bytes(kind, size, local), sent_bytes(kind, size / local, nodes)


def sent_bytes(kind: str, size: float, ranks: int) -> float:
    """Return how much one rank sends in a collective.

    >>> sent_bytes("all_reduce", 208e6, 4) / 1e6
    312.0
    """
    if ranks == 1:
        return 0.0
    if kind == "send_recv":
        return size
    return ALGORITHMS["ring all-reduce" if kind == "all_reduce" else "ring all-gather"].share(ranks) * size


# The algorithms of an all-reduce compared: time, steps, and what the busiest rank sends and receives.
#
# Formulas of the guide "Distributed Training", sections 3.1 to 3.6; see dptrace.model.collectives. The naive one
# gathers all tensors at one rank and sends the sum to each. Hierarchical and sharded: reduce-scatter within each node,
# all-reduce of each rank's shard between nodes, all-gather within each node.


SHARDED = "hierarchical-sharded"


def all_reduces(network: Network, size: float, ranks: int) -> list[dict[str, Any]]:
    """Compare the algorithms, fastest first; those without levels run over the slowest link that they cross.

    Of each: its name, the steps one after the other, the bytes that the busiest rank sends, and the seconds.

    >>> pcie = Network(Link("PCIe", 5e-6, 25e9), Link("PCIe", 5e-6, 25e9))
    >>> {one["algorithm"]: one["sent_bytes"] / 1e6 for one in all_reduces(pcie, 208e6, 4)}["ring"]
    312.0

    Args:
        size: bytes of the tensor.
    """
    rows = _all_reduces(network, size, ranks, gamma=0.0)
    levels = (row for row in rows if row["algorithm"] != "hierarchical")  # trees within nodes, which NCCL has not
    return [{key: row[key] for key in ("algorithm", "steps", "sent_bytes", "seconds")} for row in levels]


# The communication roofline: how much is computed for each byte that is sent, against what GPU and link can do.
#
# From the guide "Distributed Training", section 6, with its formulas and right rates: the GPU's dense peak, and one
# direction of the link. CCR is FLOPs over bytes of a step; the ridge is peak over bandwidth; below it, communication
# limits. The all-reduce of DDP sends about two bytes for each byte of the gradients.


REGIMES = (
    (0.2, "far below the ridge", "four times the batch or more, accumulation, or compressed gradients"),
    (0.8, "communication-bound", "a larger batch, or overlap"),
    (1.2, "near the ridge", "a slightly larger batch"),
    (float("inf"), "compute-bound", "faster kernels; the link suffices"),
)
"""Up to which share of the ridge a regime reaches, its name, and what helps (the guide, sections 6.6)."""


class RooflineLevel(msgspec.Struct, frozen=True):
    """One link of the roofline, and where a training lies on it."""

    link: str
    bytes_per_s: float
    ridge: float
    """FLOPs for each byte above which the GPU limits."""
    ccr: float
    """FLOPs of the step for each byte over this link."""
    ratio: float
    """CCR / ridge."""
    regime: str
    advice: str
    efficiency: float
    """Share of the peak that communication allows without overlap being any better: min(1, ratio)."""
    critical_batch: float
    """Samples of a GPU at which the ridge is reached."""
    crossover_bytes: float
    """n*: the message that takes as long as the latency."""


def ccr(flops: float, sent_bytes: float) -> float:
    """Return the computation for each byte that is communicated.

    >>> ccr(6 * 175e9 * 2048, 2 * 175e9 * 2)
    3072.0
    """
    return flops / sent_bytes


def level(link: Link, peak_flops: float, ratio_of_step: float, samples: float) -> RooflineLevel:
    """Return where a step lies on the roofline of one link.

    Args:
        peak_flops: of one GPU.
        ratio_of_step: its CCR.
        samples: of one GPU, in a step.
    """
    ridge = peak_flops / link.bytes_per_s
    ratio = ratio_of_step / ridge
    _, regime, advice = next(known for known in REGIMES if ratio < known[0])
    about, reached = (link.name, link.bytes_per_s, ridge, ratio_of_step, ratio, regime, advice), min(1.0, ratio)
    return RooflineLevel(*about, reached, samples / ratio, crossover_bytes(link))


def crossover_bytes(link: Link) -> float:
    """Return n* = alpha/beta, the message size at which latency and transfer take equally long.

    >>> crossover_bytes(Link("NVLink 4", 1e-6, 450e9))
    450000.0
    """
    return link.alpha_s * link.bytes_per_s


def reduce_seconds(size: float, ranks: int, memory_bytes_per_s: float) -> float:
    """Return gamma's part of a ring all-reduce: adding (P-1)/P of the tensor, which reads two numbers and writes one.

    On a GPU the additions run at the memory's bandwidth (the guide, section 5.5).
    """
    return 3 * size * (ranks - 1) / ranks / memory_bytes_per_s


# What every collective of one message takes, by alpha, beta and gamma: terms, regimes, volumes and crossovers.
#
# The extended model t = k·alpha + m·beta + c·gamma of the guide "Distributed Training", sections 5.1 to 5.5; the term
# that takes longest names the regime. On several nodes all run over the slower link, except the hierarchical
# all-reduce.


SCHEMA = 1
_RANKS, _BYTES, GAMMA_PS = Number(2, 1 << 20, whole=True), Number(above=0, most=1e18), Number(0, 1e12)
MESSAGE_REGIMES = ("latency-bound", "bandwidth-bound", "compute-bound")
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
    link = _slowest(network, ranks)
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
        "all_reduce": _all_reduces(network, size, ranks, gamma_s_per_byte),
        "crossovers": _crossovers(_volumes(network, ranks), link, gamma_s_per_byte),
    }


def _link(link: Link, size: float) -> dict[str, Any]:
    regime = MESSAGE_REGIMES[0] if size < crossover_bytes(link) else MESSAGE_REGIMES[1]
    own: dict[str, Any] = msgspec.to_builtins(link)
    return own | {"crossover_bytes": crossover_bytes(link), "regime": regime}


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
        "regime": MESSAGE_REGIMES[terms.index(max(terms))],
    }


def _slowest(network: Network, ranks: int) -> Link:
    """Return the link that an algorithm without levels runs over."""
    return network.within if ranks_per_node(1, ranks, network.gpus_per_node) == ranks else network.between


def _volumes(network: Network, ranks: int) -> dict[str, AllReduceVolume]:
    local = ranks_per_node(1, ranks, network.gpus_per_node)
    return {
        name: all_reduce_volume(name, ranks, local if local < ranks else None)
        for name in PREDICTED
        if (name != "hierarchical" or local < ranks) and (name != "double-tree" or ranks > 3)
    }


def _all_reduces(network: Network, size: float, ranks: int, gamma: float) -> list[dict[str, Any]]:
    """Return all algorithms, fastest first."""
    local, link = ranks_per_node(1, ranks, network.gpus_per_node), _slowest(network, ranks)
    rows = [_all_reduce(one, network, link, size, ranks, gamma) for one in _volumes(network, ranks).values()]
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
    steps, adds, sent = 2.0 * (local - 1 + rounds), inside + across, 2 * (inside + across)
    one = AllReduceVolume(SHARDED, formula, steps, sent, adds, sent, 2.0 * (ranks - 1))
    return _row(one, size, latency, transfer, gamma)


def _all_reduce(
    volume: AllReduceVolume, network: Network, link: Link, size: float, ranks: int, gamma: float
) -> dict[str, Any]:
    latency, transfer = volume.hops * link.alpha_s, volume.share * size / link.bytes_per_s
    if volume.algorithm == "hierarchical":
        latency, transfer = _levels(volume, network, size, ranks)
    return _row(volume, size, latency, transfer, gamma)


def _row(volume: AllReduceVolume, size: float, latency: float, transfer: float, gamma: float) -> dict[str, Any]:
    sent = volume.sent_share * size
    about = {"algorithm": volume.algorithm, "formula": volume.formula, "steps": volume.hops}
    about |= {"sent_bytes": sent, "received_bytes": sent, "busiest_bytes": 2 * sent}
    return about | {"total_bytes": volume.total_share * size} | _terms(latency, transfer, volume.adds * size * gamma)


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
