"""A recording that a framework's callback begins, steps and ends; it never ends the training."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.marks import EvaluationMarks
from dptrace.record.recording import Recording, record
from dptrace.record.run_folder import RunFolder
from dptrace.record.safety import say


class CallbackRecording:
    """Records the first steps of a training between :meth:`begin` and :meth:`close`; arguments as of ``record``."""

    def __init__(self, out: str | os.PathLike[str] | None, force: bool, **settings: Any) -> None:
        if out is not None and messages.LauncherSettings.from_environment() is None:
            RunFolder(Path(out)).check(force)  # before a training that would take hours
        self._record = partial(record, out, force=force, **settings)
        self._recording: Recording | None = None
        self._evaluation = EvaluationMarks()

    def begin(self, parameters: Iterable[torch.Tensor]) -> None:
        """Begin to record; a training of this callback before that ended without a word is closed first.

        Args:
            parameters: what is trained.
        """
        self.close(None)
        with _contain_errors():
            recording = self._record()
            recording.set_parameters(parameters)
            recording.__enter__()
            self._recording = recording
            self._evaluation.start()
            atexit.register(self._close_at_exit)

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step; after the last recorded one, the run is written while the training goes on."""
        if self._recording is not None:
            self._recording.step(loss)
            if self._recording.is_over:
                self._evaluation.stop()

    def close(self, error: BaseException | None) -> None:
        """End the recording, early or not.

        Args:
            error: what ended the training; None if it ended by itself.
        """
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self._evaluation.stop()
        atexit.unregister(self._close_at_exit)
        with _contain_errors():
            recording.close(error)

    def _close_at_exit(self) -> None:
        # With an error: otherwise rank 0 would wait for the files of ranks that have ended.
        self.close(RecordingError("the training ended before its last step"))


@contextmanager
def _contain_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        say(f"dptrace: nothing is recorded: {messages.error_text(error)}")
