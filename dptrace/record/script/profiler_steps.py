"""Take the trace of the script's own ``torch.profiler.profile`` as a rank's recording (``--use-script-profiler``)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from dptrace.core.units import plural
from dptrace.errors import RecordingError
from dptrace.record.output import start_thread, write_rank
from dptrace.record.profiler.aligned_profile import AlignedProfile, device_of
from dptrace.record.profiler.gloo_threads import gloo_threads
from dptrace.record.profiler.quiet_stderr import quiet_stderr
from dptrace.record.rank_metadata import ddp_logging, foreign_metadata
from dptrace.record.ranks.accelerator import accelerator_of
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.recording import latest
from dptrace.record.run_folder import messages

__all__ = ["ScriptProfilerSteps"]


class _SavedResult:
    """A profiler's result that dptrace has saved: torch saves one only once, so the script gets a copy of that file."""

    def __init__(self, result: Any, path: str) -> None:
        self._result, self._path = result, path

    def save(self, path: str) -> None:
        """Write the trace where the script wants it; like torch, print a failure instead of raising it."""
        try:
            shutil.copyfile(self._path, path)
        except OSError as error:
            print(f"dptrace: the script's trace cannot be written to {path}: {error}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


class ScriptProfilerSteps:
    """Writes the first finished trace of the script's profiler; takes the place of :class:`.OptimizerSteps`."""

    seen = True
    """The launcher reports a script that did not profile itself: it suffices that one rank did."""

    def __init__(self, settings: messages.LauncherSettings) -> None:
        self.process = os.getpid()
        self._folder = messages.window_folder(Path(settings.folder), 1)
        self._parameters: list[torch.Tensor] = []
        self._first_step: dict[int, int] = {}
        """``step_num`` at which the open trace of each profiler began, by the profiler's id."""
        self._saved: str | None = None
        """The first trace, in a temporary file until the end, since the script may save it at any time."""
        self._writer: threading.Thread | None = None
        self._metadata: dict[str, Any] = {}
        self._further = 0
        self._wrap("start_trace", self._begin)
        self._wrap("stop_trace", self._end)

    def _wrap(self, name: str, after: Callable[[Any], None]) -> None:
        original = getattr(profile, name)

        @wraps(original)
        def wrapped(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
            with quiet_stderr():
                result = original(profiler, *arguments, **keywords)
            if not self.forked and not isinstance(profiler, AlignedProfile):
                try:
                    after(profiler)
                except Exception as error:  # must not end the script
                    messages.report_failure(error)
            return result

        setattr(profile, name, wrapped)

    def __call__(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        """Keep the parameters of the first optimizer that steps, as an optimizer's hook."""
        if not self._parameters:
            self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    def _begin(self, profiler: Any) -> None:
        self._first_step[id(profiler)] = profiler.step_num

    def _end(self, profiler: Any) -> None:
        """Save the first trace, and give the profiler a result that the script can still save."""
        if self._saved is not None:
            self._further += 1
            return
        if latest() is not None or profiler.profiler is None or profiler.profiler.kineto_results is None:
            return  # the script records itself with dptrace.record
        file, self._saved = tempfile.mkstemp(prefix="dptrace_", suffix=".json")
        os.close(file)
        result = profiler.profiler.kineto_results
        result.save(self._saved)
        profiler.profiler.kineto_results = _SavedResult(result, self._saved)
        steps = profiler.step_num - self._first_step.get(id(profiler), 0)
        self._metadata = self._describe(profiler, steps if profiler.record_steps else 1)
        self._writer = start_thread(partial(self._write, self._saved, gloo_threads()))

    def _describe(self, profiler: Any, steps: int) -> dict[str, Any]:
        """Return this rank's part of run.json."""
        device = device_of(self._parameters)
        metadata = foreign_metadata(RankStore("adopted"), device, max(steps, 1), _notes(profiler, steps, device))
        parameters = sum(p.numel() for p in self._parameters) if self._parameters else None
        return metadata | {"ddp": ddp_logging(None), "parameters": parameters}

    def _write(self, saved: str, threads: list[int]) -> None:
        def export(path: str) -> None:
            with open(saved, "rb") as source, open(path, "wb") as target:
                before, brace, after = source.read(64).partition(b"{")
                extra = b'"gloo_threads": %s,' % json.dumps(threads).encode() if threads else b""
                target.write(before + brace + extra + after)
                shutil.copyfileobj(source, target, 1 << 20)

        try:
            write_rank(self._folder, export, self._metadata)
        except Exception as error:
            messages.report_failure(RecordingError(f"The script's trace cannot be kept in {self._folder}: {error}."))

    def close(self, error: BaseException | None) -> None:
        """Wait until the trace is written, and name the traces that are not kept."""
        if error is not None:
            messages.report_failure(error)
        if self._saved is None:
            return
        if self._writer is not None:
            self._writer.join()
        os.unlink(self._saved)
        if self._further:
            self._metadata["notes"].append(
                f"The script's profiler made {plural(self._further, 'further trace')}; only the first is kept here."
            )
            piece = self._folder / f"rank{self._metadata['rank']}.piece.json"
            if piece.exists():
                messages.write_json(piece, json.loads(piece.read_text()) | {"notes": self._metadata["notes"]})


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
