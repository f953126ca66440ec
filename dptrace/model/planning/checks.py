"""Items of the checklist: time, memory, communication, pipelines and the training loop."""

from __future__ import annotations

import math

import msgspec

from dptrace.core.units import byte_size, plural, share
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import interconnect_named
from dptrace.model.planning.candidates import DDP_PAGE, GOSPEL, GUIDE, PAGE, WORKSHOP, Check, CheckContext, check, span
from dptrace.model.planning.decision import RULES
from dptrace.model.training.communication import Link, Network, all_reduces, collective_seconds, crossover_bytes
from dptrace.model.training.layout import micro_batches_needed
from dptrace.model.training.memory import PRECISIONS, USABLE
from dptrace.model.training.plan import Gpu, Plan
from dptrace.model.training.step import predict_step

__all__ = ["COMMUNICATION_CHECKS", "LOOP_CHECKS", "MEMORY_CHECKS", "PIPELINE_CHECKS", "TIME_CHECKS"]


# Items about memory: recomputation, sharding, sequence parallelism, attention without scores, offloading.


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


# Bytes that the elementwise operators of a decoder read and write in a step, one by one and fused.
#
# A forward of one layer, in numbers of each token, with h the hidden size and f the MLP's width: two normalizations
# (read and write h, and a residual add before each that reads 2h and writes h), the activation function (read and write
# f), with a gate also a product (read 2f, write f), two dropouts where the model has them (read and write h), and for
# GPT four biases (read and write 3h + h + f + h). Fused, each chain between two products reads its inputs and writes
# its result: the residual, its sum and the normalized numbers (4h a normalization) and the activation (read f or 2f,
# write f). Backward reads and writes twice as much.


def pointwise_bytes(plan: Plan, fused: bool) -> float:
    """Return what one GPU reads and writes in a step for elementwise operators."""
    shape, layout = plan.shape, plan.layout
    hidden, mlp = shape.hidden, shape.mlp * shape.top_k
    around = 2 * 4 * hidden if fused else 2 * (2 + 3) * hidden
    inner: float = (3 if shape.gated else 2) * mlp
    if not fused:
        inner = (2 + 3 if shape.gated else 2) * mlp
        around += 2 * 2 * hidden if plan.dropout else 0
        around += 2 * 2 * hidden if shape.bias else 0
        inner += 2 * (3 * hidden + mlp) if shape.bias else 0
    split = around / (layout.tensor if layout.sequence else 1) + inner / layout.tensor
    tokens = plan.batch * shape.sequence / layout.data
    return 3 * split * shape.layers / layout.stages * tokens * PRECISIONS[plan.precision].activation_bytes


# Items about work: batch, accumulation, recomputation, number types, fusion, fewer GPUs, another strategy.


_MORE = 4
_AGAIN = "predicted step with it against the one without"


def another_strategy(context: CheckContext) -> Check | None:
    """Compare the plan with the best one, if the plan was given."""
    if not context.found:
        return None
    best = context.found[0]
    reason = (
        f"{best.label} with micro-batches of {best.plan.micro_batch}, recompute {best.plan.recompute}, takes "
        f"{span(best.step.step_s)} and {byte_size(best.memory_bytes)} on each GPU"
    )
    same = best.plan == context.plan
    return check(
        context, "strategy", f"Spread it as {best.label}", reason if not same else "this is the best plan found",
        _AGAIN, "see the candidates", f"{GUIDE}, 12.5", gain_s=context.step_s - best.step.step_s,
        gain_bytes=context.now.memory_bytes - best.memory_bytes, skip=same or not best.fits,
    )  # fmt: skip


