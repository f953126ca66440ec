"""Bytes that forward keeps for backward, per layer and at both ends of the model.

From Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4),
counted tensor by tensor so that gated MLPs, fewer key heads, float32 and missing dropout are covered too. In 16 bits,
with dropout and an MLP of 4h, a layer of micro-batches of b samples with s tokens and a heads takes the paper's
``sbh·(34 + 5as/h)`` bytes.
"""

from __future__ import annotations

import math

import msgspec

from dptrace.model.training.shape import ModelShape

__all__ = [
    "RECOMPUTE",
    "ActivationPlan",
    "end_bytes",
    "layer_bytes",
    "layers_bytes",
    "model_activation_bytes",
    "start_bytes",
]

RECOMPUTE = ("none", "selective", "full")
"""What backward computes again: nothing, the attention's scores and probabilities, or the layer from its input."""


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


def layer_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of one layer for a micro-batch of *batch* samples.

    >>> from dptrace.model.training.shape import decoder_shape
    >>> gpt3 = decoder_shape(96, 12288, heads=96)
    >>> layer_bytes(gpt3, 1, ActivationPlan()) / (2048 * 12288)  # 34 + 5as/h
    114.0
    """
    tokens, width, t = batch * shape.sequence, shape.hidden, plan.tensor
    number = plan.number_bytes
    if plan.recompute == "full":
        return tokens * width * number / (t if plan.sequence else 1)
    mask = 1 if plan.dropout else 0
    # Outside of the split layers: inputs of both normalizations, of the projections and of the MLP; two masks.
    common = tokens * width * (4 * number + 2 * mask)
    # Queries, keys, values, and the output projection's input; inside the MLP the inputs of its activation function
    # and of its last matrix, and with a gate those of both factors.
    attention = tokens * (2 * width + 2 * shape.key_value_width) * number
    mlp = tokens * shape.top_k * shape.mlp * (4 if shape.gated else 2) * number
    split = attention + mlp
    if not plan.flash and plan.recompute == "none":
        # Probabilities; with dropout also its mask and its output.
        split += shape.heads * shape.sequence * tokens * (number + mask * (1 + number))
    return common / (t if plan.sequence else 1) + split / t


def start_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of the embedding: the mask of its dropout."""
    mask = 1 if plan.dropout else 0
    return batch * shape.sequence * shape.hidden * mask / (plan.tensor if plan.sequence else 1)


def end_bytes(shape: ModelShape, batch: float, plan: ActivationPlan) -> float:
    """Return what one GPU keeps of the head: inputs of its normalization and matrix, and the scores in float32."""
    tokens = batch * shape.sequence
    inputs = 2 * tokens * shape.hidden * plan.number_bytes / (plan.tensor if plan.sequence else 1)
    return inputs + 4 * tokens * shape.vocabulary / plan.tensor


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
