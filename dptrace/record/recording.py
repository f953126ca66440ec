"""Record a training loop: torch's profiler around its steps, their wall times with and without it, a file per rank."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from dptrace.core.termination import signals_held
from dptrace.core.units import plural
from dptrace.errors import RecordingError
from dptrace.record import messages, safety
from dptrace.record.hooks import Arguments, Listener, in_backward, leave, listen
from dptrace.record.marks import mark_closure
from dptrace.record.options.catalog import Schedule
from dptrace.record.output import LauncherOutput, RecordingOutput, open_output, start_thread
from dptrace.record.processes import core_wait_ns, ignore_termination
from dptrace.record.profiler import AlignedProfile, Stopwatch, WindowProfiler, device_of
from dptrace.record.rank_metadata import MemoryTracker, describe, overhead_metadata
from dptrace.record.windows import Plan, Purpose, Window

_ADOPTED = "adopted"
"""What a rank publishes that keeps a trace of the script's own profiler."""
_MOST_MORE = 10
"""Steps that are recorded beyond those asked for, while a collective goes on across the ends of steps."""
_latest: Recording | None = None
"""The latest recording of this process; it may be closed."""


def latest() -> Recording | None:
    """Return the latest recording of this process."""
    return _latest


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
    memory: bool = False,
    modules: bool = False,
    shapes: bool = True,
) -> Recording:
    """Record the loop in the with block; call ``step()`` at the end of each pass.

    Under ``dptrace record``, the launcher's folder is used, and its --steps, --warmup and --wait, if given, win.
    Otherwise call this after init_process_group(): a process that torchrun did not start takes its rank from there.

    GPU work is recorded if the training is on a GPU: if *model* is, or, without *model*, if this process has used one.

    Args:
        out: folder of the run; by default ``runs/`` and the script's name.
        steps: steps to record.
        warmup: steps to skip before the recorded ones; at least 2.
        wait: steps before the warm-up, in which the profiler's overhead is measured; by default none: it is measured
            after the recorded steps.
        force: replace an existing run.
        model: the trained model: its parameters are counted, and DDP's logging data is kept.
        options: further entries for ``options`` in run.json.
        first_step: the step from which a resumed training continues; what remains of wait and warm-up comes first.
        damaged_checkpoints: checkpoints that could not be read, and why, for the notes in run.json.
        memory, modules: also record each allocation and free; mark each module's forward, so that layers can be shown.
        shapes: record the shapes of operators, from which FLOPs follow; without them, operators on a GPU are recorded
            faster. On the CPU the sizes of gloo's messages need them.

    Raises:
        UsageError: the folder holds other files or a run, or the schedule is impossible.
    """
    settings = messages.LauncherSettings.or_default(memory, modules, shapes)
    steps, warmup, wait = settings.schedule(steps, warmup, wait)
    schedule = Schedule.of(steps, warmup, wait or 0).after(first_step)
    plan = Plan.of(schedule, settings)
    recording = Recording(plan, open_output(out, force), model, options, first_step)
    recording.notes += plan.resume_notes(first_step)
    recording.notes += [f"{checkpoint} could not be read and was skipped." for checkpoint in damaged_checkpoints]
    return recording


_State = Enum("_State", "NEW RUNNING OVER FAILED CLOSED")
"""Of a recording: RUNNING, it hears of steps; OVER, it has all that was asked for; FAILED, it says why when closed."""
_NEXT = {
    _State.NEW: {_State.RUNNING},
    _State.RUNNING: {_State.OVER, _State.FAILED, _State.CLOSED},
    _State.OVER: {_State.FAILED, _State.CLOSED},
    _State.FAILED: {_State.CLOSED},
    _State.CLOSED: set[_State](),
}
"""The states that may follow each. Nothing else changes one: a training may close twice, or use a recording again."""


class AdoptedTrace(Protocol):
    """A trace of the script's own profiler."""

    wanted: bool
    """Whether the next one is kept."""

    @property
    def has_trace(self) -> bool:
        """Whether one is kept."""

    def write(self, note: str) -> None:
        """Write it as this rank's part of the run, with a note why."""


