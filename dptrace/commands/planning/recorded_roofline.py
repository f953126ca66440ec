"""A recording's point on the communication roofline: what it computes and sends in a step, and how fast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dptrace.model.collectives import bus_factor
from dptrace.model.planning.measured_step import MeasuredStep
from dptrace.model.training.network import Link
from dptrace.model.training.roofline import ccr, level, level_dict
from dptrace.record.options.models import MODELS

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["roofline_point"]


def roofline_point(run: Run, step: MeasuredStep) -> dict[str, Any] | None:
    """Return the point; None where the FLOPs of a step or the bytes of its collectives are not known.

    The link is the one that the recording itself shows: bytes that a rank sends over the time of its collectives
    without waiting. Without a known GPU, its peak is the rate at which the recording computes.
    """
    flops, peak = _flops(run, step)
    sent = _sent_bytes(run, step.ranks)
    if flops is None or not sent or not step.communication_s or not step.compute_s:
        return None
    peak = peak or flops / step.compute_s
    link = Link("as recorded", 0.0, sent / step.communication_s)
    samples = step.samples / step.ranks or 1.0
    point = level_dict(level(link, peak, ccr(flops, sent), samples))
    point.pop("crossover_bytes")
    return {
        "flops": flops,
        "sent_bytes": sent,
        "peak_flops": peak,
        "achieved_flops_per_s": flops / step.step_s,
        **point,
    }


def _flops(run: Run, step: MeasuredStep) -> tuple[float | None, float | None]:
    """Return the FLOPs of a rank's step and its GPU's peak: as recorded, else of a model of dptrace's own."""
    from dptrace.run.utilization import utilization_of

    found = utilization_of(run)
    counted = [one.model_flops for one in found.steps if one.model_flops]
    peak = found.peak_tflops and found.peak_tflops * 1e12
    if counted:
        return sum(counted) / len(counted), peak
    parameters, model = run.metadata.get("parameters"), MODELS.get(str(run.metadata.get("model")))
    if not isinstance(parameters, int) or model is None or not model.tp_units or not step.samples:
        return None, peak
    # 6 FLOPs for each parameter and sample, or token of a decoder.
    return 6.0 * parameters * step.samples / step.ranks * max(1, model.context), peak


def _sent_bytes(run: Run, ranks: int) -> float:
    """Return what a rank sends in a step, in the mean."""
    frame = run.collectives()
    steps = len(run.steps())
    total = 0.0
    sizes = frame.groupby(["kind", "group_size"], as_index=False)["bytes"].sum()
    for kind, group, size in zip(sizes["kind"], sizes["group_size"], sizes["bytes"], strict=True):
        factor = bus_factor(str(kind), int(group) if group > 1 else ranks)
        total += 0.0 if math.isnan(factor) else float(size) * factor
    return total / steps if steps else 0.0
