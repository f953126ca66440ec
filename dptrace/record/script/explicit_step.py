"""End a step where the script says so, with ``dptrace.record.step()``: not each pass has one step of an optimizer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def step(loss: torch.Tensor | float | None = None) -> None:
    """End a step of the recording of this process, if there is one; else do nothing.

    Call it at the end of each pass of the loop. In a script under ``dptrace record``, these calls count, and the
    optimizer's steps no longer do.

    Args:
        loss: the step's loss, for run.json. It stays on its device, so that no step waits for it.
    """
    steps = sys.modules.get("dptrace.record.steps")
    counter = None if steps is None else steps.current_counter()
    if counter is not None:
        counter.explicit = True  # from now on, optimizers do not count
        counter.end_step("script", loss)
    elif "dptrace.record.recording" in sys.modules:  # else nothing records, perhaps without torch
        from dptrace.record.recording import latest

        recording = latest()
        if recording is not None:
            recording.step(loss)
