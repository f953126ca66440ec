"""The kinds of collectives, and the cost of each by the algorithm that moves its data.

The alpha-beta (postal, Hockney) model: one message of n bytes over one link takes ``alpha + beta·n`` seconds, and a
collective among P ranks ``hops(P)·alpha + share(P)·n·beta``. The formulas are those of the guide "Distributed
Training", sections 3.2 to 3.4 (all-reduce), 4.1 to 4.4 (the others) and 5.2; they go back to Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). In all of them n is the message size as
nccl-tests counts it, see :data:`COUNTED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec


class CollectiveKind(msgspec.Struct, frozen=True):
    """The properties of one kind of collective; the defaults are those of an unknown kind."""

    name: str
    synchronizing: bool = False
    """Whether no rank can leave it before all have arrived, so that all leave at about the same time."""
    equal_bytes: bool = False
    """Whether it has the same bytes on all ranks; what is gathered, scattered or exchanged may be divided unevenly."""
    point_to_point: bool = False
    nccl_kernel: str = ""
    """Kind of the NCCL kernel that carries it out, if several kinds share one."""
    bus_factor: str = "1"
    """Key of the formula of busbw / algbw; empty where nccl-tests defines none."""
    counted: str = ""
    """What its message size n counts; empty for kinds that ``dptrace links`` does not measure."""
    algorithm: str = ""
    """Name of the algorithm for large messages; see :func:`algorithm_of`."""
    gloo_algorithm: str = ""
    """The same for gloo, if it differs."""


COLLECTIVES = {
    kind.name: kind
    for kind in (
        CollectiveKind(
            "all_reduce",
            synchronizing=True,
            equal_bytes=True,
            bus_factor="2(P-1)/P",
            counted="bytes of each rank's tensor",
            algorithm="ring all-reduce",
        ),
        CollectiveKind(
            "all_gather",
            synchronizing=True,
            equal_bytes=True,
            bus_factor="(P-1)/P",
            counted="bytes of the gathered tensor, all ranks' parts together",
            algorithm="ring all-gather",
        ),
        CollectiveKind(
            "reduce_scatter",
            synchronizing=True,
            equal_bytes=True,
            bus_factor="(P-1)/P",
            counted="bytes of each rank's whole input",
            algorithm="ring reduce-scatter",
        ),
        CollectiveKind(
            "all_to_all",
            synchronizing=True,
            nccl_kernel="send_recv",
            bus_factor="(P-1)/P",
            counted="bytes that each rank sends, its own part included",
            algorithm="pairwise all-to-all",
        ),
        # gloo/broadcast.cc forwards whole messages down a binomial tree. NCCL chooses ring or tree by size without
        # reporting which; large messages within a machine use the ring.
        CollectiveKind(
            "broadcast",
            equal_bytes=True,
            counted="bytes of the tensor",
            algorithm="pipelined ring broadcast",
            gloo_algorithm="binomial-tree broadcast",
        ),
        # gloo/reduce.cc reduces and scatters around a ring, then each rank sends its part to the root; NCCL sends
        # partial sums down a ring in slices.
        CollectiveKind(
            "reduce",
            equal_bytes=True,
            counted="bytes of the tensor",
            algorithm="pipelined ring reduce",
            gloo_algorithm="ring reduce-scatter, then gather",
        ),
        # Both backends send each part directly (gloo/gather.cc and scatter.cc; NCCL's are sends and receives).
        CollectiveKind(
            "gather",
            nccl_kernel="send_recv",
            bus_factor="(P-1)/P",
            counted="bytes of the gathered tensor, all ranks' parts together",
            algorithm="direct gather",
        ),
        CollectiveKind(
            "scatter",
            nccl_kernel="send_recv",
            bus_factor="(P-1)/P",
            counted="bytes of the scattered tensor, all ranks' parts together",
            algorithm="direct scatter",
        ),
        CollectiveKind("barrier", synchronizing=True, bus_factor=""),
        CollectiveKind("send", equal_bytes=True, point_to_point=True, nccl_kernel="send_recv"),
        CollectiveKind("recv", equal_bytes=True, point_to_point=True, nccl_kernel="send_recv"),
        CollectiveKind(
            "send_recv",
            point_to_point=True,
            nccl_kernel="send_recv",
            counted="bytes of the tensor, one way",
            algorithm="send and receive",
        ),
        # Of libraries for experts: tokens to the ranks of their experts, and the results back. How much a rank sends
        # depends on the routing.
        CollectiveKind("dispatch", bus_factor=""),
        CollectiveKind("combine", bus_factor=""),
        # One-sided: a copy to or from a peer's memory, and a flag that is set for a peer or waited for.
        CollectiveKind("put_get", bus_factor=""),
        CollectiveKind("signal", bus_factor=""),
    )
}
"""All known kinds by name. Bus factors and counted bytes are those of nccl-tests (NVIDIA/nccl-tests,
doc/PERFORMANCE.md, and for gather and scatter src/gather.cu and src/scatter.cu)."""

POINT_TO_POINT = frozenset(kind.name for kind in COLLECTIVES.values() if kind.point_to_point)
COUNTED = {kind.name: kind.counted for kind in COLLECTIVES.values() if kind.counted}
"""What the message size n counts, for each kind that ``dptrace links`` measures."""

KINDS = tuple(COUNTED)


def bus_factor(kind: str, ranks: int) -> float:
    """Return busbw / algbw, where algbw = n/t; 1 for an unknown kind, NaN for one that nccl-tests does not have.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    formula = COLLECTIVES[kind].bus_factor if kind in COLLECTIVES else "1"
    if not formula:
        return math.nan
    return 1.0 if formula == "1" else _count(formula, ranks)


