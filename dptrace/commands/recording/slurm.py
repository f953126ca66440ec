"""The options of ``srun dptrace record`` that Slurm's environment variables answer."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from dptrace.commands.shared.options import given_options
from dptrace.errors import UsageError
from dptrace.record.options.modes import MODES

if TYPE_CHECKING:
    from dptrace.record.launch.slurm import SlurmTask

__all__ = ["check_gpus_of_task", "task_of_srun"]


def task_of_srun(
    mode: str | None, gpus: int | None, script_name: str | None, options: dict[str, Any]
) -> SlurmTask | None:
    """Return which of several tasks of ``srun`` this process is, and set the options that follow from it.

    Options on the command line take precedence; with --nnodes, Slurm's variables do not count at all.

    Args:
        options: changed in place: ``nnodes``, ``node_rank``, ``rdzv_endpoint``, ``out``, ``quiet``.

    Raises:
        UsageError: the tasks do not fit what is to be recorded.
    """
    if "SLURM_STEP_ID" not in os.environ or "nnodes" in given_options():
        return None
    from dptrace.record.launch.slurm import slurm_task

    task = slurm_task(os.environ, on_terminal=sys.stdin is not None and sys.stdin.isatty())
    if task is None:
        return None
    if mode in MODES and MODES[mode].single_gpu:
        raise UsageError(f"--mode {mode} trains on one GPU, and srun started {task.tasks} tasks: use srun --ntasks=1.")
    if task.starts_one_rank and gpus is not None and gpus != task.local_tasks:
        raise UsageError(
            f"--gpus {gpus}: srun started {task.local_tasks} tasks on this machine, one for each rank. Leave --gpus "
            "out, or start one task per machine with srun --ntasks-per-node=1."
        )
    options["nnodes"] = task.launchers
    if options["node_rank"] is None:
        options["node_rank"] = task.launcher
    options["rdzv_endpoint"] = options["rdzv_endpoint"] or task.endpoint
    # A job that has waited for hours must not fail because an earlier one has left a run of that name.
    options["out"] = options["out"] or f"runs/{mode or script_name}{task.suffix}"
    options["quiet"] = options["quiet"] or (task.launcher > 0 and not options["verbose"])
    return task


def check_gpus_of_task(task: SlurmTask, gpus: int) -> None:
    """Check that a task that starts one rank sees a GPU for it.

    Args:
        gpus: how many this task sees; with none at all, it trains on the CPU.

    Raises:
        UsageError: it sees some, and fewer than the machine has tasks.
    """
    if 1 < gpus <= task.local_task:
        raise UsageError(
            f"Task {task.task} is number {task.local_task} of its machine and sees {gpus} GPUs: start as many tasks as "
            "GPUs, or give each task its own with srun --gpus-per-task=1."
        )
