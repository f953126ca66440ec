"""Let no nanosecond count in two findings: what a detailed finding explains is taken from the general one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dptrace.analysis.findings.advice import GRADIENTS
from dptrace.analysis.findings.finding import Finding
from dptrace.model.collectives import COLLECTIVES

__all__ = ["without_overlap"]

_PARTS_OF_EXPOSED = ("small_messages", "first_bucket", "low_bandwidth", "slow_collectives")
_PARTS_OF_BUBBLE = ("waiting", "host_bound", "launch_latency")
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
