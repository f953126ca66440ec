"""The optimizer step of all trainers: gradient scaling, clipping, the update, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.errors import DptraceError
from dptrace.record import Options, phase
from dptrace.record.accelerator import accelerator_of
from dptrace.record.distributed import at_least_float32
from dptrace.trainers.parts.checkpoints import Checkpoints, checkpoints_of

# What a rank must keep of a training to continue it bit for bit: parameters, optimizer state, scale, counters, seeds.
#
# Of a sharded tensor (DTensor) it keeps this rank's part, a plain tensor; the layout follows from the options.


class TrainingState:
    """The state of a training on this rank.

    Args:
        optimizer: the one whose state this rank holds.
        counters: further tensors that each step changes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        counters: Mapping[str, Tensor],
    ) -> None:
        self.model, self.optimizer, self.scaler, self.counters = model, optimizer, scaler, counters

    def to_dict(self) -> dict[str, Any]:
        """Return the state as numbers and plain tensors, which it shares."""
        optimizer = self.optimizer.state_dict()
        return {
            "model": _local(self.model.state_dict()),
            "optimizer": optimizer | {"state": _local(optimizer["state"])},
            "scaler": self.scaler.state_dict(),
            "random": {name: module.get_rng_state() for name, module in self._random_modules()},
            **({"counters": dict(self.counters)} if self.counters else {}),
        }

    def restore(self, content: Mapping[str, Any], source: Path) -> None:
        """Continue from what :meth:`to_dict` has returned.

        Args:
            source: where the content is from, for messages.

        Raises:
            DptraceError: it is of another model or optimizer.
        """
        model = _local(self.model.state_dict())
        try:
            with torch.no_grad():
                _copy(model, content["model"])
                _copy(self.counters, content.get("counters", {}))
            for name, module in self._random_modules():
                module.set_rng_state(content["random"][name])
            self.scaler.load_state_dict(content["scaler"])
            self.optimizer.load_state_dict(self._optimizer_state(content["optimizer"]["state"]))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise DptraceError(
                f"{source} does not fit this training: {reason}. To train from the start, choose another folder with "
                "--checkpoints and leave --resume out."
            ) from None

    def _random_modules(self) -> list[tuple[str, Any]]:
        """Return what draws random numbers on this rank: torch itself, for the CPU, and the module of its device."""
        accelerator = accelerator_of(next(self.model.parameters()).device)
        return [("cpu", torch), *([] if accelerator is None else [("device", accelerator.module)])]

    def _optimizer_state(self, saved: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return saved state of the optimizer, whose tensors are distributed as the parameters are."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state = {}
        for number, values in saved.items():
            if not 0 <= number < len(parameters):
                raise ValueError("its optimizer has other parameters")
            parameter = parameters[number]
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim() and value.shape != _local(parameter).shape:
                    raise ValueError(f"the optimizer's {name} has another shape than parameter {number}")
            state[number] = {name: _like(parameter, value) for name, value in values.items()}
        # Learning rate and the like are those of the options, which are the same.
        return {"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]}


def _local(value: Any) -> Any:
    """Return a tensor's part on this rank, or a table with such parts."""
    if isinstance(value, dict):
        return {key: _local(item) for key, item in value.items()}
    return value.to_local() if hasattr(value, "to_local") else value


def _like(parameter: Tensor, value: Any) -> Any:
    """Return a part on this rank as a tensor that is distributed as its parameter is; a number stays a number."""
    if not hasattr(parameter, "to_local") or not isinstance(value, Tensor) or not value.dim():
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        value.to(parameter.device), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _copy(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy tensors of the same names, shapes and number types."""
    if names := sorted(own.keys() ^ saved.keys()):
        raise ValueError(f"it has other tensors, such as {names[0]}")
    for name, tensor in own.items():
        if (saved[name].shape, saved[name].dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{name} has another shape or number type")
        tensor.copy_(saved[name])


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
        self._checkpoints = checkpoints_of(options)
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
        content = checkpoints.load_newest(self.options.total_steps)
        self.options.damaged_checkpoints = tuple(checkpoints.damaged)
        if content is None:
            return
        self._state.restore(content, checkpoints.path(content["step"]))
        # Batches and recording start with the next step.
        self.steps_done = self.options.first_step = int(content["step"])
        self.options.epoch_results = content.get("epochs", ())
