"""The time of a training step: computation, bubble, optimizer, and the communication that nothing hides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from dptrace.model.gpu_peaks import Gpu, interconnect_named
from dptrace.model.training.communication import WITHIN, collective_seconds, sent_bytes
from dptrace.model.training.layout import bubble_share, ranks_per_node
from dptrace.model.training.memory import PRECISIONS
from dptrace.model.training.plan import OVERLAPPED, Plan
from dptrace.model.training.shape import ModelShape, model_flops

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
"""Of the share: of h, of n, and the exponent of t."""
_CASTS = 2000
"""Width up to which what is around products takes as long in float8 as in 16 bits; in wider ones casts are fused."""
_INNER = 1.37
"""(4h + h) / 4h, and 8/3: a dense MLP's width over that of the numbers around it, in which the share was fitted."""
LAUNCH_S, STEP_OPERATORS = 20e-6, 10
"""What PyTorch's host takes for one operator in eager mode, with autograd; operators of a step beside its layers. The
GPU workshop on data parallelism measured 1.13 ms for a step of 4 layers on an A100 that has 0.5 ms to compute."""
EXPERT_OPERATORS = {"fp8": 25}
"""Operators of one expert in forward and backward, by number type: in float8 also the casts around its products."""
_EXPERT_OPERATORS = 8
"""The same in other types."""
HOST_BYTES_PER_S = 110e9
"""What Adam on a CPU reads and writes: 28 bytes of 10 billion parameters in 2.57 s on a DGX-2 (ZeRO-Offload, arXiv
2101.06840, table 4). Newer hosts have up to twice that bandwidth; PyTorch's own Adam took five times as long there."""


def matmul_share(
    gpu: Gpu, shape: ModelShape, tensor: int, tokens: float, number_type: str = "bf16", width: float = 0
) -> float:
    """Return the share of the peak that the computation of a micro-batch reaches by itself, without communication.

    Args:
        tokens: that are multiplied at once.
        number_type: that of the products; the share is of its peak.
        width: of the matrices; by default the model's.
    """
    width = width or shape.hidden
    around, rate = _WIDTH * math.pow(tensor, _SPLIT) / width + _TOKENS / tokens, _rate(gpu, number_type)
    if number_type == "fp8":
        rate = 1 + (rate - 1) * min(1.0, _CASTS / width)
    return gpu.ceiling / (1 + rate * around)


def _rate(gpu: Gpu, number_type: str) -> float:
    """Return the peak of a number type over that of 16 bits."""
    peaks = gpu.peaks.tflops
    half = peaks.get("bf16", peaks.get("fp16"))
    return peaks[number_type] / half if half and number_type in peaks else 1.0


class _Work(msgspec.Struct, frozen=True):
    """What a GPU computes in a step, in seconds."""

    products: float
    attention: float
    forward: float
    """The share of forward in both."""

    @property
    def seconds(self) -> float:
        """Return the sum."""
        return self.products + self.attention


def _work(plan: Plan) -> _Work:
    """Return how long a GPU computes: all layers' products by their widths, experts' too, and the attention."""
    shape, gpu, tensor = plan.shape, plan.gpu, plan.layout.tensor
    number_type = PRECISIONS[plan.precision].compute
    peak = gpu.peak(number_type)
    (longest, mixed), (common, routed) = plan.stage, shape.mixed_flops
    dense = (longest - mixed) * shape.dense_flops + mixed * common
    part = {"half": shape.half_flops(longest, mixed), "selective": shape.up_flops * longest / shape.layers}
    again = part.get(plan.recompute, 0.0) / (dense + mixed * routed)
    again = (1.0 if plan.recompute == "full" else again) * plan.recomputed_share
    # FlashAttention repeats its scores in any case; what else selective recomputation repeats is elementwise.
    scores = plan.recomputed_share * (plan.recompute == "full" or (plan.recompute != "none" and not plan.flash))
    share = plan.share or matmul_share(gpu, shape, tensor, plan.tokens, number_type)
    split, narrow = plan.layout.expert_split, _INNER * shape.mlp * shape.hidden / (shape.mlp + shape.hidden)
    rows = plan.tokens * shape.top_k * split / tensor
    inside = plan.share or matmul_share(gpu, shape, split, rows, number_type, narrow)
    layers, head = (dense / share + mixed * routed / inside) / peak, shape.head_flops / share / peak
    attention = shape.attention_flops / share / peak
    if plan.flash and not plan.share:
        half = min(peak, gpu.peak("bf16" if "bf16" in gpu.peaks.tflops else "fp16"))
        attention = shape.attention_flops / 2 / gpu.flash / half
    attention, head = attention * longest / shape.layers, head * longest / shape.layers
    tokens = plan.batch * shape.sequence / (plan.layout.replicas * tensor)
    products = tokens * (3 * (layers + head) + again * layers)
    whole = products + tokens * (3 + scores) * attention
    return _Work(products, whole - products, tokens * (layers + head + attention) / whole)


