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
