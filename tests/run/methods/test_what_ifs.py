"""The methods of a run that replay it."""

from __future__ import annotations

from pathlib import Path

import dptrace
from tests.support.replay_files import write_job


def test_the_graph_is_built_once(tmp_path: Path) -> None:
    """Several what-ifs of a run share its graph, and agree with the function."""
    run = dptrace.open(write_job(tmp_path), cache=False)

    assert run.whatif(compute=2).predicted_step_ns == dptrace.whatif(run, compute=2).predicted_step_ns
    assert run.replay is run.replay
