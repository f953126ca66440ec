"""Count the steps of a script from its optimizer's steps, or where no optimizer of torch steps, from backward passes.

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
from typing import NoReturn

import torch
from torch.optim import Optimizer

from dptrace.errors import RecordingError
from dptrace.record import messages, script_profiler
from dptrace.record.failures import answer_launcher
from dptrace.record.hooks import Listener, leave, listen
from dptrace.record.marks import EvaluationMarks
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
_BY_PASSES = (
    "No optimizer of torch.optim stepped, so each backward pass counts as a step of the training. If it is not one, "
    f"{STEP_ADVICE}."
)
_PASSES_BEFORE_A_STEP = 100
"""Backward passes without a step of an optimizer after which none is expected, though there is one: a step may
accumulate the gradients of many."""
_EXPLICIT = "dptrace.record.script.explicit_step"
"""The module of ``dptrace.record.step``, which is imported once a script asks for that function."""

_running: OptimizerSteps | None = None


def _has_optimizer() -> bool:
    """Return whether an optimizer of torch was made; its base class marks the step of each class that it makes."""
    kinds: list[type[Optimizer]] = [Optimizer]
    for kind in kinds:  # grows during the loop
        kinds += kind.__subclasses__()
    return any(getattr(vars(kind).get("step"), "hooked", False) for kind in kinds)


def current_counter() -> OptimizerSteps | None:
    """Return the counter of this process; None in one that ``dptrace record`` runs no script in."""
    return _running


class OptimizerSteps(Listener):
    """Starts a recording at the first step and ends one of its steps at each further one.

    Where no optimizer of torch steps, each backward pass is a step: other libraries have optimizers of their own.

    Args:
        adopted: keeps a trace of the script's own profiler, for a script that leaves no room for dptrace's.
    """

    def __init__(self, adopted: ScriptProfilerSteps | None = None) -> None:
        self.seen = self._refused = False
        self.process = os.getpid()
        """The id of this process: a child that the script forks inherits the hooks but must not touch the recording."""
        self._recording: Recording | None = None
        self._counted: CountedOptimizer | None = None
        self._passes = Counter[bool]()
        """Backward passes without an optimizer of torch, by whether they accumulate gradients."""
        self._first: weakref.ref[Optimizer] | None = None
        self._adopted = adopted
        self._explicit = False
        """Whether the script says itself where its steps end."""
        self._evaluation = EvaluationMarks()

    def install(self) -> None:
        """Follow the training of this process, and make this its counter."""
        global _running
        _running = self
        listen(self)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer."""
        if not self._counts():
            return
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._explicit:
            return
        if self._counted is None:
            if self._recording is not None and self._recording.is_recording:
                return  # steps of backward passes, which a first step of an optimizer does not change
            self._counted = CountedOptimizer(optimizer)
            self._end_step()
        elif self._counted.ends_step(optimizer):
            self._note_uneven_steps()
            self._end_step()

    def after_backward(self, accumulates: bool) -> None:
        """Count a backward pass, if nothing else tells where steps end."""
        if self._counted is not None or not self._counts() or self._explicit:
            return
        self._passes[accumulates] += 1
        if self._passes[True] and not accumulates:
            return  # autograd.grad() beside backward() is a part of a step
        passes = self._passes[accumulates]
        if passes >= (_PASSES_BEFORE_A_STEP if _has_optimizer() else 2):
            self._end_step()
            if self._recording is not None and _BY_PASSES not in self._recording.notes:
                self._recording.notes.append(_BY_PASSES)

    def _counts(self) -> bool:
        """Return whether what is heard counts: not in a forked child, nor where the script calls record() itself."""
        if self.forked or self._refused:
            return False
        self._explicit = self._explicit or _EXPLICIT in sys.modules
        return latest() is None or latest() is self._recording

    def _end_step(self) -> None:
        if self._recording is None:
            self._begin()
            return
        self._recording.step()
        if self._recording.is_over:
            leave(self)
            self._evaluation.stop()

    def end_step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step because the script says so; from now on, optimizers do not count."""
        if self.forked or self._refused:
            return
        self._explicit = True
        recording = latest()
        if recording is not None:
            recording.step(loss)
        else:
            self._begin()

    def _begin(self) -> None:
        self.seen = True
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
                self._adopted.after_optimizer(optimizer)
            self._recording.set_parameters(p for group in optimizer.param_groups for p in group["params"])
        self._recording.__enter__()
        self._evaluation.start()

    def _note_uneven_steps(self) -> None:
        recording, counted = self._recording, self._counted
        if recording is None or counted is None or not counted.uneven:
            return
        note = (
            f"The script's optimizers step at different rates; each step of {counted.name} counts as a step of the "
            f"training. If it is not, {STEP_ADVICE}."
        )
        if note not in recording.notes:
            recording.notes.append(note)

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    @property
    def passes(self) -> int:
        """The number of backward passes while no optimizer had stepped."""
        return self._passes.total()

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
        listen(adopted)
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
