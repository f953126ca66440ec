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

from dptrace.record import safety
from dptrace.record.gloo import GlooThreads
from dptrace.record.safety import Part, harmless, replace

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


_listeners: list[Listener] = []


class _Moment:
    """A moment of a training that listeners hear of; after an error of one of them, none does."""

    def __init__(self, method: str, what: str, is_needed: bool = True) -> None:
        self._method, self._part = method, Part(what, Listener, is_needed)
        self.find_listeners()

    def find_listeners(self) -> None:
        """Tell those that listen now and have a method for it."""
        methods = [
            getattr(listener, self._method)
            for listener in _listeners
            if getattr(type(listener), self._method) is not getattr(Listener, self._method)
        ]
        tell = methods[0] if len(methods) == 1 else functools.partial(_tell_each, methods)
        self._part = Part(self._part.what, tell, self._part.is_needed, self._part.failed)
        safety.parts[f"{__name__}.{self._method}"] = self._part

    def tell(self, *arguments: Any) -> Any:
        """Tell the listeners; return the answer, of several the last."""
        part = self._part
        if not part.failed:
            try:
                return part.function(*arguments)
            except Exception as error:
                self._part.fail(error)
        return None


def _tell_each(methods: list[Callable[..., Any]], *arguments: Any) -> Any:
    """Call all; the answer of one takes the place of the last argument for the next."""
    answer = None
    for method in methods:
        given = method(*arguments)
        if given is not None:
            answer, arguments = given, (*arguments[:-1], given)
    return answer


_REST_S = 0.5
"""How long gloo's threads may take until they are idle."""
_optimizer_begins = _Moment("before_optimizer", "marking an optimizer's step", is_needed=False)
_optimizer_ends = _Moment("after_optimizer", "counting the steps of an optimizer")
_backward_begins = _Moment("before_backward", "following backward passes")
_backward_ends = _Moment("after_backward", "following backward passes")
_group_ends = _Moment("before_destruction", "following the end of the process group", is_needed=False)
_undo: list[Callable[[], None]] = []
"""What takes the hooks off; empty without any."""


def listen(listener: Listener) -> None:
    """Tell a listener of the training from now on, before those that listen already.

    The first one must come outside of torch's own optimizer hooks, to which none can be added from within.
    """
    if listener not in _listeners:
        _listeners.insert(0, listener)
        _find_listeners()
    if not _undo:
        _undo.append(register_optimizer_step_pre_hook(_untraced(_optimizer_begins.tell, has_arguments=True)).remove)
        _undo.append(register_optimizer_step_post_hook(_untraced(_optimizer_ends.tell, has_arguments=False)).remove)
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
        _find_listeners()
    if at_once:
        _take_off_unused()


def _find_listeners() -> None:
    for moment in (_optimizer_begins, _optimizer_ends, _backward_begins, _backward_ends, _group_ends):
        moment.find_listeners()


def _take_off_unused() -> None:
    while _undo and not _listeners:
        _undo.pop()()


def _untraced(tell: Callable[..., Any], has_arguments: bool) -> Callable[..., Any]:
    """Return a hook of optimizers that torch.compile does not trace, nor what it calls.

    Where nothing is being compiled it does so directly: ``torch.compiler.disable`` alone takes longer than a hook.
    """

    def call(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tell(optimizer, (args, kwargs)) if has_arguments else tell(optimizer)

    disabled, compiler = torch.compiler.disable(call), torch._C._dynamo.eval_frame
    active, is_compiling = getattr(compiler, "get_eval_frame_callback", None), torch.compiler.is_dynamo_compiling
    if active is None:  # torch 2.5
        return disabled

    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_compiling() or active() is not None:
            return disabled(optimizer, args, kwargs)
        return tell(optimizer, (args, kwargs)) if has_arguments else tell(optimizer)

    return hook


def _wrap_engine() -> Callable[[], None]:
    """Wrap torch's function for a backward pass, as torch.compiler does for tracing; return what undoes that."""
    original, begins, ends = graph._engine_run_backward, _backward_begins.tell, _backward_ends.tell
    graph_task = torch._C._current_graph_task_id

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        outermost = graph_task() < 0  # reentrant checkpointing runs a pass inside another
        if outermost:
            begins(args[0] if args else None, bool(kwargs.get("accumulate_grad")))
        result = original(*args, **kwargs)
        if outermost:
            ends(bool(kwargs.get("accumulate_grad")))
            if not _listeners:
                _take_off_unused()
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
            _group_ends.tell()
        rest()
        return original(*args, **kwargs)

    replace((dist, dist.distributed_c10d), "destroy_process_group", destroy)


@harmless("waiting for gloo")
def rest() -> None:
    """Let gloo's threads come to rest: who frees a process group waits for them with the lock that they need."""
    GlooThreads().wait_until_idle(_REST_S)
