"""Count the steps of a script from its optimizer's steps, which torch's public optimizer hook reports.

A step ends when the optimizer that made the very first step makes its next one; :mod:`.counted_optimizer` says when
another takes its place. So several optimizers in one loop count once; an optimizer that steps k times in a pass counts
k steps; and a pass whose step a GradScaler skips counts with the next. Where that does not fit, the script calls
``dptrace.record.step()``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.errors import RecordingError
from dptrace.record import messages, script_profiler
from dptrace.record.failures import answer_launcher
from dptrace.record.marks import EvaluationMarks, mark_closure
from dptrace.record.messages import LauncherSettings
from dptrace.record.processes import ignore_termination
from dptrace.record.recording import Recording, latest, record
from dptrace.record.script.profiler_steps import ScriptProfilerSteps

# Choose the optimizer whose steps are the steps of a training.
#
# It is the one that made the very first step, so that several optimizers in one loop count once. It hands over
#
# - to any other, once it is gone: a script may make a new optimizer in each epoch, or in each pass;
# - to a new one that trains a parameter of it, because the old one may linger, held by its scheduler;
# - to one that has made many steps since its last one: the script has gone on to another model.


_GIVEN_UP_AFTER = 20
"""Steps of another optimizer after which the counted one counts as given up. A GAN's critic makes fewer in a pass."""


class CountedOptimizer:
    """Decides which of the steps of all optimizers end a step of the training."""

    def __init__(self, first: Optimizer) -> None:
        self.name = type(first).__name__
        self.uneven = False
        """Whether optimizers step at different rates, so that a step of one may not be a pass of the loop."""
        self._counted = weakref.ref(first)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet([first])
        self._others: Counter[int] = Counter()
        """Steps of each other optimizer, by its id, since the last step of the counted one."""
        self._own = 0
        """Steps of the counted optimizer since another one stepped."""

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Return whether this step of an optimizer ends a step of the training."""
        counted = self._counted()
        if optimizer is not counted and (counted is None or self._replaces(optimizer, counted)):
            self._counted, self.name = weakref.ref(optimizer), type(optimizer).__name__
            counted = optimizer
            self._own = 0
        known = optimizer in self._known
        self._known.add(optimizer)
        if optimizer is counted:
            self._own += 1
            self._others.clear()
            return True
        self._others[id(optimizer)] += 1
        self.uneven |= known and (self._own > 1 or self._others[id(optimizer)] > 1)
        self._own = 0
        return False

    def _replaces(self, optimizer: Optimizer, counted: Optimizer) -> bool:
        if self._others[id(optimizer)] >= _GIVEN_UP_AFTER:
            return True
        return optimizer not in self._known and not _parameters(optimizer).isdisjoint(_parameters(counted))


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


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


# Prepare a rank of a script to be recorded: what ends its steps, what the launcher may ask it, and how it ends.


_POLL_S = 0.05

Steps = OptimizerSteps | ScriptProfilerSteps
"""What records a script: dptrace's profiler by its optimizer's steps, or the script's own profiler."""


def watch_steps() -> Steps:
    """Prepare this process, which is a rank, to be recorded; call this before the program runs."""
    answer_launcher()
    script_profiler.install()  # before the script can prepare a profiler of its own
    settings = LauncherSettings.from_environment()
    adopted = ScriptProfilerSteps(settings) if settings is not None else None
    if settings is not None and adopted is not None and settings.use_script_profiler:
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(adopted)
        steps: Steps = adopted
    else:
        steps = OptimizerSteps(adopted)
        steps.install()
    _write_before_exit(steps)
    return steps


def _write_before_exit(steps: Steps) -> None:
    """Let a script that calls os._exit() write first: it skips all that Python does at exit."""
    leave, process = os._exit, os.getpid()

    def write_and_leave(status: int) -> NoReturn:
        with suppress(BaseException):
            if os.getpid() == process:
                ignore_termination()
                # A profiler can only be stopped on its own thread; another one may end the process because that hangs.
                if threading.current_thread() is threading.main_thread():
                    steps.close(SystemExit(status) if status else None)
                while steps.writing:
                    time.sleep(_POLL_S)
        leave(status)

    os._exit = write_and_leave
