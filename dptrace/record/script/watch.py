"""Prepare a rank of a script to be recorded: what ends its steps, and what the launcher may ask it."""

from __future__ import annotations

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptrace.record.failures.hangs import install_stack_dump
from dptrace.record.run_folder.messages import LauncherSettings
from dptrace.record.script.closures import mark_closure
from dptrace.record.script.optimizer_steps import OptimizerSteps
from dptrace.record.script.profiler_steps import ScriptProfilerSteps
from dptrace.record.script_profiler import guard

__all__ = ["Steps", "watch_steps"]

Steps = OptimizerSteps | ScriptProfilerSteps
"""What records a script: dptrace's profiler by its optimizer's steps, or the script's own profiler."""


def watch_steps() -> Steps:
    """Prepare this process, which is a rank, to be recorded; call this before the program runs."""
    install_stack_dump()
    guard.install()  # before the script can prepare a profiler of its own
    settings = LauncherSettings.from_environment()
    adopts = settings is not None and settings.use_script_profiler
    if settings is not None and adopts:
        adopted = ScriptProfilerSteps(settings)
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(adopted)
        return adopted
    steps = OptimizerSteps()
    steps.install()
    return steps
