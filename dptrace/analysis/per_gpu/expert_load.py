"""How evenly tokens were distributed over the experts of a mixture, from run.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["ExpertLoad", "expert_loads"]


class ExpertLoad(msgspec.Struct, frozen=True):
    """The experts of one layer; their shares of the layer's tokens sum to 1."""

    layer: int
    """Counted from 0."""
    shares: tuple[float, ...]

    @property
    def most_loaded(self) -> int:
        """Index of the expert with the most tokens; the first among equals."""
        return self.shares.index(max(self.shares))

    @property
    def least_loaded(self) -> int:
        """Index of the expert with the fewest tokens; the first among equals."""
        return self.shares.index(min(self.shares))

    @property
    def even_share(self) -> float:
        """Share of each expert under an even load."""
        return 1 / len(self.shares)


def expert_loads(metadata: Mapping[str, Any]) -> tuple[ExpertLoad, ...]:
    """Return each layer's load; empty for runs without experts; layers whose entry is not a list of counts are skipped.

    Args:
        metadata: the contents of run.json, which may be malformed.
    """
    options = metadata.get("options")
    load = options.get("expert_load") if isinstance(options, dict) else None
    layers = enumerate(load if isinstance(load, list) else [])
    return tuple(ExpertLoad(layer, _shares(counts)) for layer, counts in layers if _are_counts(counts))


def _are_counts(counts: object) -> bool:
    return isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts) and sum(counts) > 0


def _shares(counts: list[int]) -> tuple[float, ...]:
    whole = sum(counts)
    return tuple(count / whole for count in counts)
