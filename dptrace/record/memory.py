"""What a rank holds in memory: parameters, gradients and optimizer state, counted at a step, and the peaks seen."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dptrace.record.accelerator import accelerator_of

__all__ = ["MemoryTracker"]

_KINDS = ("parameters", "gradients", "optimizer")


class MemoryTracker:
    """Count what is held when an optimizer has stepped, before the gradients are forgotten.

    Shards count as what lies on this rank, and what several tensors share counts once. Activations, a model's
    buffers and those of DDP and FSDP are not in it: on a GPU they are in the peak.

    Args:
        model: what is trained; without it, what the optimizers update stands for it.
    """

    def __init__(self, model: nn.Module | None, device: torch.device) -> None:
        self.model, self.device = model, device
        self._held: dict[str, int] = {}
        self._seen: dict[str, dict[int, int]] = defaultdict(dict)

    def start(self) -> None:
        """Begin to count."""
        global _active
        _active = self

    def end_step(self) -> None:
        """Keep what was counted in this step: several optimizers may have stepped in it."""
        if self._seen:
            self._held = {kind: sum(self._seen[kind].values()) for kind in _KINDS}
            self._seen.clear()

    def reset_peak(self) -> None:
        """End counting, which costs time, and begin to look for the peak on the GPU."""
        self.stop()
        accelerator = accelerator_of(self.device)
        if accelerator is not None:
            accelerator.module.reset_peak_memory_stats(self.device)

    def stop(self) -> None:
        """End counting, and let go of the model."""
        global _active
        if _active is self:
            _active = None
        self.model = None
        self._seen.clear()

    def count(self, optimizer: Optimizer) -> None:
        """Count what an optimizer that has stepped updates and keeps, and the model's own."""
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [*(self.model.parameters() if self.model is not None else ()), *updated]
        self._add("parameters", parameters)
        self._add("gradients", (parameter.grad for parameter in parameters))
        self._add("optimizer", (value for state in optimizer.state.values() for value in state.values()))

    def _add(self, kind: str, tensors: Iterable[Any]) -> None:
        found = self._seen[kind]
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.detach()
                own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                storage = own.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()

    def to_dict(self) -> dict[str, int | None]:
        """Give what was found, in bytes; None for what was not seen, and for a GPU's peaks where none trains."""
        found: dict[str, int | None] = {f"{kind}_bytes": self._held.get(kind) for kind in _KINDS}
        accelerator = accelerator_of(self.device)
        module = None if accelerator is None else accelerator.module
        found["peak_allocated_bytes"] = None if module is None else module.max_memory_allocated(self.device)
        found["peak_reserved_bytes"] = None if module is None else module.max_memory_reserved(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["peak_process_bytes"] = peak if sys.platform == "darwin" else peak * 1024
        return found


_active: MemoryTracker | None = None


def _on_optimizer_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if _active is None:
        return
    try:
        _active.count(optimizer)
    except Exception:
        # Tensors without a storage, say: what a rank holds is then not told, and training goes on.
        _active.stop()


# Here and not when a recording begins: that may be in a hook of this kind, and torch lets none be added there.
register_optimizer_step_post_hook(_on_optimizer_step)
