"""Ranks that keep the others waiting."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.findings.finding import Finding, FindingContext, milliseconds

__all__ = ["stragglers"]

_CAUSE_TEXT = {
    "compute": "its own compute takes longer",
    "passed_on": "it passes on a wait for another rank",
    "memory_copies": "its memory copies take longer",
    "data_loading": "its host waits for data",
    "host_bound": "its host launches late",
    "waiting": "its GPU waits for another stream",
    "bubble": "its stage of a pipeline waits for another",
    "unknown": "the trace does not tell why",
}
_ADVICE = {
    "compute": "Compare its work (batch, sequence lengths, experts) and its clocks and temperature with the others'.",
    "passed_on": "Look for the rank that it waits for.",
    "memory_copies": "Look at what it copies in that time; pin memory and copy on a stream of its own.",
    "data_loading": "Give its DataLoader more workers or prefetching, and look at its storage.",
    "host_bound": "Look at what its Python does in that time (logging, checkpoints, garbage collection, a busy CPU).",
    "waiting": "Look at what its compute stream waits for.",
    "bubble": "Look at the stages before it in the pipeline.",
    "unknown": "Look at its timeline before the collective.",
}


def stragglers(context: FindingContext) -> list[Finding]:
    """One finding per rank and cause, of those that are the origin of a wait."""
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
        times = "once" if len(rows) == 1 else f"{len(rows)} times"
        share = f"in {100 * len(rows) / counted:.0f} % of the collectives"
        by = f"by {milliseconds(np.median(late.late_ns[rows]))} (median), {milliseconds(late.late_ns[worst])} at worst"
        text = f"Rank {rank} keeps the others waiting: last {times} ({share}), {by}. Why: {_CAUSE_TEXT[cause]}."
        if not matches.complete[late.instance[rows]].all():
            text += " Not all ranks are here, so others may have come later still."
        evidence = {"rank": rank, "step": matches.step[instance], "collective": matches.kind[instance], "cause": cause}
        evidence |= {"instance": instance, "late_ns": int(late.late_ns[worst]), "count": len(rows)}
        found.append(Finding("straggler", text, _ADVICE[cause], cost, cost / context.wall, evidence))
    return found
