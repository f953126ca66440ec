"""Bytes that a training takes on one GPU, whether they fit, and how many GPUs it needs at least."""

from __future__ import annotations

import math

import msgspec

from dptrace.model.training.layout import Layout, micro_batches_in_flight
from dptrace.model.training.shape import LayerStack, ModelShape

# Bytes of the model's state: parameters, gradients, optimizer state and master weights.
#
# With Adam in mixed precision a parameter takes 16 bytes: 2 for the number itself and 2 for its gradient, and in 32
# bits 4 for a master copy and 4 each for Adam's two moments (Rajbhandari et al., "ZeRO", arXiv 1910.02054, section
# 3.1).


class Precision(msgspec.Struct, frozen=True):
    """In which number types a model is stored and computed."""

    weight_bytes: int
    gradient_bytes: int
    activation_bytes: int
    master: bool
    """Whether the optimizer keeps a copy of the weights in 32 bits."""
    state_bytes: int
    """Of each number that the optimizer keeps."""
    compute: str
    """Number type of the matrix products."""
    description: str


PRECISIONS = {
    "bf16": Precision(2, 2, 2, True, 4, "bf16", "mixed precision: weights and gradients in bfloat16, a float32 copy"),
    "fp16": Precision(2, 2, 2, True, 4, "fp16", "mixed precision: weights and gradients in float16, a float32 copy"),
    "fp8": Precision(2, 2, 2, True, 4, "fp8", "matrix products in float8; weights stay bfloat16, with a float32 copy"),
    "amp": Precision(
        4, 4, 2, False, 4, "bf16", "torch.autocast: weights and gradients in float32, products in bfloat16"
    ),
    "bf16-pure": Precision(2, 2, 2, False, 2, "bf16", "everything in bfloat16"),
    "fp32": Precision(4, 4, 4, False, 4, "fp32", "everything in float32"),
    "tf32": Precision(4, 4, 4, False, 4, "tf32", "stored in float32, products in TF32"),
}
"""Precisions by name."""


class Optimizer(msgspec.Struct, frozen=True):
    """What an optimizer keeps for each parameter."""

    numbers: float
    number_bytes: float | None = None
    """Bytes of each number, if they do not depend on the precision."""
    description: str = ""


OPTIMIZERS = {
    "adam": Optimizer(2, description="two moments (Adam, AdamW, LAMB)"),
    "adamw": Optimizer(2, description="the same as adam"),
    "adam-8bit": Optimizer(2, 1, "two moments in 8 bits (arXiv 2110.02861)"),
    "lion": Optimizer(1, description="one moment (Lion, Muon's matrices)"),
    "momentum": Optimizer(1, description="SGD with momentum"),
    "sgd": Optimizer(0, description="SGD without momentum: nothing"),
}
"""Optimizers by name."""


class StateBytes(msgspec.Struct, frozen=True):
    """Bytes of the model's state: per parameter, of a model or of what a GPU holds of it."""

    parameters: float
    gradients: float
    optimizer: float
    """The optimizer's numbers and the master copy of the weights."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.parameters + self.gradients + self.optimizer

    def times(self, parameters: float, gradients: float, optimizer: float) -> StateBytes:
        """Multiply each part by a number of parameters."""
        return StateBytes(self.parameters * parameters, self.gradients * gradients, self.optimizer * optimizer)

    def plus(self, other: StateBytes) -> StateBytes:
        """Add another."""
        parts = (self.parameters + other.parameters, self.gradients + other.gradients)
        return StateBytes(*parts, self.optimizer + other.optimizer)


def state_bytes(
    precision: str = "bf16",
    optimizer: str = "adam",
    *,
    master: bool | None = None,
    gradient_bytes: int | None = None,
) -> StateBytes:
    """Return the bytes of one parameter.

    >>> state_bytes().total, state_bytes("fp32").total, state_bytes(gradient_bytes=4).total
    (16, 16, 18)

    Args:
        precision: one of PRECISIONS.
        optimizer: one of OPTIMIZERS.
        master: whether there is a float32 copy of the weights; by default the precision's.
        gradient_bytes: of each gradient; by default the precision's. 4 where gradients are accumulated in float32.
    """
    stored, kept = PRECISIONS[precision], OPTIMIZERS[optimizer]
    number = kept.number_bytes if kept.number_bytes is not None else stored.state_bytes
    copy = 4 if (stored.master if master is None else master) else 0
    gradients = stored.gradient_bytes if gradient_bytes is None else gradient_bytes
    return StateBytes(stored.weight_bytes, gradients, kept.numbers * number + copy)


# Bytes that forward keeps for backward, per layer and at both ends of the model.
#
# From Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section
# 4), counted tensor by tensor so that gated MLPs, fewer key heads, float32 and missing dropout are covered too. In 16
# bits, with dropout and an MLP of 4h, a layer of micro-batches of b samples with s tokens and a heads takes the paper's
# ``sbh·(34 + 5as/h)`` bytes.


RECOMPUTE = ("none", "selective", "half", "full")
"""What backward computes again: nothing; the attention's scores, a gated MLP's products, and of latent attention all
heads from their latents (DeepSeek-V3); every second product of a layer (torchtitan); or the layer from its input."""


class ActivationPlan(msgspec.Struct, frozen=True):
    """What is kept, and by how many GPUs a layer is shared."""

    recompute: str = "none"
    flash: bool = False
    """Whether attention keeps no table of scores (FlashAttention)."""
    dropout: bool = True
    """Whether the model has dropout, whose masks are kept."""
    tensor: int = 1
    """GPUs that split each layer."""
    sequence: bool = False
    """Whether these GPUs also split the tokens between the split layers."""
    number_bytes: int = 2
    """Bytes of each number."""
    every: int = 1
    """Of how many layers one is recomputed: all, every second one …; the others keep everything."""
    cut: bool = False
    """Whether the messages of tensor parallelism are cut, so that no gathered tensor is there in whole."""
    fused_loss: bool = False
    """Whether the loss is one kernel, which keeps scores and their gradients in the products' number type."""


