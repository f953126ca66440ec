"""The memory of a rank: parameters, gradients and optimizer state, counted at a step, and peaks."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dptrace.record.ranks.accelerator import accelerator_of

__all__ = ["MemoryTracker"]

_KINDS = ("parameters", "gradients", "optimizer")


class MemoryTracker:
    """Counts the memory held after an optimizer step, before the gradients are reset.

    Of a sharded tensor only the local shard counts, and memory that several tensors share counts once. Activations and
    the buffers of the model, DDP and FSDP are not included; on a GPU they are part of the peak.

    Args:
        model: the trained model; without it, the parameters that the optimizers update are counted.
    """

    def __init__(self, model: nn.Module | None, device: torch.device) -> None:
        self.model, self.device = model, device
        self._held: dict[str, int] = {}
        self._has_peaks = False
        self._seen: dict[str, dict[int, int]] = defaultdict(dict)

    def start(self) -> None:
        """Start counting."""
        global _active
        _active = self

    def end_step(self) -> None:
        """Keep the counts of this step, in which several optimizers may have stepped."""
        if self._seen:
            self._held = {kind: sum(self._seen[kind].values()) for kind in _KINDS}
            self._seen.clear()

    def reset_peak(self) -> None:
        """Stop counting, which takes time, and start to track the peak on the GPU."""
        self.stop()
        accelerator = accelerator_of(self.device)
        if accelerator is not None:
            # Other allocators than torch's own have no statistics; the peaks are unknown then.
            with suppress(RuntimeError):
                accelerator.module.reset_peak_memory_stats(self.device)
                self._has_peaks = True

    def stop(self) -> None:
        """Stop counting and release the model."""
        global _active
        if _active is self:
            _active = None
        self.model = None
        self._seen.clear()

    def count(self, optimizer: Optimizer) -> None:
        """Count the parameters, gradients and state of an optimizer that has stepped, and the model's parameters."""
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [*(self.model.parameters() if self.model is not None else ()), *updated]
        self._add("parameters", parameters)
        self._add("gradients", (parameter.grad for parameter in parameters))
        self._add("optimizer", (value for state in optimizer.state.values() for value in state.values()))

    def _add(self, kind: str, tensors: Iterable[Any]) -> None:
        sizes = self._seen[kind]
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.detach()
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                storage = local.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()

    def to_dict(self) -> dict[str, int | None]:
        """Return the counts and peaks in bytes; None for those not seen, and for unknown peaks of a GPU."""
        result: dict[str, int | None] = {f"{kind}_bytes": self._held.get(kind) for kind in _KINDS}
        accelerator = accelerator_of(self.device)
        module = None if accelerator is None or not self._has_peaks else accelerator.module
        result["peak_allocated_bytes"] = None if module is None else module.max_memory_allocated(self.device)
        result["peak_reserved_bytes"] = None if module is None else module.max_memory_reserved(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result["peak_process_bytes"] = peak if sys.platform == "darwin" else peak * 1024
        return result


_active: MemoryTracker | None = None


def _on_optimizer_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if _active is None:
        return
    try:
        _active.count(optimizer)
    except Exception:
        # For example tensors without storage: nothing is counted then, and training continues.
        _active.stop()


# Here and not when a recording begins: that may be inside such a hook, where torch allows no new one.
register_optimizer_step_post_hook(_on_optimizer_step)
