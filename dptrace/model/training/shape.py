"""The shape of a transformer decoder or of a stack of layers, and how many parameters follow from it.

The counts are those of GPT-2 and Megatron-LM (Narayanan et al., arXiv 2104.04473, equation 2) and, with a gated MLP
and fewer key and value heads, those of LLaMA (Touvron et al., arXiv 2302.13971).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from dptrace.errors import UsageError


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A decoder: embedding, equal layers of attention and MLP, and a head."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    mlp: int
    """Width inside of the MLP."""
    vocabulary: int
    sequence: int
    """Tokens in a sample."""
    gated: bool = False
    """Whether the MLP has three matrices (SwiGLU) instead of two."""
    bias: bool = True
    tied: bool = False
    """Whether the head uses the embedding's table."""
    positions: bool = True
    """Whether positions have a table of their own."""
    experts: int = 1
    """MLPs in each layer, to some of which a router sends each token."""
    top_k: int = 1
    """Experts that a token goes to."""
    shared_experts: int = 0
    """MLPs of an expert's width that every token uses."""
    dense_layers: int = 0
    """First layers with one MLP instead of experts."""
    dense_mlp: int = 0
    """Width inside their MLP."""
    head_width: float = 0
    """Numbers of a head; 0: the heads share the model's width."""
    query_rank: int = 0
    """Width to which latent attention (MLA) projects a token before its queries; 0: not at all."""
    kv_rank: int = 0
    """Width to which it projects it before keys and values; 0: no latent attention."""
    rope_width: int = 0
    """Numbers of a head's query, and of the key that latent heads share, that hold the position."""
    counted: float | None = None
    """Number of parameters, where it was given instead of the shape or with it."""

    @cached_property
    def attention_width(self) -> float:
        """Width of a token's heads together."""
        return self.heads * self.head_width if self.head_width else self.hidden

    @cached_property
    def key_value_width(self) -> float:
        """Width of a token's keys, and of its values."""
        return self.attention_width * self.key_value_heads / self.heads

    @property
    def ring_width(self) -> float:
        """Numbers of a token's keys and values that GPUs exchange that share its sample: of MLA, all heads'."""
        return 2 * self.key_value_width + self.heads * self.rope_width

    @cached_property
    def attention_parameters(self) -> float:
        """Parameters of a layer without its MLPs: the projections, and two normalizations."""
        width, own, narrow = self.hidden, self.attention_width, self.key_value_width
        norms = 4 * width if self.bias else 2 * width
        if self.kv_rank:  # DeepSeek-V2 (arXiv 2405.04434, section 2.1)
            queries, rank = own + self.heads * self.rope_width, self.query_rank
            queries = rank * (width + queries + 1) if rank else width * queries
            keys = width * (self.kv_rank + self.rope_width) + self.kv_rank * (2 * own + 1)
            return queries + keys + own * width + norms
        biases = own + width + 2 * narrow if self.bias else 0
        return 2 * width * own + 2 * width * narrow + biases + norms

    def mlp_parameters(self, inner: float) -> float:
        """Parameters of an MLP of an inner width."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * inner + self.hidden if self.bias else 0
        return matrices * self.hidden * inner + biases

    @cached_property
    def expert_parameters(self) -> float:
        """Parameters of one MLP."""
        return self.mlp_parameters(self.mlp)

    @cached_property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.experts > 1 else 0

    @property
    def router_parameters(self) -> float:
        """Parameters of a layer's router."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @cached_property
    def dense_layer_parameters(self) -> float:
        """Parameters of a layer that every token uses, without experts if there are several."""
        mlp = self.expert_parameters * (1 if self.experts == 1 else self.shared_experts)
        return self.attention_parameters + self.router_parameters + mlp

    def common_parameters(self, layers: float, dense: float) -> float:
        """Parameters that every token uses in some layers, of which the first *dense* have no experts."""
        more = self.mlp_parameters(self.dense_mlp or self.mlp) - self.dense_layer_parameters + self.attention_parameters
        return layers * self.dense_layer_parameters + (dense * more if self.experts > 1 else 0.0)

    @cached_property
    def all_expert_parameters(self) -> float:
        """Parameters of all experts of all layers but the shared ones; 0 in a dense model."""
        return self.expert_layers * self.experts * self.expert_parameters

    @cached_property
    def mlp_width(self) -> float:
        """Width inside the MLPs of a token, in the mean over the layers."""
        return self.inner_widths(self.layers, self.expert_layers) / self.layers

    def inner_widths(self, layers: float, mixed: float) -> float:
        """Widths inside the MLPs of a token in some layers, of which *mixed* have experts, together."""
        experts = mixed * (self.top_k + self.shared_experts) * self.mlp
        return experts + (layers - mixed) * (self.dense_mlp if self.experts > 1 and self.dense_mlp else self.mlp)

    @property
    def embedding_parameters(self) -> float:
        """Parameters of the tables of tokens and positions."""
        return self.hidden * (self.vocabulary + (self.sequence if self.positions else 0))

    @property
    def head_parameters(self) -> float:
        """Parameters of the last normalization and, unless it is the embedding's, the head's table."""
        table = 0 if self.tied else self.hidden * self.vocabulary
        return table + self.hidden * (2 if self.bias else 1)

    @cached_property
    def shape_parameters(self) -> float:
        """All parameters, as the shape has them."""
        common = self.common_parameters(self.layers, self.dense_layers)
        return common + self.all_expert_parameters + self.embedding_parameters + self.head_parameters

    @property
    def parameters(self) -> float:
        """All parameters: those given, else those of the shape."""
        return self.counted if self.counted is not None else self.shape_parameters

    @property
    def active_parameters(self) -> float:
        """Parameters that take part in computing one token: of a layer's experts, its *top_k*."""
        idle = self.all_expert_parameters * (1 - self.top_k / self.experts)
        return self.parameters - idle * self.scale

    @cached_property
    def scale(self) -> float:
        """Return the ratio of the given number of parameters to the shape's."""
        return self.parameters / self.shape_parameters

    @property
    def dense_flops(self) -> float:
        """Forward operations of one token in the matrices of a layer without experts."""
        return 2 * self.common_parameters(1, 1) * self.scale

    @property
    def mixed_flops(self) -> tuple[float, float]:
        """Forward operations of one token in a layer with experts: in what every token uses, and in its experts."""
        experts = 2 * self.expert_parameters * self.top_k if self.experts > 1 else 0.0
        return 2 * self.dense_layer_parameters * self.scale, experts * self.scale

    @property
    def layer_flops(self) -> float:
        """Forward operations of one token in the matrices of all layers."""
        common = 2 * self.common_parameters(self.layers, self.dense_layers) * self.scale
        return common + self.expert_layers * self.mixed_flops[1]

    def half_flops(self, layers: float, mixed: float) -> float:
        """Forward operations of one token in every second matrix of some layers: keys, output, and the MLP's second."""
        widths = layers * (self.key_value_width + self.attention_width) + self.inner_widths(layers, mixed)
        return 2 * self.hidden * widths * self.scale

    @property
    def up_flops(self) -> float:
        """Forward operations of one token from the latents of latent attention to its heads, in all layers."""
        keys, rope = self.kv_rank * 2 * self.attention_width, self.heads * self.rope_width
        return 2 * (self.query_rank * (self.attention_width + rope) + keys) * self.layers * self.scale

    @property
    def head_flops(self) -> float:
        """Forward operations of one token in the head's matrix."""
        return 2 * self.hidden * self.vocabulary * self.scale

    @property
    def attention_flops(self) -> float:
        """Forward operations of one token's scores and of the values that they weight, in all layers."""
        return 2 * self.sequence * (2 * self.attention_width + self.heads * self.rope_width) * self.layers

    @property
    def operators(self) -> float:
        """Operators that the host launches for forward and backward of one layer, without those of each expert."""
        return 45

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample: its tokens and their targets, as int64."""
        return 16 * self.sequence


class LayerStack(ModelShape, frozen=True, kw_only=True, dict=True):
    """Layers one after another without attention: a perceptron, or a network of convolutions. A sample is one token."""

    text: str
    """What it is called."""
    weights: float
    """All parameters."""
    flops: float
    """Forward operations of a sample."""
    kept: float
    """Numbers that forward keeps of a sample."""
    inputs: float
    """Numbers of a sample."""

    @cached_property
    def dense_layer_parameters(self) -> float:
        """Parameters of a layer, in the mean."""
        return self.weights / self.layers

    @property
    def ring_width(self) -> float:
        """None: samples have one token."""
        return 0.0

    @property
    def embedding_parameters(self) -> float:
        """None: there are no tables."""
        return 0.0

    @property
    def head_parameters(self) -> float:
        """None: the last layer is one as the others."""
        return 0.0

    @property
    def layer_flops(self) -> float:
        """Forward operations of a sample."""
        return self.flops

    @property
    def head_flops(self) -> float:
        """None: the last layer is one as the others."""
        return 0.0

    @property
    def dense_flops(self) -> float:
        """Forward operations of a sample in a layer, in the mean."""
        return self.flops / self.layers

    def half_flops(self, layers: float, mixed: float) -> float:
        """Forward operations of a sample in half of some layers."""
        return self.dense_flops * layers / 2

    @property
    def attention_flops(self) -> float:
        """None."""
        return 0.0

    @property
    def operators(self) -> float:
        """Product, bias and activation; backward of each, and the gradients' accumulation."""
        return 10

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample in float32, and of its target."""
        return 4 * self.inputs + 8


def perceptron(widths: Sequence[int]) -> LayerStack:
    """Return a multi-layer perceptron by the widths between its layers; forward keeps each layer's input.

    >>> round(perceptron([784, 1024, 512, 256, 10]).parameters)
    1462538
    """
    pairs = list(pairwise(widths))
    weights = sum(inputs * outputs for inputs, outputs in pairs)
    return _stack(
        ",".join(map(str, widths)),
        len(pairs),
        weights + sum(widths[1:]),
        2 * weights,
        sum(widths),
        widths[0],
        widths[-1],
    )


def _stack(text: str, layers: int, weights: float, flops: float, kept: float, inputs: int, outputs: int) -> LayerStack:
    hidden = max(1, round(math.sqrt(weights / layers)))
    return LayerStack(
        layers=layers, hidden=hidden, heads=1, key_value_heads=1, mlp=hidden, vocabulary=outputs, sequence=1,
        text=text, weights=weights, flops=flops, kept=kept, inputs=inputs,
    )  # fmt: skip


RESNET18 = _stack("resnet18", 21, 11_181_642, 74.03e6, 107_882, 3 * 32 * 32, 10)
"""Torchvision's ResNet-18 with ten classes, on images of 32 × 32: counted by torch, as a test does it."""