def larger_batch(context: CheckContext) -> Check:
    """Double the samples, in larger micro-batches where they fit."""
    other = context.best(msgspec.structs.replace(context.plan, batch=2 * context.plan.batch))
    gain, exposed = context.step_s - other.step.step_s / 2, other.step.exposed_s / other.step.step_s
    reason = (
        f"{2 * context.plan.batch:,} samples in micro-batches of {other.plan.micro_batch}: "
        f"{span(other.step.step_s / 2)} for the samples of one step, exposed communication {share(exposed)} of it"
    )
    return check(
        context, "larger-batch", "Double the batch", reason, f"{_AGAIN}, for the same samples",
        f"--batch {2 * context.plan.batch}; adapt the learning rate", f"{GUIDE}, 6.6; {WORKSHOP}, chart 1",
        gain_s=gain, gain_bytes=context.now.memory_bytes - other.memory_bytes,
    )  # fmt: skip


def accumulate(context: CheckContext) -> Check:
    """Reduce gradients once for several times the samples, without more memory."""
    other = context.changed(batch=_MORE * context.plan.batch)
    gain = context.step_s - other.step.step_s / _MORE
    reason = (
        f"gradients, optimizer and bubble once for {_MORE} times the samples: {span(other.step.step_s / _MORE)} for "
        "those of one step"
    )
    do = "with model.no_sync(): all but the last backward of a step (FSDP2: set_requires_gradient_sync)"
    return check(
        context, "accumulate", f"Accumulate gradients over {_MORE} times the samples", reason,
        f"{_AGAIN}, for the same samples", do, f"{PAGE}, 'levers'; {GOSPEL}, gradient_accumulation_steps=4",
        gain_s=gain,
    )  # fmt: skip


def micro_batch(context: CheckContext) -> Check:
    """Compute other sizes at once, with other recomputation where it is open."""
    other = context.best(context.plan, context.any_recompute())
    reason = (
        f"micro-batches of {other.plan.micro_batch}, recompute {other.plan.recompute}: {span(other.step.step_s)}, "
        f"{byte_size(other.memory_bytes)} on each GPU"
    )
    same = (other.plan.micro_batch, other.plan.recompute) == (context.plan.micro_batch, context.plan.recompute)
    return check(
        context, "micro-batch", f"Compute {plural(other.plan.micro_batch, 'sample')} at once, "
        f"recompute {other.plan.recompute}",
        f"{reason}: the best" if same else reason, _AGAIN,
        f"--micro-batch {other.plan.micro_batch} --recompute {other.plan.recompute}", f"{GUIDE}, 6.6",
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - other.memory_bytes,
        skip=same or not other.fits,
    )  # fmt: skip


def mixed_precision(context: CheckContext) -> Check:
    """Compute in bfloat16, or in float8 where the GPU has it."""
    plan, before = context.plan, context.plan.precision
    wider = before in ("fp32", "tf32", "amp")
    target = _sixteen_bits(plan.gpu) if wider else "fp8"
    source = f"{GUIDE}, 7.6 and 12.5; {GOSPEL}, use_mixed_precision"
    do = (
        "torch.autocast('cuda', torch.bfloat16), or FSDP's MixedPrecisionPolicy"
        if wider
        else "torchao's float8 training"
    )
    if before == "fp8" or PRECISIONS[target].compute not in plan.gpu.peaks.tflops:
        return check(
            context, "mixed-precision", f"Compute in {target}",
            f"{before} is the narrowest that the {plan.gpu.name} has", _AGAIN, do, source, skip=True,
        )  # fmt: skip
    other = context.best(msgspec.structs.replace(plan, precision=target), context.any_recompute())
    rate = plan.gpu.peak(PRECISIONS[target].compute) / plan.gpu.peak(PRECISIONS[before].compute)
    reason = (
        f"products have {rate:.3g} times the peak: {span(other.step.step_s)} a step, {byte_size(other.memory_bytes)} "
        "on each GPU"
    )
    return check(
        context, "mixed-precision", f"Compute in {target} instead of {before}", reason, _AGAIN, do, source,
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - other.memory_bytes,
    )  # fmt: skip


def _sixteen_bits(gpu: Gpu) -> str:
    return "bf16" if "bf16" in gpu.peaks.tflops else "fp16"


