"""Run an unchanged user script and record it: ``python -m dptrace.record.script.runner train.py [its arguments]``."""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.errors import RecordingError
from dptrace.record.distributed import exit_now
from dptrace.record.launch import messages
from dptrace.record.launch.process_tree import AGENT_PID_ENV, end_with_parent
from dptrace.record.recording import is_failure, latest
from dptrace.record.script.closures import mark_closure
from dptrace.record.script.optimizer_steps import STEP_ADVICE, OptimizerSteps
from dptrace.record.script_profiler.adoption import ScriptProfilerSteps
from dptrace.record.stack_dump import install_stack_dump

__all__ = ["main"]


def main() -> None:
    """Run the script ``sys.argv[1]`` as Python would."""
    end_with_parent(signal.SIGKILL, os.environ.get(AGENT_PID_ENV))
    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).resolve().parent)
    _exit_when_terminated()
    install_stack_dump()
    settings = messages.LauncherSettings.from_environment()
    adopts = settings is not None and settings.use_script_profiler
    steps = ScriptProfilerSteps(settings) if settings is not None and adopts else OptimizerSteps()
    if isinstance(steps, OptimizerSteps):
        steps.install()
    else:
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(steps)
    code = _run(script, steps)
    if code:
        exit_now(code)
    gc.collect()  # see process_group: DDP models that live until the interpreter exits
    _exit_after_threads()


def _exit_when_terminated() -> None:
    """Take SIGTERM as an exit, so that a rank whose peer has died writes the steps that it has recorded.

    torchrun sends it to the peers of a dead rank, and kills those that stay some seconds later.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _exit_after_threads() -> NoReturn:
    """Do what the interpreter does at exit, except for its teardown.

    If threads of gloo or the profiler are still ending, the teardown sometimes aborts a rank whose recording is
    complete (``terminate called without an active exception``).
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    exit_now(0)


def _run(script: str, steps: OptimizerSteps | ScriptProfilerSteps) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if steps.forked:
            exit_now(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
        if is_failure(stop):
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            _fail(steps, stop, stop.code if isinstance(stop.code, int) else 1)
    except Exception as error:
        if steps.forked:
            traceback.print_exc()
            exit_now(1)
        traceback.print_exception(error.with_traceback(_without_runner_frames(error.__traceback__, script)))
        _fail(steps, error, 1)
    if steps.forked:
        # At once: a forked child lacks the profiler's threads, and the interpreter would wait for them at exit.
        exit_now(0)
    steps.close(None)
    if not steps.seen and latest() is None:
        messages.report_failure(
            RecordingError(
                f"{script} made no optimizer step, so there was no step to record. Steps are counted from "
                f"torch.optim optimizers; in a loop without one, {STEP_ADVICE}."
            )
        )
        return 1
    return 0


def _fail(steps: OptimizerSteps | ScriptProfilerSteps, error: BaseException, code: int) -> NoReturn:
    """End this rank even if closing its recording fails: a rank that stays would block its peers."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # while the trace is written; torchrun kills after some seconds
    try:
        steps.close(error)
    finally:
        exit_now(code)


def _without_runner_frames(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Drop the frames of this module and runpy, so that the traceback is the one that Python would show."""
    first = trace
    while first is not None and os.path.abspath(first.tb_frame.f_code.co_filename) != os.path.abspath(script):
        first = first.tb_next
    return first or trace


if __name__ == "__main__":
    main()
