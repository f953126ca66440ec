"""What each all-reduce algorithm sends and adds: exact for any number of ranks, in shares of the tensor.

All of them send 2(P-1) tensors in total, since every rank but one has to hand in a tensor and to get one back. They
differ in what the busiest rank sends, and in how many messages follow one another. Formulas of the guide "Distributed
Training", sections 3.1 to 3.6 and 5.5, and of Thakur, Rabenseifner and Gropp (2005) where P is not a power of two.
"""

from __future__ import annotations

import math

import msgspec

from dptrace.model.collectives import ALGORITHMS

__all__ = ["ALL_REDUCES", "AllReduceVolume", "all_reduce_volume", "crossing_bytes"]

ALL_REDUCES = ("ring", "tree", "halving-doubling", "hierarchical", "naive")
"""The algorithms by name."""


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
        name: of ALL_REDUCES.
        ranks: two or more.
        ranks_per_node: for ``hierarchical``: how many consecutive ranks share a node; by default half of them.

    Raises:
        KeyError: there is no such algorithm.
    """
    total = 2.0 * (ranks - 1)
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
