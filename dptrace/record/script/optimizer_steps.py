"""Record a script by its steps, and prepare the rank that runs it; :mod:`dptrace.record.steps` says where they end."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Literal, NoReturn, Protocol

import torch

from dptrace.errors import RecordingError
from dptrace.record import messages, script_profiler
from dptrace.record.failures import answer_launcher
from dptrace.record.hooks import leave, listen
from dptrace.record.marks import EvaluationMarks
from dptrace.record.messages import LauncherSettings
from dptrace.record.processes import ignore_termination
from dptrace.record.recording import Recording, latest, record
from dptrace.record.script.profiler_steps import ScriptProfilerSteps
from dptrace.record.steps import StepEnds, set_counter

STEP_ADVICE = "call dptrace.record.step() at the end of each pass of your loop"
_BY_PASSES = (
    "No optimizer of torch.optim stepped, so each backward pass counts as a step of the training. If it is not one, "
    f"{STEP_ADVICE}."
)


class OptimizerSteps(StepEnds):
    """Starts a recording at the first step and ends one of its steps at each further one.

    Args:
        adopted: keeps a trace of the script's own profiler, for a script that leaves no room for dptrace's.
    """

    def __init__(self, adopted: ScriptProfilerSteps | None = None) -> None:
        super().__init__()
        self.seen = self._refused = False
        self._recording: Recording | None = None
        self._adopted = adopted
        self._evaluation = EvaluationMarks()

    def install(self) -> None:
        """Follow the training of this process, and make this its counter."""
        set_counter(self)
        listen(self)

    def is_settled(self) -> bool:
        """Return whether backward passes are being recorded."""
        return self._recording is not None and self._recording.is_recording

    def counts(self) -> bool:
        """Return whether what is heard counts: not in a forked child, nor where the script calls record() itself."""
        if self._refused or not super().counts():
            return False
        return latest() is None or latest() is self._recording

    def end_step(self, by: Literal["optimizer", "passes", "script"], loss: torch.Tensor | float | None = None) -> None:
        """End a step; the first one begins the recording."""
        if self.forked or self._refused:
            return
        recording = latest() if by == "script" else self._recording
        if by == "optimizer":
            self._note_uneven_steps()
        if recording is None:
            self._begin()
        else:
            recording.step(loss)
            if recording.is_over and by != "script":
                leave(self)
                self._evaluation.stop()
        recording = self._recording
        if by == "passes" and recording is not None and _BY_PASSES not in recording.notes:
            recording.notes.append(_BY_PASSES)

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
        optimizer = None if self.first is None else self.first()
        if optimizer is not None:
            if self._adopted is not None:
                self._adopted.after_optimizer(optimizer)
            self._recording.set_parameters(p for group in optimizer.param_groups for p in group["params"])
        self._recording.__enter__()
        self._evaluation.start()

    def _note_uneven_steps(self) -> None:
        recording, counted = self._recording, self.counted
        if recording is None or counted is None or not counted.uneven:
            return
        note = (
            f"The script's optimizers step at different rates; each step of {counted.name} counts as a step of the "
            f"training. If it is not, {STEP_ADVICE}."
        )
        if note not in recording.notes:
            recording.notes.append(note)

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
"""How often it is asked whether the trace is written."""


class Steps(Protocol):
    """What follows a script: dptrace's profiler by its optimizer's steps, the script's own profiler, or a watch."""

    seen: bool
    """Whether there was a step."""

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""

    @property
    def passes(self) -> int:
        """The number of backward passes while no optimizer had stepped."""

    @property
    def writing(self) -> bool:
        """Whether this process writes a trace."""

    def close(self, error: BaseException | None) -> None:
        """End at the end of the program, or at the error that ended it."""


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
    write_before_exit(steps)
    return steps


def write_before_exit(steps: Steps) -> None:
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
