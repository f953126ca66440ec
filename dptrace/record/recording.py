"""Record a training loop: torch's profiler around its steps, their wall times with and without it, a file per rank."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, record_function, schedule

from dptrace.core.units import plural
from dptrace.record.accelerator import accelerator_of
from dptrace.record.environment import device_name, versions
from dptrace.record.launch import messages
from dptrace.record.launch.run_folder import trace_name
from dptrace.record.memory import MemoryTracker
from dptrace.record.options.parse import Schedule
from dptrace.record.output import RecordingOutput, open_output
from dptrace.record.profiler import AlignedProfile, Stopwatch, device_of
from dptrace.record.rank_metadata import ddp_logging, local_rank, losses_as_floats, node_rank, plain_value

__all__ = ["Recording", "is_failure", "latest", "phase", "record"]

_latest: Recording | None = None
"""The latest recording of this process; it may be closed."""


def latest() -> Recording | None:
    """Return the latest recording of this process."""
    return _latest


def is_failure(error: BaseException | None) -> bool:
    """Return whether an exception is a failure, unlike sys.exit(0) and Ctrl-C."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return isinstance(error, Exception)


def phase(name: Literal["forward", "backward", "optimizer", "other"]) -> record_function:
    """Mark the code inside as one phase of a step. Work on autograd's own threads counts as backward without a mark.

    Raises:
        ValueError: *name* is not a phase.
    """
    if name not in ("forward", "backward", "optimizer", "other"):
        raise ValueError(f"unknown phase {name!r}; choose from forward, backward, optimizer, other")
    return record_function(f"dptrace::{name}")


def record(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = 10,
    warmup: int = 3,
    wait: int | None = None,
    force: bool = False,
    model: nn.Module | None = None,
    options: dict[str, Any] | None = None,
    first_step: int = 0,
    damaged_checkpoints: Sequence[str] = (),
) -> Recording:
    """Record the loop in the with block; call ``step()`` at the end of each pass.

    Under ``dptrace record`` the launcher's folder is used, and its --steps, --warmup and --wait if given. Otherwise
    call this after init_process_group(), from which a process that torchrun did not start learns its rank.

    GPU work is recorded if the training is on a GPU: if *model* is, or, without *model*, if this process has used one.

    Args:
        out: folder of the run; by default ``runs/`` and the script's name.
        steps: steps to record.
        warmup: steps to skip before the timed and before the recorded ones; at least 2.
        wait: steps before the profiler starts; by default warmup + steps, the last of which are timed.
        force: replace an existing run.
        model: the trained model: its parameters are counted, and DDP's logging data is kept.
        options: further entries for ``options`` in run.json.
        first_step: the step from which a resumed training continues; its last steps are recorded, after what remains
            of wait and warm-up.
        damaged_checkpoints: checkpoints that could not be read, and why, for the notes in run.json.

    Raises:
        UsageError: the folder holds other files or a run, or the schedule is impossible.
    """
    assignment = messages.LauncherSettings.from_environment()
    if assignment is not None:
        steps, warmup, wait = assignment.schedule(steps, warmup, wait)
    recording = Recording(
        Schedule.of(steps, warmup, wait).after(first_step), open_output(out, force), model, options or {}, first_step
    )
    recording.notes += [f"{checkpoint} could not be read and was skipped." for checkpoint in damaged_checkpoints]
    return recording


