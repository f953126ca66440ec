"""Count the steps of a script from its optimizer's steps, which torch's public optimizer hook reports.

A step ends when the optimizer that made the very first step makes its next one; :mod:`.counted_optimizer` says when
another takes its place. So several optimizers in one loop count once; an optimizer that steps k times in a pass counts
k steps; and a pass whose step a GradScaler skips counts with the next. Where that does not fit, the script calls
``dptrace.record.step()``.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.errors import RecordingError
from dptrace.record.recording import Recording, latest, record
from dptrace.record.run_folder import messages
from dptrace.record.script.closures import mark_closure
from dptrace.record.script.counted_optimizer import CountedOptimizer
from dptrace.record.script.evaluation import EvaluationMarks
from dptrace.record.script.profiler_steps import ScriptProfilerSteps

__all__ = ["STEP_ADVICE", "OptimizerSteps", "current_counter"]

STEP_ADVICE = "call dptrace.record.step() at the end of each pass of your loop"
_EXPLICIT = "dptrace.record.script.explicit_step"
"""The module of ``dptrace.record.step``, which is imported once a script asks for that function."""

_running: OptimizerSteps | None = None


def current_counter() -> OptimizerSteps | None:
    """Return the counter of this process; None in one that ``dptrace record`` runs no script in."""
    return _running


class OptimizerSteps:
    """Starts a recording at the first optimizer step and ends one of its steps at each further one.

    Args:
        adopted: keeps a trace of the script's own profiler, for a script that leaves no room for dptrace's.
    """

    def __init__(self, adopted: ScriptProfilerSteps | None = None) -> None:
        self.seen = self._refused = False
        self.process = os.getpid()
        """The id of this process: a child that the script forks inherits the hook but must not touch the recording."""
        self._recording: Recording | None = None
        self._counted: CountedOptimizer | None = None
        self._first: weakref.ref[Optimizer] | None = None
        self._adopted = adopted
        self._explicit = False
        """Whether the script says itself where its steps end."""
        self._evaluation = EvaluationMarks()

    def install(self) -> None:
        """Follow the steps of all optimizers of this process, and make this its counter."""
        global _running
        _running = self
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(self)

    def __call__(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        """Count a step of an optimizer, as a hook."""
        if self.forked or self._refused:
            return
        self.seen = True
        if latest() is not None and latest() is not self._recording:
            return  # the script calls record() itself
        self._explicit = self._explicit or _EXPLICIT in sys.modules
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._explicit:
            return
        if self._recording is None or self._counted is None:
            self._counted = CountedOptimizer(optimizer)
            self._begin()
        elif self._counted.ends_step(optimizer):
            self._note_uneven_steps(self._recording, self._counted)
            self._recording.step()

    def end_step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step because the script says so; from now on, optimizers do not count."""
        if self.forked or self._refused:
            return
        self.seen = self._explicit = True
        recording = latest()
        if recording is not None:
            recording.step(loss)
        else:
            self._begin()

    def _begin(self) -> None:
        if self._refused:
            return
        try:
            self._start()
        except Exception as error:  # must not end the training
            self._refused = True
            text = f"The recording could not begin: {messages.error_text(error)}"
            messages.report_failure(RecordingError(text), of_recorder=True)

    def _start(self) -> None:
        self._recording = record()
        self._recording.adopted = self._adopted
        optimizer = None if self._first is None else self._first()
        if optimizer is not None:
            if self._adopted is not None:
                self._adopted(optimizer, (), {})
            self._recording.set_parameters(p for group in optimizer.param_groups for p in group["params"])
        self._recording.__enter__()
        self._evaluation.start()

    @staticmethod
    def _note_uneven_steps(recording: Recording, counted: CountedOptimizer) -> None:
        note = (
            f"The script's optimizers step at different rates; each step of {counted.name} counts as a step of the "
            f"training. If it is not, {STEP_ADVICE}."
        )
        if counted.uneven and note not in recording.notes:
            recording.notes.append(note)

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    def close(self, error: BaseException | None) -> None:
        """End the recording."""
        if error is not None:
            # First: closing takes time, in which peers fail because of this failure.
            messages.report_failure(error)
        self._evaluation.stop()
        if self._recording is not None:
            self._recording.close(error)
        if self._adopted is not None:
            self._adopted.forget()

    @property
    def writing(self) -> bool:
        """Whether this process writes a trace."""
        return self._recording is not None and bool(self._recording.output.writing)
