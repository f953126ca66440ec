"""Pipelines: which ranks form one, its schedule, and the measured bubble against the formula.

::

    stage 0   F0 F1 F2 F3 ······ B0 B1 B2 B3       ██ busy   ·· bubble
    stage 1   ·· F0 F1 F2 F3 B0 B1 B2 B3 ···       bubble = 1 - busy / (ranks x span)
              └───────────── span ─────────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.unlabeled_schedule import unlabeled_actions
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import unique
from dptrace.model.collectives import POINT_TO_POINT
from dptrace.model.training.layout import bubble_share as bubble_formula
from dptrace.timeline.model import Action, Actions, Timeline

__all__ = [
    "Pipeline",
    "PipelineStep",
    "RankSpan",
    "bubble_formula",
    "pipelines",
    "to_dict",
]


class RankSpan(msgspec.Struct, frozen=True):
    """One rank's work in one step of a schedule."""

    device: int
    """Index into the run's devices."""
    start_ns: int
    """Start of its first action, on the reference clock."""
    end_ns: int
    """End of its last action."""
    busy_ns: int
    """Compute time in its actions."""


class PipelineStep(msgspec.Struct, frozen=True):
    """One step of a pipeline."""

    step: str
    shares: tuple[RankSpan, ...]

    @property
    def span_ns(self) -> int:
        """Time from the first action on any rank to the end of the last."""
        return max(share.end_ns for share in self.shares) - min(share.start_ns for share in self.shares)

    @property
    def bubble_percent(self) -> float:
        """Percentage of the ranks' time within the span without compute of an action."""
        return _bubble(sum(share.busy_ns for share in self.shares), self.span_ns * len(self.shares))

    def rank_bubble_percent(self, share: RankSpan) -> float:
        """Return the bubble of one rank in percent of the span."""
        return _bubble(share.busy_ns, self.span_ns)


def _bubble(busy: int, whole: int) -> float:
    return 100 * (whole - busy) / whole if whole else 0.0


