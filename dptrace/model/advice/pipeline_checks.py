"""Items about pipelines and experts: micro-batches, schedules, balance."""

from __future__ import annotations

import math

import msgspec

from dptrace.core.units import byte_size, plural, share
from dptrace.model.advice.check import GUIDE, Check, CheckContext, check
from dptrace.model.advice.rules import RULES
from dptrace.model.training.pipeline import micro_batches_needed

__all__ = ["PIPELINE_CHECKS"]


def more_micro_batches(context: CheckContext) -> Check | None:
    """Ask how many micro-batches the goal for the bubble needs."""
    plan, layout = context.plan, context.layout
    if layout.stages == 1:
        return None
    most = RULES["bubble"].value
    needed = micro_batches_needed(layout.schedule, layout.stages, most, layout.virtual_stages)
    factor = math.ceil(needed / plan.micro_batches)
    other = context.changed(batch=factor * plan.batch)
    bubble = context.now.step.bubble
    reason = (
        f"{plural(plan.micro_batches, 'micro-batch', 'micro-batches')}: bubble {share(bubble)}, goal 10 %; "
        f"{needed} reach it, "
        f"{4 * layout.stages} are 4 × P"
    )
    return check(
        context, "micro-batches", f"Use {factor} times the micro-batches", reason,
        "predicted step with a batch as many times as large, for the same samples", f"--batch {factor * plan.batch}",
        f"{GUIDE}, 10.8", gain_s=context.step_s - other.step.step_s / factor, skip=bubble < most,
    )  # fmt: skip


def interleaved(context: CheckContext) -> Check | None:
    """Assign each GPU two stages that do not follow each other."""
    layout = context.layout
    if layout.stages == 1:
        return None
    what, source = "Interleave two stages on each GPU", f"{GUIDE}, 10.4 and 10.8"
    do = "--schedule interleaved --virtual-stages 2; torch's ScheduleInterleaved1F1B"
    if layout.schedule == "interleaved" or 2 * layout.stages > context.plan.shape.layers:
        reason = (
            "it is in use"
            if layout.schedule == "interleaved"
            else f"there are only {plural(context.plan.shape.layers, 'layer')}"
        )
        return check(context, "interleaved", what, reason, "", do, source, skip=True)
    other = context.changed(layout=msgspec.structs.replace(layout, schedule="interleaved", virtual_stages=2))
    reason = (
        f"bubble {share(context.now.step.bubble)} → {share(other.step.bubble)}, {byte_size(other.memory_bytes)} on "
        f"each GPU{'' if other.fits else f', {byte_size(other.over_bytes)} too much'}"
    )
    return check(
        context, "interleaved", what, reason, "predicted step with it", do, source,
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - other.memory_bytes,
        skip=not other.fits,
    )  # fmt: skip


def balance(context: CheckContext) -> Check | None:
    """Ask what stages of different lengths cost."""
    plan = context.plan
    if context.layout.stages == 1:
        return None
    cost = context.now.step.compute_s * (1 - 1 / plan.balance)
    reason = (
        f"{plural(plan.shape.layers, 'layer')} on {context.layout.stages} stages: the longest has "
        f"{plan.balance:.3g} times "
        "the mean"
    )
    return check(
        context, "balance", "Give each stage equally many layers", reason,
        "the computation's time beyond the mean stage's",
        "--pp a divisor of the layers; count embedding and head as a layer each", f"{GUIDE}, 10.8", gain_s=cost,
    )  # fmt: skip


def expert_balance(context: CheckContext) -> Check | None:
    """Ask what it costs if the tokens of one rank's experts are a quarter above the mean."""
    shape = context.plan.shape
    if shape.experts == 1:
        return None
    experts = shape.top_k * shape.expert_parameters
    part = experts / (experts + shape.dense_layer_parameters)
    cost = 0.25 * part * context.now.step.compute_s
    reason = f"experts compute {share(part)} of a layer; a rank with 1.25 times the mean tokens makes the others wait"
    return check(
        context, "expert-balance", "Balance the experts", reason, "a quarter of the experts' computation",
        "an auxiliary loss, and a capacity factor", f"{GUIDE}, 11.7", gain_s=cost, keep=True,
    )  # fmt: skip


PIPELINE_CHECKS = (more_micro_batches, interleaved, balance, expert_balance)