def compiled(context: CheckContext) -> Check:
    """Fuse what is neither a product nor attention: each intermediate result is not written and read again."""
    plan = context.plan
    saved = pointwise_bytes(plan, fused=False) - pointwise_bytes(plan, fused=True)
    rate = plan.gpu.memory_bytes_per_s
    reason = f"{byte_size(saved)} that a GPU would not write and read again in a step, at {rate / 1e12:.3g} TB/s"
    computed = (
        "bytes of elementwise operators at the memory's bandwidth; at least, for kernels without launch gaps. The "
        "plan's step is that of fused kernels; torchtitan measured +16 % tokens/s for Llama 3 8B"
    )
    return check(
        context, "compile", "Fuse elementwise operators with torch.compile", reason, computed,
        "model = torch.compile(model), or block by block", f"{GUIDE}, 6.6 (operator fusion)",
        gain_s=saved / plan.gpu.memory_bytes_per_s, keep=True,
    )  # fmt: skip


def fewer_gpus(context: CheckContext) -> Check:
    """Ask whether half as many GPUs would be as fast, or faster."""
    plan, layout = context.plan, context.layout
    what, source = "Use fewer GPUs", f"{WORKSHOP}, chart 1: 1.5 million parameters are slower on 4 GPUs than on 1"
    found = []
    data = layout.data // 2
    while data and layout.data % data == 0 and data >= layout.expert:
        shards = min(layout.shards, data)
        fewer = msgspec.structs.replace(plan, layout=msgspec.structs.replace(layout, data=data, shards=shards))
        try:
            fewer.check()
        except UsageError:
            break
        found.append((predict_step(fewer).step_s, fewer))
        data //= 2
    if not found:
        reason = f"{layout.gpus} GPUs hold one copy of the model"
        return check(context, "fewer-gpus", what, reason, _AGAIN, "--gpus", source, skip=True)
    seconds, best = min(found, key=lambda pair: pair[0])
    half = found[0][0]
    reason = (
        f"twice the GPUs are {half / context.step_s:.2f} times as fast for the same batch (from "
        f"{found[0][1].layout.gpus} to {layout.gpus}), an efficiency of "
        f"{share(half / context.step_s / 2)}; the goal is 70 % ({DDP_PAGE})"
    )
    return check(
        context, "fewer-gpus", what, reason, "predicted step on fewer GPUs, with the same batch",
        f"--gpus {best.layout.gpus}", source, gain_s=context.step_s - seconds,
        skip=seconds >= context.step_s or not best.fits,
    )  # fmt: skip


TIME_CHECKS = (another_strategy, larger_batch, accumulate, micro_batch, mixed_precision, compiled, fewer_gpus)


# Items about communication: overlap, buckets, compression, levels of links, faster links, prefetching.


_MIB = 1 << 20
_BUCKETS = (1, 5, 10, 25, 50, 100, 200)
"""MiB, from DDP's first bucket to eight times its default."""
_NO_GRADIENTS = "one GPU holds each part of the model, so no gradients are reduced"


def overlap(context: CheckContext) -> Check:
    """Ask what the step would take if nothing overlapped."""
    step = context.now.step
    hidden = step.overlap
    reason = f"{span(step.communication_s)} of communication, {span(step.exposed_s)} of it exposed" + (
        "" if hidden is None else f": {share(hidden)} is hidden, the goal is 80 %"
    )
    return check(
        context, "overlap", "Overlap communication with computation", reason,
        "the predicted step without any overlap against the one with it",
        "DistributedDataParallel or fully_shard; both overlap by themselves",
        f"{WORKSHOP}, step 4; {DDP_PAGE}; {GUIDE}, 12.5",
        gain_s=step.serial_s - step.step_s, keep=step.serial_s > step.step_s, skip=step.serial_s <= step.step_s,
    )  # fmt: skip


