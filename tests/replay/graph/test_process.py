"""The tasks of one process."""

from __future__ import annotations

import numpy as np
import pytest

import dptrace
from dptrace.replay.graph.process import Process


@pytest.fixture(params=[0, 1])
def process(run: dptrace.Run, request: pytest.FixtureRequest) -> Process:
    """One of the two processes of the job."""
    found: Process = run.replay.model.processes[request.param]
    return found


def test_a_process_has_no_edge_to_another(process: Process) -> None:
    """Both ends of every edge are tasks of the process itself."""
    own = range(process.first_task, process.first_task + len(process.start_ns))

    assert {*process.edge.src.tolist(), *process.edge.dst.tolist()} <= {*own}


def test_every_interval_of_a_device_is_a_task(process: Process) -> None:
    """Each interval of the timeline has a task of its own, whose time is that of the interval."""
    ((_, tasks),) = process.timelines
    places = tasks - process.first_task

    assert (tasks >= 0).all()
    assert len(tasks) == len(np.unique(tasks))
    assert (process.duration_ns[places] > 0).all()
