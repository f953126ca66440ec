"""The models that the trainers train: their names, their sizes, and the default training options of each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DECODERS", "MLPS", "MODELS", "WIDTHS", "Model"]


@dataclass(frozen=True, slots=True)
class Model:
    """One model and its default options."""

    description: str
    batch_size: int
    optimizer: str
    lr: float
    weight_decay: float = 0.0
    blocks: int = 0
    """How many equal blocks of several layers it has, whose activations can be recomputed."""
    tp_units: int = 0
    """Heads or neurons; the number of tensor-parallel ranks must divide it. 0 if the model cannot be split."""
    context: int = 0
    """Tokens in a sample, for decoders."""


WIDTHS = {
    "small": [784, 1024, 512, 256, 10],  # 1.5 million parameters
    "medium": [784, 2048, 2048, 1024, 512, 10],  # 8.4 million
    "large": [784, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 35.2 million
    "xlarge": [784, 4096, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 52.0 million
}
"""Neurons in each layer of the MLPs. Deep, so that one layer's gradients can travel while the next one's are
computed."""

DECODERS = {
    "gpt-tiny": {"width": 128, "depth": 4, "heads": 4, "vocabulary": 512, "context": 64},  # 0.9 million parameters
    "gpt-small": {"width": 768, "depth": 12, "heads": 12, "vocabulary": 32_768, "context": 512},  # 135.8 million
}
"""gpt-small has GPT-2 small's width, depth and heads, a vocabulary that is a power of two, and half its context."""

MLPS = tuple(WIDTHS)

MODELS = {
    "small": Model("MLP of 1.5 million parameters", 1024, "sgd", 0.01, tp_units=256),
    "medium": Model("MLP of 8.4 million", 1024, "sgd", 0.01, tp_units=1024),
    "large": Model("MLP of 35.2 million", 1024, "sgd", 0.01, tp_units=1024),
    "xlarge": Model("MLP of 52.0 million", 1024, "sgd", 0.01, tp_units=512),
    "balanced": Model("8 equal blocks, 9.9 million", 1024, "sgd", 0.01, blocks=8, tp_units=784),
    "resnet18": Model("ResNet-18 of 11.2 million on CIFAR-10", 128, "adamw", 5e-4, 1e-4, blocks=8),
    "gpt-tiny": Model("decoder of 0.9 million", 64, "adamw", 1e-3, blocks=4, tp_units=4, context=64),
    "gpt-small": Model("decoder of 135.8 million", 32, "adamw", 3e-4, 0.1, blocks=12, tp_units=12, context=512),
}
"""Models by name, in the order of --help."""
