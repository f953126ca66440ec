"""Items about the training loop: DDP's options, the backend, and how samples are loaded."""

from __future__ import annotations

import math

from dptrace.core.units import byte_size
from dptrace.model.advice.check import DDP_PAGE, GOSPEL, GUIDE, PAGE, Check, CheckContext, check, span
from dptrace.model.interconnects import interconnect_named
from dptrace.model.training.communication.network import Link, Network, collective_seconds

__all__ = ["LOOP_CHECKS"]

_WORKERS = 4
_TOKEN_BYTES = 16
"""A token and its target, as int64."""
_PCIE = "pcie4"


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