def layer_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of one layer for a micro-batch of *batch* samples.

    >>> from dptrace.model.training.shape import decoder_shape
    >>> gpt3 = decoder_shape(96, 12288, heads=96)
    >>> layer_bytes(gpt3, 1, ActivationPlan()) / (2048 * 12288)  # 34 + 5as/h
    114.0
    """
    tokens, width, t = batch * shape.sequence, shape.hidden, plan.tensor
    number = plan.number_bytes
    if isinstance(shape, LayerStack):  # what it keeps is the input of each layer
        return batch * shape.kept / shape.layers * number
    if plan.recompute == "full":
        return tokens * width * number / (t if plan.sequence else 1)
    if plan.recompute == "half":  # its input, queries, values, attention's output, the MLP's first factor
        inside = 2 * shape.attention_width + shape.key_value_width + shape.mlp_width
        return tokens * (width / (t if plan.sequence else 1) + inside / t) * number
    mask = 1 if plan.dropout else 0
    routed = shape.top_k * shape.expert_layers / shape.layers  # copies of a token that experts get
    # Outside of the split layers: inputs of both normalizations, of the projections and of the MLP; two masks.
    common = tokens * width * ((4 + routed) * number + 2 * mask)
    # Queries, keys, values, and the output projection's input, at their widths; inside the MLP the inputs of its
    # activation function and of its last matrix, and with a gate those of both factors; the last two are elementwise
    # products of the first, which selective recomputation and fused kernels do again.
    if shape.kv_rank:  # of latent attention those of all heads, and its projections, which are not split
        heads = 4 * shape.attention_width + 2 * shape.heads * shape.rope_width
        heads = heads if plan.recompute == "none" else shape.attention_width
        common += tokens * (shape.query_rank + shape.kv_rank) * number
    else:
        heads = 2 * shape.attention_width + 2 * shape.key_value_width
    inner = 4 if shape.gated and plan.recompute == "none" else 2
    split = tokens * (heads + shape.mlp_width * inner) * number
    if not plan.flash and plan.recompute == "none":
        # Probabilities; with dropout also its mask and its output.
        split += shape.heads * shape.sequence * tokens * (number + mask * (1 + number))
    return common / (t if plan.sequence else 1) + split / t


def start_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of the embedding: the mask of its dropout; nothing of a stack, which has none."""
    mask = 1 if plan.dropout else 0
    return batch * shape.sequence * shape.hidden * mask / (plan.tensor if plan.sequence else 1)


def end_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of the head: inputs of its normalization and matrix, and the scores in float32."""
    tokens = batch * shape.sequence
    if isinstance(shape, LayerStack):
        return 4 * tokens * shape.vocabulary
    inputs = 2 * tokens * shape.hidden * plan.number_bytes / (plan.tensor if plan.sequence else 1)
    return inputs + (plan.number_bytes if plan.fused_loss else 4) * tokens * shape.vocabulary / plan.tensor


def loss_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what the loss takes for a moment beside these scores.

    PyTorch's cross_entropy has the scores as computed, and in float32 their log-softmax and two gradients. The gradient
    of the log-softmax fits where the float32 scores were, the next one only beside it: 14 bytes a score in all. With
    scores that are split, ``loss_parallel`` has one more, and the head's gathered input.
    """
    if isinstance(shape, LayerStack):
        return 0.0
    computed = plan.number_bytes if plan.number_bytes < 4 or plan.fused_loss else 0
    each = computed if plan.fused_loss else computed + (12 if plan.sequence else 8)
    return batch * shape.sequence * shape.vocabulary * each / plan.tensor + _in_whole(shape, batch, plan)