def reached_share(plan: Plan) -> float:
    """Return the share of the GPU's peak that the computation of a plan reaches by itself."""
    return _work(msgspec.structs.replace(plan, share=1.0)).seconds / _work(plan).seconds


# What a step communicates: each collective with its bytes, calls, time, and what it can hide behind.
#
# Volumes follow Rajbhandari et al. (ZeRO, arXiv 1910.02054, section 7), Narayanan et al. (Megatron-LM, arXiv
# 2104.04473, section 3) and, for experts, Lepikhin et al. (GShard, arXiv 2006.16668).


COPY = "copy"
"""The kind of what a GPU and its CPU's memory exchange."""


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
    """What it runs under: ``forward``, ``backward``, the ``attention`` or the ``layers`` of both, or nothing (empty):
    the computation waits for it."""
    call_s: float
    rounds: int = 1
    """How often in a step it happens: once, in each micro-batch, or after some of them."""

    @property
    def seconds(self) -> float:
        """Return the time of all calls."""
        return self.call_s * self.calls

    @property
    def sent_bytes(self) -> float:
        """Return what one GPU sends in a step."""
        return (self.bytes if self.kind == COPY else sent_bytes(self.kind, self.bytes, self.ranks)) * self.calls


def traffic(plan: Plan) -> tuple[Traffic, ...]:
    """Return all communication of a step."""
    found = (
        *_shared(plan), *_copies(plan), *_tensor(plan), *_context(plan), *_experts(plan), *_stages(plan)
    )  # fmt: skip
    return tuple(one for one in found if (one.ranks > 1 or one.kind == COPY) and one.calls)


def _one(
    plan: Plan, what: str, kind: str, size: float, calls: float, ranks: int, stride: int, hides: str, far: float = 1.0
) -> Traffic:
    seconds = collective_seconds(plan.network, kind, size, ranks, stride, far)
    return Traffic(what, kind, size, calls, ranks, stride, hides, seconds, plan.micro_batches)


class Group(msgspec.Struct, frozen=True):
    """Parameters of one GPU that others hold, too, and which ones."""

    of: str
    """Which parameters, as the end of a phrase."""
    parameters: float
    replicas: int
    """GPUs that hold them."""
    shards: int
    """Those of them that share one copy."""
    stride: int
    """How many ranks lie between neighbors."""


def groups(plan: Plan) -> list[Group]:
    """Return the parameters of one GPU, in the mean of the stages, by the GPUs that share them.

    Experts that are spread over GPUs are shared by fewer; what memory holds of each shard is counted in the same way.
    """
    shape, layout = plan.shape, plan.layout
    apart = layout.expert_split * layout.expert
    experts = shape.all_expert_parameters * shape.scale / (layout.stages * apart)
    common = (shape.shape_parameters - shape.all_expert_parameters) * shape.scale / (layout.tensor * layout.stages)
    if apart == layout.tensor:
        return [Group("", common + experts, layout.replicas, layout.shards, layout.tensor)]
    spread = Group(" of experts", experts, layout.expert_replicas, layout.expert_shards, apart)
    return [Group("", common, layout.replicas, layout.shards, layout.tensor), spread]