class Recording(Listener):
    """A recording of this rank's steps; see :func:`record`.

    Args:
        plan: the windows of steps to time or record; the launcher may ask for more.
        output: where the files of this rank are written.
        model, options, first_step: see :func:`record`.
    """

    def __init__(
        self,
        plan: Plan,
        output: RecordingOutput,
        model: nn.Module | None = None,
        options: dict[str, Any] | None = None,
        first_step: int = 0,
    ) -> None:
        self.plan, self.output, self.rank_store = plan, output, output.rank_store
        self.model, self.options, self.first_step = model, options or {}, first_step
        self.parameters: int | None = None
        self.rank_entry: dict[str, Any] = {}  # keys of rank_metadata.ADDED for this rank's entry in run.json
        self.device = device_of(())
        self.memory = MemoryTracker(model, self.device)
        self.profiler = WindowProfiler(self.rank_store, plan.settings, self._yield_profiler, output.log)
        if model is not None:
            self.set_parameters(model.parameters())
            self.profiler.modules.add(model)
        self.steps_done = self._recorded = 0
        self.notes: list[str] = []
        self.losses: list[torch.Tensor] = []
        self.measured: list[Window] = []
        """The windows in which steps have been timed with and without the profiler."""
        self.stopwatch = Stopwatch(self.device)
        self._windows = deque(plan.windows)
        self._window: Window | None = None
        self._spare: tuple[Window, AlignedProfile] | None = None
        self._writer: threading.Thread | None = None
        self._state = _State.NEW
        self._postponed = self._overhead_known = False
        self._thread = 0
        """The thread on which the profiler is switched."""
        self._due: Callable[[], None] | None = None
        """What is to be done when the backward pass that runs has ended."""
        self._core_wait_ns: int | None = None
        self._held_up_ns = self._cpu_began_ns = 0
        """How long the training waited for the profiler to end the last window."""
        self._error, self._told = "", False
        """Why it failed, and whether that was printed already."""
        self.adopted: AdoptedTrace | None = None
        """A trace of the script's own profiler, which is the run if that leaves no room for this one."""

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
        return self.first_step + self.plan.last_step

    def __enter__(self) -> Recording:
        global _latest
        launched = isinstance(self.output, LauncherOutput)
        if self._state is not _State.NEW or (_latest is not None and (_latest.is_running or launched)):
            # A process has one profiler, and a folder holds one recording.
            note = "The script started another recording; only the first was kept."
            if _latest is not None and _latest.is_running:
                _latest.notes.append(note)
            elif self.rank_store.rank == 0:  # run.json is written
                safety.say(f"dptrace: {note}")
            return self
        self.output.begin()
        _latest = self
        self._enter(_State.RUNNING)
        while self.output.already_recorded(self._recorded + 1):  # before the ranks were restarted
            self._recorded += 1
            self._windows = deque(window for window in self._windows if window.number > self._recorded)
        self.stopwatch = Stopwatch(self.device)
        listen(self)
        safety.on_failure.append(self._abandon)
        self._switch(self._begin_step)
        return self

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step. *loss* stays on its device, so that no step waits for it; it is averaged over ranks later."""
        if self._state is _State.RUNNING:
            self._switch(partial(self._next_step, loss))

    def _switch(self, change: Callable[[], None]) -> None:
        """Change what is recorded: now, or where torch would crash, when the backward pass that runs has ended.

        A profiler cannot be switched inside of autograd's engine, nor on another thread than the one that started it.
        """
        if not self.profiler.is_on:
            self._thread = threading.get_ident()
        if in_backward() or self._is_elsewhere:
            self._due = change
            return
        self._due = None
        with self._contain_errors():
            change()

    @property
    def _is_elsewhere(self) -> bool:
        return self.profiler.is_on and self._thread != threading.get_ident()

    def before_optimizer(self, optimizer: Optimizer, arguments: Arguments) -> Arguments | None:
        """Mark the closure that the optimizer calls."""
        return mark_closure(optimizer, *arguments)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Count the memory that is held."""
        self.memory.count(optimizer)

    def after_backward(self, accumulates: bool) -> None:
        """Do what had to wait for the end of the pass."""
        if self._due is not None:
            self._switch(self._due)

    def before_destruction(self) -> None:
        """End the recording, if the ranks could not agree on its end after this."""
        if self.rank_store.is_in_group:
            self.close(sys.exc_info()[1])

    def _next_step(self, loss: torch.Tensor | float | None) -> None:
        self._end_step(loss)
        self._begin_step()

    def _end_step(self, loss: torch.Tensor | float | None) -> None:
        window = self._window
        if window is not None and self.steps_done + 1 >= window.end:
            self.profiler.end_mark()
        if window is not None and self.steps_done >= window.start:
            window.laps.append(self.stopwatch.end())
            window.cpu_ns.append(time.process_time_ns() - self._cpu_began_ns)
            waited, before = core_wait_ns(), self._core_wait_ns
            if waited is not None and before is not None:
                window.core_wait_ns.append(waited - before)
        if loss is not None and self._keeps_losses():
            self.losses.append(torch.as_tensor(loss).detach())
        self.memory.end_step()
        self.steps_done += 1
        self._beat()

    def _beat(self, has_ended: bool = False) -> None:
        total = 0 if self.plan.settings.script else self.plan.last_step
        window = self._window if self.is_recording and not has_ended else None
        recorded, asked = (0, 0) if window is None else (window.whole_steps(self.steps_done), window.steps)
        self.output.heartbeat(self.steps_done, total, -1 if has_ended else recorded, asked)

    def _keeps_losses(self) -> bool:
        """Return whether a loss is kept: up to the end of the first recording, later only inside of one."""
        # A job may train for a million steps after it, and each loss occupies memory of its device.
        recording = self._window is not None and self._window.purpose is Purpose.RECORDED
        return recording or (not self._recorded and not self.plan.settings.on_demand)

    def _begin_step(self) -> None:
        """Open and close windows between two steps."""
        window = self._window
        if window is not None and self.steps_done >= window.end:
            if self.profiler.can_stop() or window.more == _MOST_MORE:
                self._close_window()
            else:
                window.end, window.more = window.end + 1, window.more + 1
        elif window is not None and self.is_recording and self.steps_done > window.start and self.output.finish_asked():
            self._close_window("the recording was interrupted")
        elif window is not None and self._must_warm_up_again(window):
            self._warm_up_again(window, self.steps_done)
        self.profiler.step()
        if self._window is None:
            self._add_requested_windows()
            self._open_window()
        window = self._window
        if window is not None and window.purpose is Purpose.RECORDED and self.steps_done == window.start:
            # The held memory was counted in the untimed warm-up; from now on, the peak is tracked.
            self.memory.reset_peak()
        if self._window is not None:
            self._cpu_began_ns, self._core_wait_ns = time.process_time_ns(), core_wait_ns()
            self.stopwatch.begin()
        elif not self._windows and not self.output.expects_requests(self._overhead_known):
            self._enter(_State.OVER)

    def _enter(self, state: _State) -> None:
        if state not in _NEXT[self._state]:
            return
        self._state = state
        if state is not _State.RUNNING:
            leave(self, at_once=state is _State.CLOSED)
            if self._abandon in safety.on_failure:
                safety.on_failure.remove(self._abandon)

    @property
    def is_running(self) -> bool:
        """Whether it has begun, and is neither closed nor has it failed."""
        return self._state in (_State.RUNNING, _State.OVER)

    @property
    def is_over(self) -> bool:
        """Whether further steps do not matter: all is recorded and measured that was asked for, or it has failed."""
        return self._state not in (_State.NEW, _State.RUNNING)

    @property
    def is_recording(self) -> bool:
        """Whether the first recorded step has begun, and the last has not ended."""
        window = self._window
        return window is not None and window.purpose is Purpose.RECORDED and self.steps_done >= window.start

    def _add_requested_windows(self) -> None:
        request = self.output.poll_requests(self.steps_done)
        if request is None:
            return
        first = max(request.first, self.steps_done)
        if first > request.first and request.kind == "record":
            late = plural(first - request.first, "step")
            self.notes.append(f"Rank {self.rank_store.rank} began to record {late} late.")
        self._windows.extend(self.plan.requested(request.kind, first, self._recorded + 1, self._windows))
        self._windows = deque(sorted(self._windows, key=lambda window: window.first))

    def _open_window(self) -> None:
        """Open the next window if it begins here."""
        if not self._windows or self._windows[0].first > self.steps_done:
            return
        if self._windows[0].profiled and self.profiler.blocked(self.steps_done):
            self._postpone(1)
            return
        window = self._windows.popleft()
        # It is late if one that the launcher asked for was in its place.
        self._window = window = window.later(self.steps_done - window.first)
        if window.purpose is Purpose.RECORDED:
            window.number = self._recorded + 1  # others that were asked for may have come first
            self.memory.start()
            if self.plan.settings.on_demand:
                self.losses.clear()
        if window.profiled:
            self.profiler.start(window, self.device)

    def _must_warm_up_again(self, window: Window) -> bool:
        """Return whether the warm-up ends here, but the script's own profiler has disturbed it on some rank."""
        ends = window.profiled and window.first < self.steps_done == window.start
        return ends and self.profiler.blocked(self.steps_done, warmup_lost=not self.profiler.is_on)

    def _warm_up_again(self, window: Window, first: int) -> None:
        """Begin the window again, with a step from *first* on; all later ones are postponed as well."""
        self.profiler.finish()
        self._window = None
        self._windows.appendleft(window)
        self._postpone(first - window.first)

    def _postpone(self, steps: int) -> None:
        self._postponed = True
        if self.adopted is not None and not self._recorded:
            if self.adopted.has_trace:
                self.rank_store.publish(_ADOPTED, "1")
            self.adopted.wanted = True
        self._windows = deque(window.later(steps) for window in self._windows)

    def _yield_profiler(self) -> None:
        """Turn the profiler off before the script's own starts; begin again later if nothing was recorded yet."""
        window = self._window
        if window is None or not self.profiler.is_on:
            return
        with self._contain_errors():
            if window.purpose is not Purpose.RECORDED:
                self._window = None
                self.profiler.finish()
            elif window.whole_steps(self.steps_done):
                self._close_window(f"the script started its own profiler, {self._part_note()}")
            elif self.steps_done >= window.start:
                self._warm_up_again(window, self.steps_done + 1)
            else:  # the ranks agree at the end of the warm-up
                self.profiler.finish()

    def _part_note(self) -> str:
        return f"and ProfilerStep#{self.steps_done} in the traces is not a whole step"

    @signals_held()  # a SIGTERM, which ends the script, would lose the steps here
    def _close_window(self, interruption: str = "") -> None:
        """Stop the profiler, if it is on, and keep what the window was for.

        Args:
            interruption: why the window ends early, as the end of a sentence; empty if it does not.
        """
        window, self._window = self._window, None
        assert window is not None
        steps = window.whole_steps(self.steps_done)
        if window.purpose is Purpose.RECORDED:
            with self.output.writing.ended_elsewhere():
                began = time.perf_counter_ns()
                profile = self.profiler.finish()
                self._held_up_ns = time.perf_counter_ns() - began
                if steps and profile is not None:
                    self._keep(window, profile, interruption)
                else:
                    self.output.writing.end()
            return
        profile = self.profiler.finish()
        if not interruption and window.purpose is not Purpose.SPARE:
            self.measured.append(window)
            if not self._measuring:
                self._report_overhead()
        longest = len(self._spare[0].laps) if self._spare is not None else 0
        if profile is not None and not self._recorded and steps > longest:
            self._spare = window, profile

    @property
    def _measuring(self) -> bool:
        """Whether steps are still to be timed with and without the profiler; a recorded window may come between."""
        return any(later.purpose in (Purpose.PROFILED, Purpose.UNPROFILED) for later in self._windows)

    def _report_overhead(self) -> None:
        """Report step times that were measured after the run was written."""
        if self._recorded and {True, False} <= {window.profiled for window in self.measured}:
            self.output.report_overhead(overhead_metadata(self, self.measured))
            self.measured.clear()
            self._overhead_known = True

    def _keep(self, window: Window, profile: AlignedProfile, interruption: str = "") -> None:
        """Write the trace of a window in a thread, so that neither the training nor a collective waits for a file."""
        self.memory.stop()
        self._recorded += 1
        self._spare = None
        notes = [*self.notes, *self.profiler.notes()]
        recorded = window.whole_steps(self.steps_done)
        if recorded < window.steps:
            notes.append(f"Recorded {recorded} of {plural(window.steps, 'step')} asked for: {interruption}.")
        measured = [] if self._measuring else self.measured
        metadata = describe(self, window, measured, recorded, notes) | {"held_up_ns": self._held_up_ns}
        measured.clear()
        self.model = None  # so that the model, and with it DDP's process group, can be freed
        self.losses.clear()
        self.join_writer()
        self._writer = start_thread(partial(self.output.write, window.number, profile, metadata))

    @contextmanager
    def _contain_errors(self) -> Iterator[None]:
        """Abandon the recording on an error inside it, which must not end the user's training.

        The error is reported when the recording is closed, after the error that ended the training: that may be the
        cause, as a CUDA error is the cause of all later ones.
        """
        try:
            yield
        except Exception as error:
            if not self._is_elsewhere:
                with suppress(Exception):
                    self.profiler.finish()
            self._window = self._spare = None
            self._enter(_State.FAILED)
            self._error = self._error or f"The recording failed: {messages.error_text(error)}"

    def _abandon(self, why: str) -> None:
        """End the recording, because a part of the recorder that it needs has failed."""

        def end() -> None:
            self._told = not self._error
            raise RecordingError(why)

        self._switch(end)

    def close(self, error: BaseException | None = None) -> None:
        """End the recording, early or not; all files are written when this returns."""
        if self._state in (_State.NEW, _State.CLOSED):
            return
        if error is None or not messages.is_failure(error):
            self._close()
            return
        before = ignore_termination()
        try:
            with self._contain_errors():
                self.output.fail(error)
            self._close()
        finally:  # the script may catch the error
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    def _close(self) -> None:
        with self._contain_errors():
            if self._is_elsewhere:
                raise RecordingError("The thread that trained has ended while the profiler was on")
            self._beat(has_ended=True)
            if self._window is not None:
                self._close_window(f"the training ended, {self._part_note()}")
            if not self._recorded:
                self._keep_spare()
            self._report_overhead()
            self.join_writer()
        self._enter(_State.CLOSED)
        with self._contain_errors():
            self.output.end()
        if self._error:
            with suppress(OSError):
                self.output.report_error(self._error, told=self._told)

    def _keep_spare(self) -> None:
        """Write the spare trace of a training that ended before recording began; without one, report why."""
        if self._spare is None and self.adopted is not None and self.adopted.has_trace:
            self.adopted.write(self.plan.adopted_note(self.steps_done))
            return
        if self._spare is None:
            if self._postponed and self.rank_store.is_published(_ADOPTED):
                return  # only other ranks profile themselves
            if not self._error and not self.plan.settings.on_demand:
                self.output.report_error(self.plan.too_short_message(self.steps_done, self._postponed), too_short=True)
            return
        window, profile = self._spare
        window.number = 1
        self.notes.append(self.plan.spare_note(window, self.steps_done))
        with self.output.writing.ended_elsewhere():
            self._keep(window, profile)

    def join_writer(self) -> None:
        """Wait for the trace that a thread writes."""
        if self._writer is not None:
            self._writer.join()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)