def _in_whole(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU holds of the others' part of a tensor whose tokens are split, while it is gathered."""
    others = 1 - 1 / plan.tensor if plan.sequence else 0.0
    return batch * shape.sequence * shape.hidden * plan.number_bytes * others


def passing_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what a layer has at once beside what it keeps: the inside of its MLP, its input and its output.

    In forward these are activations, as far as they are not kept, in backward gradients.
    """
    if isinstance(shape, LayerStack):
        return 0.0
    inner = shape.mlp_width * (3 if shape.gated else 2) / plan.tensor
    return (
        batch * shape.sequence * (inner + 2 * shape.hidden / (plan.tensor if plan.sequence else 1)) * plan.number_bytes
    )


def layers_bytes(shape: ModelShape, layers: int, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of several layers, of which the first and then every k-th is recomputed.

    >>> from dptrace.model.training.shape import decoder_shape
    >>> gpt3, plan = decoder_shape(96, 12288, heads=96), ActivationPlan(recompute="full", every=4)
    >>> layers_bytes(gpt3, 8, 1, plan) / layer_bytes(gpt3, 1, ActivationPlan())  # 6 layers, and 2 x 2/114
    6.035087719298246
    """
    again = math.ceil(layers / plan.every)
    kept = msgspec.structs.replace(plan, recompute="none")
    return again * layer_bytes(shape, batch, plan) + (layers - again) * layer_bytes(shape, batch, kept)


def model_activation_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what the layers of the whole model keep, without both ends.

    >>> from dptrace.model.training.shape import decoder_shape
    >>> round(model_activation_bytes(decoder_shape(96, 12288, heads=96), 1, ActivationPlan()) / 1e9)
    275
    """
    return layers_bytes(shape, shape.layers, batch, plan)


USABLE = 0.9
"""Share of a GPU's memory that a training can use; CUDA's context, NCCL's buffers and fragmentation take the rest."""


class GpuMemory(msgspec.Struct, frozen=True):
    """What the fullest GPU holds."""

    state: StateBytes
    gathered_bytes: float
    """Parameters of other shards that are gathered, and gradients before they are scattered."""
    activation_bytes: float
    recompute_bytes: float
    """What is there for a moment: in backward a layer's activations and their gradients; or the loss, beside the holes
    between what is kept that layers left in forward."""
    micro_batches_in_flight: float
    host_bytes: float = 0.0
    """The state that is in the CPU's memory instead."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.state.total + self.gathered_bytes + self.activation_bytes + self.recompute_bytes

    def offloaded(self) -> GpuMemory:
        """Return the memory with the state in the CPU's memory: a GPU gathers from it what it computes with."""
        return msgspec.structs.replace(self, state=StateBytes(0.0, 0.0, 0.0), host_bytes=self.state.total)

    def fits(self, capacity_bytes: float, usable: float = USABLE) -> bool:
        """Return whether a GPU of this capacity can hold it."""
        return self.total <= capacity_bytes * usable


def stage_memories(
    shape: ModelShape,
    each: StateBytes,
    layout: Layout,
    plan: ActivationPlan,
    micro_batch: float,
    micro_batches: int = 1,
    offload: bool = False,
) -> list[GpuMemory]:
    """Return what a GPU of the first stage holds, and one of the last, which is the fullest or the one with most state.

    Args:
        each: bytes of one parameter's state.
        plan: what is kept of a layer; its ``tensor`` and ``sequence`` are taken from the layout.
        micro_batch: samples in a micro-batch.
        micro_batches: micro-batches in a step.
        offload: whether the state is in the CPU's memory, from which all of it is gathered.
    """
    plan = msgspec.structs.replace(plan, tensor=layout.tensor, sequence=layout.sequence)
    whole = msgspec.structs.replace(plan, recompute="none")
    layers, micro_batch = math.ceil(shape.layers / layout.stages), micro_batch / layout.context
    recomputed = layer_bytes(shape, micro_batch, whole) - layer_bytes(shape, micro_batch, plan)
    passing = passing_bytes(shape, micro_batch, plan)
    whole_tokens = 0.0 if plan.cut else 2 * _in_whole(shape, micro_batch, plan)  # of attention and of MLP
    forward, backward = min(recomputed, passing) + whole_tokens, recomputed + passing + 2 * whole_tokens
    found = []
    for stage in sorted({0, layout.stages - 1}):
        first, last = stage == 0, stage == layout.stages - 1
        flight = micro_batches_in_flight(layout.schedule, layout.stages, micro_batches, layout.virtual_stages)
        flight = flight if first else 1
        kept = layers_bytes(shape, layers, micro_batch, plan) * flight
        kept += start_bytes(shape, micro_batch, plan) * flight if first else 0
        kept += end_bytes(shape, micro_batch, plan) if last else 0
        common, experts = _held(shape, layout, layers, first, last)
        state = _sharded(each, common, layout, layout.shards)
        state = state.plus(_sharded(each, experts, layout, layout.expert_shards))
        moment = max(backward, forward + loss_bytes(shape, micro_batch, plan)) if last else backward
        whole_bytes = _gathered(shape, each, layout, (common, experts), micro_batches, offload)
        found.append(GpuMemory(state, whole_bytes, kept, moment, flight))
    return found


def _held(shape: ModelShape, layout: Layout, layers: int, first: bool, last: bool) -> tuple[float, float]:
    """Return the parameters of one GPU before sharding: common ones, and those of its experts."""
    ends = (shape.embedding_parameters if first else 0) + (shape.head_parameters if last else 0)
    if last and not first and shape.tied:
        ends += shape.hidden * shape.vocabulary  # a copy of the embedding's table
    dense = min(layers, shape.dense_layers) if first else max(0, layers - shape.layers + shape.dense_layers)
    common = shape.common_parameters(layers, dense) + ends
    experts = (layers - dense) * shape.experts * shape.expert_parameters / layout.expert if shape.experts > 1 else 0.0
    return common / layout.tensor * shape.scale, experts / layout.expert_split * shape.scale


def _sharded(each: StateBytes, parameters: float, layout: Layout, shards: int) -> StateBytes:
    """Divide what the ZeRO stage shards."""
    divide = [shards if layout.zero >= stage else 1 for stage in (3, 2, 1)]
    return each.times(*(parameters / by for by in divide))


def _gathered(
    shape: ModelShape, each: StateBytes, layout: Layout, held: tuple[float, float], micro_batches: int, offload: bool
) -> float:
    """Return what is there in whole for a while, of a GPU that holds common parameters and experts before sharding.

    As PyTorch's ``fully_shard`` does it: both ends stay gathered for the step; of layers there are two, the buffer of
    one that arrives, and the gradients of one. In a pipeline all stay gathered between micro-batches, whose gradients
    add up in float32; if there is one micro-batch for each stage, one virtual stage after the other.
    """
    if layout.zero == 2 and layout.reduced_together > 1:
        return sum(held) / layout.virtual_stages * each.gradients
    if layout.zero < 3:
        return 0.0
    # What is not sharded is there anyway.
    common, routed = (shards > 1 or offload for shards in (layout.shards, layout.expert_shards))
    experts = shape.experts * shape.expert_parameters / layout.expert if shape.experts > 1 else 0.0
    layer = common * shape.dense_layer_parameters / layout.tensor * shape.scale
    layer += routed * min(held[1], experts / layout.expert_split * shape.scale)
    passing = layer * (each.parameters + each.gradients)
    if layout.stages > 1:
        together = layout.virtual_stages if micro_batches <= layout.stages else 1
        whole = common * held[0] + routed * held[1]
        return passing + whole * (each.parameters + max(4.0, each.gradients) / together)
    ends = common * (shape.embedding_parameters + shape.head_parameters) / layout.tensor * shape.scale
    return passing + (ends + 2 * layer) * each.parameters


def gpus_for_state(state_bytes: float, capacity_bytes: float) -> int:
    """Return the GPUs whose memory together holds a model's state, without activations.

    >>> gpus_for_state(16 * 7e9, 80e9), gpus_for_state(16 * 540e9, 80e9)
    (2, 108)
    """
    return math.ceil(state_bytes / capacity_bytes - 1e-9)


def ddp_wall(capacity_bytes: float, bytes_per_parameter: float = 16) -> float:
    """Return the parameters whose state fills a GPU: DDP can't train a larger model.

    >>> ddp_wall(80e9), ddp_wall(40e9)
    (5000000000.0, 2500000000.0)
    """
    return capacity_bytes / bytes_per_parameter
