"""The place of one rank in a task of srun."""

from __future__ import annotations

import pytest

from dptrace.record.launch.slurm import slurm_task
from tests.support.srun import task_environment

pytest.importorskip("torch")


@pytest.mark.parametrize(("gpus", "local"), [(0, "3"), (1, "0"), (4, "3")])
def test_local_rank_is_a_gpu_that_the_task_sees(gpus: int, local: str) -> None:
    """With --gpus-per-task=1 a task's GPU is its GPU 0; otherwise the number on the machine is the GPU's."""
    from dptrace.record.launch.slurm_rank import place

    task = slurm_task(task_environment(7, 4, 2))
    assert task is not None
    variables = place(task, gpus)

    assert local == variables["LOCAL_RANK"]
    assert ("3", "4", "1", "2") == (
        variables["DPTRACE_LOCAL_RANK"],
        variables["LOCAL_WORLD_SIZE"],
        variables["GROUP_RANK"],
        variables["GROUP_WORLD_SIZE"],
    )
