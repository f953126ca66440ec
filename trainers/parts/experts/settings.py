"""The experts of a block, and the ranks that compute them."""

from __future__ import annotations

from dataclasses import dataclass

from dptrace.trainers.parts.experts.exchange import ALONE, Peers

__all__ = ["MixtureRanks", "MixtureSettings"]


@dataclass(frozen=True)
class MixtureSettings:
    """The experts of a block, over all ranks."""

    experts: int
    top_k: int
    capacity_factor: float | None = None
    """Of an even share; None for no limit."""
    shared: int = 0
    """Further experts that each rank holds, and each token visits."""


@dataclass(frozen=True)
class MixtureRanks:
    """The ranks that compute a mixture."""

    tokens: Peers = ALONE
    """Ranks with different tokens; those that share out the experts are consecutive among them."""
    experts: Peers = ALONE
    """Ranks that share out the experts."""
    tensor: Peers = ALONE
    """Ranks that split each expert, and have the same tokens."""
