"""What a page needs to compute a predicted step again with other values: viewers/planning/static/plan_model.js."""

from __future__ import annotations

from typing import Any

from dptrace.model.training.flops import forward_flops, hardware_flops, model_flops
from dptrace.model.training.memory.state import PRECISIONS
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, predict_step

__all__ = ["live_figures"]


def live_figures(plan: Plan) -> dict[str, Any]:
    """Return a plan as numbers: what a micro-batch computes, each collective, and how it scales with the GPUs."""
    step, layout = predict_step(plan), plan.layout
    samples = plan.micro_batch * layout.data
    model_parallel = layout.tensor * layout.stages
    gpus = layout.data * model_parallel
    return {
        "gpus": gpus,
        "model_parallel": model_parallel,
        "least_data": plan.layout.shards if layout.strategy == "hsdp" else layout.expert,
        "micro_batches": plan.micro_batches,
        "micro_batch": plan.micro_batch,
        "sequence": plan.shape.sequence,
        "stages": layout.stages,
        "bubble_parts": _bubble_parts(plan),
        "share": step.share,
        "peak_flops": plan.gpu.peak(PRECISIONS[plan.precision].compute),
        "flops": hardware_flops(plan.shape, samples, plan.recompute, plan.recomputed_share) * plan.balance / gpus,
        "forward_flops": forward_flops(plan.shape) * samples * plan.shape.sequence * plan.balance / gpus,
        "model_flops": model_flops(plan.shape, samples) / gpus,
        "optimizer": _optimizer(plan, step),
        "gpus_per_node": plan.network.gpus_per_node,
        "within": {"alpha_s": plan.network.within.alpha_s, "bytes_per_s": plan.network.within.bytes_per_s},
        "between": {"alpha_s": plan.network.between.alpha_s, "bytes_per_s": plan.network.between.bytes_per_s},
        "traffic": [*_traffic(plan, step)],
    }


def _bubble_parts(plan: Plan) -> float:
    """Return the parts of equal length into which a schedule divides a micro-batch; the bubble has p-1 of them."""
    virtual = plan.layout.virtual_stages
    return {"interleaved": float(virtual), "zero-bubble": 3.0 * virtual}.get(plan.layout.schedule, 1.0)


def _optimizer(plan: Plan, step: StepPrediction) -> dict[str, float]:
    """Return the optimizer's time, and what of it is divided among the data-parallel GPUs."""
    sharded = plan.layout.zero > 0 and plan.layout.strategy != "hsdp"
    return {"fixed_s": 0.0 if sharded else step.optimizer_s, "shared_s": step.optimizer_s * plan.layout.data * sharded}


def _traffic(plan: Plan, step: StepPrediction) -> list[dict[str, Any]]:
    layout, data = plan.layout, plan.layout.data
    rows = []
    for one in step.traffic:
        fixed = (one.hides == "" and one.what != "updated parameters") or (
            layout.strategy == "hsdp" and one.stride == layout.tensor
        )
        rows.append(
            {
                "what": one.what,
                "kind": one.kind,
                "bytes": one.bytes,
                "calls": one.calls / plan.micro_batches if one.every_micro_batch else one.calls,
                "every_micro_batch": one.every_micro_batch,
                "ranks": one.ranks,
                "divisor": 0 if fixed else data // one.ranks,
                "stride": one.stride,
                "hides": one.hides,
            }
        )
    return rows
