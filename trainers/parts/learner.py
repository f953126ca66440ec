"""How a step updates the parameters: the optimizer, and what may stand around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.errors import UsageError
from dptrace.record import Options, phase
from dptrace.record.checkpoints import Checkpoints
from dptrace.record.launch.checkpoint_folder import check_writable, checkpoint_folder
from dptrace.record.launch.messages import rank, restart_count

__all__ = ["OptimizerWrapper", "checkpoints_of", "optimizer_of"]


def optimizer_of(parameters: Iterable[Tensor], options: Options) -> torch.optim.Optimizer:
    """Make the optimizer that was asked for."""
    if options.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay)


class OptimizerWrapper:
    """The update of a model's parameters: gradients scaled for float16, clipped, applied.

    Args:
        optimizer: by default the one that was asked for, of the model's parameters.
        spread: the ranks that hold other parameters than this one, as the stages of a pipeline do: they clip to one
            norm, and skip a step together. Shards that torch knows of (DTensor) need nothing.
        copies: on how many ranks of *spread* a parameter lies, where it is not on this one alone.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None = None,
        shard_group: dist.ProcessGroup | None = None,
        replica_counts: Mapping[Tensor, int] | None = None,
    ) -> None:
        self.model, self.options, self.shard_group, self.replica_counts = (
            model,
            options,
            shard_group,
            replica_counts or {},
        )
        self.optimizer = optimizer_of(model.parameters(), options) if optimizer is None else optimizer
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=options.amp == "fp16")
        self.steps_done = 0
        self._checkpoints = checkpoints_of(options)
        if self._checkpoints is not None:
            self._resume(self._checkpoints)

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
        self.steps_done += 1
        every = self.options.checkpoint_every
        if self._checkpoints is not None and every is not None and self.steps_done % every == 0:
            with phase("other"):
                self._save(self._checkpoints)

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def _clip(self, most: float) -> None:
        """Scale the gradients down to a norm over all parameters, wherever they lie."""
        if self.shard_group is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), most)
            return
        learned = [(p.grad, self.replica_counts.get(p, 1)) for p in self.model.parameters() if p.grad is not None]
        squared = torch.stack(
            [gradient.float().norm() ** 2 / replica_counts for gradient, replica_counts in learned]
        ).sum()
        dist.all_reduce(squared, group=self.shard_group)
        factor = (most / (squared.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient, _ in learned:
            gradient.mul_(factor.to(gradient.dtype))

    def _agree_on_overflow(self) -> None:
        """Make an overflow that one rank sees seen by all that hold other gradients: all skip the step, or none."""
        if self.shard_group is None:
            return
        gradients = self._gradients()
        finite = torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all().float()
        dist.all_reduce(finite, dist.ReduceOp.MIN, group=self.shard_group)
        gradients[0].masked_fill_(finite == 0, torch.inf)

    def _save(self, checkpoints: Checkpoints) -> None:
        """Write what a training that goes on needs; one rank is enough, as all hold the same."""
        if rank() == 0:
            content = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            checkpoints.save(self.steps_done, content)

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint, after a restart or where that was asked for."""
        device = next(self.model.parameters()).device
        found = checkpoints.load_newest(self.options.total_steps, device)
        self.options.damaged_checkpoints = tuple(checkpoints.damaged)
        if found is None:
            return
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.scaler.load_state_dict(found["scaler"])
        # Batches and recording begin with the step that comes next.
        self.steps_done = self.options.first_step = int(found["step"])


def checkpoints_of(options: Options) -> Checkpoints | None:
    """Give the checkpoints that a training writes or goes on from; None where it does neither.

    Raises:
        UsageError: there are some already, and nothing was said of going on from them; there are none to go on from; or
            none could be written.
    """
    if options.checkpoint_every is None and not options.resume:
        return None
    found = Checkpoints(checkpoint_folder(options.mode, options.checkpoints), options.checkpoint_settings)
    there = found.steps()
    if restart_count() == 0 and not options.resume and there:
        raise UsageError(
            f"{found.folder} holds checkpoints, of step {there[-1]} and before. Go on from them with --resume; or, to "
            "train from the start, remove the folder or name another with --checkpoints."
        )
    if restart_count() == 0 and options.resume and not there:
        raise UsageError(f"{found.folder} holds no checkpoint to go on from: leave --resume out.")
    if options.checkpoint_every is not None and rank() == 0:
        check_writable(found.folder)
    return found