def layer_stack(text: str) -> LayerStack:
    """Return the layers that a text describes: the widths of a perceptron, or ``resnet18``.

    Raises:
        UsageError: it is neither.
    """
    if text.strip().lower() == RESNET18.text:
        return RESNET18
    words = text.split(",")
    if len(words) < 2 or not all(word.strip().isdecimal() and 0 < int(word) <= 1 << 20 for word in words):
        raise UsageError(f"--layers-of {text}: give the widths of an MLP, 784,1024,512,10, or resnet18.")
    return perceptron([int(word) for word in words])


FAMILIES = ("gpt", "llama")
"""``gpt``: biases, an MLP four times as wide, a table of positions, head and embedding share a table. ``llama``: none
of these, and a gated MLP."""

KNOWN = (
    # billions of parameters, layers, hidden, heads
    (0.124, 12, 768, 12),
    (0.355, 24, 1024, 16),
    (0.774, 36, 1280, 20),
    (0.91, 16, 2048, 8),
    (1.31, 24, 2048, 32),
    (1.56, 48, 1600, 25),
    (2.7, 32, 2560, 32),
    (6.7, 32, 4096, 32),
    (13.0, 40, 5120, 40),
    (32.5, 60, 6656, 52),
    (65.2, 80, 8192, 64),
    (174.6, 96, 12288, 96),
    (310.1, 96, 16384, 128),
    (529.6, 105, 20480, 128),
    (1008.0, 128, 25600, 160),
)
"""GPT-2 and GPT-3 (arXiv 2005.14165, table 2.1), Pythia-1B (arXiv 2304.01373, table 1, its embedding once), OPT-1.3B
(arXiv 2205.01068, table 1), LLaMA (arXiv 2302.13971, table 2), Megatron-LM (arXiv 2104.04473, table 1)."""


