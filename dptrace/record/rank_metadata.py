"""Values for a rank's part of run.json: its losses, its node and local rank, DDP's logging data."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptrace.record.flops.step_flops import StepFlops
from dptrace.record.memory import MemoryTracker
from dptrace.record.profiler.aligned_profile import Stopwatch
from dptrace.record.ranks.accelerator import accelerator_of
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.ranks.environment import device_name, versions
from dptrace.record.run_folder import messages
from dptrace.record.windows.plan import Window

ADDED = ("coordinates", "pipeline", "experts")
"""What a trainer can add to its rank's entry: where it stands in a mesh, its part of a pipeline, its experts."""

__all__ = [
    "ADDED",
    "ddp_logging",
    "describe",
    "foreign_metadata",
    "local_rank",
    "losses_as_floats",
    "node_rank",
    "overhead_metadata",
    "plain_value",
    "rank_facts",
]


class RankFacts(Protocol):
    """What a recording knows of its rank."""

    rank_store: RankStore
    device: torch.device
    stopwatch: Stopwatch
    memory: MemoryTracker
    flops: StepFlops
    losses: list[torch.Tensor]
    model: nn.Module | None
    parameters: int | None
    options: dict[str, Any]
    rank_entry: dict[str, Any]


def describe(
    recording: RankFacts, window: Window, measured: Sequence[Window], recorded: int, notes: list[str]
) -> dict[str, Any]:
    """Return this rank's part of run.json; times in ns, steps counted from the first step of the recording.

    Args:
        window: the recorded window.
        measured: the windows in which steps were timed with and without the profiler before it.
        recorded: how many of its steps have ended.
        notes: the notes for run.json; values that cannot be read are added.
    """
    timing = overhead_metadata(recording, measured, notes)
    return {
        **rank_facts(recording.rank_store, recording.device),
        "recorded_steps": recorded,
        "unprofiled_ns": timing["unprofiled_ns"],
        "profiled_ns": _durations(recording, [window], notes)[0][:recorded],
        "overhead_windows": timing["overhead_windows"],
        "losses": _read_or_default("The losses", lambda: losses_as_floats(recording.losses), [], notes),
        "memory": _read_or_default("The memory figures", recording.memory.to_dict, None, notes),
        "flops": recording.flops.to_dict(),
        **{key: plain_value(recording.rank_entry.get(key)) for key in ADDED},
        "ddp": _read_or_default("DDP's logging data", lambda: ddp_logging(recording.model), None, notes),
        "notes": notes,
        "model": recording.options.get("model"),
        "parameters": recording.parameters,
        "options": {key: plain_value(value) for key, value in recording.options.items() if key != "model"},
        "schedule": {"wait": window.first, "warmup": window.start - window.first, "steps": window.steps},
    }


def foreign_metadata(rank_store: RankStore, device: torch.device, recorded: int, notes: list[str]) -> dict[str, Any]:
    """Return this rank's part of run.json for the trace of another profiler, which measures nothing else.

    Args:
        recorded: how many whole steps the trace holds.
        notes: the notes for run.json.
    """
    return {
        **rank_facts(rank_store, device),
        "recorded_steps": recorded,
        "unprofiled_ns": [],
        "profiled_ns": [],
        "overhead_windows": [],
        "losses": [],
        "memory": None,
        "flops": None,
        "ddp": None,
        "notes": notes,
        "model": None,
        "parameters": None,
        "options": {},
        "schedule": None,
    }


def rank_facts(rank_store: RankStore, device: torch.device) -> dict[str, Any]:
    """Return which rank this is, of what job, on which machine and device, with which software."""
    return {
        "rank": rank_store.rank,
        "node": node_rank(),
        "local_rank": local_rank(device, rank_store.rank),
        "host": platform.node(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "world_size": rank_store.size,
        "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
        "versions": versions(),
    }


def overhead_metadata(
    recording: RankFacts, windows: Sequence[Window], notes: list[str] | None = None
) -> dict[str, Any]:
    """Return the step times of the windows that measure the overhead, in ns."""
    times = _durations(recording, windows, [] if notes is None else notes)
    by_window: list[dict[str, Any]] = [
        {"profiled": window.profiled, "step_ns": ns, "cpu_ns": window.cpu_ns}
        for window, ns in zip(windows, times, strict=True)
    ]
    unprofiled = [step for entry in by_window if not entry["profiled"] for step in entry["step_ns"]]
    return {"rank": recording.rank_store.rank, "unprofiled_ns": unprofiled, "overhead_windows": by_window}


def _durations(recording: RankFacts, windows: Sequence[Window], notes: list[str]) -> list[list[int]]:
    """Return the times of the steps of each window."""
    times: list[list[int]] = _read_or_default(
        "The steps' times",
        lambda: [recording.stopwatch.durations_ns(window.laps) for window in windows],
        [[] for _ in windows],
        notes,
    )
    return times


def _read_or_default(what: str, read: Callable[[], Any], otherwise: Any, notes: list[str]) -> Any:
    """Read a value; return *otherwise* and add a note if that fails, because the trace is useful without it."""
    try:
        return read()
    except Exception as error:
        note = f"{what} could not be read: {messages.error_text(error)}"
        if note not in notes:
            notes.append(note)
        return otherwise


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
    """Return a value that JSON can hold; tensors, also in a table, are copied from their device."""
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
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
