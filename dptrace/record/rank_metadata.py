"""Values for a rank's part of run.json: its losses, its node and local rank, DDP's logging data."""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _python_dispatch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dptrace.record import messages
from dptrace.record import script_profiler as profiler_guard
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
        self._seen: dict[str, dict[int, int]] = defaultdict(dict)

    def start(self) -> None:
        """Start counting."""
        global _active
        _active = self

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
        global _active
        if _active is self:
            _active = None
        self.model = None
        self._seen.clear()

    def count(self, optimizer: Optimizer) -> None:
        """Count the parameters, gradients and state of an optimizer that has stepped, and the model's parameters."""
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


_active: MemoryTracker | None = None


def _on_optimizer_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if _active is None:
        return
    try:
        _active.count(optimizer)
    except Exception:
        # For example tensors without storage: nothing is counted then, and training continues.
        _active.stop()


# Here and not when a recording begins: that may be inside such a hook, where torch allows no new one.
register_optimizer_step_post_hook(_on_optimizer_step)


# Count the FLOPs of one step of a training, as torch.utils.flop_counter does, before anything is timed or recorded.


_DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
}


class FlopCounter(_python_dispatch.TorchDispatchMode):
    """Counts the FLOPs of what runs under it, in forward and backward; torch's own counter also hooks every module.

    It looks below subclasses of tensors, so that DTensor's operators count with this rank's shards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_dtype: Counter[str] = Counter()
        """All FLOPs, by the type of the factors."""
        self.by_operator: Counter[str] = Counter()
        self.repeated = 0
        """Those of them that repeat what was computed before: activation checkpointing, and Q·Kᵀ in the backward of
        fused attention."""

    @property
    def total(self) -> int:
        """All FLOPs."""
        return self.by_operator.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator, and count it."""
        if any(kind is not torch.Tensor for kind in types):
            return NotImplemented  # the subclass calls operators on plain tensors, which come here again
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        flops, again = _flops_of(func, args, kwargs, result)
        if flops:
            self._add(func, args, flops, again)
        return result

    def _add(self, func: Any, args: Any, flops: int, again: int) -> None:
        dtype = next((arg.dtype for arg in args if isinstance(arg, torch.Tensor)), torch.float32)
        self.by_dtype[_DTYPES.get(dtype, "fp8" if dtype.itemsize == 1 else str(dtype).removeprefix("torch."))] += flops
        self.by_operator[func._overloadpacket._qualified_op_name] += flops
        # The backward of an operator runs without grad mode; checkpointing runs forward again with it.
        in_backward = torch._C._current_graph_task_id() >= 0
        self.repeated += flops if in_backward and torch.is_grad_enabled() else again


def _flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, int]:
    """Return the FLOPs of a call, and how many of them repeat earlier ones."""
    packet = func._overloadpacket
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:  # torch does not count it
        return sdpa_flop_count(*(arg.shape for arg in args[:3])), 0
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return sdpa_backward_flop_count(*(arg.shape for arg in args[:4])), _scores(args)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0, 0
    fused = packet._qualified_op_name.endswith("attention_backward")
    return int(formula(*args, **kwargs, out_val=result)), _scores(args) if fused else 0


def _scores(args: Any) -> int:
    """Return the FLOPs of Q·Kᵀ; (grad, query, key, ...), each [batch, heads, length, d]."""
    query, key = args[1].shape, args[2].shape
    return 2 * math.prod(query) * int(key[-2]) if len(query) == 4 else 0


class StepFlops:
    """The FLOPs of the second step of a process, which is a warm-up in every schedule.

    The first step may compile the model, which a dispatch mode prevents. Where one was compiled, nothing is counted:
    its operators are hidden in kernels.
    """

    def __init__(self) -> None:
        self._counter: FlopCounter | None = None
        self._steps = 0
        self._result: dict[str, Any] | None = None
        self._guard = profiler_guard.install()

    def begin_step(self, counts: bool) -> None:
        """Begin a step; *counts* says whether it may be slowed down."""
        self._steps += 1
        # The script may look at operators itself, with a profiler or a mode.
        watched = self._guard.foreign_open or _python_dispatch._get_current_dispatch_mode_stack()
        if self._steps == 2 and counts and not watched and not _compiled():
            self._counter = FlopCounter()
            self._counter.__enter__()
            self._guard.on_foreign_open = self.cancel

    def cancel(self) -> None:
        """Count no more, as where a profiler starts: under a mode, it would record each operator twice."""
        if self._counter is not None:
            _remove(self._counter)
            self._counter = self._guard.on_foreign_open = None

    def end_step(self) -> None:
        """End the step, or the training within it."""
        counter = self._counter
        self.cancel()
        if counter is not None and counter.total:
            self._result = {
                "hardware": counter.total,
                "model": counter.total - counter.repeated,
                "dtype": counter.by_dtype.most_common(1)[0][0],
            }

    def to_dict(self) -> dict[str, Any] | None:
        """Return what was counted, for run.json; None without any."""
        return self._result


def _compiled() -> bool:
    """Return whether torch.compile has compiled anything."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _remove(mode: FlopCounter) -> None:
    """Take a mode out of the stack; also from below one that the script has entered since."""
    if _python_dispatch._get_current_dispatch_mode() is mode:
        mode.__exit__(None, None, None)
        return
    above = []
    with suppress(Exception):
        while (top := _python_dispatch._get_current_dispatch_mode()) is not None:
            _python_dispatch._pop_mode()
            if top is mode:
                break
            above.append(top)
    for other in reversed(above):
        _python_dispatch._push_mode(other)


ADDED = ("coordinates", "pipeline", "experts")
"""What a trainer can add to its rank's entry: where it stands in a mesh, its part of a pipeline, its experts."""


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
    facts = foreign_metadata(recording.rank_store, recording.device, recorded, notes)
    return facts | {
        "unprofiled_ns": timing["unprofiled_ns"],
        "profiled_ns": _durations(recording, [window], notes)[0][:recorded],
        "overhead_windows": timing["overhead_windows"],
        "losses": _read_or_default("The losses", lambda: losses_as_floats(recording.losses), [], notes),
        "memory": _read_or_default("The memory figures", recording.memory.to_dict, None, notes),
        "flops": recording.flops.to_dict(),
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
        **dict.fromkeys(("memory", "flops", "ddp", "model", "parameters", "schedule")),
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
