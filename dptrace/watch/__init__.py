"""Watch every step of a training, light: who is late, where and since when; the profiler only when something happens.

>>> import dptrace
>>> with dptrace.watch("runs/mine"):    # doctest: +SKIP
...     train()
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dptrace.errors import MissingExtraError

if TYPE_CHECKING:
    from dptrace.watch.integrations import LightningCallback, TrainerCallback
    from dptrace.watch.records import CALL_TYPE, STEP_TYPE, read
    from dptrace.watch.session import watch

__all__ = ["CALL_TYPE", "STEP_TYPE", "LightningCallback", "TrainerCallback", "read", "watch"]

_HOMES = {
    **dict.fromkeys(("CALL_TYPE", "STEP_TYPE", "read"), "records"),
    **dict.fromkeys(("LightningCallback", "TrainerCallback"), "integrations"),
    "watch": "session",
}


def __getattr__(name: str) -> object:
    # Imported on first use, so that reading the files of a watch does not need torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'dptrace.watch' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"dptrace.watch.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("Watching needs torch", "record") from None


class _Callable(ModuleType):
    """This module, which is also the function :func:`dptrace.watch.session.watch`."""

    def __call__(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        watched: AbstractContextManager[Any] = __getattr__("watch")(*args, **kwargs)  # type: ignore[operator]
        return watched


sys.modules[__name__].__class__ = _Callable
