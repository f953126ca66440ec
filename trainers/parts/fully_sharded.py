"""A model in torch's fully_shard: when blocks are gathered, in which number types, and where their shards are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dptrace.errors import UsageError
from dptrace.record import Options

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, options: Options) -> nn.Sequential:
    """Apply fully_shard to each block, in place: shards over the last dimension of the mesh, replicas over the others.

    Raises:
        UsageError: this torch has no fully_shard, or there is no GPU whose memory --cpu-offload could save.
    """
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    except ImportError:
        raise UsageError(f"--mode {options.mode} needs fully_shard: install torch 2.6 or later.") from None
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": options.reshard_after_forward == "yes"}
    if options.cpu_offload:
        if mesh.device_type == "cpu":
            raise UsageError("--cpu-offload: without a GPU, shards are in the CPU's memory already; leave it out.")
        settings["offload_policy"] = CPUOffloadPolicy()
    if options.mixed_precision is not None:
        for buffer in model.buffers():  # as parameters are cast to compute: batch norm needs both in one number type
            if buffer.is_floating_point():
                buffer.data = buffer.to(_DTYPES[options.mixed_precision])
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
