"""Whom a delay reaches: the stage of a pipeline that is late, and the group that waits for a rank first."""

from __future__ import annotations

import numpy as np

from dptrace.core.units import ranks_text
from dptrace.replay.graph.build import Model
from dptrace.replay.transforms.roles import MESSAGE, kinds_of


def reach_text(model: Model, rank: int, instance: int) -> str:
    """Say which stage a late rank is, and which of its groups waits for it first; empty where there is only one.

    Args:
        instance: the matched collective that it is late at, or -1.
    """
    if stages := stages_of(model):
        return f"Rank {rank} is stage {stages[rank]} of {max(stages.values()) + 1}, from 0." if rank in stages else ""
    matches = model.run.cross_rank.matches
    if instance < 0:
        return ""
    group = matches.groups[int(matches.group[instance])]
    others = {other.ranks for other in matches.groups if rank in other.ranks} - {group.ranks}
    if rank not in group.ranks or not others:
        return ""
    name = group.description.removeprefix("mesh_")
    of = f" ({name})" if group.description.startswith("mesh_") else ""
    return f"It delays its group of {ranks_text(group.ranks)}{of}; its other groups inherit the delay."


def stages_of(model: Model) -> dict[int, int]:
    """Return the stage of each rank of a pipeline, from 0; empty where no neighbors send each other messages both ways.

    Ranks of a higher stage have higher numbers, as in all frameworks.
    """
    matches = model.run.cross_rank.matches
    messages = np.flatnonzero(matches.kind == MESSAGE)
    if not len(messages):
        return {}
    kinds = dict(zip((model.run.timelines[n].rank for _, n in model.first_timelines), kinds_of(model), strict=True))
    ways = set[tuple[int, int, str]]()
    for message in messages.tolist():
        members = matches.device[matches.first[message] : matches.first[message + 1]].tolist()
        ranks = sorted(matches.device_ids[device][0] for device in members)
        if len(ranks) == 2 and ranks[0] in kinds:
            ways.add((ranks[0], ranks[1], str(kinds[ranks[0]][message])))
    both = {(low, high) for low, high, _ in ways if sum(way[:2] == (low, high) for way in ways) > 1}
    stages: dict[int, int] = {}
    for low, high in sorted(both, key=lambda pair: pair[1]):
        stages[high] = max(stages.get(high, 0), stages.setdefault(low, 0) + 1)
    return stages
