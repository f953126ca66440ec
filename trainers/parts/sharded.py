"""Blocks of which each rank keeps a shard of the gradients and of the optimizer state (ZeRO-2)."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import World
from dptrace.trainers.parts.collectives import all_gather, reduce_scatter


class Sharded:
    """One block of which this rank keeps one shard of the gradients and updates one shard of the parameters.

    Attributes:
        shard: this rank's shard of the parameters, a view of the buffer that holds all of them: the optimizer updates
            it. All shards have the same size; the end of the buffer is padded with zeros.
    """

    def __init__(self, block: nn.Module, world: World) -> None:
        self.parameters = list(block.parameters())
        size = math.ceil(sum(p.numel() for p in self.parameters) / world.size)
        self._full_buffer = self.parameters[0].new_zeros(size * world.size)
        for parameter, view in zip(self.parameters, self._parameter_views(self._full_buffer), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.shard = nn.Parameter(self._full_buffer[world.rank * size : (world.rank + 1) * size])
        self._gradients_left = len(self.parameters)
        self._pending: tuple[dist.Work, Tensor] | None = None
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _parameter_views(self, buffer: Tensor) -> list[Tensor]:
        """Return the part of a buffer that belongs to each parameter, in the parameter's shape."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = torch.split(buffer[: sum(sizes)], sizes)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    def _on_gradient(self, parameter: Tensor) -> None:
        """Count a gradient that backward has computed; with the last one of the block, reduce-scatter them all."""
        self._gradients_left -= 1
        if self._gradients_left:
            return
        self._gradients_left = len(self.parameters)
        gradients = torch.zeros_like(self._full_buffer)
        for parameter, view in zip(self.parameters, self._parameter_views(gradients), strict=True):
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = None
        self.shard.grad = torch.empty_like(self.shard)
        # The buffer must live until the message has been sent: nothing else refers to it.
        self._pending = reduce_scatter(self.shard.grad, gradients, async_op=True), gradients

    def wait(self) -> None:
        """Wait for this rank's shard of the gradients, summed over the ranks."""
        assert self._pending is not None, "a parameter had no gradient"
        self._pending[0].wait()
        self._pending = None

    def gather(self) -> dist.Work:
        """Start to gather all ranks' updated shards."""
        return all_gather(self._full_buffer, self.shard.detach(), async_op=True)
