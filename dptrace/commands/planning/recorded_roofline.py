"""A recording's point on the communication roofline: what it computes and sends in a step, and how fast."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dptrace.model.collectives import bus_factor
from dptrace.model.planning.recorded import MeasuredStep
from dptrace.model.training.communication import Link, ccr, level, level_dict
from dptrace.record.options.modes import MODELS

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

    def at(link: Link, sent: float) -> dict[str, Any]:
        found = level_dict(level(link, peak, ccr(flops, sent), samples))
        found.pop("crossover_bytes")
        return {"sent_bytes": sent, **found}

    point = at(link, sent)
    levels = [at(*one) for one in _links(run, step.ranks)]
    return {
        "flops": flops,
        "peak_flops": peak,
        "achieved_flops_per_s": flops / step.step_s,
        **point,
        "levels": levels if len(levels) > 1 else [point],
        "steps": _steps(run, flops),
    }


def _steps(run: Run, flops: float) -> list[dict[str, Any]]:
    """Return how fast a rank computes in each step, in the mean over the ranks."""
    walls = run.steps().groupby("step", sort=False)["wall_ns"].mean()
    return [{"step": str(name), "flops_per_s": flops / (wall / 1e9)} for name, wall in walls.items() if wall > 0]


def _links(run: Run, ranks: int) -> list[tuple[Link, float]]:
    """Return the links that the run's groups use, with the bytes that a rank sends over each in a step.

    Groups of as many ranks, equally far apart, are taken for one level: those of all nodes, or those across nodes.
    """
    frame, steps = run.matched_collectives(), len(run.steps())
    frame = frame[frame["complete"] & frame["bytes"].notna() & (frame["transfer_ns"] > 0)]
    members = {group.name: group.ranks for group in run.cross_rank.matches.groups}
    sent: defaultdict[str, float] = defaultdict(float)
    seconds: defaultdict[str, float] = defaultdict(float)
    for (kind, group), rows in frame.groupby(["kind", "group"]):
        name, count = _level_name(members.get(str(group), ()), ranks)
        factor = bus_factor(str(kind), count)
        if not math.isnan(factor):
            sent[name] += float(rows["bytes"].sum()) * factor
            seconds[name] += float(rows["transfer_ns"].sum()) / 1e9
    return [(Link(name, 0.0, size / seconds[name]), size / steps) for name, size in sent.items() if size and steps]


def _level_name(members: Sequence[int], ranks: int) -> tuple[str, int]:
    """Return what groups like this one are called, and their number of ranks."""
    if len(members) in (0, ranks):
        return f"all {ranks} ranks", ranks
    apart = members[1] - members[0] if len(members) > 1 else 1
    return f"{len(members)} ranks" + (f", {apart} apart" if apart > 1 else " next to each other"), len(members)


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
