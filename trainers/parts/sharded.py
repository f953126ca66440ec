"""Models whose blocks are sharded: ZeRO-2's shards of gradients and optimizer state, and torch's fully_shard."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dptrace.errors import UsageError
from dptrace.record import Options, World
from dptrace.trainers.parts.collectives import all_gather, reduce_scatter

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

__all__ = ["Sharded", "fully_sharded"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


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


def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, options: Options) -> nn.Sequential:
    """Apply fully_shard to each block, in place: shards over the last dimension of the mesh, replicas over the others.

    Raises:
        UsageError: this torch has no fully_shard.
    """
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise UsageError(f"--mode {options.mode} needs fully_shard: install torch 2.6 or later.") from None
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": options.reshard_after_forward == "yes"}
    settings |= _offloaded(mesh, options)
    if options.mixed_precision is not None:
        _cast_buffers(model, _DTYPES[options.mixed_precision])
    blocks = [fully_shard(b, **settings, **_precision(options)) for b in model if list(b.parameters())]
    fully_shard(model, **settings, **_precision(options, output_dtype=torch.float32))
    _set_prefetch(blocks, options.prefetch)
    return model


def _precision(options: Options, output_dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Return the policy for --mixed-precision: parameters are cast before they are gathered, gradients after backward.

    Args:
        output_dtype: number type of the output; the whole model's is float32 again, for the loss.
    """
    if options.mixed_precision is None:
        return {}
    from torch.distributed.fsdp import MixedPrecisionPolicy

    options.reduce_dtype = options.reduce_dtype or options.mixed_precision
    computed, reduced = _DTYPES[options.mixed_precision], _DTYPES[options.reduce_dtype]
    return {"mp_policy": MixedPrecisionPolicy(computed, reduced, output_dtype)}


def _cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast buffers as parameters are cast to compute: batch norm needs both in one number type."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(dtype)


def _offloaded(mesh: DeviceMesh, options: Options) -> dict[str, Any]:
    """Return the policy for --cpu-offload.

    Raises:
        UsageError: there is no GPU whose memory it could save.
    """
    if not options.cpu_offload:
        return {}
    if mesh.device_type == "cpu":
        raise UsageError("--cpu-offload: without a GPU, shards are in the CPU's memory already; leave it out.")
    from torch.distributed.fsdp import CPUOffloadPolicy

    return {"offload_policy": CPUOffloadPolicy()}


def _set_prefetch(blocks: list[FSDPModule], when: str) -> None:
    """Choose when a block's parameters are gathered.

    Args:
        when: ``none``: when the block needs them. ``default``: torch's way, while the previous block computes; in
            forward because the host runs ahead of the GPU, in backward because torch requests the next block early.
            ``explicit``: before the previous block computes, also in forward, so that a slow host does not matter.
    """
    if when == "explicit":
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])
    if when == "none":
        for block in blocks:
            # An empty list would mean torch's own choice; the block itself is gathered already, so nothing is early.
            block.set_modules_to_backward_prefetch([block])
            # On the compute stream the gather waits for running kernels; torch has no public option for it.
            block._set_unshard_async_op(True)
