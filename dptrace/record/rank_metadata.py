"""Values for a rank's part of run.json: its losses, its node and local rank, DDP's logging data."""

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
    """Return the number of this rank's machine, from 0."""
    return int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0")))


def local_rank(device: torch.device, rank: int) -> int:
    """Return the rank's number on its machine, from 0."""
    if "LOCAL_RANK" in os.environ or "SLURM_LOCALID" in os.environ:
        return messages.local_rank()
    # Ranks that a script has spawned differ in their GPU or, on CPU, in their rank.
    return rank if accelerator_of(device) is None else device.index


def plain_value(value: Any) -> Any:
    """Return a value that JSON can hold; a tensor is copied from its device."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def losses_as_floats(losses: list[torch.Tensor]) -> list[float]:
    """Copy the losses from their device."""
    # One transfer for all of them: each one would wait for the GPU.
    return torch.stack([loss.reshape(()) for loss in losses]).double().tolist() if losses else []


def ddp_logging(model: nn.Module | None) -> dict[str, Any] | None:
    """Return DDP's own logging data: buckets, the parameters in each, sampled times; None without DDP.

    Args:
        model: the trained model; None to search this process for a DDP model, as for an unchanged script.
    """
    ddp = model
    if ddp is None:
        ddp = next((thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel), None)
    if not isinstance(ddp, DistributedDataParallel):
        return None
    data = ddp._get_ddp_logging_data()  # torch has no public function for it
    plain = (int, float, str, bool)
    return {key: value if isinstance(value, plain) else str(value) for key, value in sorted(data.items())}
