"""Run an unchanged user program and record it.

``python -m dptrace.record.script.runner train.py [its arguments]``, or ``-m pkg.train`` in place of ``train.py``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.distributed import exit_now
from dptrace.record.failures import is_consequence
from dptrace.record.hooks import rest
from dptrace.record.messages import TERMINATED, exit_code
from dptrace.record.processes import (
    AGENT_PID_ENV,
    LAUNCHER_PID_ENV,
    hang_up,
    ignore_termination,
    is_running,
    tie_to_parent,
)
from dptrace.record.recording import latest
from dptrace.record.run_folder import finish_for_launcher
from dptrace.record.safety import is_own, say
from dptrace.record.script import spawn
from dptrace.record.script.execute import execute, program_frames
from dptrace.record.script.optimizer_steps import Steps, watch_steps


def main() -> None:
    """Run the program that ``sys.argv[1:]`` names as Python would."""
    is_module = sys.argv[1] == "-m"
    sys.argv = sys.argv[1 + is_module :]
    run_program(sys.argv[0], is_module)


def run_program(program: str, is_module: bool, prepare: Callable[[], Steps] = watch_steps) -> NoReturn:
    """Run a program in this rank, record it, and end the process; ``sys.argv`` holds it and its arguments.

    Args:
        prepare: begins to follow this process, before the program runs; a module's function, for ranks it starts.
    """
    steps = prepare()
    torchrun = str(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None
    tie_to_parent(os.environ.get(AGENT_PID_ENV, torchrun), lambda: _finishes or steps.writing)
    try:
        code = _run(program, is_module, steps, spawn.install(program, prepare))
    except (SystemExit, KeyboardInterrupt) as stop:
        # A signal, whose handler raises wherever Python is, while the end of the program was dealt with: that end
        # counts, unless a peer's end was its cause. Python must not end with a profiler that is on: torch crashes then.
        error: BaseException = stop
        before = stop.__context__
        if isinstance(before, Exception) and not is_consequence(messages.error_text(before)):
            error = before
            traceback.print_exception(error)
        _fail(steps, error, exit_code(stop))
    _leave(code)


def _run(program: str, is_module: bool, steps: Steps, ranks: spawn.OwnRanks) -> int:
    end: BaseException | None = None
    try:
        execute(program, is_module)
    except BaseException as error:
        end = error
        _show(error, f"python {'-m ' * is_module}{program} …")
        if not steps.forked:
            spawn.report_killed_rank(error)
    code = 0 if end is None else exit_code(end)
    if steps.forked:
        # At once: a forked child lacks the profiler's threads, and the interpreter would wait for them at exit.
        exit_now(code)
    if code:
        _fail(steps, None if isinstance(end, KeyboardInterrupt) else end, code)
    steps.close(None)
    if not (steps.seen or latest() is not None or ranks.are_started):
        messages.report_failure(RecordingError(ranks.no_steps_message(steps.passes)), of_recorder=True)
    return 0


def _show(error: BaseException, without: str) -> None:
    """Show what ended the program as Python does: by the program's own hook, or by what it gave to ``sys.exit()``.

    Args:
        without: the command that trains without dptrace.
    """
    if isinstance(error, SystemExit):
        if not isinstance(error.code, int | None):
            say(str(error.code))
        return
    trace = program_frames(error.__traceback__)
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except Exception:
        traceback.print_exc()
        traceback.print_exception(error)
    if is_own(trace):
        say(f"dptrace: this error is in dptrace's recorder; please report it, and train without it: {without}")


def _fail(steps: Steps, error: BaseException | None, code: int) -> NoReturn:
    """End this rank even if closing its recording fails: a rank that stays would block its peers."""
    ignore_termination()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recording = latest()
    if code == -signal.SIGINT and recording is not None:
        recording.output.interrupted()
    if code in (TERMINATED, -signal.SIGINT):
        if error is not None:
            messages.report_failure(error)  # first: the peers fail as soon as their connections close
        hang_up()
    try:
        steps.close(error)
    finally:
        _leave(code)


_finishes = False
"""Whether this process finishes the run of a launcher that was killed."""
_SHUTDOWN_S = 30.0
"""How long ranks that a script has started may take to end, as under torchrun, besides the time in which they write."""


def _end_own_ranks(folder: Path) -> None:
    """End the ranks that the script has started, once they have written."""
    ranks, quiet_since = multiprocessing.active_children(), time.monotonic()
    for rank in ranks:
        rank.terminate()
    while any(rank.is_alive() for rank in ranks) and time.monotonic() - quiet_since < _SHUTDOWN_S:
        time.sleep(0.05)
        if messages.writers(folder):
            quiet_since = time.monotonic()
    for rank in ranks:
        rank.kill()
        rank.join()


def _leave(code: int) -> NoReturn:
    """End this rank as Python would."""
    global _finishes
    launcher, settings = os.environ.get(LAUNCHER_PID_ENV), messages.LauncherSettings.from_environment()
    if settings is not None and launcher == os.environ.get(AGENT_PID_ENV) and not is_running(int(launcher or 0)):
        # Without torchrun, nobody else finishes the run of a launcher that was killed.
        _finishes = True
        _end_own_ranks(Path(settings.folder))
        finish_for_launcher(Path(settings.folder), int(launcher or 0))
    if code == TERMINATED:
        exit_now(code)  # SIGTERM ends a plain Python at once
    if code != -signal.SIGINT:
        # Who frees a group waits for its collectives, and an interrupted rank may have left one behind.
        rest()
        gc.collect()  # see process_group: DDP models that live until the interpreter exits
    spawn.exit_after_threads(code)


if __name__ == "__main__":
    main()