class Algorithm(msgspec.Struct, frozen=True):
    """One algorithm of a collective: t = hops·alpha + share·n·beta + adds·n·gamma.

    Alpha and beta are those of one link, gamma is the time to add one byte to another.
    """

    name: str
    formula: str
    """The formula as text; P is the number of ranks, n the bytes."""
    latency: str
    """Key of the formula of the hops."""
    volume: str
    """Key of the formula of the share."""
    reduction: str = "0"
    """Key of the formula of the bytes, as a share of n, that one rank after the other adds."""

    def hops(self, ranks: int) -> float:
        """Return the number of sequential messages: how often the latency of a link is paid."""
        return _count(self.latency, ranks)

    def share(self, ranks: int) -> float:
        """Return how many times the message crosses the busiest link."""
        return _count(self.volume, ranks)

    def adds(self, ranks: int) -> float:
        """Return how much of the message is added, one addition after the other."""
        return _count(self.reduction, ranks)

    def seconds(
        self, ranks: int, size: float, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0
    ) -> float:
        """Predict the time of a message of *size* bytes.

        >>> ALGORITHMS["ring all-reduce"].seconds(4, 1e6, 10e-6, 1e-9)  # 6 × 10 µs + 1.5 MB at 1 GB/s
        0.00156
        """
        sent = self.hops(ranks) * alpha_s + self.share(ranks) * size * beta_s_per_byte
        return sent + self.adds(ranks) * size * gamma_s_per_byte


def _count(key: str, ranks: int) -> float:
    """Evaluate the formula *key* for this many ranks."""
    depth = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    return {
        "0": 0.0,
        "1": 1.0 if ranks > 1 else 0.0,
        "P-1": ranks - 1.0,
        "2(P-1)": 2.0 * (ranks - 1),
        "(P-1)/P": (ranks - 1) / ranks,
        "2(P-1)/P": 2 * (ranks - 1) / ranks,
        "log2": float(depth),
        "2log2": 2.0 * depth,
    }[key]


