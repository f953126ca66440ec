"""A block's parameters as one buffer of which each rank owns a part: what ZeRO-2 shards, and how it moves."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import World

__all__ = ["Sharded", "all_gather", "reduce_scatter"]

# torch 2.13 renames them, and warns of the older names.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Sharded:
    """One block, whose gradients this rank keeps, and whose parameters it updates, only in its own part.

    Attributes:
        own: this rank's part of the parameters, a view of the buffer in which all of them lie: it is what the optimizer
            updates. All ranks' parts are of one size; what is missing at the end is filled up with zeros.
    """

    def __init__(self, block: nn.Module, world: World) -> None:
        self.parameters = list(block.parameters())
        part = math.ceil(sum(p.numel() for p in self.parameters) / world.size)
        self._full_buffer = self.parameters[0].new_zeros(part * world.size)
        for parameter, place in zip(self.parameters, self._parameter_views(self._full_buffer), strict=True):
            place.copy_(parameter.detach())
            parameter.data = place
        self.own = nn.Parameter(self._full_buffer[world.rank * part : (world.rank + 1) * part])
        self._gradients_left = len(self.parameters)
        self._pending: tuple[dist.Work, Tensor] | None = None
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def _parameter_views(self, buffer: Tensor) -> list[Tensor]:
        """Give the part of a buffer that each parameter fills, in its shape."""
        sizes = [parameter.numel() for parameter in self.parameters]
        places = torch.split(buffer[: sum(sizes)], sizes)
        return [place.view_as(parameter) for place, parameter in zip(places, self.parameters, strict=True)]

    def _ready(self, parameter: Tensor) -> None:
        """Be told that a gradient is there; with the block's last one they are added up over the ranks."""
        self._gradients_left -= 1
        if self._gradients_left:
            return
        self._gradients_left = len(self.parameters)
        gradients = torch.zeros_like(self._full_buffer)
        for parameter, place in zip(self.parameters, self._parameter_views(gradients), strict=True):
            assert parameter.grad is not None
            place.copy_(parameter.grad)
            parameter.grad = None
        self.own.grad = torch.empty_like(self.own)
        # The buffer is kept until the message is through: nothing else holds it.
        self._pending = reduce_scatter(self.own.grad, gradients, async_op=True), gradients

    def wait(self) -> None:
        """Wait until this rank's part of the gradients is there, added up over the ranks."""
        assert self._pending is not None, "a parameter had no gradient"
        self._pending[0].wait()
        self._pending = None

    def gather(self) -> dist.Work:
        """Begin to give all ranks what each of them has updated."""
        gathering: dist.Work = all_gather(self._full_buffer, self.own.detach(), async_op=True)
        return gathering
