"""Marks that dptrace's recorder writes into traces: of phases, modules, evaluation and closures.

The hooks around modules are torch's global ones, on no module itself, which a script may copy or save; so they work for
any model, also below DDP and FSDP, and for layers that activation checkpointing repeats. Backward needs none: autograd
numbers the nodes of its graph, so that each backward function is found to belong to a forward operator, and so to its
module. Hooks in backward would change how autograd runs: full backward hooks copy the inputs of modules, and break
those that work in place.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.profiler import record_function

from dptrace.record.safety import harmless, replace

MODULE = "dptrace::module "
"""Start of the marks; dptrace.timeline and dptrace.analysis.kernels read them."""
_WRAPPING = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Attributes under which wrappers of torch keep the module that they wrap."""
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
"""Classes that keep it under ``module``."""

# A tenth of the cost of record_function, but recorded as an operator; the reader knows it by its name.
_mark: Callable[[str], Any] = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)


def phase(name: Literal["forward", "backward", "optimizer", "other"]) -> record_function:
    """Mark the code inside as one phase of a step. Work on autograd's own threads counts as backward without a mark.

    Raises:
        ValueError: *name* is not a phase.
    """
    if name not in ("forward", "backward", "optimizer", "other"):
        raise ValueError(f"unknown phase {name!r}; choose from forward, backward, optimizer, other")
    return record_function(f"dptrace::{name}")


class ModuleMarks:
    """Marks calls of modules between :meth:`start` and :meth:`stop`, as long as a profiler records."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._labels: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        """The mark of each known module, by its id."""
        self._has_root = False
        self._open = threading.local()

    def start(self) -> None:
        """Begin to mark."""
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, always_call=True),
            ]

    def stop(self) -> None:
        """Mark no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def add(self, root: nn.Module) -> None:
        """Name the modules of a model: by their attribute paths, or by their class if they are a model's root.

        Modules of a second model have the class of its root before their paths.
        """
        above = f"{type(root).__name__}." if self._has_root else ""
        self._has_root = True
        for name, module in root.named_modules():
            path = _without_wrappers(root, name)
            label = f"{MODULE}{above}{path}" if path else f"{MODULE}{type(module).__name__}"
            if self._known(module) is None:
                self._labels[id(module)] = (weakref.ref(module), label)

    def _known(self, module: nn.Module) -> str | None:
        reference, label = self._labels.get(id(module), (None, None))
        return label if reference is not None and reference() is module else None

    @harmless("marking modules")
    def _before(self, module: nn.Module, arguments: Any) -> None:
        # Without a profiler that records, a mark is only a cost; it begins and ends between steps.
        if torch.compiler.is_compiling() or not torch.autograd.profiler._is_profiler_enabled:
            return
        label = self._known(module)
        if label is None:
            self.add(module)
            label = self._known(module)
        mark = _mark(label or MODULE)
        mark.__enter__()
        self._calls().append((id(module), mark))

    @harmless("marking modules")
    def _after(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        calls = self._calls()
        if calls and calls[-1][0] == id(module):
            calls.pop()[1].__exit__(None, None, None)

    def _calls(self) -> list[tuple[int, Any]]:
        try:
            calls: list[tuple[int, Any]] = self._open.calls
        except AttributeError:
            calls = self._open.calls = []
        return calls


def _without_wrappers(root: nn.Module, name: str) -> str:
    """Return an attribute path without what wrappers add: ``layers.3`` for ``module._orig_mod.layers.3``."""
    kept: list[str] = []
    around: nn.Module | None = root
    for part in name.split(".") if name else ():
        wrapper = part in _WRAPPING or (part == "module" and type(around).__name__ in _WRAPPERS)
        kept += [] if wrapper else [part]
        around = around._modules.get(part) if around is not None else None
    return ".".join(kept)


# Mark evaluation between the steps of a script, so that it does not count as forward of the next step.
#
# Evaluation begins where the script calls ``eval()`` on a module that was training. From then until that module trains
# again, each outermost call of a module in eval mode without gradients is marked. While the script trains, this costs
# nothing: the hooks are there only during evaluation that is recorded, and on no module itself, which a script may copy
# or save. A model that never trained, such as the teacher in a distillation, is part of the step and gets no mark.


EVALUATION = "dptrace::evaluation"
"""The mark; dptrace.timeline.steps reads it."""


class EvaluationMarks:
    """Marks the calls of modules that a script evaluates, between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._undo: Callable[[], None] | None = None
        self._evaluated: weakref.ref[nn.Module] | None = None
        """The module that the script has put into eval mode last."""
        self._handles: list[Any] = []
        self._call: tuple[weakref.ref[nn.Module], int, record_function] | None = None
        """The marked call that runs now: its module, thread and mark."""

    def start(self) -> None:
        """Follow the script's calls of ``eval()``."""
        if self._undo is not None:
            return
        original, marks = nn.Module.eval, self

        @functools.wraps(original)
        def evaluate(self: nn.Module) -> nn.Module:
            marks._begin(self)
            return original(self)

        self._undo = replace((nn.Module,), "eval", evaluate)

    def stop(self) -> None:
        """Follow them no longer."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._remove_hooks()

    @harmless("marking evaluation")
    def _begin(self, module: nn.Module) -> None:
        # Without a profiler that records, a mark is only a cost; recording begins and ends between evaluations.
        if not torch.autograd.profiler._is_profiler_enabled or not _trains(module):
            return
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

    @harmless("marking evaluation")
    def _before_call(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._call is not None:
            return
        evaluated = None if self._evaluated is None else self._evaluated()
        if evaluated is None or _trains(evaluated):
            self._remove_hooks()  # the script trains again
        elif not module.training and not torch.is_grad_enabled():
            mark = record_function(EVALUATION)
            self._call = weakref.ref(module), threading.get_ident(), mark
            mark.__enter__()

    @harmless("marking evaluation")
    def _after_call(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self._call is None:
            return
        called, thread, mark = self._call
        if called() is module and thread == threading.get_ident():
            self._call = None
            mark.__exit__(None, None, None)


def _trains(module: nn.Module) -> bool:
    """Return whether it or a part of it is in training mode.

    Lightning puts the module in DistributedDataParallel back into training mode, but not the wrapper itself.
    """
    return any(part.training for part in module.modules())


# Mark the closure that a script passes to ``Optimizer.step``: its forward and backward are not the optimizer's work.
#
# Lightning passes the whole pass of the loop as such a closure, L-BFGS calls one several times.


CLOSURE = "dptrace::closure"
"""The mark around each call of a closure; dptrace.timeline.steps reads it."""


def mark_closure(
    optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Replace the closure by one that is marked, as a hook before an optimizer's step; None where nothing changes.

    Without a profiler that records, a mark is only a cost.
    """
    if not torch.autograd.profiler._is_profiler_enabled:
        return None
    if callable(keywords.get("closure")):
        return arguments, {**keywords, "closure": _marked(keywords["closure"])}
    # The optimizer itself comes first.
    if len(arguments) > 1 and callable(arguments[1]):
        return (arguments[0], _marked(arguments[1]), *arguments[2:]), keywords
    return None


def _marked(closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure, updated=())
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with record_function(CLOSURE):
            return closure(*arguments, **keywords)

    return marked