def bucket_size(context: CheckContext) -> Check:
    """Try sizes of buckets: small ones pay the latency often, of a large one much is left after backward."""
    plan, layout = context.plan, context.layout
    network = plan.network
    link = network.within if layout.gpus <= network.gpus_per_node else network.between
    least = crossover_bytes(link)
    what, source = "Set the size of the buckets", f"{GUIDE}, 7.3: above n* = α/β; {DDP_PAGE}; {PAGE}, 'Build it'"
    if layout.zero == 3 or not context.gradients[1]:
        reason = "FSDP reduces a layer at a time" if layout.zero == 3 else _NO_GRADIENTS
        return check(context, "bucket-size", what, reason, "", "bucket_cap_mb", source, skip=True)
    steps = [(predict_step(msgspec.structs.replace(plan, bucket_bytes=size * _MIB)).step_s, size) for size in _BUCKETS]
    seconds, size = min(steps)
    reason = (
        f"of {', '.join(map(str, _BUCKETS))} MiB, {size} is the fastest; the rule is above n* = {byte_size(least)} of "
        f"{link.name}"
    )
    return check(
        context, "bucket-size", f"{what} to {size} MiB", reason, "predicted step with each size",
        f"DistributedDataParallel(model, bucket_cap_mb={size})", source, gain_s=context.step_s - seconds,
    )  # fmt: skip


