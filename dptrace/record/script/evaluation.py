"""Mark evaluation between the steps of a script, so that it does not count as forward of the next step.

Evaluation begins where the script calls ``eval()`` on a module that was training. From then until that module trains
again, each outermost call of a module in eval mode without gradients is marked. While the script trains, this costs
nothing: the hooks are there only during evaluation that is recorded, and on no module itself, which a script may copy
or save. A model that never trained, such as the teacher in a distillation, is part of the step and gets no mark.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function

__all__ = ["EVALUATION", "EvaluationMarks"]

EVALUATION = "dptrace::evaluation"
"""The mark; dptrace.timeline.steps reads it."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A marked call that runs now."""

    module: weakref.ref[nn.Module]
    thread: int
    mark: record_function

    def is_of(self, module: nn.Module) -> bool:
        """Return whether this is the call of *module* on the present thread."""
        return self.module() is module and self.thread == threading.get_ident()


class EvaluationMarks:
    """Marks the calls of modules that a script evaluates, between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._original_eval: Any = None
        self._evaluated: weakref.ref[nn.Module] | None = None
        """The module that the script has put into eval mode last."""
        self._handles: list[Any] = []
        self._call: _Call | None = None

    def start(self) -> None:
        """Follow the script's calls of ``eval()``."""
        if self._original_eval is not None:
            return
        self._original_eval = original = nn.Module.eval
        marks = self

        def evaluate(self: nn.Module) -> nn.Module:
            # Without a profiler that records, a mark is only a cost; recording begins and ends between evaluations.
            if torch.autograd.profiler._is_profiler_enabled and _trains(self):
                marks._begin(self)
            return original(self)

        evaluate.__doc__ = original.__doc__
        nn.Module.eval = evaluate  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        """Follow them no longer."""
        if self._original_eval is not None:
            nn.Module.eval = self._original_eval  # type: ignore[method-assign]
            self._original_eval = None
        self._remove_hooks()

    def _begin(self, module: nn.Module) -> None:
        self._evaluated = weakref.ref(module)
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before_call),
                register_module_forward_hook(self._after_call, always_call=True),
            ]

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_call(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._call is not None:
            return
        evaluated = None if self._evaluated is None else self._evaluated()
        if evaluated is None or _trains(evaluated):
            self._remove_hooks()  # the script trains again
        elif not module.training and not torch.is_grad_enabled():
            self._call = _Call(weakref.ref(module), threading.get_ident(), record_function(EVALUATION))
            self._call.mark.__enter__()

    def _after_call(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._call is not None and self._call.is_of(module):
            call, self._call = self._call, None
            call.mark.__exit__(None, None, None)


def _trains(module: nn.Module) -> bool:
    """Return whether it or a part of it is in training mode.

    Lightning puts the module in DistributedDataParallel back into training mode, but not the wrapper itself.
    """
    return any(part.training for part in module.modules())