class Pipeline(msgspec.Struct, frozen=True):
    """Ranks that pass micro-batches to each other."""

    devices: tuple[int, ...]
    """Indices into the run's devices, in the order of their first stages."""
    stages: tuple[tuple[int, ...], ...]
    """The stages of each of these devices."""
    micro_batches: int
    schedule: str
    """``naive``, ``gpipe``, ``1f1b``, ``interleaved``, ``zero-bubble``, ``forward-only`` or ``v-shaped``,
    inferred from the order of the actions."""
    steps: tuple[PipelineStep, ...]
    actions: tuple[Actions, ...]
    """What each of the devices does, in all steps."""
    is_labeled: bool
    """Whether labels name the actions; otherwise, they follow from the order of messages and compute."""

    @property
    def ranks(self) -> int:
        """Number of ranks that hold the stages, including ranks without a trace."""
        return -(-(max(map(max, self.stages)) + 1) // self.virtual_stages)

    @property
    def virtual_stages(self) -> int:
        """Number of stages on each rank."""
        return max(map(len, self.stages))

    @property
    def bubble_percent(self) -> float:
        """Median of the steps' bubbles."""
        return median(pipeline_step.bubble_percent for pipeline_step in self.steps)

    @property
    def formula_percent(self) -> float | None:
        """Bubble of the schedule's formula for stages that take equally long; None if it has no formula."""
        share = bubble_formula(self.schedule, self.ranks, self.micro_batches, self.virtual_stages)
        return None if share is None else 100 * share


def pipelines(devices: Sequence[DeviceFigures], clock: Clocks) -> tuple[Pipeline, ...]:
    """Return the run's pipelines: by labels of a schedule or, without any, by the order of messages and compute."""
    timelines = [device.timeline for device in devices]
    actions = {i: timeline.actions for i, timeline in enumerate(timelines) if len(timeline.actions)}
    is_labeled = bool(actions)
    actions = actions or unlabeled_actions(timelines)
    result = []
    for members in _groups(timelines, actions):
        stages = _stages({i: timelines[i].rank for i in members}, actions)
        order = sorted(members, key=lambda i: (stages[i], i))
        own = tuple(actions[i] for i in order)
        pipeline_steps = _pipeline_steps({i: timelines[i] for i in order}, own, clock)
        if pipeline_steps:
            count = max(int(one.micro_batch.max()) + 1 for one in own)
            places = tuple(stages[i] for i in order)
            kind = _schedule(own, places)
            result.append(Pipeline(tuple(order), places, count, kind, pipeline_steps, own, is_labeled))
    return tuple(result)


def _groups(timelines: Sequence[Timeline], actions: Mapping[int, Actions]) -> list[list[int]]:
    """Join the devices that exchange messages, by the recorded peers or, without any, by the messages' groups.

    Where some name others, those that name nobody and that nobody names are in no group: with whom they are is unknown.
    """
    member = list(actions)
    places = {timelines[i].rank: i for i in member}
    joined = {i: {i} for i in member}
    exchange = False
    for i in member:
        for other in _partners(timelines[i]) & places.keys():
            exchange = True
            both = joined[i] | joined[places[other]]
            for device in both:
                joined[device] = both
    if not exchange and member:
        return [member]
    groups = [sorted(group) for group in {id(group): group for group in joined.values()}.values()]
    return [group for group in groups if len(group) > 1 or _partners(timelines[group[0]])]


def _partners(timeline: Timeline) -> set[int]:
    messages = [c for c in timeline.collectives if c.kind in POINT_TO_POINT]
    peers = {c.peer for c in messages if c.peer >= 0}
    return peers or {rank for c in messages for rank in c.ranks}


def _stages(ranks: Mapping[int, int], actions: Mapping[int, Actions]) -> dict[int, tuple[int, ...]]:
    """Return the stages of each device, given with its rank; if the actions name none, one per rank in rank order."""
    named = {i: tuple(unique(actions[i].stage).tolist()) for i in ranks}
    if any(stages[0] < 0 for stages in named.values()):
        by_rank = sorted(ranks, key=lambda i: (ranks[i], i))
        return {i: (place,) for place, i in enumerate(by_rank)}
    return named


def _pipeline_steps(
    timelines: Mapping[int, Timeline], actions_of: Sequence[Actions], clock: Clocks
) -> tuple[PipelineStep, ...]:
    """Return the steps that all the devices have, in order."""
    names = [t.windows.names for t in timelines.values()]
    pipeline_steps = []
    for name in names[0]:
        if not all(name in others for others in names):
            continue
        shares = []
        for (i, timeline), actions in zip(timelines.items(), actions_of, strict=True):
            own = actions.step == timeline.windows.names.index(name)
            if own.any():
                first, last = clock.align(i, np.array([actions.start_ns[own].min(), actions.end_ns[own].max()]))
                shares.append(RankSpan(i, int(first), int(last), int(actions.busy_ns[own].sum())))
        if len(shares) == len(timelines):
            pipeline_steps.append(PipelineStep(name, tuple(shares)))
    return tuple(pipeline_steps)


def _schedule(actions: Sequence[Actions], stages: Sequence[tuple[int, ...]]) -> str:
    """Infer the schedule from the order of its actions in the first step, on the first and the last stage."""
    kinds = set(np.concatenate([one.kind for one in actions]).tolist())
    if len(actions) > 1 and {0, max(map(max, stages))} <= set(stages[0]):
        return "v-shaped"
    if kinds == {Action.F}:
        return "forward-only"
    if kinds & {Action.I, Action.W}:
        return "zero-bubble"
    if max(map(len, stages)) > 1:
        return "interleaved"
    first, last = _in_flight(actions[0]), _in_flight(actions[-1])
    if first == 1:
        return "naive"
    return "gpipe" if last > 1 else "1f1b"


def _in_flight(actions: Actions) -> int:
    """Return the most micro-batches between their forward and backward at once, in the first step."""
    own = np.flatnonzero(actions.step == actions.step[0])
    order = own[np.argsort(actions.called_ns[own], kind="stable")]
    return int(np.cumsum(np.where(actions.kind[order] == Action.F, 1, -1)).max())


def to_dict(pipeline: Pipeline, timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return a pipeline as plain data, as ``dptrace analyze --json`` prints it; times in ns."""
    places = [{"rank": timelines[i].rank, "device": timelines[i].device} for i in pipeline.devices]
    return {
        "ranks": [{**place, "stages": list(own)} for place, own in zip(places, pipeline.stages, strict=True)],
        "schedule": pipeline.schedule,
        "labeled": pipeline.is_labeled,
        "micro_batches": pipeline.micro_batches,
        "virtual_stages": pipeline.virtual_stages,
        "bubble_percent": pipeline.bubble_percent,
        "formula_percent": pipeline.formula_percent,
        "steps": [
            {
                "step": pipeline_step.step,
                "span_ns": pipeline_step.span_ns,
                "bubble_percent": pipeline_step.bubble_percent,
                "ranks": [
                    {
                        **place,
                        "busy_ns": share.busy_ns,
                        "own_span_ns": share.end_ns - share.start_ns,
                        "bubble_percent": pipeline_step.rank_bubble_percent(share),
                    }
                    for place, share in zip(places, pipeline_step.shares, strict=True)
                ],
            }
            for pipeline_step in pipeline.steps
        ],
    }
