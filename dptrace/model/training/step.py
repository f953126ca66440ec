"""The time of a training step: computation, bubble, optimizer, and the communication that nothing hides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from dptrace.model.training.communication import collective_seconds, sent_bytes
from dptrace.model.training.layout import bubble_share
from dptrace.model.training.memory import PRECISIONS
from dptrace.model.training.plan import Gpu, Plan
from dptrace.model.training.shape import ModelShape, forward_flops, hardware_flops, model_flops

# How fast a GPU computes: its peak, and the share of it that the matrix products of a model reach.
#
# The share grows with the width of the matrices and with the tokens that are multiplied at once, and splitting layers
# makes the matrices narrower::
#
#     share = ceiling / (1 + r·(2750·t^¼/h + 900/n))     h hidden size, t tensor-parallel GPUs, n tokens of a
#     micro-batch
#
# The constants were fitted to vTrain's measurements of 3.6 and 39.1 billion parameters on A100s (VIA-Research/vTrain,
# data/ground_truth_multi.csv; arXiv 2312.12391), and are tested on others; see docs/guides/plan.md. The ceilings:
# 0.95 for the A100 with the same fit; 0.77 for the H100, from the 430 TFLOP/s of Llama 3 405B on 8,192 GPUs
# (arXiv 2407.21783, table 4). Other GPUs have the H100's.
#
# r is the peak of the number type over that of 16 bits: in float8 only the products are twice as fast, while what is
# around them (elementwise operators, attention, launches) takes as long as before. On llm-foundry's float8 runs of 1
# and 3 billion parameters on H100s that is off by 6 % in the mean, where twice the speed of 16 bits would be off by 47
# %.


_WIDTH, _TOKENS, _SPLIT = 2750, 900, 0.25
LAUNCH_S, STEP_OPERATORS = 20e-6, 10
"""What PyTorch's host takes for one operator in eager mode, with autograd; operators of a step beside its layers. The
GPU workshop on data parallelism measured 1.13 ms for a step of 4 layers on an A100 that has 0.5 ms to compute."""


def matmul_share(gpu: Gpu, shape: ModelShape, tensor: int, micro_batch: float, number_type: str = "bf16") -> float:
    """Return the share of the peak that the computation of a micro-batch reaches by itself, without communication.

    Args:
        number_type: that of the products; the share is of its peak.
    """
    narrow = _WIDTH * math.pow(tensor, _SPLIT) / shape.hidden
    around = narrow + _TOKENS / (micro_batch * shape.sequence)
    return gpu.ceiling / (1 + _rate(gpu, number_type) * around)


def _rate(gpu: Gpu, number_type: str) -> float:
    """Return the peak of a number type over that of 16 bits."""
    peaks = gpu.peaks.tflops
    half = peaks.get("bf16", peaks.get("fp16"))
    return peaks[number_type] / half if half and number_type in peaks else 1.0


# What a step communicates: each collective with its bytes, calls, time, and what it can hide behind.
#
# Volumes follow Rajbhandari et al. (ZeRO, arXiv 1910.02054, section 7), Narayanan et al. (Megatron-LM, arXiv
# 2104.04473, section 3) and, for experts, Lepikhin et al. (GShard, arXiv 2006.16668).


class Traffic(msgspec.Struct, frozen=True):
    """Collectives of one kind in a step, as one GPU sees them."""

    what: str
    kind: str
    bytes: float
    """Of one call, as nccl-tests counts them."""
    calls: float
    """In a step."""
    ranks: int
    stride: int
    hides: str
    """What it runs under: ``forward``, ``backward``, or nothing (empty): the computation waits for it."""
    call_s: float
    every_micro_batch: bool = True
    """Whether it happens in each micro-batch, else once in a step."""

    @property
    def seconds(self) -> float:
        """Return the time of all calls."""
        return self.call_s * self.calls

    @property
    def sent_bytes(self) -> float:
        """Return what one GPU sends in a step."""
        return sent_bytes(self.kind, self.bytes, self.ranks) * self.calls


def traffic(plan: Plan) -> tuple[Traffic, ...]:
    """Return all communication of a step."""
    found = (*_data_parallel(plan), *_expert_gradients(plan), *_tensor(plan), *_experts(plan), *_stages(plan))
    return tuple(one for one in found if one.ranks > 1 and one.calls)


def _one(plan: Plan, what: str, kind: str, size: float, calls: float, ranks: int, stride: int, hides: str) -> Traffic:
    seconds = collective_seconds(plan.network, kind, size, ranks, stride)
    return Traffic(what, kind, size, calls, ranks, stride, hides, seconds)


def _common_parameters(plan: Plan) -> float:
    """Return the parameters of one GPU that all data-parallel GPUs share."""
    shape, layout = plan.shape, plan.layout
    experts = shape.layers * shape.experts * shape.expert_parameters if shape.experts > 1 else 0.0
    return (shape.shape_parameters - experts) * shape.scale / (layout.tensor * layout.stages)


def _data_parallel(plan: Plan) -> Iterator[Traffic]:
    layout, each = plan.layout, plan.state
    parameters = _common_parameters(plan)
    if layout.expert > 1 and layout.zero == 3:
        parameters += _local_experts(plan)
    gradients, weights = parameters * each.gradients, parameters * PRECISIONS[plan.precision].weight_bytes
    stride = layout.tensor
    if layout.zero == 3:
        yield from _sharded(plan, gradients, weights)
    elif layout.zero:
        reduced = _once(plan, "gradients", "reduce_scatter", gradients, layout.data, stride, "backward")
        yield _each_micro_batch(plan, reduced) if layout.zero == 2 else reduced
        yield _once(plan, "updated parameters", "all_gather", weights, layout.data, stride, "")
    else:
        yield _once(plan, "gradients", "all_reduce", gradients, layout.data, stride, "backward")


def _sharded(plan: Plan, gradients: float, weights: float) -> Iterator[Traffic]:
    """Yield what fully sharded parameters need: for each layer two gathers and a reduce-scatter in a micro-batch."""
    layout = plan.layout
    layers = plan.shape.layers / layout.stages
    calls, stride = layers * plan.micro_batches, layout.tensor
    for hides in ("forward", "backward"):
        what = f"parameters ({hides})"
        yield _one(plan, what, "all_gather", weights / layers, calls, layout.shards, stride, hides)
    yield _one(plan, "gradients", "reduce_scatter", gradients / layers, calls, layout.shards, stride, "backward")
    replicas, across = layout.data // layout.shards, stride * layout.shards
    yield _once(plan, "gradients across nodes", "all_reduce", gradients / layout.shards, replicas, across, "backward")


def _once(plan: Plan, what: str, kind: str, size: float, ranks: int, stride: int, hides: str) -> Traffic:
    """Return a collective of all buckets, once in a step."""
    calls = max(1, math.ceil(size / plan.bucket_bytes))
    one = _one(plan, what, kind, size / calls, calls, ranks, stride, hides)
    return msgspec.structs.replace(one, every_micro_batch=False)


def _each_micro_batch(plan: Plan, one: Traffic) -> Traffic:
    """Return a collective in every micro-batch, or in each round of them: see ``Layout.reduced_together``."""
    rounds = max(1, plan.micro_batches // plan.layout.reduced_together)
    return msgspec.structs.replace(one, calls=one.calls * rounds, every_micro_batch=True)


def _local_experts(plan: Plan) -> float:
    shape, layout = plan.shape, plan.layout
    if shape.experts == 1:
        return 0.0
    all_experts = shape.layers * shape.experts * shape.expert_parameters * shape.scale
    return all_experts / (layout.expert * layout.tensor * layout.stages)


def _expert_gradients(plan: Plan) -> Iterator[Traffic]:
    """Yield the gradients of experts, which fewer GPUs share."""
    layout = plan.layout
    if plan.shape.experts > 1 and layout.zero < 3:
        size = _local_experts(plan) * plan.state.gradients
        stride = layout.tensor * layout.expert
        yield _once(plan, "gradients of experts", "all_reduce", size, layout.data // layout.expert, stride, "backward")


def _tensor(plan: Plan) -> Iterator[Traffic]:
    """Yield two all-reduces of the activations in a layer's forward and two in its backward; recomputation repeats."""
    layout, shape = plan.layout, plan.shape
    layers = shape.layers / layout.stages * plan.balance
    calls = layers * plan.micro_batches * _passes(plan)
    size = plan.micro_batch * shape.sequence * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    if layout.sequence:
        for kind in ("all_gather", "reduce_scatter"):
            yield _one(plan, f"activations ({kind.replace('_', '-')})", kind, size, calls, layout.tensor, 1, "")
    else:
        yield _one(plan, "activations", "all_reduce", size, calls, layout.tensor, 1, "")


