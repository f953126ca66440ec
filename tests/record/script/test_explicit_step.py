"""A script that says itself where its steps end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dptrace.record.messages import LauncherSettings

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Start in a process that has recorded nothing, in an empty folder."""
    from dptrace.record import steps

    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr(steps, "_running", None)
    monkeypatch.delitem(sys.modules, steps.EXPLICIT, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_torch_it_does_nothing() -> None:
    """A training that needs no torch keeps the line, too, where torch is not installed."""
    code = "import sys; sys.modules['torch'] = None; from dptrace.record import step; step(1.0)"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_recording_it_does_nothing(folder: Path) -> None:
    """A script keeps the line when it is not recorded."""
    from dptrace.record import step

    step()
    step(1.0)

    assert [] == list(folder.iterdir())


@pytest.mark.heavy
@pytest.mark.spawn
def test_importing_dptrace_is_enough(tmp_path: Path) -> None:
    """A script that nothing records needs no import of dptrace.record, and nothing is written."""
    code = "import dptrace; dptrace.record.step(); dptrace.record.step(1.0)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)

    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_in_a_recorded_loop_it_is_the_recordings_own(folder: Path) -> None:
    """It ends a step, with a loss, of the record() around it."""
    from dptrace.record import record, step

    with record("x", steps=1, warmup=2, wait=0) as recording:
        for _ in range(3):
            step(2.0)

    assert 3 == recording.steps_done
    assert [2.0] * 3 == json.loads(Path("x/run.json").read_text())["losses"]


def test_in_a_script_it_counts_instead_of_the_optimizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the function is enough: the first call begins the recording, each further one ends a step."""
    from dptrace.record.script import optimizer_steps

    for name, value in LauncherSettings(str(folder), "runs/x", steps=2, warmup=2, wait=0).environment().items():
        monkeypatch.setenv(name, value)
    steps = optimizer_steps.OptimizerSteps()
    monkeypatch.setattr("dptrace.record.steps._running", steps)
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1)

    from dptrace.record import step

    for _ in range(5):
        for _ in range(7):
            steps.after_optimizer(optimizer)
        assert not (folder / "window1" / "rank0.piece.json").exists()
        step(0.5)
    steps.close(None)

    piece = json.loads((folder / "window1" / "rank0.piece.json").read_text())
    assert (2, 3, [0.5] * 4) == (piece["recorded_steps"], piece["parameters"], piece["losses"])
    assert steps.seen
