"""Bytes of the model's state: parameters, gradients, optimizer state and master weights.

With Adam in mixed precision a parameter takes 16 bytes: 2 for the number itself and 2 for its gradient, and in 32 bits
4 for a master copy and 4 each for Adam's two moments (Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.1).
"""

from __future__ import annotations

import msgspec

__all__ = ["OPTIMIZERS", "PRECISIONS", "Optimizer", "Precision", "StateBytes", "state_bytes"]


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
