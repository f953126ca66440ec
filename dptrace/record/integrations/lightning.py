"""Record a training with Lightning: ``Trainer(callbacks=[LightningCallback("runs/x")])``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from dptrace.errors import DptraceError
from dptrace.record.integrations.callback_recording import CallbackRecording

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two names under which Lightning is installed. They share no class, so the callback must be of the one in use."""


def framework_callbacks(wanted: str = "dptrace.record.LightningCallback") -> tuple[type, ...]:
    """Return the callback class of each of Lightning's packages that this process uses, or of the first installed."""
    used = [name for name in _PACKAGES if sys.modules.get(name) is not None]
    for name in () if used else _PACKAGES:
        try:
            importlib.import_module(name)
            used = [name]
            break
        except ModuleNotFoundError as missing:
            if missing.name not in ("lightning", name):
                raise
    if not used:
        raise DptraceError(f"{wanted} is for Lightning. Install it with: pip install lightning")
    return tuple(sys.modules[name].Callback for name in used)


class _Hooks:
    """The hooks of the callback, whichever package calls them."""

    _recording: CallbackRecording
    _last_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record; the check of validation before the training is over."""
        self._last_step = trainer.global_step
        self._recording.begin(pl_module.parameters())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, unless this batch only accumulated gradients."""
        if trainer.global_step == self._last_step:
            return
        self._last_step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # Of accumulated batches, this loss is only the last one's.
        self._recording.step(loss if trainer.accumulate_grad_batches == 1 else None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        self._recording.close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording of a training that failed."""
        self._recording.close(exception)


def LightningCallback(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = 10,
    warmup: int = 3,
    wait: int | None = None,
    force: bool = False,
    memory: bool = False,
) -> Any:
    """Return a callback for the Trainer of ``lightning`` or ``pytorch_lightning``, which records steps of the training.

    A step is one update of the model, with all batches that accumulate gradients for it. Evaluation between steps
    counts as other work of the step after it. An error of the recording is one line in the log; the training continues.

    Args:
        out, steps, warmup, wait, force, memory: as of :func:`dptrace.record.record`.

    Raises:
        DptraceError: Lightning is not installed.
        UsageError: the folder holds other files or a run.
    """
    callback = type("LightningCallback", (_Hooks, *framework_callbacks()), {"__module__": __name__})()
    callback._recording = CallbackRecording(out, force, steps=steps, warmup=warmup, wait=wait, memory=memory)
    return callback