def _passes(plan: Plan) -> float:
    """Return the messages of a layer: two in forward, two in backward, and two where forward is done again."""
    return 4 + 2 * plan.recomputed_share * (plan.recompute == "full")


def _experts(plan: Plan) -> Iterator[Traffic]:
    """Yield tokens to their experts and back, in forward and in backward."""
    layout, shape = plan.layout, plan.shape
    if shape.experts == 1:
        return
    tokens = plan.micro_batch * shape.sequence * shape.top_k / layout.tensor
    size = tokens * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    calls = shape.layers / layout.stages * plan.balance * plan.micro_batches * _passes(plan)
    yield _one(plan, "tokens to experts and back", "all_to_all", size, calls, layout.expert, layout.tensor, "")


def _stages(plan: Plan) -> Iterator[Traffic]:
    """Yield a stage's activations to the next, and their gradients back; ranks that split layers send a part each."""
    layout, shape = plan.layout, plan.shape
    size = plan.micro_batch * shape.sequence * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    virtual = layout.virtual_stages if layout.schedule == "interleaved" else 1
    calls = 2 * plan.micro_batches * virtual
    stride = layout.tensor * layout.data
    yield _one(plan, "micro-batches", "send_recv", size / layout.tensor, calls, layout.stages, stride, "")


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step, in seconds of one GPU."""

    compute_s: float
    """Of the matrix products, or of launching operators where that takes longer."""
    launch_s: float
    """What the host takes to launch all operators."""
    share: float
    """Share of the GPU's peak that the computation is assumed to reach by itself."""
    bubble_s: float
    optimizer_s: float
    communication_s: float
    """All communication, hidden or not."""
    exposed_s: float
    """What of it neither forward nor backward can hide."""
    step_s: float
    """computation + bubble + optimizer + exposed communication."""
    serial_s: float
    """The step if nothing overlapped."""
    ideal_s: float
    """The step if communication and computation overlapped wholly: the longer of the two counts."""
    model_flops: float
    peak_flops: float
    """Of all GPUs together."""
    samples: int
    tokens: int
    traffic: tuple[Traffic, ...]

    @property
    def samples_per_s(self) -> float:
        """Return samples in a second, over all GPUs."""
        return self.samples / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Return tokens in a second, over all GPUs."""
        return self.tokens / self.step_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the operations that training needs over what the GPUs could do in a step."""
        return self.model_flops / (self.peak_flops * self.step_s)

    @property
    def ideal_exposed_s(self) -> float:
        """Return the exposed communication if it overlapped wholly: what exceeds the computation."""
        return max(0.0, self.communication_s - self.compute_s)

    @property
    def bubble(self) -> float:
        """Return the bubble's share of the step."""
        return self.bubble_s / self.step_s

    @property
    def overlap(self) -> float | None:
        """Return the share of the communication that is hidden; None without communication."""
        return 1 - self.exposed_s / self.communication_s if self.communication_s else None

    @property
    def efficiency(self) -> float:
        """Return the share of the step in which the GPU computes."""
        return self.compute_s / self.step_s


