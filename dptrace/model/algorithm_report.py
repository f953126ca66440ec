"""Timed all-reduce algorithms next to their predictions: the part ``algorithms`` of links.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dptrace.model.all_reduce_volume import AllReduceVolume, all_reduce_volume, crossing_bytes

__all__ = ["ADDITION", "ALGORITHM_PREFIX", "algorithm_report"]

ALGORITHM_PREFIX = "all_reduce/"
"""Begins the kinds of samples that are of an algorithm."""
ADDITION = "add"
"""The kind of samples that time the addition of two tensors on each rank, without communication."""


def algorithm_report(
    rows: Mapping[str, Sequence[dict[str, Any]]], ranks: int, ranks_per_node: int, link: Mapping[str, Any] | None,
    gamma_s_per_byte: float | None, nodes: int,
) -> dict[str, Any]:  # fmt: skip
    """Predict each algorithm's times by alpha and beta of a point-to-point message, and gamma of an addition.

    Args:
        rows: for each algorithm its measured sizes, each with ``bytes`` and ``median_s``.
        link: ``alpha_s`` and ``beta_s_per_byte``; None where no line could be fitted, which leaves no predictions.
        nodes: on several, the message crosses nodes, so that a hierarchy, which needs both links, is not predicted.
    """
    gamma = gamma_s_per_byte or 0.0
    volumes = {name: all_reduce_volume(name, ranks, ranks_per_node) for name in rows}
    known = {name: volume for name, volume in volumes.items() if link and not (name == "hierarchical" and nodes > 1)}
    found = {}
    for name, measured in rows.items():
        predicted = [_seconds(known.get(name), link, row["bytes"], gamma) for row in measured]
        found[name] = _about(volumes[name]) | {
            "deviation": _deviation(measured, predicted),
            "measured": [row | {"predicted_s": one} for row, one in zip(measured, predicted, strict=True)],
        }
    return {
        "ranks_per_node": ranks_per_node,
        "alpha_s": link["alpha_s"] if link else None,
        "beta_s_per_byte": link["beta_s_per_byte"] if link else None,
        "gamma_s_per_byte": gamma_s_per_byte,
        "crossovers": _crossovers(known, link, gamma),
        "all_reduce": found,
    }


def _about(volume: AllReduceVolume) -> dict[str, Any]:
    return {name: getattr(volume, name) for name in volume.__struct_fields__ if name != "algorithm"}


def _seconds(volume: AllReduceVolume | None, link: Mapping[str, Any] | None, size: int, gamma: float) -> float | None:
    if volume is None or link is None:
        return None
    return volume.seconds(size, link["alpha_s"], link["beta_s_per_byte"], gamma)


def _deviation(measured: Sequence[Mapping[str, Any]], predicted: Sequence[float | None]) -> float | None:
    """Return the median of measured over predicted minus one, without sign; None without predictions."""
    off = [abs(row["median_s"] / one - 1) for row, one in zip(measured, predicted, strict=True) if one]
    return float(np.median(off)) if off else None


def _crossovers(
    volumes: Mapping[str, AllReduceVolume], link: Mapping[str, Any] | None, gamma: float
) -> list[dict[str, Any]]:
    """List from which size on the one of two algorithms that sends more messages is faster, as predicted."""
    if link is None:
        return []
    found = []
    names = list(volumes)
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            many, few = sorted((volumes[name], volumes[other]), key=lambda volume: -volume.hops)
            size = crossing_bytes(many, few, link["alpha_s"], link["beta_s_per_byte"], gamma)
            if size is not None:
                found.append({"below": few.algorithm, "above": many.algorithm, "bytes": size})
    return found
