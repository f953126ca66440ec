"""Findings on the bubble of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.core.units import duration

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

__all__ = ["bubbles"]

_UNEVEN = 1.25
"""Ratio to the mean above which the slowest stage is reported."""


def bubbles(context: FindingContext) -> list[Finding]:
    """Return one finding per pipeline on its bubble."""
    found = []
    for pipeline in context.pipelines:
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
        evidence = {"step": pipeline.steps[worst].step, "rank": _idlest(context, pipeline, worst), "ns": lost[worst]}
        evidence |= {"bubble_percent": pipeline.bubble_percent, "formula_percent": formula}
        evidence |= {"schedule": pipeline.schedule, "micro_batches": pipeline.micro_batches}
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
    return context.matches.device_ids[pipeline.devices[most]][0], busy[most] * len(busy) / max(sum(busy), 1)


def _idlest(context: FindingContext, pipeline: Pipeline, pipeline_step: int) -> int:
    least = min(pipeline.steps[pipeline_step].shares, key=lambda share: share.busy_ns)
    return context.matches.device_ids[least.device][0]
