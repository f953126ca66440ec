"""Where each rank stands in the mesh of a job: its number in each dimension, such as dp 1, pp 0, tp 3."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dptrace.analysis.matching.calls import Group

__all__ = ["coordinates", "place"]

_NAME = re.compile(r"[a-z]\w{0,15}", re.ASCII)
_MESH = re.compile(r"^mesh_(?P<dimension>[a-z]\w{0,15})$")
"""Description of a group of torch's DeviceMesh: ``mesh_tp``."""
_MEGATRON = {
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
_ORDER = ("dp", "dp_replicate", "dp_shard", "pp", "cp", "ep", "tp")
_OUTER_FIRST = {"dp-tp": ("dp", "tp"), "3d": ("dp", "pp", "tp")}
"""The dimensions of the meshes of dptrace's trainers, by mode, for recordings without coordinates."""


def coordinates(groups: Iterable[Group], metadata: Mapping[str, Any], world_size: int) -> dict[int, dict[str, int]]:
    """Return the number of each rank in each dimension of the job's mesh; without the ranks of which nothing is known.

    Args:
        groups: the process groups of the traces, for what ``run.json`` does not say.
        metadata: the contents of ``run.json``: the ranks' own coordinates, or else a mode and its options.
        world_size: number of ranks in the job.

    >>> coordinates([Group("1", (1, 3), 2, "mesh_dp"), Group("2", (2, 3), 2, "mesh_tp")], {}, 4)[3]
    {'dp': 1, 'tp': 1}
    """
    recorded = _recorded(metadata)
    if recorded:
        return recorded
    found: dict[str, dict[int, int]] = {}
    unclear = set()
    for group in groups:
        dimension = _dimension(group.description)
        if not dimension or len(group.ranks) < 2:
            continue
        numbers = found.setdefault(dimension, {})
        for number, rank in enumerate(group.ranks):
            if numbers.setdefault(rank, number) != number:
                unclear.add(dimension)
    known = {dimension: numbers for dimension, numbers in found.items() if dimension not in unclear}
    if not known:
        return _from_mode(metadata, world_size)
    ordered = sorted(known, key=lambda dimension: (_ORDER.index(dimension) if dimension in _ORDER else -1, dimension))
    ranks = sorted({rank for numbers in known.values() for rank in numbers})
    return {rank: {name: known[name][rank] for name in ordered if rank in known[name]} for rank in ranks}


def _dimension(description: str) -> str:
    mesh = _MESH.match(description)
    return mesh["dimension"] if mesh else _MEGATRON.get(description, "")


def _recorded(metadata: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """Return the coordinates that the ranks have written into their entries of ``run.json``."""
    entries = metadata.get("ranks")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    found = {}
    for entry in known:
        numbers, rank = entry.get("coordinates"), entry.get("rank")
        if (
            type(rank) is int
            and isinstance(numbers, dict)
            and numbers
            and all(map(_is_place, numbers, numbers.values()))
        ):
            found[rank] = dict(numbers)
    return found


def _is_place(name: object, number: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and type(number) is int and number >= 0


def _from_mode(metadata: Mapping[str, Any], world_size: int) -> dict[int, dict[str, int]]:
    """Return the coordinates in the mesh of one of dptrace's trainers, whose last dimension varies fastest."""
    mode, options = metadata.get("mode"), metadata.get("options")
    names = _OUTER_FIRST.get(mode) if isinstance(mode, str) and not metadata.get("script") else None
    if names is None or not isinstance(options, Mapping):
        return {}
    sizes = [options.get(name) for name in names[1:]]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return {}
    found = {}
    for rank in range(world_size):
        numbers, rest = {}, rank
        for name, size in zip(names[:0:-1], sizes[::-1], strict=True):
            rest, numbers[name] = divmod(rest, size or 1)
        found[rank] = {names[0]: rest} | {name: numbers[name] for name in names[1:]}
    return found


def place(numbers: Mapping[str, int]) -> str:
    """Write coordinates: ``dp 1 · pp 0 · tp 3``."""
    return " · ".join(f"{name} {number}" for name, number in numbers.items())
