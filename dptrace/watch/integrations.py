"""Watch a training of Lightning or of Hugging Face's Trainer: one line in its list of callbacks."""

from __future__ import annotations

import atexit
import os
from typing import Any

from dptrace.errors import DptraceError
from dptrace.record.integrations.lightning import framework_callbacks
from dptrace.watch.session import Watch, begin


class _Watched:
    """The hooks of both frameworks; the steps are those of the optimizer."""

    _options: dict[str, Any]
    _watch: Watch | None = None

    def _begin(self) -> None:
        self._end()
        self._watch = begin(**self._options)
        atexit.register(self._end)

    def _end(self, error: BaseException | None = None) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            atexit.unregister(self._end)
            watch.close(error)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin: Hugging Face's Trainer."""
        self._begin()

    def on_train_start(self, *_: Any) -> None:
        """Begin: Lightning."""
        self._begin()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End, of both."""
        self._end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """End a training of Lightning that failed."""
        self._end(exception)


def LightningCallback(out: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Return a callback for the Trainer of ``lightning`` or ``pytorch_lightning``, which watches the training.

    Args:
        out, options: as of :func:`dptrace.watch.session.watch`.

    Raises:
        DptraceError: Lightning is not installed.
    """
    return _callback("LightningCallback", framework_callbacks("dptrace.watch.LightningCallback"), out, options)


def TrainerCallback(out: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Return a callback for Hugging Face's Trainer, which watches the training.

    Args:
        out, options: as of :func:`dptrace.watch.session.watch`.

    Raises:
        DptraceError: transformers is not installed.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise DptraceError(
            "dptrace.watch.TrainerCallback is for Hugging Face's Trainer. Install it with: pip install transformers"
        ) from None
    return _callback("TrainerCallback", (transformers.TrainerCallback,), out, options)


def _callback(name: str, bases: tuple[type, ...], out: Any, options: dict[str, Any]) -> Any:
    callback = type(name, (_Watched, *bases), {"__module__": __name__})()
    callback._options = {"out": out, **options}
    return callback
