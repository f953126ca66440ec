"""How evenly a mixture's tokens were spread over its experts, from what run.json tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ExpertLoad", "expert_loads"]


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """One layer's experts; shares are of the tokens that they got together, so that they sum to 1."""

    layer: int
    """Counted from 0."""
    shares: tuple[float, ...]

    @property
    def most_loaded(self) -> int:
        """Give the expert that got the most tokens; the first of equals."""
        return self.shares.index(max(self.shares))

    @property
    def least_loaded(self) -> int:
        """Give the expert that got the fewest tokens; the first of equals."""
        return self.shares.index(min(self.shares))

    @property
    def even_share(self) -> float:
        """Give the share that each would have if all were alike."""
        return 1 / len(self.shares)


def expert_loads(metadata: Mapping[str, Any]) -> tuple[ExpertLoad, ...]:
    """Give each layer's load; nothing for runs without experts, and no layer whose entry is no list of counts.

    Args:
        info: the contents of run.json, whoever wrote it.
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
