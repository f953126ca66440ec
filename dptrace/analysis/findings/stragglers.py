"""Findings on ranks that keep the others waiting."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.core.units import duration, plural

__all__ = ["stragglers"]

_CAUSE_TEXT = {
    "compute": "its own compute takes longer",
    "passed_on": "it waits for another rank itself",
    "memory_copies": "its memory copies take longer",
    "data_loading": "its host waits for data",
    "host_bound": "its host launches kernels late",
    "waiting": "its GPU waits for another stream",
    "bubble": "its pipeline stage waits for another",
    "unknown": "the trace does not show why",
}
_ADVICE = {
    "compute": "Compare its work (batch, sequence lengths, experts), clock rate and temperature with the others'.",
    "passed_on": "Find the rank that it waits for.",
    "memory_copies": "Find what it copies in this time; pin the memory and copy on a separate stream.",
    "data_loading": "Raise its DataLoader's num_workers or prefetch_factor, and check its storage.",
    "host_bound": "Find what its host does in this time: logging, checkpoints, garbage collection, or a busy CPU.",
    "waiting": "Find what its compute stream waits for.",
    "bubble": "Check the stages before it in the pipeline.",
    "unknown": "Check its timeline before the collective.",
}


def stragglers(context: FindingContext) -> list[Finding]:
    """Return one finding per rank and cause, for ranks that are the origin of a wait."""
    devices, matches, late, found = context.devices, context.matches, context.stragglers, []
    steps = max(len(device.timeline.windows) for device in devices)
    counted = max(int((matches.synchronizing & (np.diff(matches.first) > 1)).sum()), 1)
    causes = np.array(late.cause, object)
    for device, cause in dict.fromkeys(zip(late.device.tolist(), late.cause, strict=True)):
        rows = np.flatnonzero((late.device == device) & (causes == cause))
        if cause == "passed_on":
            continue
        cost = int(late.cost_ns[rows].sum()) // steps
        worst = int(rows[late.late_ns[rows].argmax()])
        instance = int(late.instance[worst])
        rank = matches.device_ids[device][0]
        share = f"{100 * len(rows) / counted:.0f} %"
        most = duration(late.late_ns[worst])
        median = duration(np.median(late.late_ns[rows]))
        lateness = f"{most} late" if len(rows) == 1 else f"{median} late in the median and {most} at worst"
        text = (
            f"Rank {rank} keeps the others waiting: it arrives last at {plural(len(rows), 'collective')} ({share}), "
            f"{lateness}. Cause: {_CAUSE_TEXT[cause]}."
        )
        if not matches.complete[late.instance[rows]].all():
            text += " Some ranks have no trace in this run and may have arrived even later."
        evidence = {"rank": rank, "step": matches.step[instance], "collective": matches.kind[instance], "cause": cause}
        evidence |= {"instance": instance, "late_ns": int(late.late_ns[worst]), "count": len(rows)}
        found.append(Finding("straggler", text, _ADVICE[cause], cost, cost / context.wall, evidence))
    return found
