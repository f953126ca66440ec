"""The kernels of a run and their tasks."""

from __future__ import annotations

import dptrace
from dptrace.replay.gains.ground import Ground


def test_each_kernel_has_its_task(run: dptrace.Run) -> None:
    """The kernels of all steps of both ranks are as long as their tasks."""
    ground = Ground(run, run.replay.model)

    assert 2 * 4 * 3 == len(ground.compute.kernels)
    assert ground.compute.kernels.ns.tolist() == run.replay.model.graph.duration_ns[ground.tasks].tolist()
