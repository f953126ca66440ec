"""Take the trace of the script's own ``torch.profiler.profile`` as a rank's recording."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from dptrace.core.units import plural
from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.accelerator import accelerator_of
from dptrace.record.distributed import RankStore
from dptrace.record.gloo import gloo_threads
from dptrace.record.hooks import Arguments, Listener
from dptrace.record.marks import mark_closure
from dptrace.record.output import start_thread, write_rank
from dptrace.record.profiler import AlignedProfile, device_of, quiet_stderr
from dptrace.record.rank_metadata import ddp_logging, foreign_metadata
from dptrace.record.recording import latest
from dptrace.record.safety import harmless, say


class _SharedResult:
    """A profiler's result, of which a copy is kept when the script saves it: torch saves a result only once."""

    def __init__(self, result: Any, on_kept: Callable[[], None]) -> None:
        self._result, self._on_kept, self.kept = result, on_kept, ""

    def save(self, path: str) -> None:
        """Write the trace where the script wants it; like torch, print a failure instead of raising it."""
        try:
            with open(path, "ab"):
                pass
            if self.kept:
                shutil.copyfile(self.kept, path)
            else:
                self._result.save(path)
                self.keep(path)
        except OSError as error:
            say(f"dptrace: the script's trace cannot be written to {path}: {error}")

    def keep(self, saved: str | None = None) -> None:
        """Keep the trace in a temporary file: a copy of where the script has saved it, if it has."""
        file, kept = tempfile.mkstemp(prefix="dptrace_", suffix=".json")
        os.close(file)
        try:
            if saved is None:
                self._result.save(kept)
            else:
                shutil.copyfile(saved, kept)
        except OSError:  # nothing at the script's path, or no space: the script goes on
            os.unlink(kept)
            return
        self.kept = kept
        self._on_kept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


