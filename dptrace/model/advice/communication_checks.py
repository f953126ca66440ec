"""Items about communication: overlap, buckets, compression, levels of links, faster links, prefetching."""

from __future__ import annotations

import msgspec

from dptrace.core.units import byte_size, share
from dptrace.model.advice.check import DDP_PAGE, GOSPEL, GUIDE, PAGE, WORKSHOP, Check, CheckContext, check, span
from dptrace.model.training.communication.all_reduce import all_reduces
from dptrace.model.training.communication.network import Link, Network
from dptrace.model.training.communication.roofline import crossover_bytes
from dptrace.model.training.step import predict_step

__all__ = ["COMMUNICATION_CHECKS"]

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
