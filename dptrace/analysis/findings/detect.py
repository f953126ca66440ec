"""The findings of a run: what each costs per step, where to look, and what to do about it.

Every finding has a cost of at least one percent of the step. No time counts in two findings: waiting for late ranks is
the stragglers', together with their own idle time during it, and what a detailed finding explains (small messages, a
large first bucket, low bandwidth, a pipeline's bubble) is not part of the general one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dptrace.analysis.cross_rank.across import AcrossRanks
from dptrace.analysis.findings.communication import (
    exposed_communication,
    first_bucket,
    low_bandwidth,
    slow_collectives,
    small_messages,
)
from dptrace.analysis.findings.finding import GRADIENTS, MIN_SHARE, Claim, Finding, FindingContext, Unclaimed
from dptrace.analysis.findings.host import idle, recompute, unused_parameters
from dptrace.analysis.findings.stragglers import stragglers
from dptrace.analysis.per_gpu.split import CAUSES
from dptrace.core.checks import holds
from dptrace.core.units import duration
from dptrace.model.collectives import COLLECTIVES

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

__all__ = ["DETECTORS", "Finding", "findings"]


# Let no nanosecond count in two findings: what a detailed finding explains is taken from the general one.

_PARTS_OF_EXPOSED = ("small_messages", "first_bucket", "low_bandwidth", "slow_collectives")
_PARTS_OF_BUBBLE = ("waiting", "host_bound", "launching", "launch_latency")
"""Idle time that a pipeline's schedule explains before anything else does, besides its messages."""


def without_overlap(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings with costs that can be added up.

    A detail of exposed communication takes its cost from the finding on that kind of collective, and a pipeline's
    bubble from the findings on messages and idle time. What is left of the general finding is its own cost; a detail
    costs at most what is there to explain.
    """
    cost = [finding.cost_ns for finding in found]
    for number in sorted(range(len(found)), key=lambda number: -found[number].cost_ns):
        if found[number].kind in _PARTS_OF_EXPOSED:
            targets = [i for i, other in enumerate(found) if _explains(found[number], other)]
            cost[number] = min(cost[number], _take(cost, targets, cost[number]))
        elif found[number].kind == "bubble" and "schedule" in found[number].evidence:
            _take(cost, [i for i, other in enumerate(found) if _is_of_schedule(other)], cost[number])
    changed = zip(found, cost, strict=True)
    return [replace(f, cost_ns=ns, share=f.share * ns / f.cost_ns) if f.cost_ns else f for f, ns in changed]


def _take(cost: list[int], targets: Sequence[int], ns: int) -> int:
    """Take up to *ns* from the costs of the targets, in order; return how much there was."""
    taken = 0
    for target in targets:
        part = min(cost[target], ns - taken)
        cost[target] -= part
        taken += part
    return taken


def _explains(detail: Finding, other: Finding) -> bool:
    if other.kind != "exposed_comm":
        return False
    collective = other.evidence["collective"]
    if detail.kind == "first_bucket":
        return collective in GRADIENTS
    return bool(collective == detail.evidence.get("collective"))


def _is_of_schedule(other: Finding) -> bool:
    """Return whether a finding is on the messages of a pipeline, or on idle time that its schedule causes."""
    if other.kind == "exposed_comm":
        kind = COLLECTIVES.get(other.evidence["collective"])
        return kind is not None and kind.point_to_point
    return other.kind in _PARTS_OF_BUBBLE or (other.kind == "bubble" and "schedule" not in other.evidence)


# Findings on the bubble of pipelines.

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
    return context.across.matches.device_ids[pipeline.devices[most]][0], busy[most] * len(busy) / max(sum(busy), 1)


def _idlest(context: FindingContext, pipeline: Pipeline, pipeline_step: int) -> int:
    least = min(pipeline.steps[pipeline_step].shares, key=lambda share: share.busy_ns)
    return context.across.matches.device_ids[least.device][0]


DETECTORS: dict[Callable[[FindingContext], Iterable[Finding | Claim]], tuple[str, ...]] = {
    stragglers: ("straggler",),
    exposed_communication: ("exposed_comm",),
    small_messages: ("small_messages",),
    first_bucket: ("first_bucket",),
    low_bandwidth: ("low_bandwidth",),
    slow_collectives: ("slow_collectives",),
    bubbles: ("bubble",),
    unused_parameters: ("unused_parameters",),
    recompute: ("recompute",),
}
"""Each detector with the kinds that it finds. They see the same run: what one claims reaches only idle time."""
_NEEDS: dict[Callable[[FindingContext], Iterable[Finding | Claim]], str] = {
    bubbles: "wall_ns",
    unused_parameters: CAUSES[0],
    recompute: "backward_ns",
}
"""The figure that must be known for a detector; for the others exposed communication."""


def findings(across: AcrossRanks, metadata: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Return the findings, most expensive first.

    Args:
        across: the analysis of the run's ranks against each other.
        metadata: the contents of ``run.json``.
    """
    context = FindingContext(across, metadata or {})
    if not context.devices:
        return ()
    found: list[Finding] = []
    claims: list[Claim] = []
    for detector, kinds in DETECTORS.items():
        if not context.knows(_NEEDS.get(detector, "exposed_comm_ns")):
            continue
        for one in detector(context):
            if isinstance(one, Claim):
                claims.append(one)
            else:
                assert one.kind in kinds, f"{one.kind} is not declared"
                found.append(one)
    if context.knows(*CAUSES):
        found += idle(context, Unclaimed.after(claims, context.devices))
    found = without_overlap(found)
    kept = [f for f in found if f.share >= MIN_SHARE and holds(f.share <= 1, f"{f.kind} costs no more than a step")]
    return tuple(sorted(kept, key=lambda finding: -finding.cost_ns))
