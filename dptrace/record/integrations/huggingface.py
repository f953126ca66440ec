"""Record a training with Hugging Face's Trainer: ``Trainer(..., callbacks=[TrainerCallback("runs/x")])``."""

from __future__ import annotations

import os
from typing import Any

from dptrace.errors import DptraceError
from dptrace.record.integrations.callback_recording import CallbackRecording

try:
    import transformers
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    raise DptraceError(
        "dptrace.record.TrainerCallback is for Hugging Face's Trainer. Install it with: pip install transformers"
    ) from None


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc]  # transformers may not be installed
    """Record steps of a Trainer: each is one update of the model, with all batches that accumulate gradients for it.

    Evaluation between steps counts as other work of the step after it. An error of the recording is one line in the
    log; the training continues.

    Args:
        out, steps, warmup, wait, force, memory: as of :func:`dptrace.record.record`.

    Raises:
        UsageError: the folder holds other files or a run.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        steps: int = 10,
        warmup: int = 3,
        wait: int | None = None,
        force: bool = False,
        memory: bool = False,
    ) -> None:
        self._recording = CallbackRecording(out, force, steps=steps, warmup=warmup, wait=wait, memory=memory)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin to record."""
        self._recording.begin([] if model is None else model.parameters())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End a step: the optimizer has stepped."""
        self._recording.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the recording."""
        self._recording.close(None)
