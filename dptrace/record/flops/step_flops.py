"""Count the FLOPs of one step of a training, as torch.utils.flop_counter does, before anything is timed or recorded."""

from __future__ import annotations

import math
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dptrace.record.script_profiler import guard as profiler_guard

__all__ = ["FlopCounter", "StepFlops"]

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
        if self._steps == 2 and counts and not _compiled() and not self._watched:
            self._counter = FlopCounter()
            self._counter.__enter__()
            self._guard.on_foreign_open = self.cancel

    @property
    def _watched(self) -> bool:
        """Whether the script looks at operators itself, with a profiler or a mode."""
        return self._guard.foreign_open or bool(_python_dispatch._get_current_dispatch_mode_stack())

    def cancel(self) -> None:
        """Count no more, since a profiler starts: under a mode, it would record each operator twice."""
        if self._counter is not None:
            _remove(self._counter)
            self._counter = self._guard.on_foreign_open = None

    def end_step(self) -> None:
        """End the step, or the training within it."""
        counter, self._counter = self._counter, None
        if counter is None:
            return
        _remove(counter)
        self._guard.on_foreign_open = None
        if counter.total:
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
