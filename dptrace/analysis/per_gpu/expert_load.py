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
    dropped: float | None = None
    """Share of the layer's tokens that experts had no room for; None without a capacity."""

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
    dropped = _by_layer(metadata, "expert_dropped")
    return tuple(
        ExpertLoad(layer, _shares(counts), sum(dropped[layer]) / sum(counts) if layer in dropped else None)
        for layer, counts in sorted(_by_layer(metadata, "expert_load").items())
        if sum(counts) > 0
    )


def _by_layer(metadata: Mapping[str, Any], key: str) -> dict[int, list[int]]:
    """Return a list of counts for each layer, of the run or, where the ranks have different layers, of the ranks."""
    options, ranks = metadata.get("options"), metadata.get("ranks")
    rows = options.get(key) if isinstance(options, dict) else None
    tables = [(range(len(rows)), rows)] if isinstance(rows, list) else []
    for entry in ranks if isinstance(ranks, list) else []:
        own = entry.get("experts") if isinstance(entry, dict) else None
        if isinstance(own, dict) and isinstance(own.get("layers"), list) and isinstance(own.get(key), list):
            tables.append((own["layers"], own[key]))
    return {
        layer: counts
        for layers, rows in tables
        for layer, counts in zip(layers, rows, strict=False)
        if type(layer) is int and _are_counts(counts)
    }


def _are_counts(counts: object) -> bool:
    return isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)


def _shares(counts: list[int]) -> tuple[float, ...]:
    whole = sum(counts)
    return tuple(count / whole for count in counts)
