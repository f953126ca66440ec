"""Where the recorder looks into a training: before and after each optimizer's step, and after each backward pass.

A process has one set of hooks, which all listeners share, and none while nobody listens, but for the one around the end
of the process group. torch.compile does not trace them. Inside autograd's engine no profiler can be switched, since
torch crashes then; so an optimizer that steps in a gradient's hook is heard there, and what switches waits for
:meth:`Listener.after_backward`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.record.gloo import GlooThreads
from dptrace.record.safety import harmless, replace

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a function is called with."""


class Listener:
    """What hears of a training; each kind overrides what it needs."""

    def before_optimizer(self, optimizer: Optimizer, arguments: Arguments) -> Arguments | None:
        """Hear of an optimizer that begins to step; return what it is to be called with, None to leave that."""
        return None

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Hear of an optimizer that has stepped; it may have done so inside a backward pass."""

    def before_backward(self, tensors: Any, accumulates: bool) -> None:
        """Hear of an outermost backward pass that begins at these tensors; see :meth:`after_backward`."""

    def after_backward(self, accumulates: bool) -> None:
        """Hear of an outermost backward pass that has ended.

        Args:
            accumulates: whether it added to gradients (``backward()``), and did not return them (``autograd.grad()``).
        """

    def before_destruction(self) -> None:
        """Hear that the process group is about to be destroyed."""


def in_backward() -> bool:
    """Return whether this thread runs inside autograd's engine."""
    return torch._C._current_graph_task_id() >= 0


_REST_S = 0.5
"""How long gloo's threads may take until they are idle."""
_listeners: list[Listener] = []
_undo: list[Callable[[], None]] = []
"""What takes the hooks off; empty without any."""


def listen(listener: Listener) -> None:
    """Tell a listener of the training from now on, before those that listen already.

    The first one must come outside of torch's own optimizer hooks, to which none can be added from within.
    """
    if listener not in _listeners:
        _listeners.insert(0, listener)
    if not _undo:
        _undo.append(register_optimizer_step_pre_hook(_untraced(_before_optimizer)).remove)
        _undo.append(register_optimizer_step_post_hook(_untraced(_after_optimizer)).remove)
        _undo.append(_wrap_engine())
    if dist.is_available():
        _wrap_destruction()


def leave(listener: Listener, at_once: bool = False) -> None:
    """Tell a listener no more; without any left, take the hooks off.

    Args:
        at_once: do so here, which must be outside of torch's optimizer hooks; by default when the next backward pass
            has ended, where none of them runs.
    """
    if listener in _listeners:
        _listeners.remove(listener)
    if at_once:
        _take_off_unused()


def _take_off_unused() -> None:
    while _undo and not _listeners:
        _undo.pop()()


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile does not trace, nor what it calls.

    Where nothing is being compiled it is called as it is: ``torch.compiler.disable`` alone takes longer than a hook.
    """
    disabled, compiler = torch.compiler.disable(function), torch._C._dynamo.eval_frame
    active = getattr(compiler, "get_eval_frame_callback", None)  # torch 2.5
    if active is None:
        return disabled

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return disabled(*args) if torch.compiler.is_compiling() or active() is not None else function(*args)

    return call


@harmless("marking an optimizer's step")
def _before_optimizer(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    changed = None
    for listener in tuple(_listeners):
        changed = listener.before_optimizer(optimizer, changed or (args, kwargs)) or changed
    return changed


@harmless("counting the steps of an optimizer", is_needed=True)
def _after_optimizer(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for listener in tuple(_listeners):
        listener.after_optimizer(optimizer)


@harmless("following backward passes", is_needed=True)
def _before_backward(tensors: Any, accumulates: bool) -> None:
    for listener in tuple(_listeners):
        listener.before_backward(tensors, accumulates)


@harmless("following backward passes", is_needed=True)
def _after_backward(accumulates: bool) -> None:
    for listener in tuple(_listeners):
        listener.after_backward(accumulates)
    _take_off_unused()


def _wrap_engine() -> Callable[[], None]:
    """Wrap torch's function for a backward pass, as torch.compiler does for tracing; return what undoes that."""
    original = graph._engine_run_backward

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        outermost = not in_backward()  # reentrant checkpointing runs a pass inside another
        if outermost:
            _before_backward(args[0] if args else None, bool(kwargs.get("accumulate_grad")))
        result = original(*args, **kwargs)
        if outermost:
            _after_backward(bool(kwargs.get("accumulate_grad")))
        return result

    # backward() and grad() look in the first, torch's own modules in the second.
    return replace((torch.autograd, graph), "_engine_run_backward", run)


@functools.cache
def _wrap_destruction() -> None:
    """Let gloo's threads come to rest before a process group is destroyed, whenever that is.

    The last one to release a group waits for its threads with the interpreter's lock, which they need to release a
    collective that has just ended: torch alone hangs so too. A thread of the recorder that takes the lock meanwhile
    makes that more likely, so this stays when the recording is over.
    """
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy(*args: Any, **kwargs: Any) -> Any:
        if (*args, kwargs.get("group"))[0] in (None, dist.group.WORLD):
            _before_destruction()
        rest()
        return original(*args, **kwargs)

    replace((dist, dist.distributed_c10d), "destroy_process_group", destroy)


@harmless("following the end of the process group")
def _before_destruction() -> None:
    for listener in tuple(_listeners):
        listener.before_destruction()


@harmless("waiting for gloo")
def rest() -> None:
    """Let gloo's threads come to rest: who frees a process group waits for them with the lock that they need."""
    GlooThreads().wait_until_idle(_REST_S)
