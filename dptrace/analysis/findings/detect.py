"""What the figures of a run give for findings: what takes time, how much, where to look, and what to do about it.

Each counts at least one percent of the step. Two may count the same time: what a step gains without each, once, is the
replay's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dptrace.analysis.cross_rank.across import AcrossRanks
from dptrace.analysis.findings.communication import (
    exposed_communication,
    first_bucket,
    low_bandwidth,
    slow_collectives,
    small_messages,
)
from dptrace.analysis.findings.evidence import Bubble
from dptrace.analysis.findings.finding import MIN_SHARE, Finding, FindingContext
from dptrace.analysis.findings.host import IDLE_KINDS, idle, recompute, unused_parameters
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.core.checks import holds
from dptrace.core.units import duration

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

# Findings on the bubble of pipelines.

_UNEVEN = 1.25
"""Ratio to the mean above which the slowest stage is reported."""


def bubbles(context: FindingContext) -> list[Finding]:
    """Return one finding per pipeline on its bubble, where labels say which work its schedule places."""
    found = []
    for pipeline in (one for one in context.pipelines if one.is_labeled):
        lost = [
            pipeline_step.span_ns * len(pipeline_step.shares) - sum(share.busy_ns for share in pipeline_step.shares)
            for pipeline_step in pipeline.steps
        ]
        worst = max(range(len(lost)), key=lost.__getitem__)
        cost = sum(lost)
        formula = pipeline.formula_percent
        per_step = cost / (len(pipeline.steps) * len(pipeline.devices))
        text = (
            f"The pipeline's bubble takes {duration(per_step)} per step, {pipeline.bubble_percent:.1f} % of its ranks' "
            "time" + (f"; the {pipeline.schedule} schedule implies {formula:.1f} %." if formula is not None else ".")
        )
        slowest, times = _slowest(context, pipeline)
        if times > _UNEVEN:
            text += f" The stages of rank {slowest} compute {times:.1f} times as long as the mean."
        evidence = Bubble(
            step=pipeline.steps[worst].step,
            rank=_idlest(context, pipeline, worst),
            ns=lost[worst],
            bubble_percent=pipeline.bubble_percent,
            formula_percent=formula,
            schedule=pipeline.schedule,
            micro_batches=pipeline.micro_batches,
        )
        found.append(context.finding("bubble", text, _advice(pipeline, times), cost, evidence))
    return found


def _advice(pipeline: Pipeline, times: float) -> str:
    todo = [f"use more micro-batches (now {pipeline.micro_batches})"]
    if pipeline.schedule in ("naive", "gpipe", "1f1b"):
        todo.append("use a schedule such as 1f1b" if pipeline.schedule == "naive" else "interleave the stages")
    if times > _UNEVEN:
        todo.insert(0, "rebalance the layers so that all stages take equally long")
    elif pipeline.formula_percent is not None and pipeline.bubble_percent > 2 * pipeline.formula_percent:
        todo.append("use larger micro-batches if sending and launching take as long as compute")
    text = "; ".join(todo)
    return f"{text[0].upper()}{text[1:]}."


def _slowest(context: FindingContext, pipeline: Pipeline) -> tuple[int, float]:
    """Return the rank that computes longest, and the ratio to the mean."""
    busy = [
        sum(pipeline_step.shares[place].busy_ns for pipeline_step in pipeline.steps)
        for place in range(len(pipeline.devices))
    ]
    most = max(range(len(busy)), key=busy.__getitem__)
    return context.across.matches.device_ids[pipeline.devices[most]][0], busy[most] * len(busy) / max(sum(busy), 1)


def _idlest(context: FindingContext, pipeline: Pipeline, pipeline_step: int) -> int:
    least = min(pipeline.steps[pipeline_step].shares, key=lambda share: share.busy_ns)
    return context.across.matches.device_ids[least.device][0]


Detector = Callable[[FindingContext], Iterable[Finding]]
DETECTORS: dict[Detector, tuple[str, ...]] = {
    exposed_communication: ("exposed_comm",),
    small_messages: ("small_messages",),
    first_bucket: ("first_bucket",),
    low_bandwidth: ("low_bandwidth",),
    slow_collectives: ("slow_collectives",),
    bubbles: ("bubble",),
    unused_parameters: ("unused_parameters",),
    recompute: ("recompute",),
    idle: IDLE_KINDS,
}
"""Each detector with the kinds that it finds; all see the same run."""
_NEEDS: dict[Detector, tuple[str, ...]] = {
    bubbles: ("wall_ns",),
    unused_parameters: CAUSES[:1],
    recompute: ("backward_ns",),
    idle: CAUSES,
}
"""The figures that must be known for a detector; for the others exposed communication."""


def detected(across: AcrossRanks, metadata: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Return the findings that need no replay, without gains, those that count most first.

    Args:
        across: the analysis of the run's ranks against each other.
        metadata: the contents of ``run.json``.
    """
    context = FindingContext(across, metadata or {})
    if not context.devices:
        return ()
    found: list[Finding] = []
    for detector, kinds in DETECTORS.items():
        if context.knows(*_NEEDS.get(detector, ("exposed_comm_ns",))):
            own = list(detector(context))
            assert all(one.kind in kinds for one in own), f"{detector.__name__} finds what it does not declare"
            found += own
    kept = [f for f in found if f.share >= MIN_SHARE and holds(f.share <= 1, f"{f.kind} counts no more than a step")]
    return tuple(sorted(kept, key=lambda finding: -finding.counted_ns))
