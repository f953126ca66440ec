"""The module that each task of a graph belongs to."""

from __future__ import annotations

from pathlib import Path

import dptrace
from dptrace.replay.graph.task_modules import modules_of_tasks
from tests.support.replay_files import write_job_with_modules


def test_a_kernel_is_of_the_same_module_on_all_ranks(tmp_path: Path) -> None:
    """Both ranks' forward kernels are of ``layers.0``."""
    run = dptrace.open(write_job_with_modules(tmp_path), cache=False)
    modules = modules_of_tasks(run.replay.model)
    forward = run.replay.model.graph.names.index("forward")
    tasks = run.replay.model.graph.name == forward

    assert ("layers.0", "layers.1") == modules.names
    assert {0} == set(modules.module[tasks].tolist())