def predict_step(plan: Plan) -> StepPrediction:
    """Compute the parts of a step."""
    layout = plan.layout
    number_type = PRECISIONS[plan.precision].compute
    share = plan.share or matmul_share(plan.gpu, plan.shape, layout.tensor, plan.micro_batch, number_type)
    peak = plan.gpu.peak(number_type)
    rate = layout.gpus * peak * share / plan.balance
    # FlashAttention repeats its scores in any case; what else selective recomputation repeats is elementwise.
    repeated = "none" if plan.flash and plan.recompute == "selective" else plan.recompute
    products = hardware_flops(plan.shape, plan.batch, repeated, plan.recomputed_share) / rate
    messages = traffic(plan)
    launches = _launch_seconds(plan, messages)
    compute = max(products, launches)
    rate *= products / compute
    forward = forward_flops(plan.shape) * plan.batch * plan.shape.sequence / rate
    blocking = sum(one.seconds for one in messages if not one.hides)
    updates = sum(one.seconds for one in messages if one.what == "updated parameters")
    in_pipeline = compute + blocking - updates
    bubble = bubble_share(layout.schedule, layout.stages, plan.micro_batches, layout.virtual_stages) or 0.0
    bubble_s = in_pipeline * bubble / (1 - bubble)
    exposed = blocking + _not_hidden(plan, messages, forward, compute - forward)
    communication = sum(one.seconds for one in messages)
    optimizer = _optimizer_seconds(plan)
    base = compute + bubble_s + optimizer
    return StepPrediction(
        compute_s=compute,
        launch_s=launches,
        share=share,
        bubble_s=bubble_s,
        optimizer_s=optimizer,
        communication_s=communication,
        exposed_s=exposed,
        step_s=base + exposed,
        serial_s=base + communication,
        ideal_s=max(compute, communication) + bubble_s + optimizer,
        model_flops=model_flops(plan.shape, plan.batch),
        peak_flops=peak * layout.gpus,
        samples=plan.batch,
        tokens=plan.batch * plan.shape.sequence,
        traffic=messages,
    )


