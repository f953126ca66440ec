"""Efficiency from 1 to 1,024 GPUs, with a fixed batch for each GPU and with a fixed batch for all of them."""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.scaling import amdahl_ceiling, gustafson_efficiency, parallel_fraction
from dptrace.model.training.layout import Layout
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, predict_step

__all__ = ["GPU_COUNTS", "scaling_table"]

GPU_COUNTS = tuple(1 << power for power in range(11))


def scaling_table(description: Description, plan: Plan) -> list[dict[str, Any]]:
    """Predict a plan's strategy on other numbers of GPUs; counts that its degrees do not divide are left out.

    *Weak*: each GPU keeps its samples, and the batch grows. *Strong*: the batch stays, and each GPU gets fewer samples.
    Efficiency is the throughput of a GPU relative to the row with the fewest GPUs. Amdahl's ceiling and Gustafson's
    efficiency take the exposed communication of the plan as the serial share.
    """
    step = predict_step(plan)
    each = plan.batch / plan.layout.gpus
    fraction = parallel_fraction(step.compute_s * plan.layout.gpus, step.exposed_s)
    serial = step.exposed_s / step.step_s
    rows: list[dict[str, Any]] = []
    for gpus in GPU_COUNTS:
        weak = _on(description, plan, gpus, round(each * gpus))
        if weak is None:
            continue
        strong = _on(description, plan, gpus, plan.batch)
        rows.append(
            {
                "gpus": gpus,
                "fits": weak[0].fits,
                "batch": weak[0].batch,
                **_times(weak[1]),
                "weak_efficiency": _relative(weak, rows, "_weak"),
                "strong_step_s": strong and strong[1].step_s,
                "strong_samples_per_s": strong and strong[1].samples_per_s,
                "strong_efficiency": strong and _relative(strong, rows, "_strong"),
                "amdahl_ceiling": amdahl_ceiling(fraction, gpus),
                "gustafson_efficiency": gustafson_efficiency(serial, gpus),
                "_weak": weak[1].samples_per_s / gpus,
                "_strong": strong and strong[1].samples_per_s / gpus,
            }
        )
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


def _times(step: StepPrediction) -> dict[str, Any]:
    return {
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "communication_s": step.communication_s,
        "exposed_s": step.exposed_s,
        "communication_share": step.communication_s / (step.communication_s + step.compute_s),
        "samples_per_s": step.samples_per_s,
        "tokens_per_s": step.tokens_per_s,
        "mfu": step.mfu,
    }


def _relative(found: tuple[Plan, StepPrediction], rows: list[dict[str, Any]], key: str) -> float:
    plan, step = found
    own = step.samples_per_s / plan.layout.gpus
    base = next((row[key] for row in rows if row[key]), own)
    return float(own / base)


def _on(description: Description, plan: Plan, gpus: int, batch: int) -> tuple[Plan, StepPrediction] | None:
    """Return the plan on another number of GPUs; None where its degrees or the batch can't be divided."""
    try:
        layout = _layout(description, plan.layout, gpus)
    except UsageError:
        return None
    if batch % layout.data:
        return None
    each = batch // layout.data
    size = max(size for size in range(1, plan.micro_batch + 1) if each % size == 0)
    other = msgspec.structs.replace(plan, layout=layout, batch=batch, micro_batch=size)
    return other, predict_step(other)


def _layout(description: Description, layout: Layout, gpus: int) -> Layout:
    kept = {"tp": layout.tensor, "pp": layout.stages, "ep": layout.expert if layout.expert > 1 else None}
    return msgspec.structs.replace(description, **kept).layout(layout.strategy, gpus)
