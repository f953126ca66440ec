"""Marks that dptrace's recorder writes into traces: of phases, and of modules.

The hooks around modules are torch's global ones, on no module itself, which a script may copy or save; so they work for
any model, also below DDP and FSDP, and for layers that activation checkpointing repeats. Backward needs none: autograd
numbers the nodes of its graph, so that each backward function is found to belong to a forward operator, and so to its
module. Hooks in backward would change how autograd runs: full backward hooks copy the inputs of modules, and break
those that work in place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function

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