def compress(context: CheckContext) -> Check:
    """Send gradients with half the bytes; compressing reads and writes them at the memory's bandwidth."""
    plan, layout = context.plan, context.layout
    size, _ = context.gradients
    what, source = "Compress the gradients to half their bytes", f"{GUIDE}, 7.5; {PAGE}, 'levers'"
    wide = plan.state.gradients > 2
    do = (
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        if wide
        else "PowerSGD (torch's powerSGD_hook), or 8 bits with error feedback; dptrace record --compress powersgd"
    )
    if not size or layout.zero == 3 or plan.state.gradients < 2:
        reason = "sharded parameters are gathered, too: lower the precision instead" if size else _NO_GRADIENTS
        return check(context, "compress", what, reason, "", do, source, skip=True)
    other = predict_step(msgspec.structs.replace(plan, gradient_bytes=plan.state.gradients // 2))
    # Before and after: read the gradients and write half, read half and write them.
    cost = 3 * size / plan.gpu.memory_bytes_per_s
    saved = context.now.step.exposed_s - other.exposed_s
    reason = f"{byte_size(size)} of gradients a GPU; {span(saved)} less exposed, {span(cost)} to compress them"
    return check(
        context, "compress", what, reason,
        "predicted exposed communication, less the time to read and write the gradients",
        do, source, gain_s=saved - cost,
    )  # fmt: skip


def hierarchical(context: CheckContext) -> Check:
    """Compare an all-reduce in levels with one ring over the slowest link."""
    plan, layout = context.plan, context.layout
    what, source = "Reduce within nodes first", f"{GUIDE}, 3.6; {GOSPEL}, use_hierarchical_allreduce"
    size, _ = context.gradients
    stride = layout.tensor
    local = max(1, plan.network.gpus_per_node // stride)
    if not size or layout.data <= local or local == 1:
        reason = "the GPUs that reduce gradients share one kind of link" if size else _NO_GRADIENTS
        return check(context, "hierarchical", what, reason, "", "NCCL does", source, skip=True)
    network = Network(plan.network.within, plan.network.between, local)
    times = {one.algorithm: one.seconds for one in all_reduces(network, size, layout.data)}
    flat, levels = times["ring"], times["hierarchical-sharded"]
    reason = (
        f"all gradients, {byte_size(size)} among {layout.data} GPUs: {span(levels)} in levels, {span(flat)} by "
        "one ring over the slowest link"
    )
    return check(
        context, "hierarchical", what, reason, "an all-reduce of all gradients by both, before any overlap",
        "NCCL does so with one network port for each GPU; dptrace links measures it", source,
        gain_s=max(0.0, flat - levels), keep=True,
    )  # fmt: skip


def faster_links(context: CheckContext) -> Check:
    """Double the bandwidth between nodes, or within one where there is only one."""
    plan = context.plan
    several = context.layout.gpus > plan.network.gpus_per_node
    near, far = plan.network.within, plan.network.between
    network = Network(near, _doubled(far), plan.network.gpus_per_node) if several else Network(_doubled(near), far)
    if not several:
        network = msgspec.structs.replace(network, gpus_per_node=plan.network.gpus_per_node)
    other = context.changed(network=network)
    gain = context.step_s - other.step.step_s
    name = far.name if several else near.name
    reason = f"twice the bandwidth of {name}: {span(other.step.step_s)} a step"
    return check(
        context, "faster-links", f"Use links twice as fast {'between nodes' if several else 'within the node'}", reason,
        "predicted step with it against the one without", "--link", f"{GUIDE}, 6.6 (better interconnect)", gain_s=gain,
    )  # fmt: skip


def _doubled(link: Link) -> Link:
    return Link(link.name, link.alpha_s, 2 * link.bytes_per_s)


def prefetch(context: CheckContext) -> Check | None:
    """Ask what it costs if the computation waits for each layer's parameters."""
    if context.layout.zero < 3 or context.layout.shards == 1:
        return None
    step = context.now.step
    gathers = sum(one.seconds for one in step.traffic if one.what.startswith("parameters"))
    exposed = min(gathers, step.exposed_s)
    return check(
        context, "prefetch", "Prefetch the next layer's parameters",
        f"{span(gathers)} of all-gathers in a step, which the computation of the layer before hides",
        "the all-gathers' time, less what is exposed anyway",
        "fully_shard: set_modules_to_forward_prefetch, set_modules_to_backward_prefetch (FSDP1: forward_prefetch=True, "
        "BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True)", f"{GUIDE}, 8.5; {GOSPEL}, FSDP's options",
        gain_s=gathers - exposed, keep=True,
    )  # fmt: skip


def hybrid_shards(context: CheckContext) -> Check | None:
    """Compare sharding in groups of nodes with sharding over all."""
    plan, layout = context.plan, context.layout
    local = max(1, plan.network.gpus_per_node // layout.tensor)
    if layout.zero < 3 or layout.data <= local or layout.stages > 1:
        return None
    sizes = [shards for shards in range(local, layout.data, local) if layout.data % shards == 0]
    tried = [context.changed(layout=msgspec.structs.replace(layout, shards=shards)) for shards in sizes]
    tried = [one for one in tried if one.plan.layout.shards != layout.shards]
    if not tried:
        return None
    fitting = [one for one in tried if one.fits]
    best = min(fitting, key=lambda one: one.step.step_s) if fitting else min(tried, key=lambda one: one.memory_bytes)
    fits = "fits" if best.fits else f"is {byte_size(best.over_bytes)} too much"
    reason = f"{best.label}: {span(best.step.step_s)} a step, {byte_size(best.memory_bytes)} on each GPU, which {fits}"
    return check(
        context, "hybrid-shards", "Shard within groups of nodes, replicate across them (HSDP)", reason,
        "predicted step with it, for the same micro-batch", "fully_shard(model, mesh=mesh_2d)", f"{GUIDE}, 8.6",
        gain_s=context.step_s - best.step.step_s, gain_bytes=context.now.memory_bytes - best.memory_bytes,
        skip=not best.fits,
    )  # fmt: skip


COMMUNICATION_CHECKS = (overlap, bucket_size, compress, hierarchical, faster_links, prefetch, hybrid_shards)


# Items about pipelines and experts: micro-batches, schedules, balance.


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


# Items about the training loop: DDP's options, the backend, and how samples are loaded.


_WORKERS = 4
_TOKEN_BYTES = 16
"""A token and its target, as int64."""


def _is_ddp(context: CheckContext) -> bool:
    layout = context.layout
    return layout.zero == 0 and layout.data > 1 and layout.stages == 1


def _not_ddp(context: CheckContext, name: str, what: str, do: str, source: str) -> Check:
    return check(context, name, what, f"{context.now.label} is not DDP", "", do, source, skip=True)


def bucket_view(context: CheckContext) -> Check:
    """Ask what a second copy of the gradients takes."""
    what, do = "Set gradient_as_bucket_view=True", "DistributedDataParallel(model, gradient_as_bucket_view=True)"
    source = f"{GUIDE}, 7.3 and 7.6; {DDP_PAGE}, 'Practical knobs'"
    if not _is_ddp(context):
        return _not_ddp(context, "gradient_as_bucket_view", what, do, source)
    size = context.plan.memory.state.gradients
    return check(
        context, "gradient_as_bucket_view", what, f"a second copy of the gradients takes {byte_size(size)} on each GPU",
        "bytes of a GPU's gradients; torch's default keeps the copy", do, source, gain_bytes=size, keep=True,
    )  # fmt: skip


def _tensors(context: CheckContext) -> int:
    """Return how many parameter tensors the model has."""
    shape = context.plan.shape
    return shape.layers * (16 if shape.bias else 9) + 4


def unused_parameters(context: CheckContext) -> Check:
    """Ask what the search for unused parameters sends."""
    what = "Leave find_unused_parameters=False"
    do = "DistributedDataParallel(model, find_unused_parameters=False)"
    source = f"{DDP_PAGE}, 'Practical knobs' (a footgun); {GUIDE}, 7.3"
    if not _is_ddp(context):
        return _not_ddp(context, "find_unused_parameters", what, do, source)
    tensors = _tensors(context)
    seconds = collective_seconds(context.plan.network, "all_reduce", 4 * tensors, context.layout.data)
    reason = (
        f"it all-reduces a map of {tensors:,} parameters in each step and walks the graph of autograd before backward"
    )
    return check(
        context, "find_unused_parameters", what, reason,
        "the all-reduce of the map; the walk is the host's, and a recording shows it",
        do, source, gain_s=seconds, keep=True,
    )  # fmt: skip


def static_graph(context: CheckContext) -> Check:
    """Describe what a static graph saves."""
    what, do = "Set static_graph=True", "DistributedDataParallel(model, static_graph=True)"
    source = f"{GUIDE}, 7.6; {DDP_PAGE}, 'Practical knobs'"
    if not _is_ddp(context):
        return _not_ddp(context, "static_graph", what, do, source)
    reason = "if each step uses the same parameters; it spares the host bookkeeping, which a description does not have"
    return check(
        context,
        "static_graph",
        what,
        reason,
        "not computed: dptrace record --static-graph measures it",
        do,
        source,
        keep=True,
    )


def broadcast_buffers(context: CheckContext) -> Check:
    """Ask what broadcasting the buffers costs."""
    what = "Set broadcast_buffers=False"
    do, source = "DistributedDataParallel(model, broadcast_buffers=False)", f"{GOSPEL}, setup_model"
    if not _is_ddp(context):
        return _not_ddp(context, "broadcast_buffers", what, do, source)
    network, data = context.plan.network, context.layout.data
    link = network.within if data <= network.gpus_per_node else network.between
    seconds = link.alpha_s * math.ceil(math.log2(data))
    reason = "a decoder has no buffers to keep equal; BatchNorm has. A broadcast costs its latency in each step"
    return check(context, "broadcast_buffers", what, reason, "the latency of a broadcast", do, source, gain_s=seconds)


def no_sync(context: CheckContext) -> Check:
    """Ask what it costs to reduce gradients after each micro-batch."""
    what = "Reduce gradients in the last micro-batch only"
    do, source = "with model.no_sync(): loss.backward()", f"{GOSPEL}, gradient_accumulation_sync; {PAGE}, 'levers'"
    micro = context.plan.micro_batches
    _, seconds = context.gradients
    if micro == 1 or context.layout.zero > 1 or context.layout.stages > 1 or not seconds:
        reason = "a step has one micro-batch" if micro == 1 else f"{context.now.label} reduces as it must"
        return check(context, "no_sync", what, reason, "", do, source, skip=True)
    backward = context.now.step.compute_s * 2 / 3 / micro
    cost = (micro - 1) * max(0.0, seconds - backward)
    reason = f"{span(seconds)} of reduction for each of {micro} micro-batches, whose backward takes {span(backward)}"
    return check(
        context, "no_sync", what, reason, "what of each further reduction its backward can't hide", do, source,
        gain_s=cost, keep=True,
    )  # fmt: skip


def backend(context: CheckContext) -> Check:
    """Ask what it costs if messages go through the hosts' memory."""
    what, do = "Use the NCCL backend", 'dist.init_process_group("nccl")'
    source = f"{GUIDE}, 7.6"
    if context.layout.gpus == 1:
        return check(context, "nccl", what, "one GPU sends nothing", "", do, source, skip=True)
    network = context.plan.network
    host = interconnect_named(_PCIE)
    slow = min((network.within, Link(host.name, host.alpha_s, host.bytes_per_s)), key=lambda link: link.bytes_per_s)
    other = context.changed(network=Network(slow, network.between, network.gpus_per_node))
    reason = f"through the hosts' memory, over {host.name}, a step takes {span(other.step.step_s)}"
    return check(
        context, "nccl", what, reason, f"predicted step with links of {host.name} within nodes", do, source,
        gain_s=max(0.0, other.step.step_s - context.step_s), keep=True,
    )  # fmt: skip


def pin_memory(context: CheckContext) -> Check:
    """Ask what copying the samples takes."""
    plan = context.plan
    samples = plan.batch / context.layout.data
    size = samples * plan.shape.sequence * _TOKEN_BYTES
    link = interconnect_named(_PCIE)
    reason = (
        f"a GPU gets {byte_size(size)} of tokens and targets in a step; copied twice and not under computation, "
        f"that is {span(2 * size / link.bytes_per_s)}. Images are larger"
    )
    return check(
        context, "pin_memory", "Pin the memory that samples are copied from", reason,
        "twice the bytes over PCIe, exposed",
        "DataLoader(..., pin_memory=True); batch.cuda(non_blocking=True)", f"{GUIDE}, 7.6; {GOSPEL}, DataLoader",
        gain_s=2 * size / link.bytes_per_s,
    )  # fmt: skip


def workers(context: CheckContext) -> Check:
    """Ask how fast workers have to prepare samples."""
    rate = context.now.step.samples_per_s / context.layout.data
    reason = (
        f"a rank takes {rate:,.3g} samples/s, so {_WORKERS} workers keep up if each prepares a sample in "
        f"{span(_WORKERS / rate)}"
    )
    return check(
        context, "num_workers", f"Load samples in {_WORKERS} workers or more", reason,
        "the rate of a rank; a recording shows whether it waits for data", f"DataLoader(..., num_workers={_WORKERS})",
        f"{GUIDE}, 7.6; {GOSPEL}, DataLoader", keep=True,
    )  # fmt: skip


def sampler(context: CheckContext) -> Check:
    """Ask what it costs if all ranks train on the same samples."""
    data = context.layout.data
    what, do = (
        "Give each rank its own samples",
        "DistributedSampler(dataset, shuffle=True), and sampler.set_epoch(epoch)",
    )
    source = f"{GUIDE}, 7.6; {GOSPEL}, DistributedSampler"
    if data == 1:
        return check(context, "sampler", what, "there is one data-parallel rank", "", do, source, skip=True)
    reason = f"without, {data} ranks train on the same samples, and a step does the work of one"
    return check(
        context, "sampler", what, reason, "the share of the ranks that would do nothing new", do, source,
        gain_s=context.step_s * (1 - 1 / data), keep=True,
    )  # fmt: skip


LOOP_CHECKS = (
    *(sampler, no_sync, backend, bucket_view, unused_parameters, static_graph, broadcast_buffers),
    *(pin_memory, workers),
)
