"""What a rank notes of itself for run.json: where it ran, with what, and how long its steps took."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dptrace
from dptrace.record.launch import messages

if TYPE_CHECKING:
    from dptrace.record.recording import Recording

__all__ = ["describe_rank", "device_name", "versions"]


def describe_rank(recording: Recording) -> dict[str, Any]:
    """Give a rank's piece of run.json; times in ns, steps counted from the first of the recording."""
    plan, meeting = recording.plan, recording.host.meeting
    laps = _kept(recording, "The steps' times", recording.stopwatch.laps, [])
    losses = _kept(recording, "The losses", lambda: _losses(recording.losses), [])
    memory = _kept(recording, "What was seen of memory", recording.memory.told, None)
    ddp = _kept(recording, "DDP's logging data", lambda: _ddp_logging(recording.model), None)
    return {
        "rank": meeting.rank,
        "node": int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0"))),
        "local_rank": _local_rank(recording),
        "host": platform.node(),
        "device": device_name(recording.device),
        "threads": torch.get_num_threads(),
        "recorded_steps": recording.recorded_steps,
        "unprofiled_ns": laps[plan.warmup : plan.wait],
        "profiled_ns": laps[plan.wait + plan.warmup : plan.total],
        "losses": losses,
        "memory": memory,
        "notes": recording.notes,
        "model": recording.options.get("model"),
        "parameters": recording.parameters,
        "options": {key: _plain(value) for key, value in recording.options.items() if key != "model"},
        "schedule": {"wait": plan.wait, "warmup": plan.warmup, "steps": plan.steps},
        "world_size": meeting.size,
        "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
        "versions": versions(),
        "ddp": ddp,
    }


def _plain(value: Any) -> Any:
    """Give what JSON can hold; a trainer may tell a tensor, which is fetched from its device only now."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _local_rank(recording: Recording) -> int:
    if "LOCAL_RANK" in os.environ or "SLURM_LOCALID" in os.environ:
        return messages.local_rank()
    # Ranks that a script spawned: they are told apart by their GPU, or, on CPU, by their rank.
    return recording.device.index if recording.device.type == "cuda" else recording.host.meeting.rank


def _kept(recording: Recording, what: str, give: Callable[[], Any], otherwise: Any) -> Any:
    """Give what can be had: the trace is worth keeping without it, and the training must not end for it."""
    try:
        return give()
    except Exception as error:
        recording.notes.append(f"{what} could not be kept: {messages.describe(error)}")
        return otherwise


def _losses(losses: list[torch.Tensor]) -> list[float]:
    # One transfer for all: each by itself would wait for the GPU.
    values: list[float] = torch.stack([loss.reshape(()) for loss in losses]).double().tolist() if losses else []
    return values


def device_name(device: torch.device) -> str:
    """Name what trains."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def versions() -> dict[str, str | None]:
    """Give the versions of all that matters."""
    nccl = None
    if torch.cuda.is_available() and dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "dptrace": dptrace.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "nccl": nccl,
    }


def _ddp_in_this_process() -> DistributedDataParallel | None:
    """Find the DDP model of a script that was not changed for the recording, and so hands us none."""
    found = (thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel)
    return next(found, None)


def _ddp_logging(model: nn.Module | None) -> dict[str, Any] | None:
    """Give DDP's own account: buckets, which parameters are in which, sampled times."""
    ddp = _ddp_in_this_process() if model is None else model
    if not isinstance(ddp, DistributedDataParallel):
        return None
    data = ddp._get_ddp_logging_data()  # torch names no public way to it
    plain = (int, float, str, bool)
    return {key: value if isinstance(value, plain) else str(value) for key, value in sorted(data.items())}