def _shared(plan: Plan) -> Iterator[Traffic]:
    """Yield what keeps the copies of parameters equal, or gathers them where they are sharded."""
    layout, each = plan.layout, plan.state
    for group in groups(plan):
        gradients, weights = group.parameters * each.gradients, group.parameters * each.parameters
        ranks, stride, name = group.replicas, group.stride, f"gradients{group.of}"
        if layout.zero == 3:
            yield from _gathered(plan, group, gradients, weights)
        elif layout.zero:
            reduced = _once(plan, name, "reduce_scatter", gradients, ranks, stride, "backward")
            yield _each_micro_batch(plan, reduced) if layout.zero == 2 else reduced
            yield _once(plan, f"updated parameters{group.of}", "all_gather", weights, ranks, stride, "")
        else:
            yield _once(plan, name, "all_reduce", gradients, ranks, stride, "backward")


def _gathered(plan: Plan, group: Group, gradients: float, weights: float) -> Iterator[Traffic]:
    """Yield what fully sharded parameters need: for each layer two gathers and a reduce-scatter in a micro-batch.

    In a pipeline it is one of each in a step, because a stage stays gathered between micro-batches.
    """
    layers, stride, shards = plan.shape.layers / plan.layout.stages, group.stride, group.shards
    calls, of = layers * plan.gathers, group.of
    passes = [("parameters", "all_gather", weights, "forward"), ("parameters", "all_gather", weights, "backward")]
    for what, kind, size, hides in [
        *passes[: 1 if plan.layout.stages > 1 else 2],
        ("gradients", "reduce_scatter", gradients, "backward"),
    ]:
        name = f"{what}{of} ({hides})" if what == "parameters" else f"{what}{of}"
        one = _one(plan, name, kind, size / layers, calls, shards, stride, hides)
        yield msgspec.structs.replace(one, rounds=plan.gathers)
    replicas, across = group.replicas // shards, stride * shards
    name = f"gradients{of} across nodes"
    yield _once(plan, name, "all_reduce", gradients / shards, replicas, across, "backward")


def _once(plan: Plan, what: str, kind: str, size: float, ranks: int, stride: int, hides: str) -> Traffic:
    """Return a collective of all buckets, once in a step."""
    calls = max(1, math.ceil(size / plan.bucket_bytes))
    one = _one(plan, what, kind, size / calls, calls, ranks, stride, hides)
    return msgspec.structs.replace(one, rounds=1)


