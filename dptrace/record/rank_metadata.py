"""Values of a rank's part of run.json that take more than a look: its losses, its place on the node, DDP's logging."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptrace.record.accelerator import accelerator_of
from dptrace.record.launch import messages

__all__ = ["ddp_logging", "local_rank", "losses_as_floats", "node_rank", "plain_value"]


def node_rank() -> int:
    """Return the number of this rank's machine in the job."""
    return int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0")))


def local_rank(device: torch.device, rank: int) -> int:
    """Return the number of this rank on its machine."""
    if "LOCAL_RANK" in os.environ or "SLURM_LOCALID" in os.environ:
        return messages.local_rank()
    # Ranks that a script spawned differ by their GPU, or, on CPU, by their rank.
    return rank if accelerator_of(device) is None else device.index


def plain_value(value: Any) -> Any:
    """Return what JSON can hold; a tensor is fetched from its device only now."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def losses_as_floats(losses: list[torch.Tensor]) -> list[float]:
    """Fetch the losses from their device."""
    # One transfer for all: each by itself would wait for the GPU.
    values: list[float] = torch.stack([loss.reshape(()) for loss in losses]).double().tolist() if losses else []
    return values


def ddp_logging(model: nn.Module | None) -> dict[str, Any] | None:
    """Return DDP's own logging data: buckets, the parameters in each, sampled times; None without DDP.

    Args:
        model: what is trained; None for a script that runs unchanged, whose model is searched for.
    """
    ddp = _ddp_in_this_process() if model is None else model
    if not isinstance(ddp, DistributedDataParallel):
        return None
    data = ddp._get_ddp_logging_data()  # torch has no public way to it
    plain = (int, float, str, bool)
    return {key: value if isinstance(value, plain) else str(value) for key, value in sorted(data.items())}


def _ddp_in_this_process() -> DistributedDataParallel | None:
    found = (thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel)
    return next(found, None)
