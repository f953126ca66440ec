"""Check that no nanosecond counts in two findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.analysis.findings.detect import DETECTORS, findings
from dptrace.analysis.findings.finding import Claim, FindingContext, Unclaimed
from dptrace.analysis.findings.stragglers import IDLE_CAUSE
from dptrace.run.cross_rank import CrossRankAnalysis


def check_no_time_counts_twice(across: CrossRankAnalysis, metadata: Mapping[str, Any]) -> None:
    """Check that findings cost at most what was lost, in ns over all steps of all devices."""
    context = FindingContext(across, metadata)
    found = findings(across, metadata)
    lost = sum(
        int(device.split.figures[name].sum())
        for device in context.devices
        for name in ("exposed_comm_ns", "idle_ns", "exposed_memory_ns")
    )
    lost += sum(int(device.recompute_ns.sum()) for device in context.devices)
    if context.on_cpu:
        lost += sum(int(device.parameter_search_idle_ns.sum()) for device in context.devices)
    # What a late rank itself loses is idle time of its device, or compute.
    computing = [one for one in across.stragglers.delays if context.on_cpu or one.cause not in IDLE_CAUSE]
    lost += round(sum(one.cost_ns for one in computing))
    assert context.steps * sum(finding.cost_ns for finding in found) <= lost

    claims = [one for detector in DETECTORS for one in detector(context) if isinstance(one, Claim)]
    left = Unclaimed.after(claims, context.devices)
    for idle_ns, device in zip(left.idle_ns, context.devices, strict=True):
        for cause, recorded in device.idle_causes.items():
            assert ((idle_ns[cause] >= 0) & (idle_ns[cause] <= recorded)).all()
    for kind in {kind for device in context.devices for kind in device.split.comm}:
        about = [
            finding for finding in found if finding.evidence.get("collective") == kind and finding.kind != "straggler"
        ]
        exposed = sum(int(d.split.comm[kind].exposed_ns.sum()) for d in context.devices if kind in d.split.comm)
        assert context.steps * sum(finding.cost_ns for finding in about) <= exposed
