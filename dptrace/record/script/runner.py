"""Run an unchanged user program and record it.

``python -m dptrace.record.script.runner train.py [its arguments]``, or ``-m pkg.train`` in place of ``train.py``.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import NoReturn

from dptrace.errors import RecordingError
from dptrace.record import messages
from dptrace.record.distributed import exit_code, exit_now
from dptrace.record.processes import AGENT_PID_ENV, ignore_termination, tie_to_parent
from dptrace.record.recording import is_failure, latest
from dptrace.record.script import spawn
from dptrace.record.script.execute import execute, program_frames
from dptrace.record.script.optimizer_steps import Steps, watch_steps


def main() -> None:
    """Run the program that ``sys.argv[1:]`` names as Python would."""
    is_module = sys.argv[1] == "-m"
    sys.argv = sys.argv[1 + is_module :]
    run_program(sys.argv[0], is_module)


def run_program(program: str, is_module: bool) -> None:
    """Run a program in this rank, record it, and end the process; ``sys.argv`` holds it and its arguments."""
    steps = watch_steps()
    tie_to_parent(os.environ.get(AGENT_PID_ENV), lambda: steps.writing)
    try:
        code = _run(program, is_module, steps, spawn.install(program))
    except SystemExit as stop:
        # A SIGTERM, whose handler raises wherever Python is, while the end of the program was dealt with: that end
        # counts. Python must not end with a profiler that is on, because torch crashes then.
        error = stop.__context__ if isinstance(stop.__context__, Exception) else stop
        if error is not stop:
            traceback.print_exception(error)
        _fail(steps, error, exit_code(stop))
    if code:
        exit_now(code)
    gc.collect()  # see process_group: DDP models that live until the interpreter exits
    spawn.exit_after_threads()


def _run(program: str, is_module: bool, steps: Steps, ranks: spawn.OwnRanks) -> int:
    try:
        execute(program, is_module)
    except SystemExit as stop:
        if steps.forked:
            exit_now(exit_code(stop))
        if is_failure(stop):
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            _fail(steps, stop, exit_code(stop))
    except KeyboardInterrupt:
        steps.close(None)
        raise
    except Exception as error:
        if steps.forked:
            traceback.print_exc()
            exit_now(1)
        traceback.print_exception(error.with_traceback(program_frames(error.__traceback__)))
        spawn.report_killed_rank(error)
        _fail(steps, error, 1)
    if steps.forked:
        # At once: a forked child lacks the profiler's threads, and the interpreter would wait for them at exit.
        exit_now(0)
    steps.close(None)
    return 0 if steps.seen or latest() is not None or ranks.are_started else _report_no_steps(ranks)


def _report_no_steps(ranks: spawn.OwnRanks) -> int:
    if messages.LauncherSettings.own() is not None:
        print(f"dptrace: {ranks.no_steps_message()}", file=sys.stderr)
        return 0  # the training itself has succeeded
    messages.report_failure(RecordingError(ranks.no_steps_message()))
    return 1


def _fail(steps: Steps, error: BaseException, code: int) -> NoReturn:
    """End this rank even if closing its recording fails: a rank that stays would block its peers."""
    ignore_termination()
    try:
        steps.close(error)
    finally:
        exit_now(code)


if __name__ == "__main__":
    main()
