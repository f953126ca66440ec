"""Prepare a rank of a script to be recorded: what ends its steps, what the launcher may ask it, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.record.failures.hangs import install_stack_dump
from dptrace.record.ranks.process_tree import tie_to_parent
from dptrace.record.run_folder.messages import LauncherSettings
from dptrace.record.script.closures import mark_closure
from dptrace.record.script.optimizer_steps import OptimizerSteps
from dptrace.record.script.profiler_steps import ScriptProfilerSteps
from dptrace.record.script_profiler import guard

__all__ = ["Steps", "watch_steps", "write_when_terminated"]

_POLL_S = 0.05

Steps = OptimizerSteps | ScriptProfilerSteps
"""What records a script: dptrace's profiler by its optimizer's steps, or the script's own profiler."""


def watch_steps() -> Steps:
    """Prepare this process, which is a rank, to be recorded; call this before the program runs."""
    install_stack_dump()
    guard.install()  # before the script can prepare a profiler of its own
    settings = LauncherSettings.from_environment()
    adopted = ScriptProfilerSteps(settings) if settings is not None else None
    if settings is not None and adopted is not None and settings.use_script_profiler:
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(adopted)
        steps: Steps = adopted
    else:
        steps = OptimizerSteps(adopted)
        steps.install()
    _write_before_exit(steps)
    return steps


def write_when_terminated(steps: Steps, parent: str | None) -> None:
    """Let this process write what it has recorded before it ends by SIGTERM, or because its parent has ended.

    Args:
        parent: id of the process that started it, if known.
    """
    _exit_when_terminated()
    tie_to_parent(parent, lambda: steps.writing)


def _exit_when_terminated() -> None:
    """Take SIGTERM as an exit, so that a rank whose peer has died writes the steps that it has recorded.

    torchrun sends it to the peers of a dead rank, and the system to ranks whose torchrun has died.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _write_before_exit(steps: Steps) -> None:
    """Let a script that calls os._exit() write first: it skips all that Python does at exit."""
    leave, process = os._exit, os.getpid()

    def write_and_leave(status: int) -> NoReturn:
        with suppress(BaseException):
            if os.getpid() == process:
                # A profiler can only be stopped on its own thread; another one may end the process because that hangs.
                if threading.current_thread() is threading.main_thread():
                    steps.close(SystemExit(status) if status else None)
                while steps.writing:
                    time.sleep(_POLL_S)
        leave(status)

    os._exit = write_and_leave
