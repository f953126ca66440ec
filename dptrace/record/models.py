"""The models that the trainers train: their names, sizes, and with what they are trained unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MLPS", "MODELS", "Model"]


@dataclass(frozen=True, slots=True)
class Model:
    """One model, and the options that suit it."""

    idea: str
    batch_size: int
    optimizer: str
    lr: float
    weight_decay: float = 0.0


MLPS = ("small", "medium", "large", "xlarge")

MODELS = {
    "small": Model("MLP of 1.5 million parameters", 1024, "sgd", 0.01),
    "medium": Model("MLP of 8.4 million", 1024, "sgd", 0.01),
    "large": Model("MLP of 35.2 million", 1024, "sgd", 0.01),
    "xlarge": Model("MLP of 52.0 million", 1024, "sgd", 0.01),
}
"""By name, in the order of --help."""
