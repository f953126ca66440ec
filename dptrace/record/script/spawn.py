"""Record a script that starts its own ranks, with torch.multiprocessing.spawn or multiprocessing.Process.

Such a script brings its own addresses and numbers of ranks. torchrun's variables would mislead it: with
``TORCHELASTIC_USE_AGENT_STORE`` every rank waits for a store that nobody hosts. So only the first of the launcher's
processes starts the script's ranks, without these variables; the others end where it does.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist
import torch.multiprocessing

from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.distributed import exit_now
from dptrace.record.processes import INTERRUPT_IGNORED, ignore_termination, tie_to_parent
from dptrace.record.recording import latest
from dptrace.record.safety import harmless, say
from dptrace.record.script.optimizer_steps import Steps, watch_steps

_LAUNCHER_VARIABLES = re.compile(
    r"TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
)
_SPAWN: Any = importlib.import_module("torch.multiprocessing.spawn")
_LEAVE = int(getattr(signal, "SIGRTMIN", signal.SIGUSR1)) + (3 if hasattr(signal, "SIGRTMIN") else 0)
"""The signal by which a started process lets another process of the launcher end, which is not needed."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What a started process must know about the process that started it."""

    program: str
    launcher: Mapping[str, str]
    """The launcher's variables of the starting process."""
    parent: int
    prepare: Callable[[], Steps] = watch_steps
    """Begins to follow a rank."""

    @property
    def is_first(self) -> bool:
        return self.launcher.get("LOCAL_RANK", "0") == "0"

    def drop_variables(self) -> None:
        """Delete the launcher's variables from the environment, except for what the script itself has set."""
        # An address is the script's if the port is: both often use 127.0.0.1.
        own_address = os.environ.get("MASTER_PORT") != self.launcher.get("MASTER_PORT")
        for name, value in self.launcher.items():
            if name == "MASTER_ADDR" and own_address and "MASTER_PORT" in os.environ:
                continue
            if os.environ.get(name) == value:
                del os.environ[name]


