"""What a watch hears of a training: the stages of each step, and when this rank enters and leaves collectives.

A stage is the innermost one that runs: ``data`` while the script waits for its loader, ``forward`` in an outermost
module that trains, ``backward``, ``optimizer``, and ``other`` between them. Time in which the rank is blocked in a
collective, a send or a receive belongs to no stage's own time. All times are the host's. Where steps and backward
passes end is known from :mod:`dptrace.record.steps` and :mod:`dptrace.record.hooks`.

A collective is seen at the methods of torch's process groups, which all of ``torch.distributed`` goes through;
what DistributedDataParallel exchanges in C++ is seen as one collective, from when this rank's gradients are computed to
the end of backward. Functional collectives, as in compiled graphs and DTensor, are not seen.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, dataloader

from dptrace.record import safety
from dptrace.record.hooks import Arguments, in_backward, leave, listen
from dptrace.record.safety import harmless, replace
from dptrace.record.steps import StepEnds
from dptrace.watch.device import DeviceStages
from dptrace.watch.records import (
    BACKWARD,
    CALL,
    COLLECTIVE,
    DATA,
    DEVICE,
    FORWARD,
    GROUP,
    ONE_WAY,
    OPTIMIZER,
    OTHER,
    RECEIVE,
    SEND,
)

_SYNCHRONIZING = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("barrier", "monitored_barrier"),
)
_METHODS = {
    **dict.fromkeys(_SYNCHRONIZING, COLLECTIVE),
    **dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), ONE_WAY),
    "send": SEND,
    **dict.fromkeys(("recv", "recv_anysource"), RECEIVE),
}
"""The methods of a process group, some only in some versions of torch."""
LEARNED_AFTER = 400
"""Calls of modules after which the outermost classes count as known; then inner modules cost nothing."""
_MOST_PENDING = 512
"""Collectives without a wait() that are remembered: a script that never waits would let them grow."""
_FULL = 1 << 16
"""Bytes of calls after which they are written before the step ends: 819 calls."""
_NO_MAPPINGS = (list, tuple, torch.Tensor)
now = time.perf_counter_ns
_engine = torch.autograd.Variable._execution_engine
graph_task = torch._C._current_graph_task_id
is_compiling = torch.compiler.is_dynamo_compiling
_pack = CALL.pack


class Taps(StepEnds):
    """Adds up the stages of this rank's steps and hears its collectives, between :meth:`start` and :meth:`stop`.

    A subclass says what happens at the end of a step, in :meth:`end_step`, which calls :meth:`begin_step`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.stage, self.last = OTHER, now()
        self.own, self.blocked = [0] * 5, [0] * 5
        """Of each stage, ns since the start."""
        self.step = 0
        self.items, self.are_tokens = 0, False
        self.calls = bytearray()
        """Records of calls that are not written yet."""
        self.thread = get_ident()
        """The thread that trains."""
        self.device: DeviceStages | None = None
        self._depth = 0
        self._stages: list[int] = []
        """The stages around the optimizer's steps that run."""
        self._messages: dict[tuple[int, int, int], int] = {}
        """How many were sent to a rank of a group, or received from it."""
        self._groups: dict[str, _Group] = {}
        self._known: dict[int, _Group] = {}
        """The same by the id of the group, while it lives."""
        self._pending: dict[int, list[int]] = {}
        """Collectives that were called and not waited for, by the id of their Work."""
        self._ddp_groups: dict[int, _Group] = {}
        self._ddp: _Group | None = None
        """The group of the DDP module whose backward comes next and will exchange gradients."""
        self._handle: Any = None
        self._arrived_ns = 0
        """When this rank had computed its gradients, under DDP."""
        self._around = OTHER
        self._left_to_learn = self._relearn_at = 0
        self._forwards = 0
        self._roots: dict[type[nn.Module], Callable[[], None]] = {}
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to hear."""
        self.on, self.last = True, now()
        listen(self)
        self._wrap_loader()
        self._learn()
        if dist.is_available():
            self._wrap_groups()

    def stop(self) -> None:
        """Hear no more, and take all hooks off."""
        self.on = False
        leave(self, at_once=not in_backward())
        self._forget_roots()
        self._left_to_learn = 0
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def fail(self, error: Exception) -> None:
        """Turn the watch off, and say so: its errors must not reach the user's code."""
        if self.on:
            self.on = False
            safety.say(f"dptrace: the watch failed and is off ({type(error).__name__}: {error}); the training goes on.")

    # Stages.

    def enter(self, stage: int) -> int:
        """Begin a stage, and return the one around it."""
        time_ns, around = now(), self.stage
        self.own[around] += time_ns - self.last
        self.last, self.stage = time_ns, stage
        if self.device is not None and self.device.measuring:
            self.device.border(around)
        return around

    def leave(self, around: int) -> None:
        """End a stage; return to the one around it."""
        time_ns = now()
        self.own[self.stage] += time_ns - self.last
        if self.device is not None and self.device.measuring:
            self.device.border(self.stage)
        self.last, self.stage = time_ns, around

    def _wrap_loader(self) -> None:
        taps, iterator, enter, leave = self, dataloader._BaseDataLoaderIter, self.enter, self.leave
        fetch, begin, count = iterator.__next__, DataLoader.__iter__, self.count_items

        @functools.wraps(fetch)
        def next_batch(self: Any) -> Any:
            if not taps.on or taps.stage == DATA or get_ident() != taps.thread:
                return fetch(self)
            around = enter(DATA)
            try:
                batch = fetch(self)
            finally:
                leave(around)
            count(self, batch)
            return batch

        @functools.wraps(begin)
        def begin_epoch(self: Any) -> Any:
            if not taps.on or get_ident() != taps.thread:
                return begin(self)
            around = enter(DATA)
            try:
                return begin(self)
            finally:
                leave(around)

        self._undo += [replace((iterator,), "__next__", next_batch), replace((DataLoader,), "__iter__", begin_epoch)]

    def count_items(self, iterator: Any, batch: Any) -> None:
        """Count the tokens of a batch of token ids, else its samples."""
        try:
            if isinstance(batch, _NO_MAPPINGS) or "input_ids" not in batch:
                self.items += iterator._index_sampler.batch_size or 0
            else:
                self.items, self.are_tokens = self.items + batch["input_ids"].numel(), True
        except Exception:  # a dataset of batches, or an iterator of another library
            return

    # Forward: the classes of outermost modules are learnt from the first calls, then only these are wrapped.

    def _learn(self) -> None:
        if self._left_to_learn:
            return
        self._left_to_learn = LEARNED_AFTER
        taps, original = self, nn.Module.__call__
        forward = self._as_forward(original, self._learn_root)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            taps._left_to_learn -= 1
            return forward(self, *args, **kwargs)

        self._undo_learning = replace((nn.Module,), "__call__", functools.wraps(original)(call))
        self._undo.append(self._undo_learning)

    def _as_forward(self, original: Callable[..., Any], ended: Callable[[Any], None] | None) -> Callable[..., Any]:
        """Return a function to call a module with, which is a forward unless it runs in another one, or evaluates."""
        taps, enter, leave = self, self.enter, self.leave

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or taps._depth or not taps.on or get_ident() != taps.thread:
                return original(self, *args, **kwargs)
            if not (self.training or torch.is_grad_enabled()):
                return original(self, *args, **kwargs)
            around = enter(FORWARD)
            taps._depth = 1
            try:
                return original(self, *args, **kwargs)
            finally:
                taps._depth = 0
                leave(around)
                taps._forwards += 1
                if ended is not None:
                    ended(self)

        return call

    def _learn_root(self, module: nn.Module) -> None:
        self._roots.setdefault(type(module), lambda: None)
        if isinstance(module, DistributedDataParallel):
            self._after_ddp(module)
        if self._left_to_learn <= 0:
            self.wrap_roots()

    def _after_ddp(self, module: Any) -> None:
        try:
            if not (torch.is_grad_enabled() and module.require_backward_grad_sync):
                self._ddp = None
                return
            self._ddp = self._ddp_groups.get(id(module))
            if self._ddp is None:
                self._ddp = self._ddp_groups[id(module)] = self.group(module.process_group, "ddp")
        except Exception as error:
            self.fail(error)

    @harmless("learning the outermost modules")
    def wrap_roots(self) -> None:
        """Wrap only the classes of outermost modules from now on."""
        self._left_to_learn = 0
        self._undo_learning()
        for kind in self._roots:
            self._roots[kind] = self._wrap_root(kind)

    def _wrap_root(self, kind: type[nn.Module]) -> Callable[[], None]:
        original, inherited = kind.__call__, "__call__" not in vars(kind)
        forward = self._as_forward(original, self._after_ddp if issubclass(kind, DistributedDataParallel) else None)
        wrapped = functools.wraps(original)(forward)
        setattr(kind, "__call__", wrapped)  # noqa: B010  # mypy

        def undo() -> None:
            if vars(kind).get("__call__") is not wrapped:
                return  # what other code has wrapped since stays as it is
            if inherited:
                del kind.__call__
            else:
                setattr(kind, "__call__", original)  # noqa: B010

        return undo

    def _forget_roots(self) -> None:
        for undo in self._roots.values():
            undo()
        self._roots.clear()

    def _learn_again(self) -> None:
        """Learn the outermost modules again after a step without forward: the script may have another model now."""
        if not self._left_to_learn and self.step >= self._relearn_at:
            self._relearn_at = 2 * self.step + 8
            self._forget_roots()
            self._learn()

    # Backward and optimizer, heard through the recorder's hooks.

    def before_backward(self, tensors: Any, accumulates: bool) -> None:
        """Begin the stage; find out when this rank has computed its gradients, before DDP waits for the others'."""
        if not self.on:
            return
        self._around = self.enter(BACKWARD)
        if self._ddp is not None:
            self._hear_arrival(tensors)

    def _hear_arrival(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, tuple) and tensors else tensors
        node = loss.grad_fn if isinstance(loss, torch.Tensor) else None
        if node is None or _is_compiled():
            return
        self._arrived_ns = 0
        # Queued before DDP's own callback, so it runs before that one waits for the buckets.
        self._handle = node.register_prehook(self._queue)

    def _queue(self, gradient: Any) -> None:
        _engine.queue_callback(self._arrive)

    def _arrive(self) -> None:
        self._arrived_ns = now()

    def after_backward(self, accumulates: bool) -> None:
        """End the stage."""
        if self.on and self.stage == BACKWARD:
            if self._handle is not None:
                self._end_ddp()
            self.leave(self._around)
        if self.counted is None:
            super().after_backward(accumulates)

    def _end_ddp(self) -> None:
        time_ns = now()
        self._handle.remove()
        self._handle = None
        arrival = self._arrived_ns
        if self._ddp is not None and arrival >= self.last:
            self.own[BACKWARD] += arrival - self.last
            self.blocked[BACKWARD] += time_ns - arrival
            self.last = time_ns
            self._ddp.sequence += 1
            self._write(COLLECTIVE, BACKWARD, self._ddp, self._ddp.sequence, -1, arrival, arrival, time_ns)
        self._ddp = None

    def before_optimizer(self, optimizer: Any, arguments: Arguments) -> Arguments | None:
        """Begin the stage."""
        if self.on:
            self._stages.append(self.enter(OPTIMIZER))
        return None

    def after_optimizer(self, optimizer: Any) -> None:
        """End the stage, and perhaps the step."""
        if self.on and self._stages:
            self.leave(self._stages.pop())
        super().after_optimizer(optimizer)

    def begin_step(self) -> None:
        """Begin the next step."""
        self.step += 1
        if not self._forwards:
            self._learn_again()
        self._forwards = 0
        if graph_task() < 0:  # an error that the script has caught may have left something open
            self.thread, self.stage, self._depth = get_ident(), OTHER, 0
            self._stages.clear()
        if len(self._pending) > _MOST_PENDING:
            self._pending.clear()

    # Collectives, sends and receives.

    def _wrap_groups(self) -> None:
        for name, kind in _METHODS.items():
            if hasattr(dist.ProcessGroup, name):
                self._undo.append(self._wrap_method(name, kind))
        taps, work, take, end = self, dist.Work, self._pending.pop, self.end_call
        original = work.wait

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            call = take(id(self), None)
            if call is None or not taps.on:
                return original(self, *args, **kwargs)
            began = now()
            try:
                return original(self, *args, **kwargs)
            finally:
                end(call, began)

        self._undo.append(_replace_method(work, "wait", wait))

    def _wrap_method(self, name: str, kind: int) -> Callable[[], None]:
        taps, original, end, own = self, getattr(dist.ProcessGroup, name), self.end_call, self.own
        groups, pending = self._known, self._pending

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not taps.on or (get_ident() != taps.thread and graph_task() < 0):
                return original(self, *args, **kwargs)
            try:
                # A group's object, which torch keeps, is found faster than its name.
                group, peer, stage = groups.get(id(self)) or taps.know(self), -1, taps.stage
                if kind == COLLECTIVE:
                    group.sequence = sequence = group.sequence + 1
                else:
                    peer, sequence = taps.count_message(kind, group, args)
                call = [kind, stage, group.number, taps.step, sequence, peer, now(), 0, 0, *own]
                call[9 + stage] += call[6] - taps.last
            except Exception as error:
                taps.fail(error)
                return original(self, *args, **kwargs)
            work = original(self, *args, **kwargs)
            if work is None:
                end(call, now())
            else:
                pending[id(work)] = call
            return work

        return _replace_method(dist.ProcessGroup, name, method)

    def count_message(self, kind: int, group: _Group, args: Any) -> tuple[int, int]:
        """Return the rank that a message goes to or comes from, -1 if that is not known, and its number."""
        if kind == ONE_WAY:
            return -1, 0
        peer = group.ranks[args[1]] if len(args) > 1 and isinstance(args[1], int) else -1
        key = kind, group.number, peer
        self._messages[key] = number = self._messages.get(key, 0) + 1
        return peer, number

    def know(self, group: Any) -> _Group:
        """Return a group that is met for the first time, and remember its object."""
        known, key = self.group(group), id(group)
        self._known[key], known.alive = known, weakref.ref(group, lambda _: self._known.pop(key, None))
        return known

    def end_call(self, call: list[int], began: int) -> None:
        """Write a call for which the rank has waited since *began*."""
        stage, calls = self.stage, self.calls
        self.own[stage] += began - self.last
        self.last = call[8] = time_ns = now()
        self.blocked[stage] += time_ns - began
        call[7] = began
        calls += _pack(*call)
        if len(calls) > _FULL:
            self.flush()

    def flush(self) -> None:
        """Write the calls; a subclass says where to."""

    def write_device(self) -> None:
        """Write the device times that have become known."""
        for step, spent in self.device.done() if self.device is not None else ():
            self.calls += _pack(DEVICE, OTHER, 0, step, 0, -1, 0, 0, 0, *spent)

    def _write(self, kind: int, stage: int, group: _Group, sequence: int, peer: int, *times: int) -> None:
        self.calls += _pack(kind, stage, group.number, self.step, sequence, peer, *times, *self.own)

    def group(self, group: Any, what: str = "") -> _Group:
        """Return a group; what DDP exchanges in it has a number of its own."""
        name = f"{what}{group.group_name}"
        if name not in self._groups:
            ranks = dist.get_process_group_ranks(group)
            self._groups[name] = _Group(zlib.crc32(f"{name}:{ranks}".encode()) % 65_000, ranks)
            self._write(GROUP, OTHER, self._groups[name], len(ranks), group.rank(), 0, 0, 0)
        return self._groups[name]


@dataclass(slots=True)
class _Group:
    """A process group."""

    number: int
    ranks: list[int]
    sequence: int = 0
    """Of its last collective."""
    alive: Any = None


def _is_compiled() -> bool:
    """Return whether compiled autograd traces backward passes, and so would the hook on a loss."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled is not None and bool(getattr(compiled, "compiled_autograd_enabled", False))


def _replace_method(kind: Any, name: str, wrapped: Callable[..., Any]) -> Callable[[], None]:
    """Put a method in place of one of torch's C++ classes, which may inherit it; return what undoes that."""
    own = vars(kind).get(name)  # not what getattr() returns, which is the function without its binding to an object
    wrapped.__name__, wrapped.__doc__ = name, getattr(kind, name).__doc__
    setattr(kind, name, wrapped)

    def undo() -> None:
        if vars(kind).get(name) is wrapped:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)

    return undo
