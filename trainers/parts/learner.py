"""How a step updates the parameters: the optimizer, and what may stand around it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import Options, phase

__all__ = ["Learner", "optimizer_of"]


def optimizer_of(parameters: Iterable[Tensor], options: Options) -> torch.optim.Optimizer:
    """Make the optimizer that was asked for."""
    if options.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay)


class Learner:
    """The update of a model's parameters: gradients scaled for float16, clipped, applied.

    Args:
        optimizer: by default the one that was asked for, of the model's parameters.
        spread: the ranks that hold other parameters than this one, as the stages of a pipeline do: they clip to one
            norm, and skip a step together. Shards that torch knows of (DTensor) need nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None = None,
        spread: dist.ProcessGroup | None = None,
    ) -> None:
        self.model, self.options, self.spread = model, options, spread
        self.optimizer = optimizer_of(model.parameters(), options) if optimizer is None else optimizer
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=options.amp == "fp16")

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        """Update the parameters, and forget the gradients."""
        if self.scaler.is_enabled():
            self._agree_on_overflow()
            self.scaler.unscale_(self.optimizer)
        if self.options.clip_grad is not None:
            with phase("other"):
                self._clip(self.options.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def _clip(self, most: float) -> None:
        """Scale the gradients down to a norm over all parameters, wherever they lie."""
        if self.spread is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), most)
            return
        gradients = self._gradients()
        squared = torch.stack([gradient.float().norm() ** 2 for gradient in gradients]).sum()
        dist.all_reduce(squared, group=self.spread)
        factor = (most / (squared.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))

    def _agree_on_overflow(self) -> None:
        """Make an overflow that one rank sees seen by all that hold other gradients: all skip the step, or none."""
        if self.spread is None:
            return
        gradients = self._gradients()
        finite = torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all().float()
        dist.all_reduce(finite, dist.ReduceOp.MIN, group=self.spread)
        gradients[0].masked_fill_(finite == 0, torch.inf)