_ALIKE = 0.15
"""Relative difference in size up to which a published model's shape is taken as it is."""


def decoder_shape(
    layers: int,
    hidden: int,
    *,
    heads: int | None = None,
    key_value_heads: int | None = None,
    mlp: int | None = None,
    vocabulary: int = 51_200,
    sequence: int = 2048,
    family: str = "gpt",
    **more: Any,
) -> ModelShape:
    """Fill in what a family of models has in common.

    Args:
        heads: by default, of 128 each, or 64 in models narrower than 2,048.
        mlp: width inside the MLP; by default 4 × hidden, and of ``llama`` 8/3 × hidden, rounded up to 256.
        family: one of FAMILIES.
        more: other fields of the shape.
    """
    llama = family == "llama"
    usual = max(1, hidden // (128 if hidden >= 2048 else 64))
    heads = heads or next(count for count in range(usual, 0, -1) if hidden % count == 0)
    wide = math.ceil(8 * hidden / 3 / 256) * 256 if llama else 4 * hidden
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=key_value_heads or heads,
        mlp=mlp or wide,
        vocabulary=vocabulary,
        sequence=sequence,
        gated=llama,
        bias=not llama,
        tied=not llama,
        positions=not llama,
        **more,
    )


def assumed_shape(parameters: float) -> tuple[int, int, int]:
    """Return layers, hidden and heads of the published model that is nearest in size.

    Where it is more than 15 % smaller or larger, the next larger one gets fewer layers; the largest gets more.

    >>> assumed_shape(7e9), assumed_shape(48e9), assumed_shape(2e9)
    ((32, 4096, 32), (59, 8192, 64), (24, 2560, 32))
    """
    size = parameters / 1e9
    billions, layers, hidden, heads = min(KNOWN, key=lambda known: abs(math.log(size / known[0])))
    if abs(size / billions - 1) > _ALIKE:
        billions, layers, hidden, heads = next((known for known in KNOWN if known[0] >= size), KNOWN[-1])
        layers = max(1, round(layers * size / billions))
    return layers, hidden, heads


# Floating-point operations of a step, by the formulas of Megatron-LM (arXiv 2104.04473, equation 3 and appendix).
#
# A matrix product takes 2 operations for each parameter and token; the attention's scores and their use 4·s·h a token,
# as published counts have it, without halving for the causal mask. Backward takes twice as many as forward.


def forward_flops(shape: ModelShape) -> float:
    """Return the forward operations of one token: 2 for each parameter of a matrix, and the attention's."""
    return shape.layer_flops + shape.head_flops + shape.attention_flops


def model_flops(shape: ModelShape, samples: float) -> float:
    """Return the operations of a step that training needs: forward once, and backward."""
    return 3 * forward_flops(shape) * samples * shape.sequence
