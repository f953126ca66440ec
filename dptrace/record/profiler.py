"""torch's profiler over one window of steps, started at the same time on all ranks, and a stopwatch for steps."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from dptrace.record import script_profiler as profiler_guard
from dptrace.record.accelerator import accelerator_of, used_accelerator
from dptrace.record.distributed import RankStore
from dptrace.record.gloo import GlooThreads, gloo_threads
from dptrace.record.marks import ModuleMarks
from dptrace.record.messages import LauncherSettings
from dptrace.record.windows import Purpose, Window, steps_in

# Keep what torch's native code prints when the profiler starts and stops away from the terminal.
#
# Kineto writes to file descriptor 2 itself, with a severity above that of errors, so no log level hides its lines
# without hiding errors too.


_CHATTER = re.compile(
    rb"USDT:"  # Kineto of torch 2.13
    rb"|(STAGE|INFO):\d{4}-\d\d-\d\d .*\]"  # older Kineto
    rb"|ERROR:.* gpuGetDeviceCount failed with code (35|100)$"  # torch for CUDA on a machine without a GPU
    rb"|\[Gloo\] Rank \d+ is connected to"
    rb"|.*\bNCCL INFO "
)
"""Matches lines that report no problem."""
_LOCK = threading.Lock()
"""Held while file descriptor 2 is replaced: two threads would restore each other's."""


class _Held:
    """A file that standard error goes to, for all blocks of a process.

    A thread may be about to write to it when a block ends, and do so after it was read. So it stays, and what comes
    late is read at the end of the next block, or of the process.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):  # in memory, so that no full disk makes a print() of the script fail
            self.file: Any = os.fdopen(os.memfd_create("dptrace_stderr"), "r+b", buffering=0)
        else:
            self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # for the life of the process
        # Without it, a late write could land where the offset was when the file was read.
        fcntl.fcntl(self.file, fcntl.F_SETFL, fcntl.fcntl(self.file, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0

    def new(self) -> bytes:
        """Return what was written since the last call."""
        size = os.fstat(self.file.fileno()).st_size - self._read
        found = os.pread(self.file.fileno(), size, self._read)
        self._read += len(found)
        return found


_HELD: list[_Held] = []
"""The file, once there was a block."""
# A child process has its own lines only.
os.register_at_fork(after_in_child=_HELD.clear)


@contextmanager
def quiet_stderr(log: Path | None = None) -> Iterator[None]:
    """Hold back what this process writes to standard error, and write it when the block ends, without chatter.

    All threads' lines are held back, and written in their order; what is not known as chatter is never dropped. If the
    process crashes inside the block, what was held back is lost. Processes that other threads start inside the block
    keep writing to the temporary file: keep the block short.

    Args:
        log: a file to which the chatter is appended; by default it is dropped.
    """
    # Where standard error was closed from the start, its descriptor may be any file of the script's.
    if sys.__stderr__ is None or not _LOCK.acquire(blocking=False):
        yield  # inside another block
        return
    try:
        with suppress(Exception):  # the script may have put anything in its place
            sys.stderr.flush()
        try:
            terminal = os.dup(2)
            if not _HELD:
                _HELD.append(_Held())
            (held,) = _HELD
        except OSError:  # standard error is closed, or the disk is full
            yield
            return
        os.dup2(held.file.fileno(), 2)
        try:
            yield
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            _show(held, log)
    finally:
        _LOCK.release()


@atexit.register
def _show_late() -> None:
    for held in _HELD:
        _show(held)


def _show(held: _Held, log: Path | None = None) -> None:
    """Write the lines that came since the last time to standard error, and chatter to the log."""
    lines = held.new().splitlines(keepends=True)
    chatter = [line for line in lines if _CHATTER.match(line)]
    with suppress(OSError):
        with open(2, "wb", closefd=False) as error:
            error.writelines(line for line in lines if line not in chatter)
        if log is not None and chatter:
            with log.open("ab") as file:
                file.writelines(chatter)


BARRIER_TIMEOUT = timedelta(seconds=10)
"""How long a rank waits for the others before it records without them: they may not train together."""


def device_of(parameters: Iterable[torch.Tensor]) -> torch.device:
    """Return the device on which these parameters are trained: a GPU if one of them is there, else the CPU.

    The presence of a GPU proves nothing, because a machine with GPUs can train on its CPU. If no parameter is known,
    a GPU that this process has used counts.
    """
    devices = [parameter.device for parameter in parameters]
    if not devices and (used := used_accelerator()) is not None:
        return torch.device(used.device_type, used.module.current_device())
    return next((device for device in devices if accelerator_of(device) is not None), torch.device("cpu"))


class AlignedProfile(profile):
    """A profiler over one window of steps, whose ranks begin their first recorded step together.

    Ranks take different times to start the profiler; without a barrier the first recorded all-reduce would show the
    difference as wait for a peer.

    Args:
        window: its steps; the profiler is prepared before the first one. ``ProfilerStep#k`` is step k of the recording.
        choose_end: called before the barrier, when recording begins; it may change the end of the window.
        without_operators: leave the operators on the CPU out.
        device: where the training is.
        log: a file for what torch prints about the profiler; by default that is dropped.
    """

    def __init__(
        self,
        rank_store: RankStore,
        window: Window,
        choose_end: Callable[[], None] = lambda: None,
        without_operators: bool = False,
        device: torch.device | None = None,
        log: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(schedule=self._action, **settings)
        self._device = device or torch.device("cpu")
        self._log = log
        self._ending = False
        self._gloo: GlooThreads | None = None
        self._window, self._rank_store, self._choose_end = window, rank_store, choose_end
        self._without_operators = without_operators
        self.step_num = window.first
        self.current_action = self._prev_schedule_action = self._action(window.first)

    def _action(self, step: int) -> Any:
        window = getattr(self, "_window", None)  # torch asks once before it is set
        return ProfilerAction.WARMUP if window is None or step < window.start else ProfilerAction.RECORD

    def prepare_trace(self) -> None:
        """Prepare for recording without Kineto's lines on the terminal."""
        with quiet_stderr(self._log), warnings.catch_warnings():
            # torch 2.11 gives everyone advice for a profiler of several windows; this one has a single window.
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            super().prepare_trace()

    def start_trace(self) -> None:
        """Start recording, then wait for the other ranks; the first ``ProfilerStep`` begins after that."""
        self._gloo = GlooThreads()
        with quiet_stderr(self._log), _only_marks() if self._without_operators else nullcontext():
            super().start_trace()
        if threads := gloo_threads():
            self.add_metadata_json("gloo_threads", json.dumps(threads))
        # torch starts a profiler that ends in its warm-up; the other ranks do not start theirs then.
        if self._window.purpose is Purpose.RECORDED and not self._ending:
            self._choose_end()
            self._rank_store.barrier(f"recording{self._window.number}", BARRIER_TIMEOUT)

    def stop_trace(self) -> None:
        """Stop recording when the device that trains has done its work, of which torch waits for the current one only.

        Also wait for gloo, else torch may crash.
        """
        self.wait_for_gloo()
        accelerator = accelerator_of(self._device)
        with quiet_stderr(self._log), nullcontext() if accelerator is None else accelerator.module.device(self._device):
            super().stop_trace()

    def end_mark(self) -> None:
        """End the mark of the step that runs; :meth:`step` begins the next one."""
        mark, self.step_rec_fn = self.step_rec_fn, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def wait_for_gloo(self) -> bool:
        """Wait until gloo has ended what is recorded; return whether that was so in time."""
        return self._gloo is None or self._gloo.wait_until_idle()

    def finish(self) -> None:
        """Stop, at any point of the window."""
        self._ending = True
        self.__exit__(None, None, None)


