"""Counting the steps of a script that was not changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dptrace.record.run_folder.messages import LauncherSettings

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Assign a launcher's folder to this process, for one recorded step after two of warm-up."""
    monkeypatch.delitem(sys.modules, "dptrace.record.script.explicit_step", raising=False)
    assignment = LauncherSettings(str(tmp_path), "runs/x", steps=1, warmup=2, wait=0)
    for name, value in assignment.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr("dptrace.record.output.end_with_parent", lambda signal: None)
    return tmp_path


def _optimizers(count: int) -> list[Any]:
    return [torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1) for _ in range(count)]


def _piece(folder: Path) -> dict[str, object]:
    piece: dict[str, object] = json.loads((folder / "window1" / "rank0.piece.json").read_text())
    return piece


def test_several_optimizers_in_a_loop_count_once(folder: Path) -> None:
    """The first optimizer step starts the count; each further one of the same optimizer ends a step."""
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    steps = OptimizerSteps()
    generator, critic = _optimizers(2)
    for _ in range(3):
        steps(generator, (), {})
        steps(critic, (), {})
        assert not (folder / "window1").exists()
    steps(generator, (), {})
    steps.close(None)

    assert (1, 3) == (_piece(folder)["recorded_steps"], _piece(folder)["parameters"])
    assert [] == _piece(folder)["notes"]


def test_an_optimizer_that_is_given_up_hands_over_to_the_next(folder: Path) -> None:
    """The steps of a script that continues with a new optimizer are counted further."""
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    steps = OptimizerSteps()
    optimizers = _optimizers(2)
    steps(optimizers[0], (), {})
    del optimizers[0]
    for _ in range(3):
        steps(optimizers[0], (), {})
    steps.close(None)

    assert 1 == _piece(folder)["recorded_steps"]


def test_a_script_that_records_itself_is_left_to_it(folder: Path) -> None:
    """Optimizer steps inside a script's own record() are not counted a second time."""
    from dptrace.record import record
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    steps, (optimizer,) = OptimizerSteps(), _optimizers(1)
    with record("elsewhere", steps=7, warmup=5) as recording:
        for _ in range(2):
            steps(optimizer, (), {})
        assert 0 == recording.steps_done
        assert 3 == recording.total_steps
        for _ in range(3):
            recording.step()
    steps(optimizer, (), {})
    steps.close(None)

    assert (1, []) == (_piece(folder)["recorded_steps"], _piece(folder)["notes"])


def test_a_failure_is_reported_before_anything_else(folder: Path) -> None:
    """The failure message is written even if nothing was recorded."""
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    OptimizerSteps().close(ValueError("boom"))

    message = json.loads((folder / "rank0.failure.json").read_text())
    assert ("ValueError: boom", False, 1) == (message["message"], message["advice"], message["exit_code"])
