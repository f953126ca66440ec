"""The kinds of collectives, and the cost of each by the algorithm that moves its data.

The alpha-beta (postal, Hockney) model: one message of n bytes over one link takes ``alpha + beta·n`` seconds, and a
collective among P ranks ``hops(P)·alpha + share(P)·n·beta``. The formulas are those of the guide "Distributed
Training", sections 3.2 to 3.4 (all-reduce), 4.1 to 4.4 (the others) and 5.2; they go back to Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). In all of them n is the message size as
nccl-tests counts it, see :data:`COUNTED`.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["ALGORITHMS", "COLLECTIVES", "COUNTED", "KINDS", "Algorithm", "CollectiveKind", "algorithm_of", "bus_factor"]


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
