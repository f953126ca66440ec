"""Values for a rank's part of run.json: its losses, its node and local rank, DDP's logging data."""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dptrace.record import messages
from dptrace.record.accelerator import accelerator_of
from dptrace.record.distributed import RankStore, device_name, device_uuid, versions
from dptrace.record.profiler import Stopwatch
from dptrace.record.windows import Window

# The memory of a rank: parameters, gradients and optimizer state, counted at a step, and peaks.


_KINDS = ("parameters", "gradients", "optimizer")


class MemoryTracker:
    """Counts the memory held after an optimizer step, before the gradients are reset.

    Of a sharded tensor only the local shard counts, and memory that several tensors share counts once. Activations and
    the buffers of the model, DDP and FSDP are not included; on a GPU they are part of the peak.

    Args:
        model: the trained model; without it, the parameters that the optimizers update are counted.
    """

    def __init__(self, model: nn.Module | None, device: torch.device) -> None:
        self.model, self.device = model, device
        self._held: dict[str, int] = {}
        self._peaks: Any = None
        """torch's module of the device, once it tracks the peak."""
        self._counts = False
        self._seen: dict[str, dict[int, int]] = defaultdict(dict)

    def start(self) -> None:
        """Start counting."""
        self._counts = True

    def end_step(self) -> None:
        """Keep the counts of this step, in which several optimizers may have stepped."""
        if self._seen:
            self._held = {kind: sum(self._seen[kind].values()) for kind in _KINDS}
            self._seen.clear()

    def reset_peak(self) -> None:
        """Stop counting, which takes time, and start to track the peak on the GPU."""
        self.stop()
        accelerator = accelerator_of(self.device)
        if accelerator is not None:
            # Other allocators than torch's own have no statistics; the peaks are unknown then.
            with suppress(RuntimeError):
                accelerator.module.reset_peak_memory_stats(self.device)
                self._peaks = accelerator.module

    def stop(self) -> None:
        """Stop counting and release the model."""
        self._counts = False
        self.model = None
        self._seen.clear()

    def count(self, optimizer: Optimizer) -> None:
        """Count the parameters, gradients and state of an optimizer that has stepped, and the model's parameters."""
        if not self._counts:
            return
        try:
            self._count(optimizer)
        except Exception:
            self.stop()  # tensors without storage, for example: nothing is counted then

    def _count(self, optimizer: Optimizer) -> None:
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [*(self.model.parameters() if self.model is not None else ()), *updated]
        self._add("parameters", parameters)
        self._add("gradients", (parameter.grad for parameter in parameters))
        self._add("optimizer", (value for state in optimizer.state.values() for value in state.values()))

    def _add(self, kind: str, tensors: Iterable[Any]) -> None:
        sizes = self._seen[kind]
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.detach()
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                storage = local.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()

    def to_dict(self) -> dict[str, int | None]:
        """Return the counts and peaks in bytes; None for those not seen, and for unknown peaks of a GPU."""
        result: dict[str, int | None] = {f"{kind}_bytes": self._held.get(kind) for kind in _KINDS}
        result["peak_allocated_bytes"] = result["peak_reserved_bytes"] = None
        if self._peaks is not None:
            result["peak_allocated_bytes"] = self._peaks.max_memory_allocated(self.device)
            result["peak_reserved_bytes"] = self._peaks.max_memory_reserved(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result["peak_process_bytes"] = peak if sys.platform == "darwin" else peak * 1024
        return result


ADDED = ("coordinates", "pipeline", "experts")
"""What a trainer can add to its rank's entry: where it stands in a mesh, its part of a pipeline, its experts."""


class RankFacts(Protocol):
    """What a recording knows of its rank."""

    rank_store: RankStore
    device: torch.device
    stopwatch: Stopwatch
    memory: MemoryTracker
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
    facts = foreign_metadata(recording.rank_store, recording.device, recorded, notes)
    return facts | {
        "unprofiled_ns": timing["unprofiled_ns"],
        "profiled_ns": _durations(recording, [window], notes)[0][:recorded],
        "core_wait_ns": window.core_wait_ns[:recorded] or None,
        "overhead_windows": timing["overhead_windows"],
        "losses": _read_or_default("The losses", lambda: losses_as_floats(recording.losses), [], notes),
        "memory": _read_or_default("The memory figures", recording.memory.to_dict, None, notes),
        **{key: plain_value(recording.rank_entry.get(key)) for key in ADDED},
        "ddp": _read_or_default("DDP's logging data", lambda: ddp_logging(recording.model), None, notes),
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
    # Ranks that a script has spawned differ in their GPU or, on CPU, in their rank.
    local_rank = rank_store.rank if accelerator_of(device) is None else device.index
    if "LOCAL_RANK" in os.environ or "SLURM_LOCALID" in os.environ:
        local_rank = messages.local_rank()
    return {
        "rank": rank_store.rank,
        "node": int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0"))),
        "local_rank": local_rank,
        "host": platform.node(),
        "device": device_name(device),
        "device_uuid": _read_or_default("The GPU's UUID", lambda: device_uuid(device), None, notes),
        "threads": torch.get_num_threads(),
        "world_size": rank_store.size,
        "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
        "versions": versions(),
        "recorded_steps": recorded,
        "notes": notes,
        "options": {},
        **{key: [] for key in ("unprofiled_ns", "profiled_ns", "overhead_windows", "losses")},
        **dict.fromkeys(("memory", "ddp", "model", "parameters", "schedule")),
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
    return _read_or_default(
        "The steps' times",
        lambda: [recording.stopwatch.durations_ns(window.laps) for window in windows],
        [[] for _ in windows],
        notes,
    )


def _read_or_default(what: str, read: Callable[[], Any], otherwise: Any, notes: list[str]) -> Any:
    """Read a value; return *otherwise* and add a note if that fails, because the trace is useful without it."""
    try:
        return read()
    except Exception as error:
        note = f"{what} could not be read: {messages.error_text(error)}"
        if note not in notes:
            notes.append(note)
        return otherwise


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