@dataclass(slots=True)
class OwnRanks:
    """How a script in this process starts ranks of its own."""

    start: _Start
    original: Callable[..., Any]
    """torch's own ``start_processes``."""
    started: bool = False
    """Whether this process has started ranks, or left that to the launcher's first process."""
    other_processes: int = 0
    """Processes that it has started and that may train, or become ranks."""

    @property
    def are_started(self) -> bool:
        """Whether the script has started ranks, in whichever of the launcher's processes."""
        return self.started or messages.has_spawned()

    def no_steps_message(self, passes: int) -> str:
        """Return the message that there was no step to record in so many backward passes, and what to do."""
        if self.other_processes:
            return (
                f"{messages.NOTHING_RECORDED}{self.start.program} made no step in its own process. It started others, "
                "which joined no process group, so dptrace cannot tell which ranks they are. Let each call "
                "init_process_group() with its rank; or let torchrun start one process per rank."
            )
        return messages.no_steps_message(self.start.program, passes)

    def start_processes(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        """Start the script's ranks in place of torch's function, and record them."""
        plain = (nprocs, join, daemon, start_method)
        if self._records(nprocs):
            return self.original(_run_spawned, (self.start, nprocs, start_method, fn, tuple(args)), *plain)
        return self.original(fn, args, *plain)

    @harmless("recording ranks that the script starts", otherwise=False)
    def _records(self, ranks: int) -> bool:
        """Return whether processes that the script starts are its ranks; end the processes that are not needed."""
        if os.getpid() != self.start.parent or dist.is_initialized():
            return False  # a rank's helpers
        if not self.start.is_first:
            self.started = True
            sys.exit(0)
        self.start.drop_variables()
        if self.started:
            say("dptrace: only the ranks that the script started first are recorded.")
            messages.leave_recording()
            return False
        self.started = True
        if (asked := self.start.launcher.get("LOCAL_WORLD_SIZE", "1")) != str(ranks):
            say(f"dptrace: {self.start.program} starts its own ranks: recording its {ranks} instead of {asked}.")
        return True

    @harmless("recording ranks that the script starts")
    def begin_process(self, process: Any) -> None:
        """Prepare a process that the script starts with ``multiprocessing.Process``, which may become a rank."""
        target = process._target
        is_torchs = getattr(target, "__module__", None) in (_SPAWN.__name__, __name__)
        if os.getpid() != self.start.parent or process.daemon or target is None or is_torchs or dist.is_initialized():
            return
        self.other_processes += 1
        if (process._start_method or multiprocessing.get_start_method()) == "fork":
            return  # it inherits the watched init_process_group
        process._args = (self.start, target, process._args, process._kwargs)
        process._target, process._kwargs = _run_process, {}


def install(program: str, prepare: Callable[[], Steps] = watch_steps) -> OwnRanks:
    """Watch for ranks that the script starts itself; call this before the script runs."""
    # Without torchrun, they are the user's own, for the ranks that the script starts.
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    launcher = {name: value for name, value in os.environ.items() if torchrun and _LAUNCHER_VARIABLES.fullmatch(name)}
    ranks = OwnRanks(_Start(program, launcher, os.getpid(), prepare), _SPAWN.start_processes)
    if not dist.is_available():
        return ranks
    for module in (_SPAWN, torch.multiprocessing):
        setattr(module, "start_processes", ranks.start_processes)  # noqa: B010  # torch does not export it
    _watch_joining(ranks.start)
    plain_start = multiprocessing.process.BaseProcess.start

    def begin(process: Any) -> None:
        ranks.begin_process(process)
        plain_start(process)

    multiprocessing.process.BaseProcess.start = begin  # type: ignore[assignment, method-assign]
    if not ranks.start.is_first:

        def leave(number: int, frame: object) -> NoReturn:
            exit_now(0)

        signal.signal(_LEAVE, leave)
    return ranks


def _watch_joining(start: _Start) -> None:
    """Take a started process for a rank when it joins a process group under a number of its own."""
    original = dist.init_process_group

    @functools.wraps(original)
    def join(*args: Any, **keywords: Any) -> Any:
        is_rank = _becomes_rank(start, args, keywords)
        result = original(*args, **keywords)
        if is_rank:
            _follow_rank(start)
        return result

    for module in (dist, dist.distributed_c10d, sys.modules.get("__main__"), sys.modules.get("__mp_main__")):
        for name, value in list(vars(module).items()) if module is not None else ():
            if value is original:
                setattr(module, name, join)


@harmless("recording ranks that the script starts", otherwise=False)
def _becomes_rank(start: _Start, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether this process becomes a rank by joining a group; end it where it is not needed."""
    if os.getpid() == start.parent or not _joins_own_group(start, args, keywords):
        return False
    if not start.is_first:
        messages.mark_spawned()
        starter = multiprocessing.parent_process()
        if starter is not None and starter.pid == start.parent and starter.is_alive():
            os.kill(start.parent, _LEAVE)
        exit_now(0)
    start.drop_variables()
    return True


@harmless("recording ranks that the script starts")
def _follow_rank(start: _Start) -> None:
    steps = _begin_rank(start, dist.get_rank(), dist.get_world_size())
    multiprocessing.util.Finalize(None, _end_rank, args=(steps, start), exitpriority=100)


def _joins_own_group(start: _Start, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether a group has its own numbers of ranks, and not those of the launcher."""
    settings = messages.LauncherSettings.from_environment() or messages.LauncherSettings.own()
    if messages.is_spawned() or settings is None:
        return False
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    given = dict(zip(names, args, strict=False)) | dict(keywords)
    method = given.get("init_method")
    other_numbers = any(os.environ.get(name) != start.launcher.get(name) for name in ("RANK", "MASTER_PORT"))
    explicit = (given.get("rank", -1) or 0) >= 0 and given.get("rank") is not None
    return other_numbers or explicit or given.get("store") is not None or method not in (None, "env://")


@harmless("recording ranks that the script starts")
def _begin_rank(start: _Start, index: int, ranks: int) -> Steps | None:
    messages.set_spawned(index, ranks)
    steps = start.prepare()
    tie_to_parent(str(os.getppid()), lambda: steps.writing)
    return steps


@harmless("ending the recording of a rank")
def _end_rank(steps: Steps | None, start: _Start) -> None:
    """End a rank's recording; an exception that ends the process is being handled."""
    if steps is None:
        return
    error = sys.exc_info()[1]
    ignore_termination()
    if error is not None and messages.is_failure(error):
        messages.report_failure(error)
        steps.close(error)
        return
    steps.close(None)
    if not steps.seen and latest() is None:
        messages.report_failure(
            RecordingError(messages.no_steps_message(start.program, steps.passes)), of_recorder=True
        )


def _run_spawned(
    index: int, start: _Start, ranks: int, start_method: str, fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Run one rank of a script that calls torch.multiprocessing.spawn."""
    steps = _begin_rank(start, index, ranks)
    try:
        fn(index, *args)
    finally:
        _end_rank(steps, start)
    if start_method == "spawn":
        gc.collect()  # see process_group: DDP models that live until the interpreter exits
        exit_after_threads()


def _run_process(start: _Start, target: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Run a process that the script starts without fork, and that may become a rank."""
    _watch_joining(start)
    target(*args, **keywords)


def report_killed_rank(error: BaseException) -> None:
    """Report that a signal ended a rank which the script started, if *error* is torch's message of that."""
    settings = messages.LauncherSettings.from_environment()
    code = getattr(error, "exit_code", 0)
    if settings is not None and isinstance(error, _SPAWN.ProcessExitedException) and code < 0:
        messages.write_failure(error.error_index, "", code)


def exit_after_threads(code: int = 0) -> NoReturn:
    """Do what the interpreter does at exit, except for its teardown.

    If threads of gloo or the profiler are still ending, the teardown sometimes aborts a rank whose recording is
    complete (``terminate called without an active exception``).
    """
    if not INTERRUPT_IGNORED:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Ends idle pools of threads, as torch.compile leaves one, and waits for all other threads.
        threading._shutdown()  # type: ignore[attr-defined]  # not in its stub
        atexit._run_exitfuncs()
    finally:
        exit_now(code)