def _each_micro_batch(plan: Plan, one: Traffic) -> Traffic:
    """Return a collective in every micro-batch, or in each round of them: see ``Layout.reduced_together``."""
    rounds = max(1, plan.micro_batches // plan.layout.reduced_together)
    return msgspec.structs.replace(one, calls=one.calls * rounds, rounds=rounds)


def _copies(plan: Plan) -> Iterator[Traffic]:
    """Yield what a GPU copies of a state in the CPU's memory: its shard to gather twice, and its gradients back."""
    if not plan.offload:
        return
    host, layers = interconnect_named(plan.gpu.host), plan.shape.layers / plan.layout.stages
    shards = sum(group.parameters / group.shards for group in groups(plan)) / layers
    state, calls = plan.state, layers * plan.gathers
    for what, size, hides in (
        ("shards from the CPU (forward)", state.parameters, "forward"),
        ("shards from the CPU (backward)", state.parameters if plan.layout.stages == 1 else 0, "backward"),
        ("gradients to the CPU", state.gradients, "backward"),
    ):
        seconds = host.alpha_s + shards * size / (WITHIN * host.bytes_per_s)
        yield Traffic(what, COPY, shards * size, calls if size else 0, 1, 1, hides, seconds, plan.gathers)


def _tensor(plan: Plan) -> Iterator[Traffic]:
    """Yield two all-reduces of the activations in a layer's forward and two in its backward; recomputation repeats.

    One is of the attention, one of the MLP. Experts that are split otherwise than layers gather what was sent to them
    among the GPUs that split them, and nothing where they are whole.
    """
    layout, shape, (layers, mixed) = plan.layout, plan.shape, plan.stage
    size = plan.tokens * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    apart = layout.expert_split < layout.tensor
    inside = layers if not apart or shape.shared_experts else layers - mixed
    messages = [("activations", size, (layers + inside) / 2, layout.tensor)]
    if apart:
        messages.append(("tokens of experts", size * shape.top_k * layout.expert_split / layout.tensor, mixed / 2,
                         layout.expert_split))  # fmt: skip
    hides = "layers" if "tp" in OVERLAPPED[plan.overlapped] else ""
    kinds = ("all_gather", "reduce_scatter") if layout.sequence else ("all_reduce",)
    for what, part, pairs, ranks in messages:
        calls = pairs * plan.micro_batches * _passes(plan)
        for kind in kinds:
            name = f"{what} ({kind.replace('_', '-')})" if layout.sequence else what
            yield _one(plan, name, kind, part, calls, ranks, 1, hides)


def _passes(plan: Plan) -> float:
    """Return the messages of a layer: two in forward, two in backward, and two where forward is done again."""
    return 4 + 2 * plan.recomputed_share * (plan.recompute == "full")


def _context(plan: Plan) -> Iterator[Traffic]:
    """Yield the keys and values that GPUs with parts of a sample pass around, and in backward their gradients too.

    Ring attention (arXiv 2310.01889): each part visits the other GPUs while they compute with the one before it.
    """
    layout, shape = plan.layout, plan.shape
    layers = plan.stage[0]
    size = plan.tokens * shape.ring_width / layout.tensor * PRECISIONS[plan.precision].activation_bytes
    # Forward once, again where it is repeated, and in backward the parts and their gradients.
    calls = layers * plan.micro_batches * (layout.context - 1) * (_passes(plan) - 2) / 2
    gradients = layers * plan.micro_batches * (layout.context - 1) * 2
    calls += gradients
    yield _one(plan, "keys and values", "send_recv", size, calls, layout.context, layout.tensor, "attention")


def _experts(plan: Plan) -> Iterator[Traffic]:
    """Yield tokens to their experts and back, in forward and in backward."""
    layout, shape = plan.layout, plan.shape
    if not shape.expert_layers:
        return
    size = plan.tokens * shape.top_k / layout.tensor * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    calls = plan.stage[1] * plan.micro_batches * _passes(plan)
    hides = "layers" if "ep" in OVERLAPPED[plan.overlapped] else ""
    far = min(1.0, plan.expert_nodes / shape.top_k) if plan.expert_nodes else 1.0  # a node gets each token once
    name = "tokens to experts and back"
    yield _one(plan, name, "all_to_all", size, calls, layout.expert, layout.expert_split, hides, far)


def _stages(plan: Plan) -> Iterator[Traffic]:
    """Yield a stage's activations to the next, and their gradients back; ranks that split layers send a part each."""
    layout, shape = plan.layout, plan.shape
    size = plan.tokens * shape.hidden * PRECISIONS[plan.precision].activation_bytes
    virtual = layout.virtual_stages if layout.schedule == "interleaved" else 1
    calls = 2 * plan.micro_batches * virtual
    stride, part = layout.tensor * layout.replicas, size / layout.tensor
    local = ranks_per_node(stride, layout.stages, plan.network.gpus_per_node)
    if 1 < local < layout.stages:  # the last stage on a node, which sets the pace, has one neighbor on another
        yield _one(plan, "micro-batches", "send_recv", part, calls / 2, local, stride, "")
        yield _one(plan, "micro-batches between nodes", "send_recv", part, calls / 2, layout.stages, stride, "")
    else:
        yield _one(plan, "micro-batches", "send_recv", part, calls, layout.stages, stride, "")


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step, in seconds of one GPU."""

    compute_s: float
    """Of the matrix products, or of launching operators where that takes longer."""
    launch_s: float
    """What the host takes to launch all operators."""
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
        return max(0.0, 1 - self.exposed_s / self.communication_s) if self.communication_s else None

    @property
    def efficiency(self) -> float:
        """Return the share of the step in which the GPU computes."""
        return self.compute_s / self.step_s


def predict_step(plan: Plan) -> StepPrediction:
    """Compute the parts of a step, of a mixture whose first layers are dense by the stage that takes longest."""
    mixed = plan.layout.stages > 1 and plan.shape.dense_layers > 0
    stages = [plan, *([msgspec.structs.replace(plan, first=True)] if mixed else [])]
    return max(map(_step, stages), key=lambda step: step.step_s)


def _step(plan: Plan) -> StepPrediction:
    layout, work, messages = plan.layout, _work(plan), traffic(plan)
    peak = layout.gpus * plan.gpu.peak(PRECISIONS[plan.precision].compute)
    launches = _launch_seconds(plan, messages)
    compute = max(work.seconds, launches)
    blocking = sum(one.seconds for one in messages if not one.hides)
    updates = sum(one.seconds for one in messages if one.what.startswith("updated parameters"))
    # What hides a layer's own messages hides no other: attention first, then all of the layer, then the phases.
    left, free = {}, compute
    for phase in ("attention", "layers"):
        left[phase] = _not_hidden(plan, messages, phase, min(work.attention, free) if phase == "attention" else free)
        free -= sum(one.seconds for one in messages if one.hides == phase) - left[phase]
    for phase, part in (("forward", work.forward), ("backward", 1 - work.forward)):
        left[phase] = _not_hidden(plan, messages, phase, free * part)
    in_pipeline = compute + blocking - updates + left["attention"] + left["layers"]
    bubble = bubble_share(layout.schedule, layout.stages, plan.micro_batches, layout.virtual_stages) or 0.0
    bubble_s = in_pipeline * bubble / (1 - bubble)
    exposed = blocking + sum(left.values())
    communication = sum(one.seconds for one in messages)
    optimizer = optimizer_seconds(plan)
    base = compute + bubble_s + optimizer
    return StepPrediction(
        compute_s=compute,
        launch_s=launches,
        bubble_s=bubble_s,
        optimizer_s=optimizer,
        communication_s=communication,
        exposed_s=exposed,
        step_s=base + exposed,
        serial_s=base + communication,
        ideal_s=max(compute, communication) + bubble_s + optimizer,
        model_flops=model_flops(plan.shape, plan.batch),
        peak_flops=peak,
        samples=plan.batch,
        tokens=plan.batch * plan.shape.sequence,
        traffic=messages,
    )


def _launch_seconds(plan: Plan, messages: tuple[Traffic, ...]) -> float:
    """Return the time that a host takes to launch what a GPU computes and sends in a step: small models wait for it."""
    shape, layout = plan.shape, plan.layout
    experts = plan.stage[1] * shape.experts / layout.expert * expert_operators(plan)
    computed = (plan.stage[0] * shape.operators + experts) * plan.micro_batches
    return LAUNCH_S * (computed + STEP_OPERATORS + sum(one.calls for one in messages))


def expert_operators(plan: Plan) -> int:
    """Return the operators of one expert in forward and backward."""
    return EXPERT_OPERATORS.get(PRECISIONS[plan.precision].compute, _EXPERT_OPERATORS)


def _not_hidden(plan: Plan, messages: tuple[Traffic, ...], phase: str, seconds: float) -> float:
    """Return the part of the communication under a phase that exceeds it.

    What happens in every micro-batch has all of forward or backward to hide in, gradients of the whole step only the
    backward of the last micro-batch. At least the ends are exposed: the last bucket of gradients, of sharded
    parameters the gather of the first layer and the reduce-scatter of the last one, and of messages that are cut one
    part of each.
    """
    under = [one for one in messages if one.hides == phase]
    every = sum(one.seconds for one in under if one.rounds > 1)
    once = sum(one.seconds for one in under if one.rounds == 1)
    hidden = every if every < seconds else seconds
    room = min(seconds - hidden, seconds / plan.micro_batches)
    return max((every - hidden) + max(once - room, 0.0), sum(_end_seconds(one) for one in under))


def _end_seconds(one: Traffic) -> float:
    if one.what.startswith("parameters") and one.hides == "backward":
        return 0.0  # the last layer, which backward begins with, is gathered in forward
    if one.hides == "layers":
        return one.seconds / one.ranks
    return 0.0 if one.hides == "attention" else one.call_s * one.rounds


def optimizer_seconds(plan: Plan) -> float:
    """Return the time to read and write the state once, which memory bandwidth limits: the GPU's, or the CPU's."""
    each, layout, touched = plan.state, plan.layout, 0.0
    for held in (memory.state for memory in plan.held):
        owned = held.parameters / each.parameters
        if layout.zero in (1, 2):  # only the shard that this GPU updates
            owned = held.optimizer / each.optimizer if each.optimizer else owned / layout.shards
        touched = max(touched, owned * (each.parameters + each.gradients) + 2 * held.optimizer)
    if plan.offload:
        return touched * min(plan.gpu.gpus_per_host, layout.gpus) / HOST_BYTES_PER_S
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
