"""Links within and between nodes by their names, and the time that a collective takes over both.

A group of ranks on several nodes reduces in steps: a reduce-scatter within each node, the collective of the shards
between nodes, where every GPU uses its own port, and an all-gather within each node (the guide "Distributed Training",
section 3.6; NCCL's rings through all ports move as many bytes over each link).
"""

from __future__ import annotations

import re

import msgspec

from dptrace.errors import UsageError
from dptrace.model.collectives import ALGORITHMS, Algorithm
from dptrace.model.interconnects import BANDWIDTH_GBPS, LATENCY_US, SHORT_NAMES, interconnect_named
from dptrace.model.training.layout import ranks_per_node

__all__ = [
    "BETWEEN",
    "WITHIN",
    "Link",
    "Network",
    "collective_seconds",
    "nominal_network",
    "parse_link",
    "sent_by_level",
    "sent_bytes",
    "within_and_between",
]

WITHIN, BETWEEN = 0.8, 0.7
"""Shares of the nominal bandwidth that collectives reach, within a node and between nodes. They were chosen, with the
constants of dptrace.model.training.compute, on vTrain's measurements; NCCL's own are 0.75 to 0.9."""

_CUSTOM = re.compile(r"(\d+(?:\.\d+)?)us:(\d+(?:\.\d+)?)(?:GB/s)?", re.IGNORECASE)


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
        names = ", ".join(SHORT_NAMES)
        raise UsageError(f"--link {text}: choose from {names}, or give latency and bandwidth: 5us:12.5GB/s.")
    known = interconnect_named(text)
    return Link(known.name, known.alpha_s, known.bytes_per_s)


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


def collective_seconds(network: Network, kind: str, size: float, ranks: int, stride: int = 1) -> float:
    """Return the time of one collective.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.
        size: bytes as nccl-tests counts them: of the whole tensor.
        ranks: in the group.
        stride: how many ranks lie between neighbors of the group: 1 if they are next to each other.
    """
    if ranks == 1:
        return 0.0
    local = ranks_per_node(stride, ranks, network.gpus_per_node)
    nodes = -(-ranks // local)
    if kind == "send_recv":
        link = network.within if local > 1 else network.between
        return link.alpha_s + size / link.bytes_per_s
    if kind == "all_to_all":
        return _all_to_all(network, size, ranks, local)
    if kind != "all_reduce":
        algorithm = ALGORITHMS[f"ring {kind.replace('_', '-')}"]
        between = network.between.seconds(algorithm, size / local, nodes)
        return network.within.seconds(algorithm, size, local) + between
    within = network.within.seconds(ALGORITHMS["ring all-reduce"], size, local)
    # Trees or halving and doubling: latency grows with the logarithm of the nodes, bytes as in a ring.
    return within + network.between.seconds(ALGORITHMS["halving-doubling all-reduce"], size / local, nodes)


def _all_to_all(network: Network, size: float, ranks: int, local: int) -> float:
    near = (local - 1) * network.within.alpha_s + size * (local - 1) / ranks / network.within.bytes_per_s
    far = (ranks - local) * (network.between.alpha_s + size / ranks / network.between.bytes_per_s)
    return max(near, far)


def sent_by_level(network: Network, kind: str, size: float, ranks: int, stride: int = 1) -> tuple[float, float]:
    """Return what one rank sends over the link within its node, and over its port to other nodes."""
    if ranks == 1:
        return 0.0, 0.0
    local = ranks_per_node(stride, ranks, network.gpus_per_node)
    nodes = -(-ranks // local)
    if kind == "send_recv":
        return (size, 0.0) if local > 1 else (0.0, size)
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
