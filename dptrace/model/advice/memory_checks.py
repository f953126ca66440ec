"""Items about memory: recomputation, sharding, sequence parallelism, attention without scores, offloading."""

from __future__ import annotations

import msgspec

from dptrace.core.units import byte_size
from dptrace.model.advice.check import GOSPEL, GUIDE, PAGE, Check, CheckContext, check, span
from dptrace.model.interconnects import interconnect_named
from dptrace.model.training.memory.per_gpu import USABLE

__all__ = ["MEMORY_CHECKS"]

_PCIE = "pcie4"


def checkpoint(context: CheckContext) -> Check:
    """Compare keeping all activations with recomputing each layer from its input."""
    kept = context.changed(recompute="none")
    again = context.changed(recompute="full")
    saved, cost = kept.memory_bytes - again.memory_bytes, again.step.step_s - kept.step.step_s
    reason = (
        f"without: {byte_size(kept.memory_bytes)} on each GPU; recomputing each layer: "
        f"{byte_size(again.memory_bytes)}, and the step takes {span(cost)} longer"
    )
    on = context.plan.recompute != "none"
    return check(
        context, "checkpoint-activations", "Checkpoint activations", reason,
        "predicted memory and step with full recomputation against none, for the same micro-batch",
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each block, or for every k-th",
        f"{GUIDE}, 1.2 and 12.5; {GOSPEL}, use_gradient_checkpointing", gain_s=-cost,
        gain_bytes=kept.memory_bytes - context.now.memory_bytes if on else saved, keep=on,
        skip=not on and context.now.fits,
    )  # fmt: skip


def flash_attention(context: CheckContext) -> Check:
    """Keep no table of scores, which may save recomputation."""
    what = "Use attention that keeps no scores (FlashAttention)"
    do = "torch.nn.functional.scaled_dot_product_attention; --attention flash here"
    source = f"{GUIDE}, 1.2 (5as/h of 34 + 5as/h bytes)"
    if context.plan.flash:
        return check(context, "flash-attention", what, "it is in use", "", do, source, skip=True)
    other = context.best(msgspec.structs.replace(context.plan, flash=True), context.any_recompute())
    same = context.changed(flash=True)
    reason = (
        f"{byte_size(context.now.memory_bytes - same.memory_bytes)} less for the same plan; the best micro-batch is "
        f"then {other.plan.micro_batch}, recompute {other.plan.recompute}: {span(other.step.step_s)} a step"
    )
    return check(
        context, "flash-attention", what, reason,
        "predicted step of the best micro-batch and recomputation; at least, as reading the scores is not counted",
        do, source,
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - same.memory_bytes,
    )  # fmt: skip


def shard_optimizer(context: CheckContext) -> Check:
    """Shard the optimizer's state over the data-parallel GPUs."""
    plan, layout = context.plan, context.layout
    what, source = "Shard the optimizer's state (ZeRO-1)", f"{GUIDE}, 8.6: free memory, no more communication; {PAGE}"
    do = "ZeroRedundancyOptimizer(params, torch.optim.AdamW), or Megatron's --use-distributed-optimizer"
    if layout.zero or layout.data == 1:
        reason = "it is sharded" if layout.zero else "there is one copy of it"
        return check(context, "shard-optimizer", what, reason, "", do, source, skip=True)
    other = context.changed(layout=msgspec.structs.replace(layout, zero=1, shards=layout.data))
    saved = context.now.memory_bytes - other.memory_bytes
    reason = (
        f"{byte_size(plan.memory.state.optimizer)} of optimizer state on each of {layout.data} GPUs; each would update "
        f"its part, and the parts are gathered: {span(other.step.step_s)} a step"
    )
    return check(
        context, "shard-optimizer", what, reason, "predicted memory and step with it", do, source,
        gain_s=context.step_s - other.step.step_s, gain_bytes=saved,
    )  # fmt: skip


def sequence_parallel(context: CheckContext) -> Check | None:
    """Split the tokens where layers are not split."""
    layout = context.layout
    if layout.tensor == 1:
        return None
    without = context.changed(layout=msgspec.structs.replace(layout, sequence=False))
    reason = f"{byte_size(without.memory_bytes)} on each GPU without it; it sends as many bytes"
    return check(
        context, "sequence-parallel", "Split the tokens between the split layers (sequence parallelism)", reason,
        "predicted memory and step without it",
        "SequenceParallel() in parallelize_module; Megatron: --sequence-parallel",
        f"{GUIDE}, 9.6 and 9.8", gain_s=without.step.step_s - context.step_s,
        gain_bytes=without.memory_bytes - context.now.memory_bytes, keep=layout.sequence,
    )  # fmt: skip


def offload(context: CheckContext) -> Check:
    """Move the optimizer's state to the host: its gradients go there, its weights come back."""
    state = context.plan.memory.state
    link = interconnect_named(_PCIE)
    cost = (state.gradients + state.parameters) / link.bytes_per_s
    saved = state.optimizer
    over = context.now.over_bytes
    reason = (
        f"{byte_size(saved)} of optimizer state on each GPU; gradients and weights take {span(cost)} over {link.name} "
        "in each step, besides the host's update"
    )
    if not over:
        spare = USABLE * context.plan.gpu.memory_bytes - context.now.memory_bytes
        reason = f"the plan fits with {byte_size(spare)} to spare"
    return check(
        context, "offload", "Offload the optimizer's state to the host", reason,
        "bytes of a GPU's gradients and weights over PCIe",
        "fully_shard(model, offload_policy=CPUOffloadPolicy())", f"{PAGE}, 'Where the field is now'", gain_s=-cost,
        gain_bytes=saved, skip=not over or saved < over,
    )  # fmt: skip


MEMORY_CHECKS = (checkpoint, flash_attention, shard_optimizer, sequence_parallel, offload)
