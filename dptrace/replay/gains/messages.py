"""Counterfactuals of findings on messages: transfers at the rate, latency or length that others have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.findings.communication import compared_messages
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64, median
from dptrace.replay.gains.device_time import ShorterTasks, transfers_of
from dptrace.replay.graph.build import Model
from dptrace.replay.simulation.changes import Change

__all__ = ["faster_links", "fewer_messages", "usual_transfers"]

_GONE = "The whole run does not have these messages."


def faster_links(finding: Finding, model: Model) -> Change | str:
    """Let the messages of a finding on low bandwidth be as fast as what they are compared with."""
    across, rate = model.run.cross_rank, float(finding.evidence["reference_gbps"]) * 1e9
    rows = compared_messages(finding.evidence, across.matches, across.fits, across.timing, model.run.metadata)
    left = np.minimum(across.timing.busbw[rows] / rate, 1)
    kind = finding.evidence["collective"]
    return _shorter(model, f"large {kind} at {rate / 1e9:.3g} GB/s", rows, 1 - left, proportional=True)


def fewer_messages(finding: Finding, model: Model) -> Change | str:
    """Let small messages pay the latency as often as the messages that they could be combined to."""
    matches, evidence = model.run.cross_rank.matches, finding.evidence
    group = np.array([one.name == evidence["group"] for one in matches.groups] + [False], np.bool_)
    rows = (matches.kind == evidence["collective"]) & group[matches.group] & matches.complete & (matches.step != "")
    rows &= (matches.bytes > 0) & (matches.bytes < evidence["crossover_bytes"])
    wanted = max(int(np.ceil(evidence["bytes"] / evidence["crossover_bytes"])), 1)
    saved = evidence["alpha_ns"] * max(1 - wanted / evidence["count"], 0)
    text = f"small {evidence['collective']} combined to {wanted} a step"
    chosen = np.flatnonzero(rows)
    return _shorter(model, text, chosen, np.full(len(chosen), saved))


def usual_transfers(finding: Finding, model: Model) -> Change | str:
    """Let collectives that took far longer than comparable ones take their median."""
    rows: list[Int64] = [np.empty(0, np.int64)]
    excess: list[NDArray[Any]] = [np.empty(0)]
    for latency in model.run.cross_rank.latencies:
        if latency.kind == "send_recv" and model.run.pipelines:
            continue  # as in the finding: a stage without work waits in its messages
        rows.append(latency.instances[latency.slow])
        excess.append(latency.transfer_ns[latency.slow] - float(median(latency.transfer_ns)))
    return _shorter(model, "no slow collective", np.concatenate(rows), np.concatenate(excess))


def _shorter(
    model: Model, what: str, instances: Int64, less: NDArray[np.float64], *, proportional: bool = False
) -> Change | str:
    """Return the change that shortens transfers of matched collectives, by ns or by a share."""
    if not len(instances):
        return _GONE
    place, task = transfers_of(model, instances)
    less = less[place] * (model.graph.duration_ns[task] if proportional else 1)
    return ShorterTasks(what, task, np.rint(less).astype(np.int64), collectives=True)