_RING = "(P-1)·alpha + (P-1)/P·n·beta"

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("ring all-reduce", "2(P-1)·alpha + 2(P-1)/P·n·beta", "2(P-1)", "2(P-1)/P", "(P-1)/P"),
        Algorithm("naive all-reduce", "2(P-1)·alpha + 2(P-1)·n·beta", "2(P-1)", "2(P-1)", "P-1"),
        Algorithm("tree all-reduce", "2·log2(P)·alpha + 2·log2(P)·n·beta", "2log2", "2log2", "log2"),
        Algorithm("halving-doubling all-reduce", "2·log2(P)·alpha + 2(P-1)/P·n·beta", "2log2", "2(P-1)/P", "(P-1)/P"),
        Algorithm("ring all-gather", _RING, "P-1", "(P-1)/P"),
        Algorithm("ring reduce-scatter", _RING, "P-1", "(P-1)/P", "(P-1)/P"),
        Algorithm("pairwise all-to-all", _RING, "P-1", "(P-1)/P"),
        Algorithm("binomial-tree broadcast", "log2(P)·alpha + log2(P)·n·beta", "log2", "log2"),
        Algorithm("pipelined ring broadcast", "(P-1)·alpha + n·beta", "P-1", "1"),
        Algorithm("pipelined ring reduce", "(P-1)·alpha + n·beta", "P-1", "1", "1"),
        Algorithm(
            "ring reduce-scatter, then gather", "2(P-1)·alpha + 2(P-1)/P·n·beta", "2(P-1)", "2(P-1)/P", "(P-1)/P"
        ),
        Algorithm("direct gather", _RING, "P-1", "(P-1)/P"),
        Algorithm("direct scatter", _RING, "P-1", "(P-1)/P"),
        Algorithm("send and receive", "alpha + n·beta", "1", "1"),
    )
}
"""All algorithms by name; log2 is rounded up if P is not a power of two."""


def algorithm_of(backend: str, kind: str) -> Algorithm:
    """Return the algorithm that a backend of torch.distributed uses for large messages of a kind.

    Raises:
        KeyError: the kind is not in KINDS.
    """
    collective = COLLECTIVES[kind]
    gloo = collective.gloo_algorithm if backend == "gloo" else ""
    return ALGORITHMS[gloo or collective.algorithm]


# What each all-reduce algorithm sends and adds: exact for any number of ranks, in shares of the tensor.
#
# All of them send 2(P-1) tensors in total, since every rank but one has to hand in a tensor and to get one back. They
# differ in what the busiest rank sends, and in how many messages follow one another. Formulas of the guide "Distributed
# Training", sections 3.1 to 3.6 and 5.5, and of Thakur, Rabenseifner and Gropp (2005) where P is not a power of two.


ALL_REDUCES = ("ring", "tree", "halving-doubling", "hierarchical", "naive")
"""The algorithms by name."""
_OF_LIBRARIES: dict[str, Callable[[int, int], tuple[str, float, float, float, float, float]]] = {
    "double-tree": lambda ranks, depth: ("2·log2(P)·alpha + 2·n·beta", 2 * depth, 2, 1, 2, 2 * (ranks - 1)),
    "servers": lambda ranks, depth: ("2·alpha + n·beta, P servers beside the ranks", 2, 1, 1 - 1 / ranks, 1, 2 * ranks),
}
"""What can be predicted only: NCCL's two trees (Sanders et al. 2009), each with half of the tensor, where a rank is a
leaf of one and inside the other, for four ranks or more; and BytePS's servers on CPUs beside the ranks, of which each
adds up its part (Jiang et al., OSDI 2020, section 4: 2P(P-1)·n/(P²+kP-2k), with k = P servers)."""
PREDICTED = (*ALL_REDUCES, *_OF_LIBRARIES)


