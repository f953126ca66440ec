"""Scripts that train as well-known ones do, recorded by ``dptrace record`` without a change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import dptrace
from tests.support import recordings
from tests.support.training_scripts import FRAMEWORKS, SCRIPTS

pytest.importorskip("torch")

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.filterwarnings("default")]

TESTED = ("nanogpt", "fsdp2", *FRAMEWORKS)
"""benchmarks/record_survey.py records the others too."""


@pytest.mark.parametrize("name", TESTED)
def test_a_well_known_way_to_train_is_recorded_unchanged(name: str, tmp_path: Path) -> None:
    """Two steps of both ranks, with one pass of the loop in each, forward, backward and optimizer, and no note."""
    if name in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[name], reason="needs the extra frameworks")
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    schedule = ["--steps", "2", "--warmup", "2", "--wait", "2"]
    done = recordings.dptrace("record", "--gpus", "2", *schedule, "-o", "run", "train.py", cwd=tmp_path)

    assert "trained" in done.stdout
    run = dptrace.open(tmp_path / "run")
    assert ("complete", []) == (run.metadata["status"], run.metadata["notes"])
    split = run.steps()
    assert [2, 2] == split.groupby("rank")["step"].count().tolist()
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)
    for rank in range(2):
        with gzip.open(tmp_path / "run" / f"rank{rank}.pt.trace.json.gz") as file:
            names = [event.get("name", "") for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        assert 2 == sum(label.startswith("Optimizer.step") for label in names)
