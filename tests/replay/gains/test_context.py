"""The kernels of a run and their tasks."""

from __future__ import annotations

import dptrace
from dptrace.replay.gains.context import GainContext


def test_each_kernel_has_its_task(run: dptrace.Run) -> None:
    """The kernels of all steps of both ranks are as long as their tasks."""
    context = GainContext(run, run.replay.model)

    assert 2 * 4 * 3 == len(context.compute.kernels)
    assert context.compute.kernels.ns.tolist() == run.replay.model.graph.duration_ns[context.tasks].tolist()