class AllReduceVolume(msgspec.Struct, frozen=True):
    """One algorithm among some ranks: t = hops·alpha + share·n·beta + adds·n·gamma."""

    algorithm: str
    formula: str
    hops: float
    """Messages, one after the other."""
    share: float
    """Of the tensor, how much crosses the busiest link one message after the other."""
    adds: float
    """Of the tensor, how much is added one addition after the other."""
    sent_share: float
    """Of the tensor, what the busiest rank sends; it receives as much."""
    total_share: float
    """Of the tensor, what all ranks send together."""

    def seconds(self, size: float, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0) -> float:
        """Predict the time for a tensor of *size* bytes over links that are all alike."""
        return self.hops * alpha_s + size * self.per_byte(beta_s_per_byte, gamma_s_per_byte)

    def per_byte(self, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0) -> float:
        """Return the time for each byte of the tensor."""
        return self.share * beta_s_per_byte + self.adds * gamma_s_per_byte


def all_reduce_volume(name: str, ranks: int, ranks_per_node: int | None = None) -> AllReduceVolume:
    """Return what an algorithm sends.

    >>> naive, ring = all_reduce_volume("naive", 4), all_reduce_volume("ring", 4)
    >>> 208 * naive.sent_share, 208 * ring.sent_share, 208 * ring.total_share  # MB of the GPU workshop's 208 MB
    (624.0, 312.0, 1248.0)

    Args:
        name: of PREDICTED.
        ranks: two or more.
        ranks_per_node: for ``hierarchical``: how many consecutive ranks share a node; by default half of them.

    Raises:
        KeyError: there is no such algorithm.
    """
    total = 2.0 * (ranks - 1)
    if name in _OF_LIBRARIES:
        return AllReduceVolume(name, *_OF_LIBRARIES[name](ranks, math.ceil(math.log2(ranks))))
    if name == "hierarchical":
        return _hierarchical(ranks, ranks_per_node or -(-ranks // 2), total)
    power = 1 << (ranks.bit_length() - 1)
    if name == "halving-doubling" and power < ranks:
        text = "2(log2(Q)+1)·alpha + (2(Q-1)/Q+2)·n·beta, Q the power of two below P"
        inner = (power - 1) / power
        # A rank that takes part for two receives a tensor before, and sends one after.
        return AllReduceVolume(name, text, 2 * power.bit_length(), 2 * inner + 2, inner + 1, 2 * inner + 1, total)
    found = ALGORITHMS[f"{name} all-reduce"]
    share = found.share(ranks)
    # Of a tree and of the naive algorithm, the busiest rank receives first, and sends then.
    sent = share / 2 if name in ("naive", "tree") else share
    return AllReduceVolume(name, found.formula, found.hops(ranks), share, found.adds(ranks), sent, total)


def _hierarchical(ranks: int, per_node: int, total: float) -> AllReduceVolume:
    """A tree in each node, a ring among the first ranks of the nodes, and a tree back, as the trainer's."""
    inside, nodes = min(per_node, ranks), -(-ranks // per_node)
    depth, around = math.ceil(math.log2(inside)), (nodes - 1) / nodes
    text = "(2·log2(G)+2(N-1))·alpha + (2·log2(G)+2(N-1)/N)·n·beta, N nodes of G ranks"
    share, hops = 2 * depth + 2 * around, 2 * depth + 2 * (nodes - 1)
    return AllReduceVolume("hierarchical", text, hops, share, depth + around, depth + 2 * around, total)


def crossing_bytes(
    one: AllReduceVolume, other: AllReduceVolume, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0
) -> float | None:
    """Return the size from which the one with more messages is faster; None if one of them always is.

    >>> ring, tree = all_reduce_volume("ring", 8), all_reduce_volume("tree", 8)
    >>> round(crossing_bytes(ring, tree, 5e-6, 1 / 25e9))  # 8·alpha more against 4.25·n·beta less
    235294
    """
    hops = one.hops - other.hops
    per_byte = other.per_byte(beta_s_per_byte, gamma_s_per_byte) - one.per_byte(beta_s_per_byte, gamma_s_per_byte)
    size = hops * alpha_s / per_byte if per_byte else 0.0
    return size if size > 0 else None
