"""The optimizer step of all trainers: gradient scaling, clipping, the update, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import Options, phase
from dptrace.record.checkpoints.checkpoints import Checkpoints, checkpoints_of
from dptrace.record.ranks.distributed import at_least_float32
from dptrace.trainers.parts.training_state import TrainingState

__all__ = ["OptimizerWrapper", "build_optimizer"]


def build_optimizer(parameters: Iterable[Tensor], options: Options) -> torch.optim.Optimizer:
    """Build the optimizer that the options name."""
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.SGD
    return kind(parameters, lr=options.lr, weight_decay=options.weight_decay)


class OptimizerWrapper:
    """The update of a model's parameters: gradients scaled for float16, clipped, applied.

    Args:
        optimizer: by default the one that the options name, for all parameters of the model.
        shard_group: the ranks that hold other parameters than this one, as the stages of a pipeline do: they clip to
            one norm, and skip a step together. torch's own shards (DTensor) do not need it.
        replica_counts: the number of ranks in *shard_group* that hold a parameter, if more than one.
        local_optimizer: the one that holds this rank's state, if *optimizer* is a wrapper around it.
        counters: further tensors that each step changes, for the checkpoints.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None = None,
        shard_group: dist.ProcessGroup | None = None,
        replica_counts: Mapping[Tensor, int] | None = None,
        local_optimizer: torch.optim.Optimizer | None = None,
        counters: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.options = model, options
        self.shard_group, self.replica_counts = shard_group, replica_counts or {}
        self.optimizer = build_optimizer(model.parameters(), options) if optimizer is None else optimizer
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled="fp16" in (options.amp, options.mixed_precision))
        self._state = TrainingState(model, local_optimizer or self.optimizer, self.scaler, counters or {})
        self.steps_done = 0
        self._checkpoints = checkpoints_of(options, device)
        if self._checkpoints is not None:
            self._resume(self._checkpoints)
            options.write_checkpoint = partial(self._save, self._checkpoints)

    def backward(self, loss: Tensor, over: int = 1) -> None:
        """Compute the gradients of *loss* divided by *over*, scaled if float16 needs it."""
        with phase("backward"):
            self.scaler.scale(loss if over == 1 else loss / over).backward()

    def step(self) -> None:
        """Update the parameters and reset the gradients; write a checkpoint if one is due."""
        with phase("optimizer"):
            self._update()

    def _update(self) -> None:
        if self.scaler.is_enabled():
            self._agree_on_overflow()
            self.scaler.unscale_(self.optimizer)
        if self.options.clip_grad is not None:
            with phase("other"):
                self._clip(self.options.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.steps_done += 1
        every = self.options.checkpoint_every if self.options.epochs is None else None
        if self._checkpoints is not None and every is not None and self.steps_done % every == 0:
            with phase("other"):
                self._save(self._checkpoints)

    def _clip(self, max_norm: float) -> None:
        """Scale the gradients down to a norm over all parameters on all ranks."""
        if self.shard_group is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
            return
        gradients = [(p.grad, self.replica_counts.get(p, 1)) for p in self.model.parameters() if p.grad is not None]
        squared = torch.stack([at_least_float32(gradient).norm() ** 2 / count for gradient, count in gradients]).sum()
        dist.all_reduce(squared, group=self.shard_group)
        factor = (max_norm / (squared.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient, _ in gradients:
            gradient.mul_(factor.to(gradient.dtype))

    def _agree_on_overflow(self) -> None:
        """Share an overflow on one rank with all ranks that hold other gradients: all skip the step, or none does."""
        if self.shard_group is None:
            return
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        finite = torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all().float()
        dist.all_reduce(finite, dist.ReduceOp.MIN, group=self.shard_group)
        gradients[0].masked_fill_(finite == 0, torch.inf)

    def _save(self, checkpoints: Checkpoints, epochs: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a checkpoint, with the results of timed epochs."""
        checkpoints.save(self.steps_done, self._state.to_dict() | ({"epochs": list(epochs)} if epochs else {}))

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Continue from the newest checkpoint, after a restart or with --resume."""
        # On the CPU: the parts copy what belongs on their device, and torch leaves AdamW's step counts where they are
        # read to. On a GPU, each step would wait for the GPU to read them.
        content = checkpoints.load_newest(self.options.total_steps, torch.device("cpu"))
        self.options.damaged_checkpoints = tuple(checkpoints.damaged)
        if content is None:
            return
        self._state.restore(content, checkpoints.path(content["step"]))
        # Batches and recording start with the next step.
        self.steps_done = self.options.first_step = int(content["step"])
        self.options.epoch_results = content.get("epochs", ())
