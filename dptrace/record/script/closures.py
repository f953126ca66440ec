"""Mark the closure that a script passes to ``Optimizer.step``: its forward and backward are not the optimizer's work.

Lightning passes the whole pass of the loop as such a closure, L-BFGS calls one several times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.profiler import record_function

__all__ = ["CLOSURE", "mark_closure"]

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
