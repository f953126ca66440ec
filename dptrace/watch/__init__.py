"""Watch every step of a training, light: who is late, where and since when; the profiler only when something happens.

>>> import dptrace
>>> with dptrace.watch("runs/mine"):    # doctest: +SKIP
...     train()
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dptrace.record import on_first_use

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


__getattr__ = on_first_use(__name__, _HOMES, "Watching")


class _Callable(ModuleType):
    """This module, which is also the function :func:`dptrace.watch.session.watch`."""

    def __call__(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        watched: AbstractContextManager[Any] = __getattr__("watch")(*args, **kwargs)
        return watched


sys.modules[__name__].__class__ = _Callable
