"""torch's fully_shard around each block of a model, and which block is gathered before it is needed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dptrace.errors import UsageError
from dptrace.record import Options

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

__all__ = ["fully_sharded"]


def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, options: Options) -> nn.Sequential:
    """Shard each block's parameters over the mesh, in place: over its last dimension, replicated over one before it.

    Raises:
        UsageError: this torch has no fully_shard.
    """
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise UsageError("--mode fsdp and hsdp need fully_shard: install torch 2.6 or later.") from None
    free = options.reshard_after_forward == "yes"
    blocks = [fully_shard(block, mesh=mesh, reshard_after_forward=free) for block in model if list(block.parameters())]
    fully_shard(model, mesh=mesh, reshard_after_forward=free)
    prefetch(blocks, options.prefetch)
    return model


def prefetch(blocks: list[FSDPModule], when: str) -> None:
    """Choose when a block's parameters are gathered.

    Args:
        when: ``none``, when it is needed. ``default``, torch's own way: while the block before it computes, in forward
            because the host runs ahead of the GPU, in backward because the next block in line is asked for early.
            ``explicit``, before the block before it computes, also in forward, so that a slow host does not matter.
    """
    if when == "explicit":
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])
    if when == "none":
        for block in blocks:
            # No block would mean torch's own choice; itself is there already, so that nothing is gathered early.
            block.set_modules_to_backward_prefetch([block])
            # On the stream of compute the gather waits for what computes; torch names no public way to it.
            block._set_unshard_async_op(True)