class ScriptProfilerSteps(Listener):
    """Keeps a trace of the script's profiler, the first one that is wanted, and writes it when the script ends.

    With --use-script-profiler it takes the place of :class:`.OptimizerSteps`; without, it is there for a script whose
    profiler leaves no room for dptrace's.
    """

    passes = 0
    seen = True
    """The launcher reports a script that did not profile itself: it suffices that one rank did."""

    def __init__(self, settings: messages.LauncherSettings) -> None:
        self.process = os.getpid()
        self.wanted = self._is_the_run = settings.use_script_profiler
        """Whether the next trace is kept."""
        self._writer: threading.Thread | None = None
        self._folder = messages.window_folder(Path(settings.folder), 1)
        self._parameters: list[torch.Tensor] = []
        self._first_step: dict[int, int] = {}
        """``step_num`` at which the open trace of each profiler began, by the profiler's id."""
        self._result: _SharedResult | None = None
        self._metadata: dict[str, Any] = {}
        self._threads: list[int] = []
        self._further = 0
        self._writing = messages.Writing(Path(settings.folder), messages.rank())
        self._wrap("start_trace", self._begin)
        self._wrap("stop_trace", self._end)

    def _wrap(self, name: str, after: Callable[[Any], None]) -> None:
        original = getattr(profile, name)

        @wraps(original)
        def wrapped(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
            with quiet_stderr() if self.wanted else nullcontext():
                result = original(profiler, *arguments, **keywords)
            if not self.forked and not isinstance(profiler, AlignedProfile):
                after(profiler)
            return result

        setattr(profile, name, wrapped)

    def before_optimizer(self, optimizer: Optimizer, arguments: Arguments) -> Arguments | None:
        """Mark the closure that the optimizer calls."""
        return mark_closure(optimizer, *arguments)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Keep the parameters of the first optimizer that steps."""
        if not self._parameters:
            self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    @property
    def has_trace(self) -> bool:
        """Whether a trace is kept."""
        return self._result is not None

    @property
    def writing(self) -> bool:
        """Whether this process writes a trace."""
        return bool(self._writing)

    @harmless("keeping the trace of the script's profiler", is_needed=True)
    def _begin(self, profiler: Any) -> None:
        self._first_step[id(profiler)] = profiler.step_num

    @harmless("keeping the trace of the script's profiler", is_needed=True)
    def _end(self, profiler: Any) -> None:
        """Keep the first trace, which the script can still save."""
        if self._result is not None:
            self._further += 1
            return
        if not self.wanted or profiler.profiler is None or profiler.profiler.kineto_results is None:
            return
        result = _SharedResult(profiler.profiler.kineto_results, self._begin_to_write)
        self._result = profiler.profiler.kineto_results = result
        steps = profiler.step_num - self._first_step.get(id(profiler), 0)
        self._metadata = self._describe(profiler, steps if profiler.record_steps else 1)
        self._threads = gloo_threads()

    def _describe(self, profiler: Any, steps: int) -> dict[str, Any]:
        """Return this rank's part of run.json."""
        device = device_of(self._parameters)
        metadata = foreign_metadata(RankStore("adopted"), device, max(steps, 1), _notes(profiler, steps, device))
        parameters = sum(p.numel() for p in self._parameters) if self._parameters else None
        return metadata | {"ddp": ddp_logging(None), "parameters": parameters}

    def _begin_to_write(self) -> None:
        """Write the trace in a thread, if it is the run in any case."""
        if self._is_the_run:
            with self._writing.ended_elsewhere():
                self._writer = start_thread(self._write)

    def write(self, note: str = "") -> None:
        """Write the trace that is kept, unless a thread has done so.

        Args:
            note: why it is the run, for run.json.
        """
        if self._result is None:
            return
        self._is_the_run = True
        notes = self._metadata["notes"]
        notes += [note] if note else []
        if self._further:
            further = plural(self._further, "further trace")
            notes.append(f"The script's profiler made {further}; only the first is kept here.")
        if not self._result.kept:
            self._result.keep()
            if not self._result.kept:
                text = f"the script's trace cannot be copied to {tempfile.gettempdir()}"
                messages.report_failure(RecordingError(text), of_recorder=True)
        elif self._writer is None:
            self._begin_to_write()
        if self._writer is not None:
            self._writer.join()
        piece = self._folder / f"rank{self._metadata['rank']}.piece.json"
        if self._further and piece.exists():
            messages.write_json(piece, json.loads(piece.read_text()) | {"notes": notes})

    def _write(self) -> None:
        try:
            write_rank(self._folder, self._export, self._metadata)
        except RecordingError as error:
            messages.report_failure(error, of_recorder=True)
        finally:
            self._writing.end()

    def _export(self, path: str) -> None:
        assert self._result is not None
        with open(self._result.kept, "rb") as source, open(path, "wb") as target:
            before, brace, after = source.read(64).partition(b"{")
            extra = b'"gloo_threads": %s,' % json.dumps(self._threads).encode() if self._threads else b""
            target.write(before + brace + extra + after)
            shutil.copyfileobj(source, target, 1 << 20)

    def forget(self) -> None:
        """Delete the temporary file."""
        if self._result is not None and self._result.kept:
            with suppress(OSError):
                os.unlink(self._result.kept)
        self._result, self.wanted = None, False

    def close(self, error: BaseException | None) -> None:
        """Write the trace, and name the traces that are not kept."""
        if error is not None:
            messages.report_failure(error)
        if latest() is None:  # else the script records itself with dptrace.record
            self.write()
        self.forget()


def _notes(profiler: Any, steps: int, device: torch.device) -> list[str]:
    """Return what the trace of this profiler lacks."""
    notes = ["The trace is that of the script's own profiler."]
    if ProfilerActivity.CPU not in profiler.activities:
        notes.append(
            "The script's profiler records no CPU activity, so there are neither steps nor phases nor launches: add "
            "ProfilerActivity.CPU to its activities."
        )
    elif not profiler.record_steps:
        notes.append(
            "The script's profiler has no schedule and so does not mark steps: the whole trace counts as one step. "
            "Give it a schedule, and call its step() at the end of each step."
        )
    elif steps < 1:
        notes.append("The script's profiler ended within the first step that it recorded.")
    if accelerator_of(device) is None and not profiler.record_shapes:
        notes.append(
            "The script's profiler records no shapes, so the sizes of gloo's messages are unknown: set "
            "record_shapes=True."
        )
    return notes