class Recording:
    """A recording of this rank's steps; see :func:`record`."""

    def __init__(
        self,
        plan: Schedule,
        output: RecordingOutput,
        model: nn.Module | None,
        options: dict[str, Any],
        first_step: int = 0,
    ) -> None:
        self.first_step = first_step
        self.schedule, self.output, self.model, self.options = plan, output, model, options
        self.parameters: int | None = None
        self.device = device_of(())
        self.memory = MemoryTracker(model, self.device)
        if model is not None:
            self.set_parameters(model.parameters())
        self.steps_done = 0
        self.notes: list[str] = []
        if first_step:
            self.notes.append(f"The training continued from the checkpoint of step {first_step}.")
            if plan.warmup < 2:
                self.notes.append(
                    f"Only {plural(plan.warmup, 'warm-up step')} ran before the recorded steps, which may be slower."
                )
        self.losses: list[torch.Tensor] = []
        self.stopwatch = Stopwatch(self.device)
        self._profile: AlignedProfile | None = None
        self._writer: threading.Thread | None = None
        self._inactive = False
        self._error: str | None = None

    def set_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Set the trained parameters before the first step: they determine the parameter count and the device."""
        trained = list(parameters)
        with suppress(ValueError):  # the sizes of lazy modules are unknown before the first step
            self.parameters = sum(parameter.numel() for parameter in trained)
        self.device = device_of(trained)
        self.memory = MemoryTracker(self.model, self.device)

    @property
    def total_steps(self) -> int:
        """The number of steps after which the recording is complete, counted from the first step of the training."""
        return self.first_step + self.schedule.total

    @property
    def recorded_steps(self) -> int:
        """The number of recorded steps that have ended."""
        return min(max(self.steps_done - self.schedule.wait - self.schedule.warmup, 0), self.schedule.steps)

    def __enter__(self) -> Recording:
        global _latest
        launched = messages.LauncherSettings.from_environment() is not None
        if _latest is not None and (_latest._profile is not None or launched):
            # A process has one profiler, and a launcher's folder holds one recording.
            self._inactive = True
            _latest.notes.append("The script started another recording; only the first was kept.")
            return self
        self.output.begin()
        _latest = self
        self.stopwatch = Stopwatch(self.device)
        activities = [ProfilerActivity.CPU]
        if (accelerator := accelerator_of(self.device)) is not None:
            activities.append(accelerator.activity)
        plan = schedule(wait=self.schedule.wait, warmup=self.schedule.warmup, active=self.schedule.steps, repeat=1)
        self._profile = AlignedProfile(
            self.output.rank_store, activities=activities, schedule=plan, record_shapes=self._needs_shapes()
        )
        self._profile.start()
        self._update_memory()
        self.stopwatch.begin()
        return self

    def _needs_shapes(self) -> bool:
        """Return whether message sizes must be computed from shapes: gloo's events contain no size, NCCL's do.

        Recording shapes makes every operator slower, which matters if the GPU waits for the host.
        """
        accelerator = accelerator_of(self.device)
        if accelerator is None:
            return True
        joined = dist.is_available() and dist.is_initialized()
        return joined and accelerator.backend_config not in dist.get_backend_config()

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step. *loss* stays on its device, so that no step waits for it; it is averaged over ranks later."""
        if self._profile is None:
            return
        with self._contain_errors():
            self.stopwatch.end()
            if loss is not None:
                self.losses.append(torch.as_tensor(loss).detach())
            self._profile.step()
            self.steps_done += 1
            self._update_memory()
            self.output.progress(self.steps_done, self.schedule.total)
            if self.steps_done == self.schedule.total:
                self._finish()
            self.stopwatch.begin()

    def _update_memory(self) -> None:
        """Count the held memory in the untimed warm-up before the recorded steps; then track the peak."""
        self.memory.end_step()
        if self.steps_done == self.schedule.wait:
            self.memory.start()
        if self.steps_done == self.schedule.wait + self.schedule.warmup:
            self.memory.reset_peak()

    @contextmanager
    def _contain_errors(self) -> Iterator[None]:
        """Abandon the recording on an error inside it, which must not end the user's training.

        The error is reported when the recording is closed, after the error that ended the training: that may be the
        cause, as a CUDA error is the cause of all later ones.
        """
        try:
            yield
        except Exception as error:
            self._profile = None
            self._error = self._error or f"The recording failed: {messages.error_text(error)}"

    def _finish(self) -> None:
        """Stop the profiler and write in a thread, so that neither the training nor a collective waits for a file."""
        assert self._profile is not None
        profile, self._profile = self._profile, None
        profile.finish()
        self.memory.stop()
        if self.recorded_steps == 0:
            self.output.report_error(self._too_short_message())
            return
        if self.recorded_steps < self.schedule.steps:
            self.notes.append(
                f"The training ended after {self.recorded_steps} of {self.schedule.steps} steps to record; "
                f"ProfilerStep#{self.steps_done} in the traces is not a whole step."
            )
        metadata = self.describe()
        self.model = None  # so that the model, and with it DDP's process group, can be freed
        self._writer = threading.Thread(target=self._write, args=(profile, metadata), name="dptrace_writer")
        self._writer.start()

    def describe(self) -> dict[str, Any]:
        """Return this rank's part of run.json; times in ns, steps counted from the first step of the recording."""
        schedule, rank_store = self.schedule, self.output.rank_store
        laps = self._read_or_default("The steps' times", self.stopwatch.durations_ns, [])
        return {
            "rank": rank_store.rank,
            "node": node_rank(),
            "local_rank": local_rank(self.device, rank_store.rank),
            "host": platform.node(),
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
            "recorded_steps": self.recorded_steps,
            "unprofiled_ns": laps[schedule.warmup : schedule.wait],
            "profiled_ns": laps[schedule.wait + schedule.warmup : schedule.total],
            "losses": self._read_or_default("The losses", lambda: losses_as_floats(self.losses), []),
            "memory": self._read_or_default("The memory figures", self.memory.to_dict, None),
            "ddp": self._read_or_default("DDP's logging data", lambda: ddp_logging(self.model), None),
            "notes": self.notes,
            "model": self.options.get("model"),
            "parameters": self.parameters,
            "options": {key: plain_value(value) for key, value in self.options.items() if key != "model"},
            "schedule": {"wait": schedule.wait, "warmup": schedule.warmup, "steps": schedule.steps},
            "world_size": rank_store.size,
            "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
            "versions": versions(),
        }

    def _read_or_default(self, what: str, read: Callable[[], Any], otherwise: Any) -> Any:
        """Read a value; return *otherwise* and add a note if that fails, because the trace is useful without it."""
        try:
            return read()
        except Exception as error:
            self.notes.append(f"{what} could not be read: {messages.error_text(error)}")
            return otherwise

    def _too_short_message(self) -> str:
        before = self.schedule.wait + self.schedule.warmup
        shorten = ", or use --wait 0" if self.schedule.wait else ""
        return (
            f"Nothing was recorded: the training made {self.steps_done} steps, and recording begins after "
            f"{before} (wait {self.schedule.wait}, warmup {self.schedule.warmup}). "
            f"Train for more steps, record fewer --steps{shorten}."
        )

    def _write(self, profile: AlignedProfile, metadata: dict[str, Any]) -> None:
        path = self.output.folder / trace_name(self.output.rank_store.rank)
        plain, packed = (path.with_name(f".{path.name}.{end}") for end in ("json", "part"))
        try:
            profile.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(packed, path)
            piece_name = f"rank{self.output.rank_store.rank}.piece.json"
            messages.write_json(self.output.folder / piece_name, metadata | {"file": path.name})
        except Exception as error:
            self.output.report_error(f"{path} cannot be written: {error}.")
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)

    def close(self, error: BaseException | None = None) -> None:
        """End the recording, early or not; all files are written when this returns."""
        if self._inactive:
            return
        failure = None
        if error is not None and is_failure(error):
            failure = messages.error_text(error)
            with self._contain_errors():
                messages.report_failure(error)
        with self._contain_errors():
            if self._profile is not None:
                self._finish()
            if self._writer is not None:
                self._writer.join()
        with self._contain_errors():
            self.output.end(failure)
        if self._error is not None:
            with suppress(OSError):
                self.output.report_error(self._error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)