@contextmanager
def _only_marks() -> Iterator[None]:
    """Make torch record annotations and the nodes of backward, but no operator of the CPU.

    torch.profiler has no option for it; its private function takes the scopes to record.
    """
    module: Any = autograd_profiler
    enable = module._enable_profiler
    scope = torch._C._profiler.RecordScope
    scopes = {scope.USER_SCOPE, scope.BACKWARD_FUNCTION}
    module._enable_profiler = lambda config, activities: enable(config, activities, scopes)
    try:
        yield
    finally:
        module._enable_profiler = enable


class Stopwatch:
    """Wall times of steps: on a GPU between two events in its stream, so that no step waits for the host."""

    def __init__(self, device: torch.device) -> None:
        accelerator = accelerator_of(device)
        self._device, self._module = device, None if accelerator is None else accelerator.module
        self._begin: Any = None

    def _now(self) -> Any:
        if self._module is None:
            return time.perf_counter_ns()
        # Not every script calls set_device, so the current device may not be the one that trains.
        with self._module.device(self._device):
            event = self._module.Event(enable_timing=True)
            event.record(self._module.current_stream(self._device))
        return event

    def begin(self) -> None:
        """Start the time of a step."""
        self._begin = self._now()

    def end(self) -> Any:
        """End the time of the step, and return a lap for :meth:`durations_ns`."""
        return self._begin, self._now()

    def durations_ns(self, laps: Iterable[Any]) -> list[int]:
        """Return the wall time of each lap in ns."""
        if self._module is None:
            return [end - begin for begin, end in laps]
        self._module.synchronize(self._device)
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in laps]


# Turn torch's profiler on and off for one window of steps at a time, next to a profiler of the script itself.


profiler_guard.install()  # when imported, since a profiler that is prepared before the loop must be seen too
_ANNOUNCEMENT = "script_profiler"
"""What a rank publishes whose script profiles itself. Ranks ask each other only after that, so that others cost
nothing."""


