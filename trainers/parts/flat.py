"""All gradients of a model as one message: few large messages use a network better than many small ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["flat_gradients"]


@contextmanager
def flat_gradients(model: nn.Module) -> Iterator[Tensor]:
    """Give a copy of all gradients in one buffer, and at the end put what has become of it back into them."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    yield flat
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
