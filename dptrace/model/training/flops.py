"""Floating-point operations of a step, by the formulas of Megatron-LM (arXiv 2104.04473, equation 3 and appendix).

A matrix product takes 2 operations for each parameter and token; the attention's scores and their use 4·s·h a token, as
published counts have it, without halving for the causal mask. Backward takes twice as many as forward.
"""

from __future__ import annotations

from dptrace.model.training.shape import ModelShape

__all__ = ["attention_flops", "forward_flops", "hardware_flops", "model_flops"]


def attention_flops(shape: ModelShape) -> float:
    """Return the forward operations of one token's scores and of the values that they weight, in all layers."""
    return 4 * shape.sequence * shape.hidden * shape.layers


def forward_flops(shape: ModelShape) -> float:
    """Return the forward operations of one token: 2 for each parameter of a matrix, and the attention's."""
    layers = shape.layers * (shape.dense_layer_parameters + _expert_parameters(shape))
    head = shape.hidden * shape.vocabulary
    return 2 * (layers + head) * shape.scale + attention_flops(shape)


def _expert_parameters(shape: ModelShape) -> float:
    return shape.top_k * shape.expert_parameters if shape.experts > 1 else 0.0


def model_flops(shape: ModelShape, samples: float) -> float:
    """Return the operations of a step that training needs: forward once, and backward."""
    return 3 * forward_flops(shape) * samples * shape.sequence


def hardware_flops(shape: ModelShape, samples: float, recompute: str = "none", share: float = 1.0) -> float:
    """Return the operations that are carried out, with those that backward repeats.

    >>> from dptrace.model.training.shape import decoder_shape
    >>> gpt3 = decoder_shape(96, 12288, heads=96)
    >>> round(hardware_flops(gpt3, 1536, "full") / model_flops(gpt3, 1536), 2)
    1.33

    Args:
        share: the share of the layers of which *recompute* holds; the others repeat nothing.
    """
    tokens = samples * shape.sequence
    layers = forward_flops(shape) - 2 * shape.hidden * shape.vocabulary * shape.scale
    repeated = {"none": 0.0, "selective": attention_flops(shape), "full": layers}[recompute]
    return model_flops(shape, samples) + share * repeated * tokens
