"""A watch in a rank: writes a record per step and per collective, and starts what reads them."""

from __future__ import annotations

import functools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from operator import sub
from pathlib import Path
from typing import Any, Literal

import torch

from dptrace.record import messages, safety, script_profiler
from dptrace.record.failures import answer_launcher
from dptrace.record.recording import latest
from dptrace.record.safety import harmless
from dptrace.record.script.optimizer_steps import write_before_exit
from dptrace.record.steps import current_counter, set_counter
from dptrace.watch.capture import Captures
from dptrace.watch.device import DeviceStages
from dptrace.watch.folder import check_folder
from dptrace.watch.hooks import Taps, now
from dptrace.watch.records import (
    CALL_TYPE,
    CORE_WAIT_BITS,
    FORMAT,
    PROFILED,
    STEP,
    STEP_TYPE,
    TOKENS,
    Appended,
    rank_path,
)
from dptrace.watch.tracking import Log, Tracked

_ENV_VARIABLE = "DPTRACE_WATCH"
_CALLS_LIMIT = 64 << 20
"""Bytes of a rank's calls after which their file begins anew; the one before it is kept."""
_KEPT = 1 << 14
"""Bytes of calls before the first step that are kept."""
_LOOK_NS = 100_000_000
"""How often the records are written while steps end, and what asks for anything is looked at; a killed rank loses
what it has made since."""
_SLOW_NS = 500_000_000
"""How often the rank's memory is asked for."""
_LAST_WORDS_S = 20.0
"""How long rank 0 waits at its end for the verdict."""
_pack = STEP.pack
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a watch is asked for."""

    folder: str
    every: int = 0
    """Steps between two lines of progress; 0: by time."""
    follows: bool = True
    """Whether rank 0 starts the process that reads the files; a launcher of dptrace reads them itself."""
    quiet: bool = False
    captures: int = 2
    """How many captures at most begin by themselves."""
    steps: int = 5
    """Steps of such a capture."""
    export: str = ""
    """Where figures go live: ``prometheus``, ``prometheus:HOST:PORT`` or ``otlp``."""

    def set(self) -> None:
        """Make these the settings of this process and those that it starts."""
        os.environ[_ENV_VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def get(cls) -> Settings:
        """Return the settings of this process."""
        return cls(**json.loads(os.environ[_ENV_VARIABLE]))


class Watch(Taps):
    """Watches the training of this process."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.folder = settings, Path(settings.folder)
        self.seen = False
        self.tracked: Tracked | None = None
        self._steps: Appended | None = None
        self._calls: Appended | None = None
        self._captures: Captures | None = None
        self._follower: subprocess.Popen[bytes] | None = None
        self._began = self._slow_ns = self._memory = self._look_ns = 0
        self._records = bytearray()
        self._own_before, self._blocked_before = [0] * 5, [0] * 5
        self._told = self._closed = self._disturbed = False
        self._statm = self._schedstat = -1
        self._waited, self._core_wait = (0, 0), 0

    def install(self) -> Watch:
        """Begin to hear, and be what ``dptrace.record.step()`` talks to unless something else is."""
        self.start()
        if current_counter() is None:
            set_counter(self)
        os.register_at_fork(after_in_child=self._forget)
        return self

    def track(self, log: Log | None) -> None:
        """Tell a tracker of the run from now on, in rank 0."""
        if log is not None and messages.rank() == 0:
            self.tracked = Tracked(log, self.folder, self)

    def _forget(self) -> None:
        self.on = False  # a loader's worker, or another child that the script forks, is no rank

    def end_step(self, by: Literal["optimizer", "passes", "script"], loss: Any = None) -> None:
        """End a step; the first one only says where the second begins."""
        if not self.on:
            return
        if by == "script" and (recording := latest()) is not None and recording is not self.recording:
            recording.step(loss)
        try:
            time_ns, own, blocked, captures = now(), self.own, self.blocked, self._captures
            own[self.stage] += time_ns - self.last
            self.last = time_ns
            if captures is None:
                self.seen = True
                captures = self._captures = self._open()
            else:
                flags = self._core_wait | TOKENS if self.are_tokens else self._core_wait
                disturbs = captures.recording is not None and captures.disturbs
                if disturbs or self._disturbed:  # what a capture does at its end takes time of the next step
                    flags |= PROFILED
                self._disturbed = disturbs
                spent, waited = map(sub, own, self._own_before), map(sub, blocked, self._blocked_before)
                self._records += _pack(
                    self.step, flags, self._began, time_ns, *spent, *waited, self._memory, self.items
                )
            self._own_before[:], self._blocked_before[:], self.items, self._began = own, blocked, 0, time_ns
            self.begin_step()
            if time_ns >= self._look_ns or captures.is_due:
                self._look(captures, time_ns)
            if self.device is not None:
                self.device.next_step(self.step)
        except Exception as error:
            self.fail(error)

    @property
    def recording(self) -> Any:
        """The recording of the capture that runs."""
        return None if self._captures is None else self._captures.recording

    def _look(self, captures: Captures, time_ns: int) -> None:
        """Do what is not to be done in each step."""
        self._look_ns = time_ns + _LOOK_NS
        self.flush()
        if captures.is_due or time_ns >= captures.next_look:
            captures.step(self.step)
        if time_ns >= self._slow_ns:
            self._slow_ns = time_ns + _SLOW_NS
            self._memory = self._memory_now()
            self.write_device()
            self._core_wait = self._core_wait_now(time_ns)
        if self.tracked is not None and time_ns >= self.tracked.next_ns:
            self.tracked.tell()

    def _open(self) -> Captures:
        """Create this rank's files: now its number is known. Return its captures."""
        rank = messages.rank()
        started = messages.restart_count()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        head = {
            "format": FORMAT,
            "rank": rank,
            "world_size": messages.world_size(),
            "started": started,
            "host": platform.node(),
            "process": os.getpid(),
            "unix_ns": time.time_ns(),
            "clock_ns": now(),
        }
        paths = [rank_path(self.folder, rank, kind) for kind in ("steps", "calls")]
        with suppress(OSError):
            for path in (*paths, self._ended(rank)) if started else ():
                path.replace(path.with_suffix(f".attempt{started - 1}{path.suffix}"))
        self._steps = Appended(paths[0], head | {"record": STEP_TYPE.descr})
        self._calls = Appended(paths[1], head | {"record": CALL_TYPE.descr}, _CALLS_LIMIT)
        if not self._steps.error and rank == 0 and self.settings.follows:
            self._follower = follow(self.settings)
        return Captures(self.folder)

    def _ended(self, rank: int) -> Path:
        return rank_path(self.folder, rank, "ended")

    def flush(self) -> None:
        """Write the calls, and then the steps, so that who reads a step finds its calls; say once if that fails."""
        if self._calls is None or self._steps is None:
            del self.calls[: -_KEPT or None]
            return
        for file, records in ((self._calls, self.calls), (self._steps, self._records)):
            if records:
                file.write(records)
                records.clear()
        problem = self._steps.error or self._calls.error
        if problem and not self._told:
            self._told = True
            safety.say(f"dptrace: rank {messages.rank()} is not watched any more, the training goes on: {problem}")

    def _memory_now(self) -> int:
        """Return the bytes that are allocated on this rank's GPU, or without any, those of the process."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            if self.device is None:
                timed = functools.partial(torch.cuda.Event, enable_timing=True)
                self.device = DeviceStages(timed, torch.cuda.is_current_stream_capturing)
            return int(torch.cuda.memory_allocated())
        if self._statm < 0:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC) if os.path.exists("/proc") else -1
        return int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE if self._statm >= 0 else -1

    def _core_wait_now(self, time_ns: int) -> int:
        """Return the share of the time since the last call in which this thread was ready and had no core, as flags."""
        try:
            if self._schedstat < 0:
                self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            waited = int(os.pread(self._schedstat, 128, 0).split()[1])
        except (OSError, IndexError):
            return 0  # not Linux, or the thread has ended
        (then, before), self._waited = self._waited, (time_ns, waited)
        share = 1000 * (waited - before) // max(1, time_ns - then) if then else 0
        return min(1000, max(0, share)) << CORE_WAIT_BITS

    @property
    def writing(self) -> bool:
        """Whether this process writes the trace of a capture."""
        return self._captures is not None and self._captures.writing

    def close(self, error: BaseException | None) -> None:
        """End the watch; on rank 0, wait for the verdict."""
        if error is not None:
            messages.report_failure(error)
        if not self._closed and not self.forked:
            self._closed = True
            self._close(error)

    @harmless("ending the watch")
    def _close(self, error: BaseException | None) -> None:
        if self._captures is not None:
            self._captures.close(error)
        self.stop()
        if current_counter() is self:
            set_counter(None)
        self.write_device()
        self.flush()
        if self._steps is not None and self._calls is not None:
            self._steps.close()
            self._calls.close()
            with suppress(OSError):
                self._ended(messages.rank()).touch()
        if self._follower is not None:
            with suppress(subprocess.TimeoutExpired):
                self._follower.wait(_LAST_WORDS_S)
        if self.tracked is not None:
            self.tracked.tell()


@harmless("starting the reader of the watch")
def follow(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the process that reads the files of all ranks."""
    start = Path(safety.__file__).parent / "launch" / "start.py"
    # Its own session: Ctrl-C ends the ranks, and it then says how the run was.
    command = [sys.executable, str(start), "dptrace.watch.follow", json.dumps(asdict(settings)), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


def prepare_rank() -> Watch:
    """Watch this process, which a launcher has started for one rank."""
    answer_launcher()
    script_profiler.install()  # so that a capture and the script's own profiler keep apart
    watch = Watch(Settings.get()).install()
    write_before_exit(watch)
    return watch


def begin(
    out: str | os.PathLike[str] | None = None,
    *,
    every: int = 0,
    captures: int = 2,
    capture_steps: int = 5,
    export: str = "",
    quiet: bool = False,
    log: Log | None = None,
) -> Watch | None:
    """Begin what :func:`watch` describes; None if this process is watched already."""
    running = current_counter()
    if isinstance(running, Watch):
        running.track(log)
        return None
    folder = Path(out or f"runs/{Path(sys.argv[0]).stem or 'python'}-watch").absolute()
    if messages.rank() == 0:
        check_folder(folder)
    script_profiler.install()
    begun = Watch(Settings(str(folder), every, True, quiet, captures, capture_steps, export)).install()
    begun.track(log)
    return begun


@contextmanager
def watch(out: str | os.PathLike[str] | None = None, **options: Any) -> Iterator[Watch | None]:
    """Watch each step of the training in the with block, on this rank; the steps are those of its optimizer.

    Under ``dptrace watch``, that command's watch is the only one. Errors of the watch end nothing but itself.

    Args:
        out: folder, the same on all ranks; by default ``runs/``, the script's name, and ``-watch``.
        options: *every*, steps between two lines of progress (0: about 10 s); *captures*, how many recordings with the
            profiler may begin by themselves (2), and *capture_steps*, the steps of each (5); *export*, ``prometheus``,
            ``prometheus:HOST:PORT`` or ``otlp``; *quiet*, print no progress and no verdict; *log*, a function of
            figures and step, such as ``wandb.log``, which rank 0 calls every 10 s and at the end.

    Raises:
        UsageError: the folder holds another watch.
    """
    here = begin(out, **options)
    try:
        yield here
    except BaseException as error:
        if here is not None:
            here.close(error)
        raise
    if here is not None:
        here.close(None)
