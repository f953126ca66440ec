"""What a rank notes of itself for run.json: where it ran, with what, and how long its steps took."""

from __future__ import annotations

import gc
import os
import platform
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dptrace
from dptrace.record import notes

if TYPE_CHECKING:
    from dptrace.record.recording import Recording

__all__ = ["describe_rank"]


def describe_rank(recording: Recording) -> dict[str, Any]:
    """Give a rank's piece of run.json; times in ns, steps counted from the first of the recording."""
    plan, laps = recording.plan, recording.stopwatch.laps()
    model = recording.model
    ddp = model if isinstance(model, DistributedDataParallel) else _ddp_in_this_process() if model is None else None
    return {
        "rank": notes.rank(),
        "node": int(os.environ.get("GROUP_RANK", "0")),
        "local_rank": notes.local_rank(),
        "host": platform.node(),
        "device": _device(),
        "threads": torch.get_num_threads(),
        "recorded_steps": recording.recorded_steps,
        "unprofiled_ns": laps[plan.warmup : plan.wait],
        "profiled_ns": laps[plan.wait + plan.warmup : plan.total],
        "losses": torch.stack(recording.losses).double().tolist() if recording.losses else [],
        "notes": recording.notes,
        "model": recording.options.get("model"),
        "parameters": recording.parameters,
        "options": {key: value for key, value in recording.options.items() if key != "model"},
        "schedule": {"wait": plan.wait, "warmup": plan.warmup, "steps": plan.steps},
        "world_size": notes.world_size(),
        "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
        "versions": _versions(),
        "ddp": _ddp_logging(ddp),
    }


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "CPU"


def _versions() -> dict[str, str | None]:
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


def _ddp_logging(ddp: DistributedDataParallel | None) -> dict[str, Any] | None:
    """Give DDP's own account: buckets, which parameters are in which, sampled times."""
    if ddp is None:
        return None
    data = ddp._get_ddp_logging_data()  # torch names no public way to it
    plain = (int, float, str, bool)
    return {key: value if isinstance(value, plain) else str(value) for key, value in sorted(data.items())}
