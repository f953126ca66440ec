"""Run one rank in a task of ``srun``: ``python -m dptrace.record.launch.slurm_rank [-m MODULE | SCRIPT] [ARGUMENTS]``.

torchrun started this process as the only one of its machine. Here it learns its real place.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

from dptrace.record.launch.slurm import SlurmTask, slurm_task
from dptrace.record.rank_metadata import LOCAL_RANK_ENV
from dptrace.record.ranks.accelerator import available_accelerator

__all__ = ["main", "place"]


def place(task: SlurmTask, gpus: int) -> Mapping[str, str]:
    """Return the environment variables that say where a rank is.

    Args:
        gpus: how many this task sees.
    """
    # A task that sees one GPU has it as its GPU 0, whatever its number on the machine: scripts use cuda:LOCAL_RANK.
    return {
        "LOCAL_RANK": "0" if gpus == 1 else str(task.local_task),
        LOCAL_RANK_ENV: str(task.local_task),
        "LOCAL_WORLD_SIZE": str(task.local_tasks),
        "GROUP_RANK": str(task.machine),
        "GROUP_WORLD_SIZE": str(task.machines),
    }


def main() -> None:
    """Set this rank's place and become the module or script that the command line names."""
    task = slurm_task(os.environ)
    assert task is not None, "srun did not start this process"
    accelerator = available_accelerator()
    os.environ |= place(task, 0 if accelerator is None else accelerator.module.device_count())
    if sys.argv[1] == "-m":
        module = sys.argv[2]
        sys.argv = sys.argv[2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
