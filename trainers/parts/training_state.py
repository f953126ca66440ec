"""What a rank must keep of a training to continue it bit for bit: parameters, optimizer state, scale, counters, seeds.

Of a sharded tensor (DTensor) it keeps this rank's part, a plain tensor; the layout follows from the options.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dptrace.errors import DptraceError
from dptrace.record.ranks.accelerator import accelerator_of

__all__ = ["TrainingState"]


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
            DptraceError: it is of another model or optimizer; nothing was changed.
        """
        model = _local(self.model.state_dict())
        try:
            _check_tensors("model", content.get("model"), model)
            _check_tensors("counters", content.get("counters", {}), dict(self.counters))
            scaler, now = content.get("scaler"), self.scaler.state_dict()
            if not isinstance(scaler, dict) or {k: type(v) for k, v in scaler.items()} != {
                k: type(v) for k, v in now.items()
            }:
                raise ValueError("it scales its gradients in another way")
            optimizer = self._optimizer_state(content.get("optimizer"))
            # Checkpoints of older versions have no random numbers, which none of dptrace's models draws.
            own = {name: module.get_rng_state() for name, module in self._random_modules()}
            random = content.get("random", own)
            _check_tensors("random numbers", random, own)
        except ValueError as error:
            raise DptraceError(
                f"{source} does not fit this training: {error}. To train from the start, choose another folder with "
                "--checkpoints and leave --resume out."
            ) from None
        with torch.no_grad():
            for tensors, saved in ((model, content["model"]), (self.counters, content.get("counters", {}))):
                for name, tensor in tensors.items():
                    tensor.copy_(saved[name])
        for name, module in self._random_modules():
            module.set_rng_state(random[name])
        self.scaler.load_state_dict(content["scaler"])
        self.optimizer.load_state_dict(optimizer)

    def _random_modules(self) -> list[tuple[str, Any]]:
        """Return what draws random numbers on this rank: torch itself, for the CPU, and the module of its device."""
        accelerator = accelerator_of(next(self.model.parameters()).device)
        return [("cpu", torch), *([] if accelerator is None else [("device", accelerator.module)])]

    def _optimizer_state(self, saved: Any) -> dict[str, Any]:
        """Return saved state of the optimizer, whose tensors are distributed as the parameters are.

        Raises:
            ValueError: it does not fit the parameters.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        states = saved.get("state") if isinstance(saved, dict) else None
        if not isinstance(states, dict) or not states.keys() <= set(range(len(parameters))):
            raise ValueError("its optimizer has other parameters")
        distributed = {}
        for number, values in states.items():
            parameter = parameters[number]
            if not isinstance(values, dict):
                raise ValueError("the state of its optimizer is not a table")
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim() and value.shape != _local(parameter).shape:
                    raise ValueError(f"the optimizer's {name} has another shape than the parameter {number}")
            distributed[number] = {name: _like(parameter, value) for name, value in values.items()}
        # Learning rate and the like are those of the options, which are the same.
        return {"state": distributed, "param_groups": self.optimizer.state_dict()["param_groups"]}


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


def _check_tensors(what: str, saved: Any, own: Mapping[str, Tensor]) -> None:
    if not isinstance(saved, dict) or saved.keys() != own.keys():
        names = sorted(saved.keys() ^ own.keys(), key=str)[:3] if isinstance(saved, dict) else []
        raise ValueError(f"its {what} has other tensors" + (f", such as {names[0]}" if names else ""))
    for name, tensor in own.items():
        other = saved[name]
        if not isinstance(other, Tensor) or (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{name} has another shape or number type")
