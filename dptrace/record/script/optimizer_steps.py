"""Count the steps of a script from its optimizer's steps, which torch's public optimizer hook reports.

A step ends when the optimizer that made the very first step makes its next one. So several optimizers in one loop count
once; an optimizer that steps k times in a pass counts k steps; and a pass whose step a GradScaler skips counts with the
next.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dptrace.record.launch import messages
from dptrace.record.recording import Recording, latest, record
from dptrace.record.stack_dump import install_stack_dump

__all__ = ["OptimizerSteps", "watch_steps"]


def watch_steps() -> OptimizerSteps:
    """Prepare this process, which is a rank, to be recorded; call this before the program runs."""
    install_stack_dump()
    steps = OptimizerSteps()
    register_optimizer_step_post_hook(steps)
    return steps


class OptimizerSteps:
    """Starts a recording at the first optimizer step and ends one of its steps at each further one."""

    def __init__(self) -> None:
        self.seen = False
        self.process = os.getpid()
        """The id of this process: a child that the script forks inherits the hook but must not touch the recording."""
        self._recording: Recording | None = None
        self._counted_optimizer: weakref.ref[Optimizer] | None = None

    def __call__(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        """Count a step of an optimizer, as a hook."""
        if self.forked:
            return
        self.seen = True
        if latest() is not None and latest() is not self._recording:
            return  # the script calls record() itself
        if self._recording is None:
            self._counted_optimizer = weakref.ref(optimizer)
            self._recording = record()
            self._recording.set_parameters(p for group in optimizer.param_groups for p in group["params"])
            self._recording.__enter__()
            return
        assert self._counted_optimizer is not None
        if self._counted_optimizer() is None:
            self._counted_optimizer = weakref.ref(optimizer)  # a script may continue with another one
        if self._counted_optimizer() is optimizer:
            self._recording.step()

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    def close(self, error: BaseException | None) -> None:
        """End the recording."""
        if error is not None:
            # First: closing takes time, in which peers fail because of this failure.
            messages.report_failure(error)
        if self._recording is not None:
            self._recording.close(error)
