"""Whom a delay reaches: the stage of a pipeline that is late, and the group that waits for a rank first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dptrace.core.units import ranks_text
from dptrace.replay.graph.build import Model
from dptrace.replay.transforms.roles import MESSAGE, kinds_of
from dptrace.replay.transforms.stragglers import Excess

_MOST = 0.8
"""Share of a delay from which it is that of one of a rank's stages."""


def reach_text(model: Model, rank: int, excesses: Sequence[Excess]) -> str:
    """Say which stage a late rank is, and which of its groups waits for it first; empty where there is only one.

    Args:
        excesses: its delays, which have one cause.
    """
    if known := _stages_by_label(model):
        own = known.get(rank, ())
        count = 1 + max(stage for stages in known.values() for stage in stages)
        if len(own) < 2:
            return f"Rank {rank} is stage {own[0]} of {count}, from 0." if own else ""
        late = _late_stage(model, rank, excesses)
        where = "" if late is None else f", and is late in stage {late}"
        return f"Rank {rank} has the stages {', '.join(map(str, own))} of {count}, from 0{where}."
    if stages := stages_of(model):
        return f"Rank {rank} is stage {stages[rank]} of {max(stages.values()) + 1}, from 0." if rank in stages else ""
    instance = max(excesses, key=lambda excess: excess.ns).instance
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


def _stages_by_label(model: Model) -> dict[int, tuple[int, ...]]:
    """Return the stages of each rank by the labels of its schedule; empty where they name none."""
    found = dict[int, set[int]]()
    for timeline in model.run.timelines:
        stage = timeline.actions.stage
        if len(stage) and int(stage.min()) >= 0:
            found.setdefault(timeline.rank, set()).update(stage.tolist())
    return {rank: tuple(sorted(stages)) for rank, stages in found.items()}


def _late_stage(model: Model, rank: int, excesses: Sequence[Excess]) -> int | None:
    """Return the stage in whose actions most of the delays are, if they are in one."""
    graph, spent = model.graph, Counter[int]()
    for process, number in model.first_timelines:
        timeline = model.run.timelines[number]
        if timeline.rank != rank:
            continue
        own = [one for one in excesses if model.processes[one.process] is process]
        for one in own:
            task = np.where(one.index >= 0, one.index, graph.edge.dst[np.maximum(-1 - one.index, 0)])
            at = model.run.cross_rank.clocks.unalign(number, graph.start_ns[task])
            actions = timeline.actions
            action = np.searchsorted(actions.called_ns, at, side="right") - 1
            inside = (action >= 0) & (at <= actions.returned_ns[action])
            for stage, ns in zip(actions.stage[action[inside]].tolist(), one.cut_ns[inside].tolist(), strict=True):
                spent[stage] += ns
    total = sum(one.ns for one in excesses)
    return next((stage for stage, ns in spent.most_common(1) if ns >= _MOST * total), None)


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
