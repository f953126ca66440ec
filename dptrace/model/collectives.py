"""The kinds of collectives, and the cost of each by the algorithm that moves its data.

The alpha-beta (postal, Hockney) model: one message of n bytes over one link takes ``alpha + beta·n`` seconds, and a
collective among P ranks ``hops(P)·alpha + share(P)·n·beta``. The formulas are those of the guide "Distributed
Training", sections 3.2 to 3.4 (all-reduce), 4.1 to 4.4 (the others) and 5.2; they go back to Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). In all of them n is the message size as
nccl-tests counts it, see :data:`COUNTED`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ALGORITHMS", "COUNTED", "KINDS", "Algorithm", "algorithm_of", "bus_factor"]

COUNTED = {
    "all_reduce": "bytes of each rank's tensor",
    "all_gather": "bytes of the gathered tensor, all ranks' parts together",
    "reduce_scatter": "bytes of each rank's whole input",
    "all_to_all": "bytes that each rank sends, its own part included",
    "broadcast": "bytes of the tensor",
    "send_recv": "bytes of the tensor, one way",
}
"""What n counts for each measured kind (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""

KINDS = tuple(COUNTED)


def bus_factor(kind: str, ranks: int) -> float:
    """Return busbw / algbw, where algbw = n/t (NVIDIA/nccl-tests, doc/PERFORMANCE.md).

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of a collective: t = hops·alpha + share·n·beta, with alpha and beta of one link."""

    name: str
    formula: str
    """The formula as text; P is the number of ranks, n the bytes."""
    latency: str
    """Key of the formula of the hops."""
    volume: str
    """Key of the formula of the share."""

    def hops(self, ranks: int) -> float:
        """Return the number of sequential messages: how often the latency of a link is paid."""
        return _count(self.latency, ranks)

    def share(self, ranks: int) -> float:
        """Return how many times the message crosses the busiest link."""
        return _count(self.volume, ranks)

    def seconds(self, ranks: int, size: float, alpha_s: float, beta_s_per_byte: float) -> float:
        """Predict the time of a message of *size* bytes.

        >>> ALGORITHMS["ring all-reduce"].seconds(4, 1e6, 10e-6, 1e-9)  # 6 × 10 µs + 1.5 MB at 1 GB/s
        0.00156
        """
        return self.hops(ranks) * alpha_s + self.share(ranks) * size * beta_s_per_byte


def _count(key: str, ranks: int) -> float:
    """Evaluate the formula *key* for this many ranks."""
    depth = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    return {
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
        Algorithm("ring all-reduce", "2(P-1)·alpha + 2(P-1)/P·n·beta", "2(P-1)", "2(P-1)/P"),
        Algorithm("naive all-reduce", "2(P-1)·alpha + 2(P-1)·n·beta", "2(P-1)", "2(P-1)"),
        Algorithm("tree all-reduce", "2·log2(P)·alpha + 2·log2(P)·n·beta", "2log2", "2log2"),
        Algorithm("halving-doubling all-reduce", "2·log2(P)·alpha + 2(P-1)/P·n·beta", "2log2", "2(P-1)/P"),
        Algorithm("ring all-gather", _RING, "P-1", "(P-1)/P"),
        Algorithm("ring reduce-scatter", _RING, "P-1", "(P-1)/P"),
        Algorithm("pairwise all-to-all", _RING, "P-1", "(P-1)/P"),
        Algorithm("binomial-tree broadcast", "log2(P)·alpha + log2(P)·n·beta", "log2", "log2"),
        Algorithm("pipelined ring broadcast", "(P-1)·alpha + n·beta", "P-1", "1"),
        Algorithm("send and receive", "alpha + n·beta", "1", "1"),
    )
}
"""All algorithms by name; log2 is rounded up if P is not a power of two."""

_COMMON = {
    "all_reduce": "ring all-reduce",
    "all_gather": "ring all-gather",
    "reduce_scatter": "ring reduce-scatter",
    "all_to_all": "pairwise all-to-all",
    "send_recv": "send and receive",
}
# gloo/broadcast.cc forwards whole messages down a binomial tree. NCCL chooses ring or tree by size without reporting
# which; large messages within a machine use the ring.
_BROADCAST = {"gloo": "binomial-tree broadcast", "nccl": "pipelined ring broadcast"}


def algorithm_of(backend: str, kind: str) -> Algorithm:
    """Return the algorithm that a backend of torch.distributed uses for large messages of a kind.

    Raises:
        KeyError: the kind is not in KINDS.
    """
    chosen = _BROADCAST.get(backend, "pipelined ring broadcast") if kind == "broadcast" else _COMMON[kind]
    return ALGORITHMS[chosen]