def _launch_seconds(plan: Plan, messages: tuple[Traffic, ...]) -> float:
    """Return the time that a host takes to launch what a GPU computes and sends in a step: small models wait for it."""
    layers = math.ceil(plan.shape.layers / plan.layout.stages)
    computed = layers * plan.shape.operators * plan.micro_batches + STEP_OPERATORS
    return LAUNCH_S * (computed + sum(one.calls for one in messages))


def _not_hidden(plan: Plan, messages: tuple[Traffic, ...], forward_s: float, backward_s: float) -> float:
    """Return the part of the overlapping communication that exceeds what it runs under.

    What happens in every micro-batch has all of forward or backward to hide in, gradients of the whole step only the
    backward of the last micro-batch. At least the ends are exposed: the last bucket of gradients, and of sharded
    parameters the gather of the first layer and the reduce-scatter of the last one.
    """
    exposed = least = 0.0
    for phase, seconds in (("forward", forward_s), ("backward", backward_s)):
        under = [one for one in messages if one.hides == phase]
        every = sum(one.seconds for one in under if one.every_micro_batch)
        once = sum(one.seconds for one in under if not one.every_micro_batch)
        hidden = every if every < seconds else seconds
        room = min(seconds - hidden, seconds / plan.micro_batches)
        exposed += (every - hidden) + max(once - room, 0.0)
        least += sum(_end_seconds(plan, one) for one in under)
    return max(exposed, least)


def _end_seconds(plan: Plan, one: Traffic) -> float:
    if one.what == "parameters (backward)":
        return 0.0  # the last layer, which backward begins with, is gathered in forward
    return one.call_s * (plan.micro_batches if one.every_micro_batch else 1)


def _optimizer_seconds(plan: Plan) -> float:
    """Return the time to read and write the state once, which memory bandwidth limits."""
    held = plan.memory.state
    touched = held.parameters + held.gradients + 2 * held.optimizer
    if plan.layout.zero in (1, 2):  # only the shard that this GPU updates
        gradients = held.gradients / (plan.layout.shards if plan.layout.zero == 1 else 1)
        touched = held.parameters / plan.layout.shards + gradients + 2 * held.optimizer
    return touched / plan.gpu.memory_bytes_per_s


class Target(msgspec.Struct, frozen=True):
    """A goal of the guide "Distributed Training" (section 12.5), and whether a step reaches it."""

    name: str
    goal: str
    value: float | None
    met: bool | None


TARGETS = (("mfu", "> 40 %", 0.4), ("bubble", "< 10 %", 0.1), ("overlap", "> 80 %", 0.8))


def targets(step: StepPrediction) -> tuple[Target, ...]:
    """Return the goals for the MFU, the bubble and the overlap."""
    found = []
    for name, goal, limit in TARGETS:
        value = getattr(step, name)
        met = None if value is None else (value < limit if name == "bubble" else value > limit)
        found.append(Target(name, goal, value, met))
    return tuple(found)