class WindowProfiler:
    """The profiler of a recording, which is on in some windows of steps.

    Args:
        log: a file for what torch prints about the profiler.
        make_way: called when the script starts its own profiler; turns this one off, if it is on.
    """

    def __init__(
        self, rank_store: RankStore, settings: LauncherSettings, make_way: Callable[[], None], log: Path | None
    ) -> None:
        self._rank_store, self._settings, self._log = rank_store, settings, log
        self._guard = profiler_guard.install()
        self._guard.sentences()  # of earlier recordings
        self._make_way, self._guard.on_foreign_start = make_way, self._foreign_starts
        self._announced = self._alone = False
        self._profile: AlignedProfile | None = None
        self.modules = ModuleMarks()
        self._step_ends: deque[float] = deque(maxlen=5)

    @property
    def is_on(self) -> bool:
        """Whether the profiler is prepared or recording."""
        return self._profile is not None

    def blocked(self, step: int, warmup_lost: bool = False) -> bool:
        """Return whether the profiler cannot be on in this step, on this rank or another that profiles itself.

        So all ranks warm up and start at the same steps.

        Args:
            step: equal on all ranks that ask.
            warmup_lost: whether the script's profiler has ended this rank's warm-up.
        """
        own = warmup_lost or self._guard.foreign_busy()
        self.announce()
        if self._alone or not self._rank_store.is_published(_ANNOUNCEMENT):
            return own
        answer = self._rank_store.any(f"blocked{step}", own, BARRIER_TIMEOUT)
        self._alone = answer is None
        return own if answer is None else answer

    def _foreign_starts(self) -> None:
        """Make way, and tell the other ranks: before any of them ends this step, so that all ask from its end on."""
        self._make_way()
        self.announce()

    def announce(self) -> None:
        """Publish, once, that the script profiles itself."""
        if self._guard.foreign_seen and not self._announced:
            self._announced = True
            self._rank_store.publish(_ANNOUNCEMENT, "1")

    def start(self, window: Window, device: torch.device) -> None:
        """Prepare the profiler for a window that begins with the next step."""
        # Parameters may be on the CPU although a GPU computes: offloading.
        accelerator = accelerator_of(device) or used_accelerator()
        profile = AlignedProfile(
            self._rank_store,
            window,
            choose_end=lambda: self._choose_end(window),
            without_operators=self._settings.light and accelerator_of(device) is not None,
            device=device,
            log=self._log,
            activities=[ProfilerActivity.CPU, *([] if accelerator is None else [accelerator.activity])],
            record_shapes=not self._settings.light and (self._settings.shapes or _needs_shapes(device)),
            profile_memory=self._settings.memory,
        )
        if self._settings.modules:
            self.modules.start()  # in the warm-up, since a compiled model is compiled again for the hooks
        with self._guard.ours():
            profile.start()
        self._profile = profile

    def can_stop(self) -> bool:
        """Return whether the profiler can be turned off here, after a while: not before a collective has ended."""
        return self._profile is None or self._profile.wait_for_gloo()

    def end_mark(self) -> None:
        """End the mark of the step, if the profiler is on: what it takes to turn it off is no part of the training."""
        if self._profile is not None:
            self._profile.end_mark()

    def step(self) -> None:
        """End a step, whether the profiler is on or off."""
        self._step_ends.append(time.perf_counter())
        self.announce()
        if self._profile is not None:
            with self._guard.ours():
                self._profile.step()

    def finish(self) -> AlignedProfile | None:
        """Turn the profiler off, and return the profile, which holds the trace; None if it was not on."""
        profile, self._profile = self._profile, None
        self.modules.stop()
        if profile is not None:
            with self._guard.ours():
                profile.finish()
        return profile

    def notes(self) -> list[str]:
        """Return what happened between this profiler and the script's since the last call."""
        return self._guard.sentences()

    def _choose_end(self, window: Window) -> None:
        """With --duration, turn seconds into steps: rank 0 chooses, so that all ranks record the same steps."""
        if self._settings.duration_s is None:
            return
        ends = list(self._step_ends)
        step_s = median(after - before for before, after in pairwise(ends)) if ends[1:] else 0.0
        steps = steps_in(self._settings.duration_s, step_s)
        window.end = window.start + self._rank_store.agree(f"steps{window.number}", steps, BARRIER_TIMEOUT)


def _needs_shapes(device: torch.device) -> bool:
    """Return whether message sizes must be computed from shapes: gloo's events contain no size, NCCL's do.

    Recording shapes makes an operator about 0.2 µs slower, which matters if the GPU waits for the host.
    """
    accelerator = accelerator_of(device) or used_accelerator()
    if accelerator is None:
        return True
    joined = dist.is_available() and dist.is_initialized()
    return joined and accelerator.backend_config not in dist.get_backend_config()
