"""Start a command as ``srun`` would: several processes, each with the environment variables of its task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.recordings import environment

__all__ = ["srun", "task_environment"]


def task_environment(task: int, per_machine: int, machines: int, job: int = 4242) -> dict[str, str]:
    """Return the variables of a task that ``srun`` has placed block by block; this machine plays all of them."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": str(machines),
        "SLURM_STEP_NUM_NODES": str(machines),
        "SLURM_NTASKS": str(per_machine * machines),
        "SLURM_STEP_NUM_TASKS": str(per_machine * machines),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_machine}(x{machines})" if machines > 1 else str(per_machine),
        "SLURM_STEP_NODELIST": ",".join(["localhost", *(f"far{number}" for number in range(1, machines))]),
        "SLURM_NODEID": str(task // per_machine),
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task % per_machine),
    }


def srun(
    *arguments: str, cwd: Path, per_machine: int, machines: int, job: int = 4242
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``dptrace`` with arguments as all tasks of a step, and return how each ended."""
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "dptrace", *arguments],
            cwd=cwd,
            env=environment() | task_environment(number, per_machine, machines, job),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(per_machine * machines)
    ]
    ends = [task.communicate(timeout=300) for task in tasks]
    return [
        subprocess.CompletedProcess(task.args, task.returncode, *end) for task, end in zip(tasks, ends, strict=True)
    ]
